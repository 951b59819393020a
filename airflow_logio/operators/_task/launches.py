"""From the log and Airflow's connections to a launch: the same for a group's own task and for every task that recovers it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_logio import _compat
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.connections import connection_urls
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import load_kept
from airflow_logio.launch.driver_config import needs_of
from airflow_logio.launch.launcher import LaunchContext, Launcher
from airflow_logio.launch.managers.kubernetes_api import SCHEME
from airflow_logio.launch.spark_settings import CLIENT_MODE, SparkArguments, SparkSettings, is_on_cluster
from airflow_logio.operators._task.pipeline_reference import check_connections, resolve
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.run_rules import check_graph


@dataclass(frozen=True, slots=True)
class Launching:
    """What one Airflow task needs to launch groups of any run of a log."""

    store: LogStore
    logio_conn_id: str
    launcher: Launcher
    executor: str | None = None
    """The task's own executor, if it names one."""

    def context(self, run: Run, group: str, recipe: LaunchRecipe, pipeline: str | None = None) -> LaunchContext:
        """Resolve everything now: pipeline, connections, Spark settings; for `group`, or for all its replicas.

        `pipeline` is ``module:attr`` as the task names it; by default, the one that the run was started with. Whatever
        this worker has by now, it is the version that the run has (`load_kept`). Raises `ConfigurationError`,
        `IncompatibleRun`.
        """
        settings = SparkArguments.from_given(recipe.arguments).settings(spark_target(recipe.spark_conn_id))
        check_place(settings, _compat.pods_end_with_their_task(self.executor))
        check_connection(settings)
        name = replicated_group(group)
        code = self._code(run, name)
        found, ref = load_kept(self.store, run, lambda: resolve(pipeline) if pipeline else _pipeline_of(run), code)
        if name not in found.groups:
            raise ConfigurationError(found.no_group(name))
        check_compatible(found, run)
        hook = LogioHook(self.logio_conn_id)
        check_connections(found, recipe.connections, all_of_them=False)
        urls = connection_urls(needs_of(found, name, code), run, recipe)
        return LaunchContext(
            self.store, hook.get_url(), run, found, ref, urls, self.launcher, settings, hook.get_payloads(), code=code
        )

    def _code(self, run: Run, group: str) -> int:
        """The number of the code that the next driver of a group gets. All replicas have the same."""
        names = [name for name in run.spec.groups if replicated_group(name) == group] or [group]
        return self.store.group(run.run_id, names[0]).code


def _pipeline_of(run: Run) -> tuple[Pipeline, PipelineRef]:
    """As installed on this machine, or else from where the run was started."""
    text = run.spec.pipeline_ref
    try:
        return resolve(text)
    except ConfigurationError:
        root = Path(run.spec.bundle_root)
        if not root.is_dir():
            raise
        ref = bundle.parse_ref(text)
        ref = PipelineRef(ref.module, ref.attr, root)
        return bundle.load(ref), ref


def check_compatible(pipeline: Pipeline, run: Run) -> None:
    """Raises `IncompatibleRun` if this worker's pipeline differs from the one that the run was started with."""
    check_graph(run, pipeline.fingerprint()["graph"], pipeline.describe())


def check_place(settings: SparkSettings, ending_executor: str | None) -> None:
    """Refuse drivers that would end with the task that launched them. Raises `ConfigurationError`."""
    if ending_executor is not None and settings.deploy_mode == CLIENT_MODE:
        raise ConfigurationError(
            f"{ending_executor} ends the machine of a task when the task ends, and the Spark driver (master "
            f"{settings.master}, deploy mode client) would end with it: it is a process of that machine and outlives the "
            "task that launches it. Let the cluster start the driver (deploy_mode='cluster', with a standalone master, YARN "
            "or Kubernetes), or run this task on workers that stay (LocalExecutor, CeleryExecutor, EdgeExecutor)"
        )


def check_connection(settings: SparkSettings) -> None:
    """Refuse a connection that would have no effect. Raises `ConfigurationError`."""
    if settings.kubernetes_conn_id and not (is_on_cluster(settings) and settings.master.startswith(SCHEME)):
        raise ConfigurationError(
            f"kubernetes_conn_id={settings.kubernetes_conn_id!r} would have no effect: it is for drivers that an API server "
            f"starts (master k8s://..., deploy mode cluster), and here the master is {settings.master}, with deploy mode "
            f"{settings.deploy_mode}. Leave it out"
        )
