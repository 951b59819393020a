"""DAGs that a deployment has once: recovery, scaling by policy, and giving a run up. A DAG file only calls them.

from airflow_logio.ready_dags import build_recovery_dag

dag = build_recovery_dag()
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DAG, AirflowFailException, AirflowSkipException, Param
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import Asset, DeltaDataIntervalTimetable

from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import imported
from airflow_logio.operators._task.run_lookup import opened_log
from airflow_logio.operators.assets import LogioAssetsOperator
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.scaling_controller import LogioScalingController
from airflow_logio.protocol.states import RunState
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.supervision.controller import LOOK_SECONDS
from airflow_logio.supervision.overdue import overdue
from airflow_logio.supervision.policies import DS2, Policy
from airflow_logio.supervision.stop_run import run_to_give_up

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.operators._task.callbacks import Callbacks

TAGS = ("logio",)

RECOVERY = """
Recovers failed groups of every pipeline of this deployment, one run per failure.

The sensor waits in the triggerer for findings, which are failed groups and requests to scale a group. Each finding gets a
task of its own. A pipeline relies on this DAG if it says so (``LogioPipelineGroup(recovery="dag")``). Keep this DAG
unpaused: while it is paused, dead groups are not recovered, and their task logs say why.
"""
CONTROLLER = """
Scales the replicated groups of all active runs: every minute by policy, and at once on request.

While this DAG is unpaused, each replicated group of each run gets as many replicas as its incoming and waiting data need,
within the bounds that its author gives. The task log explains every decision with its figures, and `logio status` shows
every change.

To scale a group by hand, trigger this DAG. Fill in *replicas*, and as much of *pipeline*, *run* and *group* as it takes to
name one group; an empty field means any. The policy may change the number again a little later. To keep your number, pause
this DAG afterwards (Airflow starts no task of a paused DAG), or leave it paused and use `logio scale`. If you give a run or
a pipeline without *replicas*, the policy looks at that one only.
"""
ASSETS = """
Tells Airflow what a pipeline that never finishes has written: an asset event per table and dataset, if something is new.

Schedule DAGs on these assets. ``extra`` of an event says which run it is about, how many records it has written, and the
number of its last write action.
"""
DUE = """
Fails for each day, or hour, of a pipeline that is not there when it is due: also if no run has begun for it at all, because
its DAG is paused or broken. The task's log says which, and why.

A pipeline says when: ``Pipeline(..., partition=Days("day", zone="Europe/Berlin", due="08:00"))``. Every ten minutes a run
looks at what has come due since the run before; so each late day fails one run. Give the DAG an ``on_failure_callback`` to be
told. Trigger it to see all that is late. If nothing of Airflow runs, nothing is said: then `logio status --due`, from a cron
of another machine, exits with 1.
"""
FRESH = """
Gives a run up, so that its DAG run can start over. Trigger this DAG with the uid of the run.

You find the uid in the log of the run's task `start_run`, and in `logio status`. Task `ask` says which run it is and what
its groups do, and waits until a person has approved (*Required Actions*). Then the drivers of the run are halted. Nothing
of the run can be resumed afterwards; its lineage stays. Then clear the pipeline's DAG run from `start_run` on. Clearing or
retrying the task that gives it up is harmless: the fresh run has another uid.
"""


def build_recovery_dag(
    dag_id: str = "logio_recovery",
    *,
    logio_conn_id: str = LogioHook.default_conn_name,
    pipeline: str | None = None,
    give_up_after: timedelta | None = timedelta(hours=6),
    on_recovery_callback: Callbacks = None,
    **dag_arguments: Any,
) -> DAG:
    """The recovery DAG: finds failed groups of all pipelines, or of the one named `pipeline`, and recovers each in a task.

    :param dag_id: id of the DAG.
    :param logio_conn_id: the connection of the log.
    :param pipeline: the name of the only pipeline whose groups it recovers; by default those of all pipelines.
    :param give_up_after: a run of the DAG in which nothing has failed for so long ends, and the next one begins.
    :param on_recovery_callback: as for `LogioRecoverGroupOperator`. Pipelines have callbacks for what else occurs
        (`LogioPipelineGroup`): their task ``notify`` calls them.

    Further arguments are those of a DAG.
    """
    # Without a start date, the second run gets the first one's date, and never begins.
    usual = {
        "schedule": "@continuous", "start_date": datetime(2026, 1, 1, tzinfo=UTC), "max_active_runs": 1, "catchup": False,
        "doc_md": RECOVERY, "tags": list(TAGS),
    }  # fmt: skip
    with DAG(dag_id, **{**usual, **dag_arguments}) as dag:
        findings = LogioFailedGroupSensor(
            task_id="failed_groups", logio_conn_id=logio_conn_id, pipeline=pipeline, give_up_after=give_up_after
        )
        LogioRecoverGroupOperator.partial(
            task_id="recover", logio_conn_id=logio_conn_id, on_recovery_callback=on_recovery_callback
        ).expand(finding=findings.output)
    return dag


def build_controller_dag(
    dag_id: str = "logio_controller",
    *,
    policy: Policy | None = None,
    pipeline: str | None = None,
    look_seconds: float = LOOK_SECONDS,
    logio_conn_id: str = LogioHook.default_conn_name,
    **dag_arguments: Any,
) -> DAG:
    """The Controller: scales replicated groups by `policy` (default `DS2()`), and as the form of a triggered run says.

    :param dag_id: id of the DAG.
    :param policy: `Threshold`, `DS2`, `Schedule`, or a `Policy` of your own.
    :param pipeline: the name of the only pipeline whose groups it scales by policy. Two policies for one group contradict
        each other: a pipeline with a Controller of its own needs the general one paused.
    :param look_seconds: seconds between the two looks that rates are computed from.
    :param logio_conn_id: the connection of the log.

    Further arguments are those of a DAG.
    """
    usual = {
        "schedule": "* * * * *", "start_date": datetime(2026, 1, 1, tzinfo=UTC), "max_active_runs": 1, "catchup": False,
        "doc_md": CONTROLLER, "tags": list(TAGS),
    }  # fmt: skip
    form = {
        "pipeline": Param(pipeline, type=["null", "string"], description="Name of the pipeline"),
        "run": Param(None, type=["null", "string"], description="uid of the run, or the beginning of it"),
        "group": Param(None, type=["null", "string"], description="Name of the replicated group"),
        "replicas": Param(
            None, type=["null", "integer"], minimum=0, description="Scale by hand to this many; empty: by policy"
        ),
    }
    with DAG(dag_id, params=form, **{**usual, **dag_arguments}) as dag:
        LogioScalingController(
            task_id="control",
            policy=policy or DS2(),
            look_seconds=look_seconds,
            logio_conn_id=logio_conn_id,
            pipeline="{{ params.pipeline or '' }}",
            run_uid="{{ params.run or '' }}",
            group="{{ params.group or '' }}",
            replicas="{{ '' if params.replicas is none else params.replicas }}",
        )
    return dag


def build_assets_dag(
    pipeline: Pipeline | str,
    connections: Mapping[str, str],
    *,
    dag_id: str | None = None,
    logio_conn_id: str = LogioHook.default_conn_name,
    assets: Mapping[str, str | Asset] | None = None,
    **dag_arguments: Any,
) -> DAG:
    """Asset events, every ten minutes, for what the newest unfinished run of a pipeline has written since the last one.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param connections: the pipeline's connection names → Airflow connection ids.
    :param dag_id: id of the DAG; by default ``logio_assets_<pipeline>``.
    :param logio_conn_id: the connection of the log.
    :param assets: as of `LogioAssetsOperator`.

    Further arguments are those of a DAG, e.g. ``schedule``.
    """
    usual = {
        "schedule": "*/10 * * * *", "start_date": datetime(2026, 1, 1, tzinfo=UTC), "max_active_runs": 1, "catchup": False,
        "doc_md": ASSETS, "tags": list(TAGS),
    }  # fmt: skip
    with DAG(dag_id or f"logio_assets_{imported(pipeline).name}", **{**usual, **dag_arguments}) as dag:
        LogioAssetsOperator(
            task_id="assets",
            pipeline=pipeline,
            connections=connections,
            assets=assets,
            logio_conn_id=logio_conn_id,
            while_running=True,
        )
    return dag


def build_due_dag(
    dag_id: str = "logio_due",
    *,
    pipeline: str | None = None,
    logio_conn_id: str = LogioHook.default_conn_name,
    **dag_arguments: Any,
) -> DAG:
    """Fails, once, for each day or hour that is not there when it is due (`Days("day", due="08:00")`).

    :param dag_id: id of the DAG.
    :param pipeline: the name of the only pipeline that it looks at; by default all.
    :param logio_conn_id: the connection of the log.

    Further arguments are those of a DAG. Tell people as of any task that fails: ``default_args={"on_failure_callback":
    ...}``.
    """
    usual = {
        "schedule": DeltaDataIntervalTimetable(timedelta(minutes=10)), "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "max_active_runs": 1, "catchup": False, "doc_md": DUE, "tags": list(TAGS),
    }  # fmt: skip
    with DAG(dag_id, **{**usual, **dag_arguments}) as dag:
        PythonOperator(task_id="look", python_callable=check_nothing_late, op_args=[pipeline, logio_conn_id], retries=2)
    return dag


def check_nothing_late(pipeline: str | None, logio_conn_id: str, **context: Any) -> None:
    """Raises AirflowFailException, which names them, for partitions that have come due since the run before this one has
    looked, and are not there. A run that a person has triggered looks at the last week."""
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or start == end or not str(run.run_id).startswith("scheduled__"):
        start = end = None
    else:
        before = context["ti"].get_previous_dagrun()
        if before is not None and before.data_interval_end is not None:
            start = min(start, before.data_interval_end)
    with opened_log(logio_conn_id) as store:
        look = partial(overdue, store, pipeline=pipeline, since=start, until=end)
        late = store.patience.call("looking for what is late", look)
    if late:
        raise AirflowFailException("; ".join(map(str, late)))


def build_fresh_dag(
    dag_id: str = "logio_fresh", *, logio_conn_id: str = LogioHook.default_conn_name, **dag_arguments: Any
) -> DAG:
    """Gives a run up after a person has seen which one it is, and has approved.

    :param dag_id: id of the DAG.
    :param logio_conn_id: the connection of the log.

    Further arguments are those of a DAG.
    """
    usual = {"schedule": None, "catchup": False, "doc_md": FRESH, "tags": list(TAGS)}
    form = {"run": Param(None, type="string", minLength=8, description="uid of the run to give up")}
    with DAG(dag_id, params=form, **{**usual, **dag_arguments}) as dag:
        look = PythonOperator(task_id="look", python_callable=run_in_words, op_args=["{{ params.run }}", logio_conn_id])
        ask = ApprovalOperator(
            task_id="ask",
            subject="Give up run {{ params.run }} for good?",
            body="{{ ti.xcom_pull(task_ids='look') }}",
        )
        give_up = LogioFreshRunOperator(task_id="give_up", run_uid="{{ params.run }}", logio_conn_id=logio_conn_id)
        look >> ask >> give_up
    return dag


def run_in_words(uid: str, logio_conn_id: str) -> str:
    """What a person should know who gives a run up.

    Raises `UnknownRun`, `ConfigurationError` for a name that is not a uid, AirflowSkipException if it was given up before.
    """
    with opened_log(logio_conn_id) as store:
        run = store.patience.call("finding the run", lambda: run_to_give_up(store, uid))
        groups = store.patience.call("reading the groups", lambda: store.groups(run.run_id))
    key = run.spec.key
    if run.state is RunState.SUPERSEDED:
        raise AirflowSkipException(f"run {key}, uid {run.uid}, was given up before")
    states = ", ".join(f"{group.group} is {group.state.value}" for group in groups)
    return (
        f"Run {key.dag_run_id} of pipeline {key.pipeline} (DAG {key.dag_id}), uid {run.uid}, is {run.state.value}: {states}. "
        "Its drivers will be halted, and nothing of it can be resumed; its lineage stays."
    )
