"""Two logs that get the same questions. All answers to a driver must be equal, including refusals.

What can be asked is what the port declares: the classes are derived from `LogStore` and `GroupSession`. Here stand only the
answers that are compared by a part of them, and the questions that each log answers in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from airflow_logio.errors import LogioError
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest
from airflow_logio.store.records.upkeep_records import BY_PERSON, Collected
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.simulator.violation import Violation

Shown = Callable[[Any], Any]
"""The part of an answer that both logs must have in common: ids and times differ."""


def twin_log(sql: SqlLogStore, memory: MemoryLogStore) -> LogStore:
    """A log that asks both, and answers as the database does. Raises what both raise, and `Violation` if they differ."""
    return cast(LogStore, _TwinLog(sql, memory))


class _Pairs:
    """What the two logs name differently: the ids of runs, and the nonces of claims."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._claims: dict[tuple[str, int], Claim] = {}

    def learn(self, in_database: object, in_memory: object) -> None:
        """Both have answered the same question."""
        if isinstance(in_database, Run) and isinstance(in_memory, Run):
            self._uids[in_database.uid] = in_memory.uid
        elif isinstance(in_memory, Claim):
            self._claims[in_memory.group, in_memory.incarnation] = in_memory

    def in_memory(self, value: Any) -> Any:
        """An argument as the log in memory knows it."""
        match value:
            case Claim():
                return self._claims[value.group, value.incarnation]
            case str():
                return self._uids.get(value, value)
            case list() if value and isinstance(value[0], str):
                return [self._uids.get(one, one) for one in value]
        return value


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


class _Twin:
    """Asks an object of the database and one in memory the same questions."""

    SHOWN: Mapping[str, Shown] = {}

    def __init__(self, sql: Any, memory: Any, pairs: _Pairs, dropped: _Dropped) -> None:
        self._sql = sql
        self._memory = memory
        self._pairs = pairs
        self._dropped = dropped

    def _both(self, name: str, *values: Any, **named: Any) -> tuple[Any, Any]:
        """The answers of both. Raises what both raise, or `Violation` if they differ."""
        answers: list[Any] = []
        errors: list[LogioError] = []
        for log, given in ((self._sql, values), (self._memory, tuple(map(self._pairs.in_memory, values)))):
            try:
                answers.append(getattr(log, name)(*given, **named))
            except LogioError as error:
                errors.append(error)
        if len(errors) == 1 or (errors and type(errors[0]) is not type(errors[1])):
            raise Violation("both_logs_agree", f"{name}{values}: database and memory differ: {answers or ''} {errors}")
        if errors:
            raise errors[0]
        shown = self.SHOWN.get(name, _whole)
        found = [shown(answer) for answer in answers]
        if found[0] != found[1]:
            raise Violation("both_logs_agree", f"{name}{values}: {found[0]} in the database, {found[1]} in memory")
        self._pairs.learn(*answers)
        return answers[0], answers[1]


def _whole(answer: Any) -> Any:
    return answer


def _asks(name: str) -> Callable[..., Any]:
    """A method that asks both, and answers as the database does."""

    def method(self: _Twin, *values: Any, **named: Any) -> Any:
        return self._both(name, *values, **named)[0]

    return method


def _derived(port: type, twin: type[_Twin]) -> type[Any]:
    """`twin` as an implementation of `port`: it asks both whatever the port declares and `twin` does not answer itself."""
    names = [name for name in port.__abstractmethods__ if name not in vars(twin)]  # type: ignore[attr-defined]
    return type(twin.__name__, (twin, port), {name: _asks(name) for name in names})


# --- what is compared by a part of it ---------------------------------------------------------------------------------


def _of_groups(found: Sequence[GroupStatus]) -> list[tuple[Any, ...]]:
    return [(one.group, one.state, one.desired, one.incarnation, one.ready) for one in found]


def _without_times(one: ScalingRequest) -> tuple[Any, ...]:
    return (one.request_id, one.run_id, one.group, one.replicas, one.state, one.by, one.reason, one.note, one.key)


def _events(found: Sequence[LoggedEvent]) -> list[tuple[Any, ...]]:
    return [(row.receiver, row.event, row.event.body, row.event.about, row.inset_id) for row in found]


class _OfLog(_Twin):
    SHOWN: Mapping[str, Shown] = {
        "start_run": lambda run: run.run_id,
        "find_run": lambda run: run.state,
        "claim": lambda claim: (claim.group, claim.incarnation, claim.recovery),
        "group": lambda status: (status.state, status.desired, status.incarnation),
        "groups": _of_groups,
        "sight": lambda found: [
            (one.run.state, _of_groups(one.groups), [_without_times(request) for request in one.requests])
            for one in found
        ],
        "retry_quarantined": lambda retried: (
            {(one.operator, one.inset_id) for one in retried.input_sets},
            retried.to_launch,
        ),
        "slots": list,
        "request_scaling": _without_times,
        "scalings": lambda found: [_without_times(one) for one in found],
    }

    def __init__(self, sql: SqlLogStore, memory: MemoryLogStore) -> None:
        super().__init__(sql, memory, _Pairs(), _Dropped())

    def session(self, ref: GroupRef) -> GroupSession:
        return cast(GroupSession, _TwinSession(self._sql.session(ref), self._memory.session(ref), self))

    def references(self, run_id: int, prefix: str) -> Collection[str]:
        """A file is needed as long as one of the logs names it."""
        return {*self._sql.references(run_id, prefix), *self._memory.references(run_id, prefix)}

    def collect(self, run_id: int, limit: int) -> Collected:
        in_database, in_memory = self._sql.collect(run_id, limit), self._memory.collect(run_id, limit)
        more = in_database.more or in_memory.more
        made: Collected = replace(in_memory, more=more, refs=self._dropped.by_both([in_database], [in_memory]))
        return made

    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        """On SQLite, the row of the newest run stays."""
        found: Sequence[Run] = self._memory.removable(older_than_seconds, unfinished=unfinished)
        return found

    def remove_run(
        self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False, reason: str = BY_PERSON
    ) -> Collected:
        """All of it: each log takes its tables in its own order, so batches differ."""
        refs: set[str] = set()
        for log in (self._sql, self._memory):
            while (
                found := log.remove_run(run_id, limit, unfinished=unfinished, keep_row=keep_row, reason=reason)
            ).more:
                refs.update(found.refs)
        made: Collected = replace(found, refs=tuple(sorted(refs)))
        return made


class _OfSession(_Twin):
    SHOWN: Mapping[str, Shown] = {
        "slots": dict,
        "commit": len,
        "fetch": _events,
        "input_sets": lambda found: {inset_id: _events(of_set) for inset_id, of_set in found.items()},
        "recover": lambda found: (dict(found.states), found.snapshots, _events(found.acknowledged), found.writes),
        "acknowledged": dict,
    }

    def __init__(self, sql: GroupSession, memory: GroupSession, log: _OfLog) -> None:
        super().__init__(sql, memory, log._pairs, log._dropped)
        self.ref = sql.ref

    fetch = _asks("fetch")

    def commit(self, effects: Effects) -> tuple[Collected, ...]:
        """Each log decides how much a batch of garbage collection finds."""
        found, in_memory = self._both("commit", effects)
        refs = self._dropped.by_both(found, in_memory)
        return tuple(replace(one, refs=() if number else refs) for number, one in enumerate(found))


_TwinLog = _derived(LogStore, _OfLog)
_TwinSession = _derived(GroupSession, _OfSession)
