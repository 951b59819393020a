"""Stopping a run, or a group of it, on request: what each group is asked to do, and when it has done it.

Drained, sources read no further and everything behind them comes to its normal end; halted, drivers commit what they
have and end, to be resumed later. A run that was halted may then be given up, so that a fresh one of the same DAG run can
begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from airflow_logio.errors import ConfigurationError, LogUnavailable, ProtocolViolation
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, ENDED, LAUNCHING, WAITING, GroupState, RunState, check_wish
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, Run, has_sources
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.rules.allowed_rules import check_allowed, options_of
from airflow_logio.store.rules.removed_rules import said_of
from airflow_logio.store.rules.run_rules import check_not_given_up, how_to_begin_after, how_to_begin_anew
from airflow_logio.supervision.halt import force, refuse_requests
from airflow_logio.supervision.look import Observation, Watcher

log = logging.getLogger(__name__)

States = Mapping[str, GroupState]
POLL_SECONDS = 0.25


class StopMode(StrEnum):
    DRAIN = "drain"
    HALT = "halt"

    @property
    def wish(self) -> GroupState:
        return GroupState.DRAINING if self is StopMode.DRAIN else GroupState.HALTED


class StopRun:
    """One stop of all groups of a run, or of one with all its replicas, or of one replica."""

    def __init__(self, store: LogStore, run: Run, mode: StopMode, group: str | None = None) -> None:
        self._store = store
        self._run = run
        self._mode = mode
        self._groups = members_of(run, group) if group is not None else run.spec.groups or _in_log(store, run)
        store.group(run.run_id, self._groups[0])  # says which groups there are
        self._watcher = Watcher(store, run, self._groups)
        self._named = group is not None
        self._is_left = False
        """Every group has ended, but slots of one that sleeps are not done."""

    def request(self) -> None:
        """Put the wish into the log; again if it is there already, which changes nothing.

        Raises `ProtocolViolation` if it cannot be obeyed, or a writer would be left with a part of what it closes; then no
        group is asked.
        """
        if self._mode is StopMode.DRAIN:
            check_not_given_up(self._run)
            self._check_drain()
        else:
            for name in {replicated_group(one) for one in self._groups}:
                refuse_requests(self._store, self._run, name, "the group was halted")
        asked = []
        for status in self._statuses():
            sources = has_sources(self._run.spec, status.group)
            if self._mode is StopMode.DRAIN and not sources and not self._named:
                continue
            if check_wish(status.group, status.state, status.desired, self._mode.wish, has_sources=sources):
                asked.append(status.group)
        if self._mode is StopMode.DRAIN and not any(has_sources(self._run.spec, name) for name in self._groups):
            raise ProtocolViolation(f"run {self._run.spec.key} names no source in the log: it can only be halted")
        for name in asked:
            self._store.request(self._run.run_id, name, self._mode.wish)

    def _check_drain(self) -> None:
        """Raises `ProtocolViolation` if a writer would be left with a part of what it closes."""
        statuses = {status.group: status for status in self._store.groups(self._run.run_id)}
        spec, going = self._run.spec, {name for name, one in statuses.items() if one.state not in CONCLUDED}
        for shape in spec.writers or ():
            if not shape.closes or spec.operators[shape.writer].group not in going:
                continue
            if going.intersection(self._groups, spec.upstream(shape.writer).source_groups):
                uid, again = self._run.uid[:SHORTEST_UID], "fresh" if self._run.partition is None else "again"
                raise ProtocolViolation(
                    f"run {spec.key} is not drained: {would_be_short(shape.writer, shape.what)}. Let the run finish; or halt "
                    f"it (`logio stop {uid}`), and `logio retry {uid}` resumes it; `logio {again} {uid}` gives it up"
                )

    def look(self) -> States | None:
        """The states of the groups, or None if the log cannot be asked. Halting, a group without a driver is marked so.

        Launches nothing: a source that is dead while it drains is recovered by the supervisor of the run.
        """
        try:
            if self._mode is StopMode.HALT:
                return {name: self._halt(name, one) for name, one in self._watcher.look().observations.items()}
            states = {status.group: status.state for status in self._statuses()}
            self._is_left = CONCLUDED.issuperset(states.values()) and self._has_open_slots()
            return states
        except LogUnavailable as error:
            log.debug("the log does not answer: %s", error)
            return None

    def is_over(self, states: States) -> bool:
        """Everything has ended, and that is known. A drain is also over when a group was halted or parked: what is behind it
        waits for it."""
        if self._mode is StopMode.DRAIN and any(state in WAITING for state in states.values()):
            return True
        return bool(states) and all(state in ENDED for state in states.values()) and not self._is_left

    def has_succeeded(self, states: States) -> bool:
        """The stop is over, and the result is what was asked for."""
        if self._mode is StopMode.DRAIN:
            return CONCLUDED.issuperset(states.values()) and not self._is_left
        return self.is_over(states)

    def _has_open_slots(self) -> bool:
        """A group that sleeps has work left: the supervisor of the run wakes it."""
        run_id, groups = self._run.run_id, [replicated_group(name) for name in self._groups]
        replicated = [name for name in self._run.spec.replicated if name in groups]
        return any(not slot.done for name in replicated for slot in self._store.slots(run_id, name))

    def _statuses(self) -> list[GroupStatus]:
        return [status for status in self._store.groups(self._run.run_id) if status.group in self._groups]

    def _halt(self, name: str, seen: Observation) -> GroupState:
        status = seen.status
        if status is None:
            raise LogUnavailable(f"group {name!r} cannot be seen")
        # One that waits for room on a cluster has done nothing, and may wait for hours before it hears of its halt.
        waits = status.state in LAUNCHING and status.submission is not None
        no_driver = waits or status.state in (GroupState.NEW, GroupState.DEAD)
        if no_driver and force(self._store, self._run.run_id, status):
            return GroupState.HALTED
        return status.state


def would_be_short(writer: str, what: str = "") -> str:
    """Why sources before a writer that closes must not end early."""
    named = f"{writer!r} ({what})" if what else repr(writer)
    return (
        f"its sources would end early, and writer {named} writes only when it has all of what they read: it would write "
        "nothing, and its group would be parked"
    )


def _in_log(store: LogStore, run: Run) -> tuple[str, ...]:
    """The groups of a run whose description, which names them, is damaged."""
    return tuple(status.group for status in store.groups(run.run_id))


def await_stop(stopping: StopRun, seconds: float, seen: Callable[[States], None] = lambda _: None) -> States:
    """Request the stop, and look until it is over or the time is up; returns the states seen last, none if the log has not
    answered. `seen` hears of every look. Raises as `StopRun.request`."""
    stopping.request()
    deadline = time.monotonic() + seconds
    known: States = {}
    while True:
        states = stopping.look()
        if states is not None:
            seen(states)
            known = states
        if (states is not None and stopping.is_over(states)) or time.monotonic() >= deadline:
            return known
        time.sleep(POLL_SECONDS)


def not_ended(states: States, seconds: float) -> str:
    """The sentence for a stop whose time is up."""
    return f"{left_of(states)}: still not ended after {seconds:g} s; the request stands, and takes effect by itself"


def left_of(states: States) -> str:
    """The groups that have not ended."""
    return ", ".join(name for name, state in states.items() if state not in ENDED) or "the log does not answer"


def shown(states: States) -> str:
    """For messages: ``ingest finished, totals parked``."""
    return ", ".join(f"{name} {state.value}" for name, state in sorted(states.items()))


_MOST_NAMED = 10
SHORTEST_UID = 8
"""As `logio status` shows uids: so many digits are not those of another run by chance."""


def run_to_give_up(store: LogStore, uid: str, command: str = "fresh") -> Run:
    """The run of this uid, or of this beginning of one. Raises `UnknownRun`, `ConfigurationError` for another name, with the
    `command` that takes the uid."""
    if len(uid) < SHORTEST_UID:
        raise ConfigurationError(f"{uid!r} names no run to be given up: give its uid, {SHORTEST_UID} digits or more")
    run = store.find_run(uid, damaged=True)
    if not run.uid.startswith(uid):
        raise ConfigurationError(
            f"{uid!r} names every generation of a run, and the next one, too: name the run that is to be given up by its "
            f"uid. The newest is {run.uid[:SHORTEST_UID]} ({run.state.value}): `logio {command} {run.uid[:SHORTEST_UID]}`. "
            "`logio status` lists them"
        )
    return run


def give_up(
    store: LogStore,
    run: Run,
    seconds: float,
    seen: Callable[[States], None] = lambda _: None,
    *,
    because: str | None = None,
    above: int = 0,
    allowed: Collection[Allowed] = (),
) -> str:
    """Halt the run, and give it up once its drivers have ended, within so many seconds; returns a sentence about the result.

    Only a person does that, and names the run by its uid. The fresh run has another uid, so asking again, as a retried or
    cleared task does, finds this run given up and spares the fresh one. `seen` hears of every look at the groups. `because`,
    `above` and `allowed` are those of `LogStore.supersede`.

    Raises `ConfigurationError` if the run cannot be allowed that, and `ProtocolViolation` if a driver has not ended in
    time: then the run is not given up, and the request to halt stands.
    """
    check_allowed(run.spec, allowed)
    if run.state is not RunState.SUPERSEDED:
        stopping = StopRun(store, run, StopMode.HALT)
        states = await_stop(stopping, seconds, seen)
        if not stopping.is_over(states):
            raise ProtocolViolation(
                f"{left_of(states)}: still not ended after {seconds:g} s, so the run is not given up. It has been asked to "
                "halt: give it up again when it has"
            )
    is_new = store.supersede(run.run_id, because=because, above=above, allowed=allowed)
    said = "is given up" if is_new else "was given up before"
    lets = f". The next run of {run.partition} has {options_of(allowed)}, no later one" if allowed else ""
    return f"run {run.spec.key}, uid {run.uid[:SHORTEST_UID]}, {said}{lets}. {how_to_begin_anew(run)}"


def computed_from(store: LogStore, uid: str) -> str | None:
    """What was computed from the day that a run has left, as a sentence; None for nothing. Raises `LogUnavailable`."""
    found = store.computed_from(uid)
    if not found:
        return None
    named = [
        str(one.spec.key) if one.partition is None else f"{one.spec.key.pipeline}@{one.partition}" for one in found
    ]
    more = f" and {len(named) - _MOST_NAMED:,} more" if len(named) > _MOST_NAMED else ""
    were = "1 run was" if len(named) == 1 else f"{len(named):,} runs were"
    first = ", ".join(named[:_MOST_NAMED])
    return f"{were} computed from what run {uid[:SHORTEST_UID]} had left: {first}{more}. Compute that again behind it"


def check_nothing_said(removed: RemovedRun, allowed: Collection[Allowed], above: int) -> None:
    """Raises `ConfigurationError` for a word on the next run of a partition whose run was removed: no row would have it."""
    if not allowed and not above:
        return
    options = " ".join(filter(None, (options_of(allowed), f"--above {above}" if above else "")))
    raise ConfigurationError(
        f"{said_of(removed)}, and {options} cannot be said of it. Say it of the next one: begin that, and if it is refused, "
        f"`logio again` its uid with {options}"
    )


def give_up_removed(store: LogStore, removed: RemovedRun) -> str:
    """Let the next run of a removed one's name begin, whatever that has written; returns a sentence about the result."""
    said = "is given up" if store.give_up_removed(removed.uid) else "was given up before"
    return f"{said_of(removed)}, and {said}. {how_to_begin_after(removed.key, removed.partition)}"
