"""When a run has ended, and what may be left of it: the same for every adapter of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.states import ENDED, GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records import Run, RunSpec, senders_of


def has_ended(run: Run, states: Iterable[GroupState], *, unfinished: bool) -> bool:
    """Whether every group has finished; with `unfinished`, also if groups were halted, parked or never launched."""
    allowed = ENDED | {GroupState.NEW} if unfinished else {GroupState.FINISHED}
    return run.state is RunState.REMOVING or all(state in allowed for state in states)


def check_ended(run: Run, states: Mapping[str, GroupState], *, unfinished: bool) -> None:
    """Raises `ProtocolViolation`, naming the groups."""
    if has_ended(run, states.values(), unfinished=unfinished):
        return
    left = [name for name, state in states.items() if not has_ended(run, [state], unfinished=unfinished)]
    groups = ", ".join(f"{name} is {states[name].value}" for name in left)
    raise ProtocolViolation(
        f"run {run.spec.key} has not ended: {groups}; "
        + ("`logio stop` halts it" if unfinished else "`logio retry` goes on with it, --unfinished gives it up")
    )


def shared_ports(spec: RunSpec) -> list[Port]:
    """Output ports with receivers in several groups, and no lineage: two groups may both have left a body of them."""
    groups: dict[Port, set[str]] = {}
    for receiver, sender in senders_of(spec).items():
        groups.setdefault(sender, set()).add(spec.operators[receiver.operator].group)
    return [
        sender
        for sender, names in groups.items()
        if len(names) > 1 and sender.name not in spec.operators[sender.operator].lineage_out
    ]
