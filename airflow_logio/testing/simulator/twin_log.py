"""Two logs that get the same questions. All answers to a driver must be equal, including refusals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airflow_logio.errors import LogioError
from airflow_logio.protocol.commit_queue import CommitAttempt
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.recovery import LoggedEvent, Recovered
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, FenceRow, GroupRef, LaunchRecipe
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.status_records import GroupStatus, RunSight, ScalingRequest
from airflow_logio.store.records.upkeep_records import Collected, Retried
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.simulator.log_port import Session
from airflow_logio.testing.simulator.violation import Violation

T = TypeVar("T")


def _both(what: str, first: Callable[[], T], second: Callable[[], T], shown: Callable[[T], Any] = lambda one: one) -> T:
    """The answer of both logs. Raises what both raise, or `Violation` if they differ."""
    answers: list[Any] = []
    errors: list[LogioError] = []
    for ask in (first, second):
        try:
            answers.append(ask())
        except LogioError as error:
            errors.append(error)
    if len(errors) == 1 or (errors and type(errors[0]) is not type(errors[1])):
        raise Violation("both_logs_agree", f"{what}: database and memory differ: {answers or ''} {errors}")
    if errors:
        raise errors[0]
    if shown(answers[0]) != shown(answers[1]):
        raise Violation(
            "both_logs_agree", f"{what}: {shown(answers[0])} in the database, {shown(answers[1])} in memory"
        )
    result: T = answers[0]
    return result


def _of_groups(found: Sequence[GroupStatus]) -> list[tuple[Any, ...]]:
    return [(one.group, one.state, one.desired, one.incarnation, one.ready) for one in found]


class _Dropped:
    """References that each log has let go of. Each decides for itself how much a batch of garbage collection finds."""

    def __init__(self) -> None:
        self._by_one: set[str] = set()

    def by_both(self, *found: Sequence[Collected]) -> tuple[str, ...]:
        """Those that both have let go of now, given what each has just collected."""
        refs = [ref for answers in found for one in answers for ref in one.refs]
        both = []
        for ref in refs:
            if ref in self._by_one:
                self._by_one.discard(ref)
                both.append(ref)
            else:
                self._by_one.add(ref)
        return tuple(both)


class TwinLog:
    def __init__(self, sql: SqlLogStore, memory: MemoryLogStore) -> None:
        self._sql = sql
        self._memory = memory
        self._claims: dict[str, Claim] = {}
        self._dropped = _Dropped()
        self._uid = ""
        """Id of the run in memory."""

    def start_run(self, spec: RunSpec) -> Run:
        def in_memory() -> Run:
            made = self._memory.start_run(spec)
            self._uid = made.uid
            return made

        return _both("start_run", lambda: self._sql.start_run(spec), in_memory, lambda run: run.run_id)

    def claim(
        self,
        run_id: int,
        group: str,
        *,
        expected: int,
        reason: str,
        by_user: bool = False,
        request_id: int | None = None,
    ) -> Claim:
        def in_memory() -> Claim:
            made = self._memory.claim(
                run_id, group, expected=expected, reason=reason, by_user=by_user, request_id=request_id
            )
            self._claims[f"{group}/{made.incarnation}"] = made
            return made

        return _both(
            f"claim of {group}",
            lambda: self._sql.claim(
                run_id, group, expected=expected, reason=reason, by_user=by_user, request_id=request_id
            ),
            in_memory,
            lambda claim: (claim.group, claim.incarnation, claim.recovery),
        )

    def register(self, claim: Claim, identity: DriverIdentity) -> GroupRef:
        mine = self._claims[f"{claim.group}/{claim.incarnation}"]
        return _both(
            f"registration of {claim.group}",
            lambda: self._sql.register(claim, identity),
            lambda: self._memory.register(mine, identity),
        )

    def heartbeat(self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int) -> GroupState:
        return _both(
            f"heartbeat of {ref.group}",
            lambda: self._sql.heartbeat(ref, beat, ready=ready, rss_bytes=rss_bytes),
            lambda: self._memory.heartbeat(ref, beat, ready=ready, rss_bytes=rss_bytes),
        )

    def declare_dead(self, ref: GroupRef, cause: str) -> bool:
        return _both(
            f"death of {ref.group}",
            lambda: self._sql.declare_dead(ref, cause),
            lambda: self._memory.declare_dead(ref, cause),
        )

    def halted(self, ref: GroupRef) -> bool:
        return _both("halted", lambda: self._sql.halted(ref), lambda: self._memory.halted(ref))

    def request(self, run_id: int, group: str, desired: GroupState) -> bool:
        return _both(
            f"wish for {group}",
            lambda: self._sql.request(run_id, group, desired),
            lambda: self._memory.request(run_id, group, desired),
        )

    def group(self, run_id: int, group: str) -> GroupStatus:
        return _both(
            f"state of {group}",
            lambda: self._sql.group(run_id, group),
            lambda: self._memory.group(run_id, group),
            lambda status: (status.state, status.desired, status.incarnation),
        )

    def groups(self, run_id: int) -> Sequence[GroupStatus]:
        return _both(
            "states of all groups",
            lambda: self._sql.groups(run_id),
            lambda: self._memory.groups(run_id),
            _of_groups,
        )

    def sight(self, uids: Collection[str]) -> Sequence[RunSight]:
        return _both(
            "a look at the run",
            lambda: self._sql.sight(uids),
            lambda: self._memory.sight([self._uid]),
            lambda found: [
                (one.run.state, _of_groups(one.groups), [_without_times(request) for request in one.requests])
                for one in found
            ],
        )

    def find_run(self, uid: str) -> Run:
        return _both(
            "the run", lambda: self._sql.find_run(uid), lambda: self._memory.find_run(self._uid), lambda run: run.state
        )

    def retry_quarantined(self, run_id: int, group: str | None = None) -> Retried:
        return _both(
            "retry of quarantined Input Sets",
            lambda: self._sql.retry_quarantined(run_id, group),
            lambda: self._memory.retry_quarantined(run_id, group),
            lambda retried: ({(one.operator, one.inset_id) for one in retried.input_sets}, retried.to_launch),
        )

    def slots(self, run_id: int, group: str) -> Sequence[Slot]:
        return _both(
            f"slots of {group}",
            lambda: self._sql.slots(run_id, group),
            lambda: self._memory.slots(run_id, group),
            list,
        )

    def rescale(
        self,
        run_id: int,
        group: str,
        placement: Placement,
        *,
        retire: Collection[str] = (),
        request_id: int | None = None,
    ) -> int:
        return _both(
            f"moves of slots of {group}",
            lambda: self._sql.rescale(run_id, group, placement, retire=retire, request_id=request_id),
            lambda: self._memory.rescale(run_id, group, placement, retire=retire, request_id=request_id),
        )

    def slots_sight(self, groups: Collection[tuple[int, str]]) -> Mapping[tuple[int, str], SlotsSight]:
        return _both(
            f"slots and work of {sorted(groups)}",
            lambda: self._sql.slots_sight(groups),
            lambda: self._memory.slots_sight(groups),
        )

    def request_scaling(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        return _both(
            f"request to scale {group}",
            lambda: self._sql.request_scaling(run_id, group, replicas, by=by, reason=reason, key=key),
            lambda: self._memory.request_scaling(run_id, group, replicas, by=by, reason=reason, key=key),
            _without_times,
        )

    def scalings(self, run_id: int, group: str | None = None) -> Sequence[ScalingRequest]:
        return _both(
            "requests to scale",
            lambda: self._sql.scalings(run_id, group),
            lambda: self._memory.scalings(run_id, group),
            lambda found: [_without_times(one) for one in found],
        )

    def settle_scaling(self, request_id: int, state: ScalingState, note: str = "") -> bool:
        return _both(
            f"end of request {request_id}",
            lambda: self._sql.settle_scaling(request_id, state, note),
            lambda: self._memory.settle_scaling(request_id, state, note),
        )

    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        _both(
            f"launch recipe of {group}",
            lambda: self._sql.note_launch(run_id, group, recipe),
            lambda: self._memory.note_launch(run_id, group, recipe),
        )

    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        return _both(
            f"launch recipe of {group}",
            lambda: self._sql.launch_recipe(run_id, group),
            lambda: self._memory.launch_recipe(run_id, group),
        )

    def finish_run(self, run_id: int) -> bool:
        return _both("end of the run", lambda: self._sql.finish_run(run_id), lambda: self._memory.finish_run(run_id))

    def references(self, run_id: int, prefix: str) -> Collection[str]:
        """A file is needed as long as one of the logs names it."""
        return {*self._sql.references(run_id, prefix), *self._memory.references(run_id, prefix)}

    def collect(self, run_id: int, limit: int) -> Collected:
        in_database, in_memory = self._sql.collect(run_id, limit), self._memory.collect(run_id, limit)
        more = in_database.more or in_memory.more
        return replace(in_memory, more=more, refs=self._dropped.by_both([in_database], [in_memory]))

    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        """On SQLite, the row of the newest run stays."""
        return self._memory.removable(older_than_seconds, unfinished=unfinished)

    def remove_run(self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False) -> Collected:
        """All of it: each log takes its tables in its own order, so batches differ."""
        refs: set[str] = set()
        for log in (self._sql, self._memory):
            while (found := log.remove_run(run_id, limit, unfinished=unfinished, keep_row=keep_row)).more:
                refs.update(found.refs)
        return replace(found, refs=tuple(sorted(refs)))

    def session(self, ref: GroupRef) -> Session:
        return TwinSession(self._sql.session(ref), self._memory.session(ref), self._dropped)


class TwinSession:
    def __init__(self, sql: Session, memory: Session, dropped: _Dropped) -> None:
        self._sql = sql
        self._memory = memory
        self._dropped = dropped
        self.ref = sql.ref

    def open(self, *, raise_epoch: bool = False) -> FenceRow:
        return _both(
            "fence",
            lambda: self._sql.open(raise_epoch=raise_epoch),
            lambda: self._memory.open(raise_epoch=raise_epoch),
        )

    def slots(self) -> Mapping[int, int]:
        return _both("slots of a replica", self._sql.slots, self._memory.slots, dict)

    def commit(self, effects: Effects) -> tuple[Collected, ...]:
        in_memory: list[tuple[Collected, ...]] = []

        def second() -> tuple[Collected, ...]:
            in_memory.append(self._memory.commit(effects))
            return in_memory[0]

        # Each store decides how much a batch of garbage collection finds.
        found = _both("commit", lambda: self._sql.commit(effects), second, len)
        refs = self._dropped.by_both(found, in_memory[0])
        return tuple(replace(one, refs=() if number else refs) for number, one in enumerate(found))

    def resolve(self, attempt: CommitAttempt) -> bool:
        return _both(
            "unknown outcome of a commit", lambda: self._sql.resolve(attempt), lambda: self._memory.resolve(attempt)
        )

    def fetch(self, receiver: Port, after: int, *, max_events: int, max_bytes: int) -> Sequence[LoggedEvent]:
        return _both(
            f"events of {receiver} behind {after}",
            lambda: self._sql.fetch(receiver, after, max_events=max_events, max_bytes=max_bytes),
            lambda: self._memory.fetch(receiver, after, max_events=max_events, max_bytes=max_bytes),
            _events,
        )

    def input_sets(self, operator: str, insets: Sequence[str], max_bytes: int) -> Mapping[str, Sequence[LoggedEvent]]:
        return _both(
            f"Input Sets {insets} of {operator}",
            lambda: self._sql.input_sets(operator, insets, max_bytes),
            lambda: self._memory.input_sets(operator, insets, max_bytes),
            lambda found: {inset_id: _events(of_set) for inset_id, of_set in found.items()},
        )

    def recover(self, operators: Sequence[str]) -> Recovered:
        return _both(
            f"recovery of {', '.join(operators)}",
            lambda: self._sql.recover(operators),
            lambda: self._memory.recover(operators),
            lambda found: (dict(found.states), found.snapshots, _events(found.acknowledged), found.writes),
        )

    def acknowledged(self, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        return _both(
            "acknowledged events",
            lambda: self._sql.acknowledged(receivers),
            lambda: self._memory.acknowledged(receivers),
            dict,
        )

    def check(self) -> None:
        _both("check of the fence", self._sql.check, self._memory.check)

    def park(self, error: str) -> None:
        _both("park", lambda: self._sql.park(error), lambda: self._memory.park(error))


def _without_times(one: ScalingRequest) -> tuple[Any, ...]:
    return (one.request_id, one.run_id, one.group, one.replicas, one.state, one.by, one.reason, one.note, one.key)


def _events(found: Sequence[LoggedEvent]) -> list[tuple[Any, ...]]:
    return [(row.receiver, row.event, row.event.body, row.event.about, row.inset_id) for row in found]
