"""Starting a run: everything that can be wrong is checked before the log knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.writers import TableWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.runtime.bundle import PipelineRef
from airflow_logio.store.records import BacklogBound, RunKey, RunSpec


def run_spec(
    pipeline: Pipeline,
    ref: PipelineRef,
    *,
    dag_id: str,
    dag_run_id: str,
    params: Mapping[str, Any],
    connections: Mapping[str, str],
    generation: int = 1,
    budget: RecoveryBudget | None = None,
    lease: Lease | None = None,
    backlog: BacklogBound | None = None,
    hold_sources: bool = False,
) -> RunSpec:
    """The description of a run, checked: parameters, connections (name → connection id), readable sources.

    Raises `ConfigurationError` or `PipelineDefinitionError`, naming what is wrong.
    """
    checked = pipeline.check_params(params)
    missing = [name for name in pipeline.connections if name not in connections]
    unknown = [name for name in connections if name not in pipeline.connections]
    if missing or unknown:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} needs connections {list(pipeline.connections)}: "
            f"{'missing ' + ', '.join(missing) if missing else 'unknown ' + ', '.join(unknown)}"
        )
    for name, operator in pipeline.operators.items():
        if operator.writes() and not isinstance(operator, TableWriter):
            raise ConfigurationError(
                f"operator {name!r} has write actions of its own kind; only TableWriter can be run so far"
            )
    sources = {name: op for name, op in pipeline.operators.items() if isinstance(op, SourceOperator)}
    actions = {name: source.action(checked) for name, source in sources.items()}
    fingerprint = pipeline.fingerprint()
    return RunSpec(
        key=RunKey(pipeline.name, dag_id, dag_run_id, generation),
        pipeline_ref=str(ref),
        bundle_root=str(ref.bundle_root),
        groups=tuple(pipeline.groups),
        params=checked,
        connections=dict(connections),
        graph_fingerprint=fingerprint["graph"],
        code_fingerprint=fingerprint["code"],
        budget=budget or RecoveryBudget(),
        lease=lease or Lease(),
        actions=actions,
        backlog=backlog or BacklogBound(),
        hold_sources=hold_sources,
    )
