"""Recovering a failed group: the one way, whoever does it (DESIGN decision 10).

A recovery is a claim, which fences the old driver and spends the budget, then the end of the old driver's process where it
can be reached, then the launch of a new one; it ends there. Two recoveries of one failure are harmless: the claim is a
compare-and-set on the incarnation that failed, and one of them finds it gone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

from airflow_logio.errors import BudgetSpent, Fenced, ProtocolViolation
from airflow_logio.runtime.launch import LaunchContext, launch_group

log = logging.getLogger(__name__)


class RecoveryOutcome(StrEnum):
    LAUNCHED = "launched"
    """A new driver is on its way."""
    PARKED = "parked"
    """The recovery budget is spent: nobody restarts the group without being told."""
    NOT_NEEDED = "not needed"
    """Somebody else has recovered it, it was halted, or it finished after all."""


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What became of one failure."""

    group: str
    incarnation: int
    """The one that was launched; the failed one if none was."""
    outcome: RecoveryOutcome
    why: str
    """The cause of the failure, or why nothing was launched."""


def recover_group(context: LaunchContext, group: str, *, failed: int, cause: str) -> RecoveryResult:
    """Claim the group whose incarnation `failed` is dead, end what is left of its driver, and launch a new one.

    Raises `ConfigurationError` if the driver cannot be launched (the group is dead again, with that cause), and
    `LogUnavailable`.
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
