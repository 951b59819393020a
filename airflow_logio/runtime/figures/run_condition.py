"""What a run is doing, or whom it waits for, in one word and with the command that comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_logio.protocol.states import CONCLUDED, ENDED, GroupState, RunState
from airflow_logio.runtime.figures.run_summary import Outcome
from airflow_logio.store.records import GroupStatus, Run, Supervision

LEFT_SECONDS = 30.0
"""A supervisor launches a group that is new or dead well within that time, if there is one."""
_STARTING = (GroupState.NEW, GroupState.DEAD)


@dataclass(frozen=True, slots=True)
class RunCondition:
    """`word` is for people; `next_step` is empty where nothing is to be done."""

    word: str
    next_step: str = ""


def condition_of_run(run: Run, groups: Sequence[GroupStatus], at: float) -> RunCondition:
    """The condition of a run from its groups; `at` is the time now, in seconds since the epoch."""
    retry = f"logio retry {run.uid[:8]}"
    if run.state is RunState.QUARANTINED:
        return RunCondition(Outcome.QUARANTINED.value, f"mend the operator, then `{retry} --code new`")
    states = {group.state for group in groups}
    if run.state is not RunState.RUNNING or states <= CONCLUDED:
        return RunCondition(run.state.value)
    if states <= ENDED:
        if GroupState.PARKED in states:
            return RunCondition("parked", f"mend the cause, then `{retry}` (with changed code: `--code new`)")
        return RunCondition("halted", f"`{retry}` continues it")
    if run.spec.supervision is Supervision.PROCESS and _is_left(groups, at):
        return RunCondition("waiting for a person", f"nobody runs it; `{retry}` continues it")
    return RunCondition(run.state.value)


def _is_left(groups: Sequence[GroupStatus], at: float) -> bool:
    """No group runs, and those that should were not launched."""
    left = [group for group in groups if group.state in _STARTING]
    idle = all(group.state in ENDED or group.state in _STARTING for group in groups)
    return bool(left) and idle and all(at - group.since > LEFT_SECONDS for group in left)
