"""What Airflow's OpenLineage provider is told of the tasks of a run: from the log, whenever it asks (ADR-101).

Without the provider, or where it is not configured, nothing here is called but `running_task`, which looks for its module.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.hooks.connections import external_url
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import resolve
from airflow_logio.operators._task.run_lookup import run_in_dag
from airflow_logio.status.authored_figures import ports_seen
from airflow_logio.status.whole_group import members_of
from airflow_logio.store import open_store
from airflow_logio.store.rules.run_rules import is_graph_of

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.openlineage.external_datasets import ExternalDatasets
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.store.records.status_records import GroupStatus, RunFigures

LISTENER = "airflow.providers.openlineage.plugins.listener"
READ_SECONDS = 4.0
"""How long an answer waits for the log. The provider gives an event ten seconds, and drops all of it then."""

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Connections = Mapping[str, Mapping[str, str]]
"""Group → the pipeline's connection name → connection id, where the group has one of its own."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What an answer needs of the log."""

    run: Run
    statuses: Sequence[GroupStatus]
    figures: RunFigures
    connections: _Connections


def lineage_of(task: Any, group: str | None, task_instance: Any | None, *, counts: bool = False) -> Any:
    """The ``OperatorLineage`` of a group's task, or with None of the closing task; with `counts`, what the log has counted.

    Before the task has run there is no `task_instance`; a task whose `run_uid` is not given finds no run then, and says
    nothing. A log that does not answer soon costs the run facet, the counts, and the datasets that only the log can name.
    Raises `LogioError`; the provider logs it, and sends the event without this.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_logio.openlineage.group_datasets import GroupDatasets
    from airflow_logio.openlineage.run_facet import NAME, run_facet

    if not task.run_uid and task_instance is None:
        return OperatorLineage()
    pipeline, _ = resolve(task.pipeline)
    log_url = LogioHook(task.logio_conn_id).get_url()
    own = {} if group is None else {group: task.connections}
    try:
        find = partial(_find, task, pipeline.name, task_instance)
        read = _soon(partial(_read, log_url, find, None if group is None else own))
    except LogUnavailable as error:
        log.warning("OpenLineage is told no more than is known without the log: %s", error)
        external = _external(pipeline, {}, {}, own)
        datasets = GroupDatasets(pipeline.unreplicated(), group, log_url, external, None)
        return OperatorLineage(inputs=datasets.inputs(), outputs=datasets.outputs())
    run = read.run
    facets = {NAME: run_facet(run, group, read.statuses, read.figures)}
    if not is_graph_of(run, pipeline.fingerprint()["graph"], pipeline.describe()):
        log.warning("Pipeline %s has another graph here than the run: OpenLineage is told no datasets", pipeline.name)
        return OperatorLineage(run_facets=facets)
    external = _external(pipeline, run.spec.params, run.spec.connections, read.connections)
    counted = ports_seen(run, read.figures.ports) if counts else None
    datasets = GroupDatasets(pipeline.unreplicated(), group, log_url, external, counted)
    return OperatorLineage(inputs=datasets.inputs(), outputs=datasets.outputs(), run_facets=facets)


def group_lineage(task: Any, task_instance: Any | None, *, counts: bool = False) -> Any:
    """`lineage_of` a group's task; None for the task of a replica that is not the first."""
    return lineage_of(task, task.group, task_instance, counts=counts) if _reports(task) else None


def _reports(task: Any) -> bool:
    """The task of the first replica tells OpenLineage of all replicas of its group."""
    return task.replica in (None, 1)


def running_task(task: Any, context: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `RunningEvents` need of a group's task. Never raises: lineage stops no task.

    None where no listener is loaded, where the deployment wants no events of this task, and for later replicas.
    """
    if LISTENER not in sys.modules or not _reports(task):
        return None
    try:
        from airflow.providers.openlineage.api.core import is_openlineage_active
        from airflow.providers.openlineage.utils.emission_policy import resolve_task_emission_policy

        from airflow_logio.openlineage.running import TaskIdentity

        if not is_openlineage_active():
            return None
        instance = context["ti"]
        policy = resolve_task_emission_policy(operator=task, dag_id=instance.dag_id, task_id=instance.task_id)
        if not (policy.emit and policy.extract_operator_metadata):  # without the latter, no event has a facet of ours
            return None
        return TaskIdentity.of(instance).given()
    except Exception as error:
        log.warning("There will be no RUNNING events of OpenLineage: %s: %s", type(error).__name__, error)
        return None


# --- the log, in a thread ---------------------------------------------------------------------------------------------


def _soon(read: Callable[[], _T]) -> _T:
    """What `read` returns or raises. Raises `LogUnavailable` if that takes long; the thread ends with its process."""
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True, name="logio OpenLineage reads").start()
    try:
        return answer.result(READ_SECONDS)
    except TimeoutError:
        raise LogUnavailable(f"it has not answered for {READ_SECONDS:g} s") from None


def _find(task: Any, pipeline: str, task_instance: Any | None, store: LogStore) -> Run:
    if task.run_uid or task_instance is None:
        return store.find_run(task.run_uid)
    return run_in_dag(store, pipeline, task_instance.dag_id, task_instance.run_id)


def _read(log_url: str, find: Callable[[LogStore], Run], connections: _Connections | None) -> _Read:
    """`connections` as the task has them; None: as each group was launched with."""
    store = open_store(log_url, application="logio airflow")
    try:
        run = find(store)
        figures = store.figures([run.run_id])[run.run_id]
        noted = _noted(store, run) if connections is None else connections
        return _Read(run, store.groups(run.run_id), figures, noted)
    finally:
        store.dispose()


def _noted(store: LogStore, run: Run) -> _Connections:
    """A replica that the run did not start with has no note yet; all have the same connections."""
    found: dict[str, Mapping[str, str]] = {}
    for group in {shape.group for shape in run.spec.operators.values()}:
        recipes = (store.launch_recipe(run.run_id, name) for name in members_of(run, group))
        found[group] = next((one.connections for one in recipes if one is not None), {})
    return found


# --- names ------------------------------------------------------------------------------------------------------------


def _external(
    pipeline: Pipeline, params: Mapping[str, Any], ids: Mapping[str, str], own: _Connections
) -> Callable[[str], ExternalDatasets]:
    """What an operator reads and writes, with the connections of its group; `ids` are those of the run."""
    from airflow_logio.openlineage.external_datasets import ExternalDatasets

    found: dict[str, ExternalDatasets] = {}
    for name, group in pipeline.unreplicated().groups.items():
        external = ExternalDatasets(params, partial(_url, {**ids, **own.get(name, {})}))
        found |= dict.fromkeys(group.operators, external)
    return found.__getitem__


def _url(ids: Mapping[str, str], name: str) -> str:
    if name not in ids:
        raise ConfigurationError(f"which connection {name!r} is, only the log knows")
    return external_url(ids[name])
