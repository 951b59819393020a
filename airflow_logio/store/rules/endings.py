"""When a run has ended, when another may begin, and what may remain of one: the same for every adapter of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_logio.errors import OtherRunUnfinished, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import ALIVE, CONCLUDED, ENDED, GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run, RunSpec, Supervision, senders_of


@dataclass(frozen=True, slots=True)
class GroupStates:
    """Group → state, and replicated group → how many of its slots are not done."""

    states: Mapping[str, GroupState]
    open_slots: Mapping[str, int] = field(default_factory=dict)

    def left(self) -> list[str]:
        """What a run still has to do, in words. Empty if it can finish."""
        groups = [f"{name} is {state.value}" for name, state in self.states.items() if state not in CONCLUDED]
        return groups + [f"{count} slot(s) of {name} are not done" for name, count in self.open_slots.items()]


def has_ended(run: Run, groups: GroupStates, *, unfinished: bool) -> bool:
    """Whether the run has nothing left to do; with `unfinished`, also if groups were halted, parked or never
    launched."""
    if run.state in (RunState.REMOVING, RunState.SUPERSEDED):
        return True
    if unfinished:
        return all(state in ENDED or state is GroupState.NEW for state in groups.states.values())
    return not groups.left()


def check_ended(run: Run, groups: GroupStates, *, unfinished: bool) -> None:
    """Raises `ProtocolViolation`, naming the groups, if the run has not ended."""
    if has_ended(run, groups, unfinished=unfinished):
        return
    left = groups.left()
    if unfinished:
        left = [
            f"{name} is {state.value}" for name, state in groups.states.items() if state in ALIVE | {GroupState.DEAD}
        ]
    raise ProtocolViolation(
        f"run {run.spec.key} has not ended: {', '.join(left)}; "
        + (
            f"`logio stop {run.uid[:8]}` halts it"
            if unfinished
            else f"`logio retry {run.uid[:8]}` resumes it, --unfinished gives it up"
        )
    )


def superseded(run: Run) -> str:
    """Why a superseded run does not resume, and how to begin the fresh one."""
    what = f"run {run.spec.key}, uid {run.uid[:8]}, was given up for a fresh run: it does not resume"
    return f"{what}. {how_to_begin_anew(run)}"


def how_to_begin_anew(run: Run) -> str:
    """What a person does for the next generation of a superseded run to begin."""
    key = run.spec.key
    if run.spec.supervision is Supervision.PROCESS:
        return f"`logio run ... --run-id {key.dag_run_id}` begins the fresh one"
    return (
        f"Clear DAG run {key.dag_run_id} of {key.dag_id} from the task that starts the run onwards: that task begins the "
        "fresh one"
    )


def check_superseding(run: Run, state: RunState, groups: GroupStates) -> bool:
    """Whether a run, now in `state`, is to be marked superseded; False if it is.

    Raises `ProtocolViolation`, naming the groups that are alive, and `UnknownRun` for a run that is being removed.
    """
    if state is RunState.REMOVING:
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; there is nothing to replace")
    if state is RunState.SUPERSEDED:
        return False
    if alive := [f"{name} is {group.value}" for name, group in groups.states.items() if group in ALIVE]:
        raise ProtocolViolation(
            f"run {run.spec.key} cannot give way to a fresh one while it is active: {', '.join(alive)}; "
            f"`logio stop {run.uid[:8]}` halts it"
        )
    return True


def check_alone(spec: RunSpec, others: Iterable[tuple[Run, GroupStates]]) -> None:
    """Raises `OtherRunUnfinished` if one of these runs of the same pipeline has a group that has not finished.

    A run that is halted or parked counts, too: once another run owns its tables, it can never write what is still
    missing.
    """
    for run, groups in others:
        if left := ", ".join(groups.left()):
            uid = run.uid[:8]
            raise OtherRunUnfinished(
                f"run {spec.key} is not started: run {run.spec.key}, uid {uid}, has not finished ({left}), and could not "
                f"write its tables any more once this one does. {_way_out(spec, uid)}"
            )


def _way_out(spec: RunSpec, uid: str) -> str:
    if spec.supervision is Supervision.PROCESS:
        return (
            f"Let it finish (`logio retry {uid}` if no driver of it runs), or give it up (`logio fresh {uid}`), and start "
            "again. If the runs share no tables, start this one without --alone"
        )
    return (
        f"Let it finish (clear its red tasks, or `logio retry {uid}`), or give it up (`logio fresh {uid}`), and start again. "
        'If runs of this pipeline share no tables, its author declares that: LogioPipelineGroup(concurrent_runs="isolated")'
    )


def shared_ports(spec: RunSpec) -> list[Port]:
    """Output ports with receivers in several groups and without lineage: two groups may both have left a body of such a
    port."""
    groups: dict[Port, set[str]] = {}
    for receiver, sender in senders_of(spec).items():
        groups.setdefault(sender, set()).add(spec.operators[receiver.operator].group)
    return [
        sender
        for sender, names in groups.items()
        if len(names) > 1 and sender.name not in spec.operators[sender.operator].lineage_out
    ]


def stopped(ref: GroupRef, state: str) -> str:
    """The error of a driver that must stop because its group was halted or parked from outside."""
    return (
        f"group {ref.group!r} is {state}: the driver of incarnation {ref.incarnation} commits nothing more, and exits"
    )
