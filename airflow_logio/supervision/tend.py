"""Tending a group: launching it when it is new, recovering it when it is dead (design D10).

There is one way to recover a group, for tasks, DAGs and terminals. A recovery is a claim, which fences the old driver and
spends the budget, then the end of the old driver's process where it can be reached, then the launch of a new one; it ends
there. Two recoveries of one failure are harmless: the claim is a compare-and-set on the incarnation that failed, and the
second one is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

from airflow_logio.errors import BudgetSpent, Fenced, ProtocolViolation
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.protocol.states import GroupState
from airflow_logio.supervision.look import Observation

log = logging.getLogger(__name__)

FIRST_LAUNCH = "first launch"


class RecoveryOutcome(StrEnum):
    LAUNCHED = "launched"
    """A new driver is on its way."""
    PARKED = "parked"
    """The recovery budget is spent: the group is restarted only on request."""
    NOT_NEEDED = "not needed"
    """Another process has recovered it, it was halted, or it finished after all."""


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The outcome of one failure."""

    group: str
    incarnation: int
    """The one that was launched; the failed one if none was."""
    outcome: RecoveryOutcome
    why: str
    """The cause of the failure, or why nothing was launched."""


def recover_group(context: LaunchContext, group: str, *, failed: int, cause: str) -> RecoveryResult:
    """Claim the group whose incarnation `failed` is dead, end what is left of its driver, and launch a new one.

    Raises `ConfigurationError` if the driver cannot be launched: found before the claim, and the group stays as it is; found
    behind it, and the group is dead again, with that cause. Raises `LogUnavailable`.
    """
    try:
        claim = launch_group(context, group, expected=failed, reason=cause)
    except BudgetSpent as error:
        log.error("group %s: %s", group, error)
        return RecoveryResult(group, failed, RecoveryOutcome.PARKED, str(error))
    except (Fenced, ProtocolViolation) as error:
        log.info("group %s is not recovered: %s", group, error)
        return RecoveryResult(group, failed, RecoveryOutcome.NOT_NEEDED, str(error))
    log.warning("group %s: recovering as incarnation %d: %s", group, claim.incarnation, cause)
    return RecoveryResult(group, claim.incarnation, RecoveryOutcome.LAUNCHED, cause)


def launch_if_new(context: LaunchContext, group: str, observation: Observation) -> bool:
    """Launch a group that was never launched; True if a driver was. Two launches at once: one claim fails.

    Raises `NoPlace` if its run must not begin yet.
    """
    if observation.state is not GroupState.NEW:
        return False
    try:
        launch_group(context, group, expected=0, reason=FIRST_LAUNCH)
    except (Fenced, BudgetSpent, ProtocolViolation) as error:
        log.warning("group %s was not launched: %s", group, error)
        return False
    return True


def recover_if_dead(context: LaunchContext, group: str, observation: Observation) -> bool:
    """Recover a group that is dead; True if a driver was launched. While the log cannot be read, nothing is done."""
    if not observation.is_dead or observation.status is None:
        return False
    cause = observation.cause or "dead"
    recovery = recover_group(context, group, failed=observation.status.incarnation, cause=cause)
    return recovery.outcome is RecoveryOutcome.LAUNCHED


def tend(context: LaunchContext, group: str, observation: Observation) -> None:
    """Launch what needs it, by what was seen of the group. Raises `NoPlace` if its run must not begin yet."""
    launch_if_new(context, group, observation) or recover_if_dead(context, group, observation)
