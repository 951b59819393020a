"""Columns that a person gives other types while nothing is in them yet: what a run may still take (ADR-73).

The description of a run changes in one transaction of the log, and remembers the types that it replaces: groups without
that writer may run with either description, and the writer's driver knows which types an empty table may still have.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from airflow_logio.errors import IncompatibleRun, ProtocolViolation
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.records import Run, RunSpec
from airflow_logio.store.rules.endings import superseded

AT_REST = (GroupState.PARKED, GroupState.HALTED, GroupState.NEW)
"""States of groups without a driver, which only a person, or its first launch, takes out of them."""

ChangedTypes = Mapping[str, Mapping[str, tuple[str, str]]]
"""Writer → column → type that it had, type that it has now."""


@dataclass(frozen=True, slots=True)
class TypeChange:
    """Other types for columns of a run's tables."""

    types: ChangedTypes
    graph: Mapping[str, Any]
    """`Pipeline.describe()` with these types."""
    fingerprint: str
    """Its hash."""
    replaced: str
    """The hash of the description that the change was found against."""
    incarnations: Mapping[str, int]
    """Group of a writer → its incarnation when the table was found without rows of the run."""


def changed_types(
    then: Mapping[str, Any], now: Mapping[str, Any], writers: Container[str]
) -> dict[str, dict[str, tuple[str, str]]] | None:
    """What differs between two descriptions, if that is only types of columns of `writers`. None if something else does."""
    now = msgspec.json.decode(msgspec.json.encode(now))  # as the log gives `then` back
    changed: dict[str, dict[str, tuple[str, str]]] = {}
    same = {**now, "operators": dict(now.get("operators", {}))}
    for name, operator in now.get("operators", {}).items():
        was, is_now = _columns(then.get("operators", {}).get(name)), _columns(operator)
        if name not in writers or was is None or is_now is None or list(was) != list(is_now) or was == is_now:
            continue
        changed[name] = {column: (was[column], kind) for column, kind in is_now.items() if was[column] != kind}
        same["operators"][name] = {**operator, "settings": {**operator["settings"], "columns": was}}
    return changed if same == then else None


def is_former(spec: RunSpec, graph: Mapping[str, Any], group: str | None) -> bool:
    """Whether a description differs from that of the run only in types that were replaced, of writers of other groups
    than `group`."""
    changed = changed_types(spec.graph, graph, spec.former_types) or {}
    return bool(changed) and all(
        spec.operators[writer].group != group
        and all(now in spec.former_types[writer].get(column, ()) for column, (_, now) in columns.items())
        for writer, columns in changed.items()
    )


def described_anew(run: Run, change: TypeChange, groups: Mapping[str, tuple[GroupState, int]]) -> RunSpec:
    """The description of a run with the change. `run` and `groups`, the state and incarnation of each group of
    `change.incarnations`, are as they are under the locks.

    Raises `ProtocolViolation` for a run that was given up, `IncompatibleRun` if someone has changed it, or has launched one
    of the groups, since the change was found.
    """
    if run.state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(run))
    if run.spec.graph_fingerprint == change.fingerprint:
        return run.spec  # done before: by an attempt whose acknowledgement was lost, or by another process
    if run.spec.graph_fingerprint != change.replaced:
        raise IncompatibleRun(f"run {run.spec.key} was changed by another process at the same time; look again")
    for group, (state, incarnation) in groups.items():
        check_at_rest(run, group, state)
        if incarnation != change.incarnations[group]:
            raise IncompatibleRun(f"group {group!r} was launched by another process at the same time; look again")
    former = {writer: dict(columns) for writer, columns in run.spec.former_types.items()}
    for writer, columns in change.types.items():
        mine = former.setdefault(writer, {})
        for column, (was, _) in columns.items():
            mine[column] = tuple(dict.fromkeys((*mine.get(column, ()), was)))
    return replace(run.spec, graph=change.graph, graph_fingerprint=change.fingerprint, former_types=former)


def check_at_rest(run: Run, group: str, state: GroupState) -> None:
    """Raises `IncompatibleRun` if a group may have a driver, or has ended: its columns keep their types."""
    if state in AT_REST:
        return
    advice = (
        f"start a fresh run (`logio fresh {run.uid[:8]}`)"
        if state in (GroupState.FINISHED, GroupState.RETIRED)
        else f"halt it (`logio stop {run.uid[:8]} {group}`) and try again"
    )
    raise IncompatibleRun(
        f"types of columns of group {group!r} have changed, and a run takes that only while the group is parked or halted; "
        f"it is {state.value}: {advice}, or restore the types"
    )


def _columns(operator: Any) -> dict[str, str] | None:
    columns = operator.get("settings", {}).get("columns") if isinstance(operator, dict) else None
    return columns if isinstance(columns, dict) else None
