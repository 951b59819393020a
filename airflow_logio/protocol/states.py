"""States of a group and of a run, as tables (design D8). An illegal move raises and changes nothing.

"Failed" is not a state: a supervisor looks for *dead* groups. Launch states (claimed, submitted, restarted) have deadlines,
after which the group is dead. Only a person ends `parked`: an explicit retry claims the group again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from airflow_logio.errors import ProtocolViolation


class GroupState(StrEnum):
    """Observed state of a group."""

    NEW = "new"
    """In the log, never claimed."""
    CLAIMED = "claimed"
    """An incarnation is allocated; its driver is not launched yet."""
    SUBMITTED = "submitted"
    """spark-submit was started for the first incarnation."""
    RESTARTED = "restarted"
    """spark-submit was started for a later incarnation: a recovery is under way."""
    RUNNING = "running"
    """A driver registered for the incarnation."""
    DEAD = "dead"
    """The driver is gone, or its lease has run out; recoverable."""
    PARKED = "parked"
    """Stopped by budget, error or user; only a person restarts it."""
    HALTED = "halted"
    """Stopped on request."""
    DRAINING = "draining"
    """Ending on request: end of stream at its sources."""
    FINISHED = "finished"
    """Every operator of the group has ended, and no write action is pending."""
    RETIRED = "retired"
    """A replica that is not in use: it owns no slot that is not done. Those that a run does not use at first begin here."""


class RunState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    QUARANTINED = "quarantined"
    """Finished with quarantine: every group has ended, and Input Sets are set aside."""
    HALTED = "halted"
    SUPERSEDED = "superseded"
    """Given up for a fresh run: nothing of it is launched again. Its rows stay for lineage until they are collected."""
    REMOVING = "removing"
    """It had ended, and is being removed from the log: nothing can be done with it any more."""


_S = GroupState
_ALIVE = frozenset({_S.CLAIMED, _S.SUBMITTED, _S.RESTARTED, _S.RUNNING, _S.DRAINING})

GROUP_TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    _S.NEW: frozenset({_S.CLAIMED, _S.HALTED, _S.PARKED, _S.RETIRED}),
    _S.CLAIMED: frozenset({_S.SUBMITTED, _S.RESTARTED, _S.RUNNING, _S.DEAD, _S.PARKED, _S.HALTED, _S.RETIRED}),
    _S.SUBMITTED: frozenset({_S.RUNNING, _S.DEAD, _S.PARKED, _S.HALTED, _S.RETIRED}),
    _S.RESTARTED: frozenset({_S.RUNNING, _S.DEAD, _S.PARKED, _S.HALTED, _S.RETIRED}),
    _S.RUNNING: frozenset({_S.DRAINING, _S.FINISHED, _S.DEAD, _S.PARKED, _S.HALTED, _S.RETIRED}),
    _S.DRAINING: frozenset({_S.FINISHED, _S.DEAD, _S.PARKED, _S.HALTED}),
    # A driver that was considered dead but not replaced may still finish: its commit passes the fence.
    _S.DEAD: frozenset({_S.CLAIMED, _S.FINISHED, _S.PARKED, _S.HALTED, _S.RETIRED}),
    _S.PARKED: frozenset({_S.CLAIMED, _S.HALTED, _S.RETIRED}),
    _S.HALTED: frozenset({_S.CLAIMED, _S.RETIRED}),
    _S.FINISHED: frozenset(),
    _S.RETIRED: frozenset({_S.CLAIMED}),
}

LAUNCHING = frozenset({_S.CLAIMED, _S.SUBMITTED, _S.RESTARTED})
"""States with a deadline: a driver should register soon."""
ENDED = frozenset({_S.PARKED, _S.HALTED, _S.FINISHED, _S.RETIRED})
"""States that a group leaves only when a person, or a request to scale, asks for it."""
WAITING = frozenset({_S.PARKED, _S.HALTED})
"""States of a group that a person, its budget or an error stopped early: only a person launches it again."""
STOPPED = WAITING | {_S.RETIRED}
"""States in which a driver that still runs must not commit."""
CONCLUDED = frozenset({_S.FINISHED, _S.RETIRED})
"""States that every group has in a finished run (all slots are done, too)."""
ALIVE = _ALIVE
"""States in which a driver runs or is on its way."""


WISHES = frozenset({_S.RUNNING, _S.DRAINING, _S.HALTED})
"""What a group can be asked to do."""


def check_wish(group: str, state: GroupState, desired: GroupState, wish: GroupState, *, has_sources: bool) -> bool:
    """Whether a wish changes anything, for a group in `state` that was asked for `desired` before.

    A halt can be asked for at any time. A group drains only once: its streams have then ended, so it cannot be asked to
    run again. A group that has finished is never launched again, so no wish is noted for it: a halt that it kept would stand
    in the way of a drain after the others were retried. Raises `ProtocolViolation` for a wish that no driver would obey.
    """
    if wish not in WISHES:
        raise ProtocolViolation(f"a group can be asked to run, to drain or to halt, not to be {wish.value!r}")
    if wish is _S.DRAINING and not has_sources:
        raise ProtocolViolation(
            f"group {group!r} has no source: it ends by itself when the groups before it have drained"
        )
    if state is _S.FINISHED:
        return False
    if wish is _S.DRAINING and _S.HALTED in (state, desired):
        raise ProtocolViolation(
            f"group {group!r} is halted, or was asked to halt: `logio retry` it first, then ask it to drain"
        )
    if wish is _S.RUNNING and desired is _S.DRAINING:
        raise ProtocolViolation(
            f"group {group!r} was asked to drain, and its sources may have ended: it cannot go back"
        )
    return True


def wish_after_claim(desired: GroupState) -> GroupState:
    """What a new incarnation is asked to do: drain, if the last one was asked to; otherwise run (a person who claims a
    group that was asked to halt cancels the halt)."""
    return _S.DRAINING if desired is _S.DRAINING else _S.RUNNING


def allowed_from(target: GroupState) -> frozenset[GroupState]:
    """The states from which `target` may be entered."""
    return frozenset(source for source, targets in GROUP_TRANSITIONS.items() if target in targets)


def check_claim(group: str, state: GroupState, *, by_user: bool) -> None:
    """Check that a group may be claimed: only a person restarts what a person stopped, or what was given up.

    Raises `ProtocolViolation`.
    """
    check_transition(state, GroupState.CLAIMED)
    if state in WAITING and not by_user:
        raise ProtocolViolation(f"group {group!r} is {state.value}; only a person restarts it (`logio retry`)")
    if state is GroupState.RETIRED and not by_user:
        raise ProtocolViolation(f"replica {group!r} is not in use; only a request to scale its group starts it")


def check_transition(source: GroupState, target: GroupState) -> None:
    """Raise `ProtocolViolation` unless the table allows the move."""
    if target not in GROUP_TRANSITIONS[source]:
        raise ProtocolViolation(f"a group cannot go from state {source.value!r} to {target.value!r}")


class ScalingState(StrEnum):
    """The state of a request to scale a replicated group."""

    REQUESTED = "requested"
    ACCEPTED = "accepted"
    """It is being carried out."""
    DONE = "done"
    REFUSED = "refused"
    """It is not carried out, or not to the end; its note says why."""


_R = ScalingState
SCALING_TRANSITIONS: Mapping[ScalingState, frozenset[ScalingState]] = {
    _R.REQUESTED: frozenset({_R.ACCEPTED, _R.REFUSED}),
    _R.ACCEPTED: frozenset({_R.DONE, _R.REFUSED}),
    _R.DONE: frozenset(),
    _R.REFUSED: frozenset(),
}
OPEN_SCALING = frozenset({_R.REQUESTED, _R.ACCEPTED})
"""Requests that are still to be carried out: one per group."""
