"""A day that is replaced as a whole: a writer whose actions are held until the log has all of them, beside one that writes at
once. Input Sets upstream are set aside, and retried at any moment.

The destination is the old day, or the whole new one, after each step. In one, two and three groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.external_rules import MarkerRow, Owner
from airflow_logio.protocol.logic import Emit, OperatorSpec, Output, Write
from airflow_logio.protocol.scope_rules import DayRun, ScopeContender, ScopeRow
from airflow_logio.protocol.values import Event
from airflow_logio.protocol.writes import CLOSE, PendingWrite, WriterKey
from airflow_logio.testing.simulator.codec import Codec, PlainCodec
from airflow_logio.testing.simulator.external_systems import (
    THIS_RUN,
    Client,
    EarlierRun,
    ExternalSystem,
    TableChange,
    Transaction,
    WriteAttempt,
    WritePhase,
)
from airflow_logio.testing.simulator.plan import GroupPlan, ListSource, Observed, Scenario, Systems
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.plain_operators import SCOPE, PlainLogic, Saving, State, group, operator, source

EVENTS = 80
INPUT: tuple[list[int], ...] = tuple([index, 100 + index] for index in range(EVENTS))
REFUSALS = 2
"""How often the generation of some Input Sets raises."""


@dataclass
class Service(ExternalSystem):
    """An external service that a function needs, and that is sometimes unavailable."""

    refused: Counter[str] = field(default_factory=Counter)


class DayTable(ExternalSystem):
    """A table with one day. It changes in `commit` alone, which looks at the day as each reader would see it.

    Two earlier runs of the day are still there: a driver of one has claimed it, and one of the other is about to.
    """

    scope: ScopeRow | None = None
    """Which run has claimed the day, and whose rows are there."""

    def begin(self, client: Client) -> DayTransaction:
        if not self.earlier:
            opening = client.taken[0]
            self.earlier += [EarlierDay(self, client.key, run, opening, begun=begun) for run, begun in EARLIER]
        return DayTransaction(self, client)

    def claim(self, run: Owner) -> None:
        """With its opening."""
        live = (None, None, None) if self.scope is None else self.scope[-3:]
        self.scope = ScopeRow(*day_run(run), *live)

    def switch(self, run: Owner) -> None:
        """With its closing: what was there is gone."""
        assert self.scope is not None
        if self.scope.live_run == THIS_RUN.run_uid != run.run_uid:
            raise Violation(NOT_OLDER, f"{run.run_uid} has replaced the day of {self.scope.live_run}")
        self.scope = self.scope._replace(live_run=run.run_uid)

    def commit(self, run: Owner, key: WriterKey, before: MarkerRow, marker: MarkerRow, change: TableChange) -> int:
        if run is not THIS_RUN:
            if self.marker_row(run, key) != before:
                return 0
            self.markers[run.run_uid, key] = marker
            return 1
        changed = super().commit(run, key, before, marker, change)
        actions = [write.header["action"] for write in self.applied[key]]
        rows = [PlainCodec().decode(write.body) for write in self.applied[key]]
        whole = actions == ["open", *("insert" for _ in INPUT), CLOSE] and sorted(rows[1:-1]) == sorted(wanted())
        if actions != ["open"] and not whole:
            shown = f"{len(rows)} of {len(INPUT) + 2} write actions are applied, the last one is {actions[-1]!r}"
            raise Violation("a_day_is_the_old_one_or_the_whole_new_one", shown)
        return changed


NOT_OLDER = "an_older_run_does_not_replace_the_day_of_a_younger_one"
EARLIER = ((Owner("the run before last", 1.0), True), (Owner("the last run", 2.0), False))


def day_run(run: Owner) -> DayRun:
    return DayRun("days", "log", int(run.started_at), run.run_uid)


class DayAttempt(WriteAttempt):
    """A transaction that claims the day, or closes it: as in `table_days` and `closing_transaction`, the scope is looked at
    between marker and commit."""

    _system: DayTable

    def lock_scope(self) -> bool:
        """False if another client holds the lock."""
        return self._lock(("scope", *self.table))

    def _read_marker(self) -> bool:
        has_read = super()._read_marker()
        if self._stage is WritePhase.COMMIT:
            self._stage = WritePhase.OWNER
        return has_read

    def _read_owner(self) -> bool:
        if not self.lock_scope():
            return False
        mine, row = ScopeContender("day", "wh", "day=1", day_run(self._run)), self._system.scope
        if self._opens():
            mine.check_claim(row)
        else:
            mine.check_close(row)
        self._stage = WritePhase.COMMIT
        return True

    def _commit(self) -> bool:
        opens = self._opens()
        committed = super()._commit()
        if opens:
            self._system.claim(self._run)
        else:
            self._system.switch(self._run)
        return committed

    def _opens(self) -> bool:
        return bool(self._pending[0].header["action"] == "open")


class DayTransaction(Transaction):
    """An attempt at the table of a day."""

    def __init__(self, system: DayTable, client: Client) -> None:
        self._watch = client.watch
        self._watch.before_write(client.key, client.taken)
        self._attempt = DayAttempt(system, client.key, client.token(), client.loaded(), is_alive=client.liveness())


class EarlierDay(EarlierRun):
    """A driver of an earlier run of the day. It is slow, and retries what is refused."""

    _system: DayTable

    def __init__(self, system: DayTable, key: WriterKey, run: Owner, opening: PendingWrite, *, begun: bool) -> None:
        super().__init__(system, key, run, opening, begun=False)
        if begun:
            system.markers[run.run_uid, key] = MarkerRow(1, 1)
            system.claim(run)
            self._next = 2

    def advance(self, steps: int) -> None:
        if self._attempt is None:
            numbers = {1: "open"} if self._next == 1 else {2: "insert", 3: CLOSE}
            writes = [PendingWrite(*self.key, number, {"action": what}, 0, b"") for number, what in numbers.items()]
            self._attempt = DayAttempt(self._system, self.key, 1, writes, run=self._run)
        super().advance(steps)


def wanted() -> list[list[int]]:
    return [[2 * value for value in values] for values in INPUT]


class Cleaning(PlainLogic):
    """Raises the first few times on events that need the service."""

    def __init__(self, systems: Systems) -> None:
        self._service = cast(Service, systems["service"])

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if held[0] % 9 in (4, 8) and self._service.refused[inset_id] < REFUSALS:
            self._service.refused[inset_id] += 1
            raise OperatorFailed(f"Input Set {inset_id} cannot be used today")
        return (Emit("out", [2 * value for value in held], len(held)),)


class Each(PlainLogic):
    """A window that closes behind each event, so that late ones find theirs open."""

    stateless = False

    def initial_state(self) -> State:
        return {"seen": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state["seen"] += 1
        return {str(state["seen"]): event.payload}

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)


class ByDay(Saving):
    """Makes each event a write action. All of them are applied with the closing one."""

    def opening(self) -> Sequence[Write]:
        return (Write(self._connection, {"action": "open"}, []),)

    def closing(self) -> Sequence[Write]:
        return (Write(self._connection, {"action": CLOSE}, []),)


WIRES = {"read.out": ["clean.in"], "clean.out": ["window.in"], "window.out": ["day.in", "copy.in"]}


def plans(*cuts: Sequence[str]) -> Callable[[Systems], Sequence[GroupPlan]]:
    """The pipeline cut into these groups."""

    def groups(systems: Systems) -> Sequence[GroupPlan]:
        specs: Mapping[str, OperatorSpec] = {
            "read": source("read", in_scope=True),
            "clean": operator("clean", Cleaning(systems), quarantines=True, **SCOPE),
            "window": operator("window", Each(), reads_state=True, **SCOPE),
            "day": operator("day", ByDay("wh"), outputs=(), closes=True),
            "copy": operator("copy", Saving("other"), outputs=()),
        }
        return [
            group(
                names[0],
                [specs[name] for name in names],
                {sender: to for sender, to in WIRES.items() if sender.partition(".")[0] in names},
                lineage_in=["clean.in", "window.in"],
            )
            for names in cuts
        ]

    return groups


def judge(seen: Observed, codec: Codec) -> list[str]:
    """Checks that the day was replaced, once, and that nothing is left set aside."""
    day, copy = ([codec.decode(body) for body in seen.writes[name]] for name in ("day>wh", "copy>other"))
    return [
        *([] if sorted(day[1:-1]) == sorted(wanted()) else ["the day was not replaced by all of its rows"]),
        *([] if sorted(copy[1:]) == sorted(wanted()) else ["the writer beside it has not written each row once"]),
        *([f"{sorted(seen.aside)} are still quarantined"] if seen.aside else []),
    ]


def _scenario(name: str, about: str, *cuts: Sequence[str]) -> Scenario:
    return Scenario(
        name,
        plans(*cuts),
        {"read": ListSource((INPUT,))},
        {"service": Service, "wh": DayTable, "other": ExternalSystem},
        judge=judge,
        deterministic=False,
        retries=True,
        about=f"a day that is replaced as a whole, {about}; Input Sets upstream are set aside and retried",
    )


DAY_IN_ONE = _scenario("day_in_one", "in one group", ("read", "clean", "window", "day", "copy"))
DAY_IN_TWO = _scenario("day_in_two", "in two groups", ("read", "clean"), ("window", "day", "copy"))
DAY_IN_THREE = _scenario("day_in_three", "in three groups", ("read",), ("clean", "window"), ("day", "copy"))
