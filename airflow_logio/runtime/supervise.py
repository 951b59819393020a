"""The simplest honest supervisor: whoever watches a group launches it when it is new and relaunches it when it is dead.

Each relaunch is a claim: compare-and-set on the incarnation, within the budget kept in the log. Two supervisors of one
group are harmless; the second one's claim fails.
"""

from __future__ import annotations

import logging

from airflow_logio.errors import BudgetSpent, Fenced, ProtocolViolation
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime.launch import LaunchContext, launch_group
from airflow_logio.runtime.watch import GroupWatcher, Observation

log = logging.getLogger(__name__)

FIRST_LAUNCH = "first launch"


def start_if_needed(context: LaunchContext, group: str, observation: Observation) -> bool:
    """Launch a group that is new or dead; True if a driver was launched.

    Does nothing for a group that lives, has ended, or cannot be seen. A group whose budget is spent is parked by the claim;
    what somebody else has done meanwhile (claimed, parked, halted, finished) stands.
    """
    status = observation.status
    if status is None or status.state not in (GroupState.NEW, GroupState.DEAD):
        return False
    reason = FIRST_LAUNCH if status.state is GroupState.NEW else observation.cause or "dead"
    try:
        claim = launch_group(context, group, expected=status.incarnation, reason=reason)
    except (Fenced, BudgetSpent, ProtocolViolation) as error:
        log.warning("group %s was not launched: %s", group, error)
        return False
    if claim.recovery:
        log.warning("group %s: recovering as incarnation %d: %s", group, claim.incarnation, reason)
    return True


def tend(context: LaunchContext, watcher: GroupWatcher, group: str) -> Observation:
    """Poll once and launch what needs it; returns what was seen."""
    observation = watcher.poll()
    start_if_needed(context, group, observation)
    return observation
