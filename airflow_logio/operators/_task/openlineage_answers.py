"""What Airflow's OpenLineage provider is told of the tasks of a run: from the log, whenever it asks (ADR-101).

Without the provider, or where it is not configured, nothing here is called but `running_task`, which looks for its module.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from airflow_logio.hooks.connections import external_url
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import resolve
from airflow_logio.operators._task.run_lookup import run_in_dag
from airflow_logio.runtime.figures.authored_figures import ports_seen
from airflow_logio.store.records import Run

LISTENER = "airflow.providers.openlineage.plugins.listener"

log = logging.getLogger(__name__)


def lineage_of(task: Any, group: str | None, task_instance: Any | None) -> Any:
    """The ``OperatorLineage`` of a group's task, or with None of the closing task.

    Before the task has run there is no `task_instance` and there are no statistics; a task whose `run_uid` is not given
    finds no run then, and says nothing. Does not wait for a log that does not answer: the provider gives it ten seconds.
    Raises `LogioError`; the provider logs it, and sends the event without this.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_logio.openlineage.run_facet import NAME, run_facet

    pipeline, _ = resolve(task.pipeline)
    store = LogioHook(task.logio_conn_id).get_store()
    try:
        if task.run_uid:
            run = store.find_run(task.run_uid)
        elif task_instance is not None:
            run = run_in_dag(store, pipeline.name, task_instance.dag_id, task_instance.run_id)
        else:
            return OperatorLineage()
        groups, aside = store.groups(run.run_id), store.quarantined(run.run_id)
        ports, under_way = store.progress(run.run_id), store.under_way(run.run_id)
    finally:
        store.dispose()
    facets = {NAME: run_facet(run, group, groups, ports, under_way, aside)}
    if pipeline.fingerprint()["graph"] != run.spec.graph_fingerprint:
        log.warning("Pipeline %s has another graph here than the run: OpenLineage is told no datasets", pipeline.name)
        return OperatorLineage(run_facets=facets)
    from airflow_logio.openlineage.external_datasets import ExternalDatasets
    from airflow_logio.openlineage.group_datasets import GroupDatasets

    external = ExternalDatasets(run.spec.params, _urls(run, task))
    counts = None if task_instance is None else ports_seen(run, ports)
    log_url = LogioHook(task.logio_conn_id).get_url()
    datasets = GroupDatasets(pipeline.unreplicated(), group, log_url, lambda _: external, counts)
    return OperatorLineage(inputs=datasets.inputs(), outputs=datasets.outputs(), run_facets=facets)


def running_task(task: Any, context: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `RunningEvents` need of a task. None where no listener is loaded, or where the deployment wants no events of this
    task. Never raises: lineage stops no task."""
    if LISTENER not in sys.modules:
        return None
    try:
        from airflow.providers.openlineage.api.core import is_openlineage_active
        from airflow.providers.openlineage.utils.emission_policy import resolve_task_emission_policy

        from airflow_logio.openlineage.task_identity import TaskIdentity

        if not is_openlineage_active():
            return None
        instance = context["ti"]
        wanted = resolve_task_emission_policy(operator=task, dag_id=instance.dag_id, task_id=instance.task_id).emit
        return TaskIdentity.of(instance).given() if wanted else None
    except Exception as error:
        log.warning("There will be no RUNNING events of OpenLineage: %s: %s", type(error).__name__, error)
        return None


def _urls(run: Run, task: Any) -> Callable[[str], str]:
    """The pipeline's connection name → URL, with the ids that this task has for them."""
    ids = {**run.spec.connections, **getattr(task, "connections", {})}
    return lambda name: external_url(ids[name])
