"""The simplest supervisor: one process looks at each group, launches what is new and recovers what is dead."""

from __future__ import annotations

import logging

from airflow_logio.errors import BudgetSpent, Fenced, ProtocolViolation
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime.launch import LaunchContext, launch_group
from airflow_logio.runtime.recovery import RecoveryOutcome, recover_group
from airflow_logio.runtime.watch import GroupWatcher, Observation

log = logging.getLogger(__name__)

FIRST_LAUNCH = "first launch"


def launch_if_new(context: LaunchContext, group: str, observation: Observation) -> bool:
    """Launch a group that was never launched; True if a driver was. Two launches at once: one claim fails."""
    if observation.state is not GroupState.NEW:
        return False
    try:
        launch_group(context, group, expected=0, reason=FIRST_LAUNCH)
    except (Fenced, BudgetSpent, ProtocolViolation) as error:
        log.warning("group %s was not launched: %s", group, error)
        return False
    return True


def recover_if_dead(context: LaunchContext, group: str, observation: Observation) -> bool:
    """Recover a group that is dead; True if a driver was launched. Nothing is done on what cannot be seen."""
    if not observation.is_dead or observation.status is None:
        return False
    cause = observation.cause or "dead"
    recovery = recover_group(context, group, failed=observation.status.incarnation, cause=cause)
    return recovery.outcome is RecoveryOutcome.LAUNCHED


def tend(context: LaunchContext, watcher: GroupWatcher, group: str) -> Observation:
    """Poll once and launch what needs it; returns what was seen."""
    observation = watcher.poll()
    launch_if_new(context, group, observation) or recover_if_dead(context, group, observation)
    return observation
