"""Recovers failed groups from an Airflow task; used by the task of a recovery DAG and by task ``supervise``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, IncompatibleRun, PipelineDefinitionError
from airflow_logio.operators._task.launches import Launching
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.last_words import last_words
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverRecord, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.findings import FailedGroup, UnexplainedKill
from airflow_logio.supervision.task_notes import Meaning, resolve_kill
from airflow_logio.supervision.tend import RecoveryOutcome, RecoveryResult, recover_group

log = logging.getLogger(__name__)

HALT_GRACE_SECONDS = 10.0
"""How long a driver may take to halt by itself."""


@dataclass(frozen=True, slots=True)
class GroupRecovery:
    """Recovers groups of any run of a log."""

    launching: Launching

    def recover(self, failed: FailedGroup) -> dict[str, Any]:
        """Recover one group. Returns the outcome as plain data without secrets: see `_report`.

        A group that cannot be launched because of wrong configuration is parked with that error: another attempt would
        not help. Raises `UnknownRun`, `LogUnavailable`.
        """
        store = self.launching.store
        run = store.find_run(failed.run_uid)
        status = store.group(run.run_id, failed.group)
        if (status.state, status.incarnation) != (GroupState.DEAD, failed.incarnation):
            return self._report(failed, run, not_needed(failed, status.state, status.incarnation))
        if status.own_place:  # it was found before its task said so
            why = "only its own task launches it"
            left = RecoveryResult(failed.group, failed.incarnation, RecoveryOutcome.NOT_NEEDED, why)
            return self._report(failed, run, left)
        log.warning(
            "%s of run %s is dead: %s\n%s", failed, failed.run_uid, failed.cause, last_words(store, run, status)
        )
        try:
            recipe = store.launch_recipe(run.run_id, failed.group)
            if recipe is None:
                raise ConfigurationError(
                    f"the log does not say how group {failed.group!r} is launched: its run was started by `logio run`; "
                    f"continue it with `logio retry {run.uid[:8]}`"
                )
            context = self.launching.context(run, failed.group, recipe)
            recovery = recover_group(context, failed.group, failed=failed.incarnation, cause=failed.cause)
        except (ConfigurationError, IncompatibleRun, PipelineDefinitionError, AirflowNotFoundException) as error:
            recovery = self._park(run, failed, error)
        return self._report(failed, run, recovery)

    def _park(self, run: Run, failed: FailedGroup, error: Exception) -> RecoveryResult:
        status = self.launching.store.group(run.run_id, failed.group)
        why = f"the group died ({failed.cause}) and cannot be launched again: {type(error).__name__}: {error}"
        ref = GroupRef(run.run_id, failed.group, status.incarnation)
        # Park only a dead group: another process, with a better configuration, may have launched it meanwhile.
        if status.state is not GroupState.DEAD or not self.launching.store.park(ref, why):
            return not_needed(failed, status.state, status.incarnation)
        log.error("%s is parked: %s", failed, why)
        return RecoveryResult(failed.group, status.incarnation, RecoveryOutcome.PARKED, why)

    def _report(self, failed: FailedGroup, run: Run, recovery: RecoveryResult) -> dict[str, Any]:
        drivers = {
            driver.incarnation: driver
            for driver in self.launching.store.drivers(run.run_id)
            if driver.group == failed.group
        }
        return {
            **failed.as_dict(),
            "outcome": recovery.outcome.value,
            "why": recovery.why,
            "launched_incarnation": recovery.incarnation if recovery.outcome is RecoveryOutcome.LAUNCHED else None,
            **_times(drivers.get(recovery.incarnation) if recovery.outcome is RecoveryOutcome.LAUNCHED else None),
        }


def explain_kill(store: LogStore, kill: UnexplainedKill) -> dict[str, Any]:
    """Find out why the task of a group was killed: the group halts if a person has ended the task, else it keeps running.

    Returns the outcome as plain data. Raises what Airflow raises if it does not answer: then the note in the log stays.
    """
    run = store.find_run(kill.run_uid)
    found = resolve_kill(store, run, kill.group, kill.task, _compat.get_task_state, grace_seconds=HALT_GRACE_SECONDS)
    what = "is halted" if found is Meaning.HALT else "keeps running"
    log.warning("%s: it %s, because %s", kill, what, found.value)
    return {**kill.as_dict(), "outcome": found.name.lower(), "why": found.value, "launched_incarnation": None}


def not_needed(failed: FailedGroup, state: GroupState, incarnation: int) -> RecoveryResult:
    """The failure has already been handled."""
    why = f"the group is {state.value}, incarnation {incarnation}: it has already been handled"
    return RecoveryResult(failed.group, incarnation, RecoveryOutcome.NOT_NEEDED, why)


def _times(driver: DriverRecord | None) -> dict[str, float | None]:
    """Seconds since the epoch by the database's clock. The claim is what fences the old driver."""
    if driver is None:
        return {"fenced_at": None, "launched_at": None}
    return {"fenced_at": driver.claimed_at, "launched_at": driver.submitted_at}
