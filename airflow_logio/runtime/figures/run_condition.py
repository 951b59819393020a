"""What a run is doing, or whom it waits for, in one word and with the command that comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import CONCLUDED, ENDED, LAUNCHING, GroupState, RunState
from airflow_logio.runtime.figures.run_summary import Outcome
from airflow_logio.store.records import GroupStatus, Run, Supervision, SupervisorRecord

LEFT_SECONDS = 30.0
"""A process that supervises a run of `logio run` notes its looks far more often than that (`LocalRun`)."""
_STARTING = (GroupState.NEW, GroupState.DEAD)


@dataclass(frozen=True, slots=True)
class RunCondition:
    """`word` is for people; `next_step` is empty where nothing is to be done."""

    word: str
    next_step: str = ""


def condition_of_run(
    run: Run, groups: Sequence[GroupStatus], at: float, looked: SupervisorRecord | None
) -> RunCondition:
    """The condition of a run from its groups; `at` is the time now, in seconds since the epoch, `looked` who last looked."""
    retry = f"logio retry {run.uid[:8]}"
    if run.state is RunState.QUARANTINED:
        return RunCondition(Outcome.QUARANTINED.value, f"mend the operator, then `{retry} --code new`")
    if run.state is not RunState.RUNNING:
        return RunCondition(run.state.value)
    states = {group.state for group in groups}
    if states <= ENDED and not states <= CONCLUDED:
        if GroupState.PARKED in states:
            return RunCondition("parked", f"mend the cause, then `{retry}` (with changed code: `--code new`)")
        return RunCondition("halted", f"`{retry}` continues it")
    return _going_on(run, groups, at, looked, retry)


def _going_on(
    run: Run, groups: Sequence[GroupStatus], at: float, looked: SupervisorRecord | None, retry: str
) -> RunCondition:
    if not is_left(run, looked, at):
        return RunCondition(run.state.value)
    if all(_stands_still(group, run.spec.lease, at) for group in groups):
        return RunCondition("waiting for a person", f"nobody runs it; `{retry}` continues it")
    return RunCondition(run.state.value, f"nobody supervises it; `{retry}` does")


def is_left(run: Run, looked: SupervisorRecord | None, at: float) -> bool:
    """Whether the process is gone that supervises a run of `logio run`. Runs of Airflow have other supervisors."""
    if run.spec.supervision is not Supervision.PROCESS or run.state is not RunState.RUNNING:
        return False
    return at - run.created_at > LEFT_SECONDS and (looked is None or looked.age_seconds > LEFT_SECONDS)


def _stands_still(group: GroupStatus, lease: Lease, at: float) -> bool:
    """Whether nothing happens to the group by itself: it has ended, was not launched, or its driver is lost."""
    if group.state in ENDED or group.state in _STARTING:
        return True
    if group.state in LAUNCHING:
        return at - group.since > lease.launch_seconds
    return group.beat_age_seconds is not None and group.beat_age_seconds > lease.seconds
