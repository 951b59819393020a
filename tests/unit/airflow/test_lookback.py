"""`LogioPipelineGroup(..., lookback=1)`: task ``look_back`` creates a DAG run of the day before, once for each run of a day.

By Airflow's own tasks and Execution API, on its own database. What a scheduler does between attempts, the test does; drivers
are what it tells the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow import settings
from airflow.models import DagRun
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.tasklog import LogTemplate
from airflow.sdk import DAG, CronPartitionTimetable, Param, timezone
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.definitions.dag import _run_task
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, TriggerDagRun
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.state import DagRunState
from sqlalchemy import select, update

from airflow_logio import Days, ParquetSource, Pipeline, TableWriter, _compat
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.operators._task.lookback_run import CONF, Lookback, lookback_of
from airflow_logio.operators._task.partition_start import partition_of
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunKey, Supervision
from tests.support.logs import start_driver
from tests.unit.airflow.support import make_dag_run
from tests.unit.airflow.test_clearing import aside

D0, D1, D2, D3 = "2026-02-28", "2026-03-01", "2026-03-02", "2026-03-03"
START, LOOK = "clicks.start_run", "clicks.look_back"
DAG_ID = "days"
CLICKS = """
from airflow_logio import Count, Days, OwnPartition, ParquetSource, Pipeline, TableWriter

clicks = Pipeline("clicks", partition=Days("day"), params={"data": str}, connections=["warehouse"])
web = clicks.source("web", ParquetSource("{data}/*.parquet"))
own = clicks.operator("own", OwnPartition("day", on="ts"), web)
columns = {"day": "date", "id": "bigint"}
clicks.writer("save", TableWriter("warehouse", "top", columns, ("day", "id"), on_new_run="overwrite", by=("day",)), "own.own")
clicks.sink("late", Count(), "own.other")
clicks.group("all", web, own, "save", "late")
"""


@dataclass
class Daily:
    """A DAG of days in Airflow's database."""

    log: LogStore
    dag: DAG
    said: Callable[[], str]

    def execute(self, run_id: str, task_id: str, *, resumed: bool = False) -> str:
        """The next attempt of a task, or what comes behind a deferral; returns the state that it ends in."""
        with settings.Session() as session:
            run = dag_run(session, run_id)
            if run.state == DagRunState.QUEUED:
                run.state, run.start_date = DagRunState.RUNNING, timezone.utcnow()
            task = run.get_task_instance(task_id, session=session)
            assert task is not None
            task.try_number += not resumed
            task.state = "scheduled"
            session.commit()
            _run_task(ti=task, task=self.dag.get_task(task_id))
            return str(getattr(task.state, "value", task.state))

    def started(self, run_id: str) -> Run:
        assert self.execute(run_id, START) == "success", self.said()
        return self.log.list_runs(dag_run_id=run_id)[0]

    def finish(self, run: Run) -> None:
        for group in run.spec.groups:
            start_driver(self.log, group=group, run=run).session.commit([fx.FinishGroup()])
        assert self.log.finish_run(run.run_id)
        self.ended(run.spec.key.dag_run_id)

    def ended(self, run_id: str, state: DagRunState | None = DagRunState.SUCCESS) -> None:
        """None: a person has deleted it."""
        with settings.Session() as session:
            if state is None:
                session.delete(dag_run(session, run_id))
            else:
                dag_run(session, run_id).state = state
            session.commit()

    def computed(self, day: str, run_id: str | None = None) -> Run:
        """A DAG run of that day, up to the task that looks back."""
        make_dag_run(DAG_ID, run_id or day, day)
        run = self.started(run_id or day)
        self.finish(run)
        return run

    def clear(self, run_id: str, *task_ids: str) -> None:
        """As *Clear* does: these tasks, by default all."""
        with settings.Session() as session:
            dag = DBDagBag().get_latest_version_of_dag(DAG_ID, session=session)
            assert dag is not None
            dag.clear(run_id=run_id, task_ids=task_ids or [task.task_id for task in dag.tasks], session=session)
            session.commit()

    def made(self) -> dict[str, dict[str, Any]]:
        """DAG runs that no test has made → their conf."""
        with settings.Session() as session:
            found = session.scalars(select(DagRun).where(DagRun.run_id.startswith("lookback__")).order_by(DagRun.id))
            return {one.run_id: dict(one.conf) for one in found}

    def left(self, run_id: str) -> str:
        """What the task says when it is skipped."""
        self.said()
        assert self.execute(run_id, LOOK) == "skipped", self.said()
        assert not self.made()
        return self.said()


def dag_run(session: Any, run_id: str) -> DagRun:
    found: DagRun = session.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
    return found


@pytest.fixture
def make(
    airflow_database: None,
    log: LogStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Daily]:
    data = {"ts": pa.array([1_772_330_400_000_000], pa.timestamp("us", "UTC")), "id": pa.array([1], pa.int64())}
    pq.write_table(pa.table(data), tmp_path / "a.parquet")
    monkeypatch.syspath_prepend(tmp_path)  # a module of the test's own name

    def said() -> str:
        text = caplog.text + "".join(capsys.readouterr())
        caplog.clear()
        return text

    def made(**arguments: Any) -> Daily:
        (tmp_path / f"{tmp_path.name}.py").write_text(CLICKS)
        schedule = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1)
        params = {"data": Param(str(tmp_path), type="string"), "other": Param("as ever", type="string")}
        with DAG(DAG_ID, schedule=schedule, start_date=timezone.utcnow(), params=params) as dag:
            arguments = {"lookback": 1, "connections": {"warehouse": "warehouse_db"}, **arguments}
            LogioPipelineGroup(f"{tmp_path.name}:clicks", **arguments)
        with settings.Session() as session:
            session.add(DagBundleModel(name="dags"))
            session.flush()
            session.add(DagModel(dag_id=DAG_ID, bundle_name="dags", fileloc="x", is_paused=False, is_stale=False))
            session.add(LogTemplate(id=0, filename="log", elasticsearch_id="log"))
            session.commit()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "dags", session=session)
            session.commit()
        return Daily(log, dag, said)

    return made


@pytest.fixture
def days(make: Callable[..., Daily]) -> Daily:
    return make()


def test_a_finished_run_has_the_day_before_computed_again_and_no_day_before_that(days: Daily) -> None:
    days.computed(D0)
    first = days.computed(D1)
    second = days.computed(D2)
    assert days.execute(D2, LOOK) == "success", days.said()
    name = f"lookback__{D1}__{second.uid}"
    data = first.spec.params["data"]
    mark = {"pipeline": "clicks", "partition": D1, "because_of": D2, "run": second.uid, "replaces": first.uid}
    assert days.made() == {name: {"data": data, CONF: mark}}
    again = days.started(name)
    assert (again.partition, again.spec.params["data"], again.ordinal > first.ordinal) == (D1, data, True)
    days.finish(again)
    days.said()
    assert days.execute(name, LOOK) == "skipped"
    assert f"is itself a look back, because {D2} has finished, and looks no further back" in days.said()
    assert list(days.made()) == [name]


def test_it_is_done_once_for_each_run_of_the_day(days: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead before the request, and behind it; cleared alone; and computed again, which is another run of the day."""
    days.computed(D1)
    second = days.computed(D2)
    create = _compat.create_dag_run

    def dead_before(*_: Any) -> bool:
        raise KeyboardInterrupt("before")

    def dead_behind(*said: Any) -> bool:
        create(*said)
        raise RuntimeError("behind")

    for dies, number in ((dead_before, 0), (dead_behind, 1)):
        monkeypatch.setattr(_compat, "create_dag_run", dies)
        assert days.execute(D2, LOOK) == "failed"
        assert len(days.made()) == number
    monkeypatch.setattr(_compat, "create_dag_run", create)
    days.said()
    assert days.execute(D2, LOOK) == "success"
    assert "which was created before" in days.said()
    days.clear(D2, LOOK)
    assert days.execute(D2, LOOK) == "success"
    [name] = days.made()
    days.finish(days.started(name))
    assert days.execute(D2, LOOK) == "success" and list(days.made()) == [name]

    days.clear(D2)
    third = days.started(D2)
    assert third.uid != second.uid
    days.finish(third)
    assert days.execute(D2, LOOK) == "success"
    assert list(days.made()) == [name, f"lookback__{D1}__{third.uid}"]


def test_it_has_the_parameters_of_the_run_that_it_replaces(make: Callable[..., Daily], tmp_path: Path) -> None:
    """Whatever the templates of the task group give a DAG run that has no partition key; the DAG's own ones stay."""
    days = make(params={"data": str(tmp_path) + "/{{ dag_run.partition_key or 'none' }}"})
    for day in (D1, D2):
        (tmp_path / day).symlink_to(tmp_path)
        days.computed(day)
    assert days.execute(D2, LOOK) == "success"
    [(name, conf)] = days.made().items()
    assert list(conf) == [CONF]
    assert days.started(name).spec.params["data"] == f"{tmp_path}/{D1}"


def test_a_conf_gives_no_other_parameters_than_those_of_the_run_that_is_replaced(days: Daily) -> None:
    """Whatever a person writes into it: a run of another day has others. One that is gone was replaced before."""
    first = days.computed(D1)
    second = days.computed(D2)
    assert days.execute(D2, LOOK) == "success"
    [(name, conf)] = days.made().items()
    with settings.Session() as session:
        dag_run(session, name).conf = {CONF: {**conf[CONF], "replaces": second.uid}}
        session.commit()
    assert days.execute(name, START) == "failed"
    assert (
        f"replaces run {second.uid[:8]}, which is of {D2} of pipeline 'clicks' and DAG 'days', and not" in days.said()
    )
    with settings.Session() as session:
        dag_run(session, name).conf = {CONF: conf[CONF]}
        session.commit()
    days.finish(days.started(name))
    while days.log.remove_run(first.run_id, 100, reason="by a test").more:
        pass
    days.clear(name)
    assert days.started(name).spec.params["data"] == first.spec.params["data"]


def test_several_days_before(make: Callable[..., Daily]) -> None:
    days = make(lookback=3)
    for day in (D0, D2):
        days.computed(day)
    run = days.computed(D3)
    assert days.execute(D3, LOOK) == "success"
    assert list(days.made()) == [f"lookback__{D2}__{run.uid}", f"lookback__{D0}__{run.uid}"]
    assert f"no run of {D1} is there, so none is computed again" in days.said()


# --- a day before that has not finished -------------------------------------------------------------------------------


def test_it_begins_when_the_run_before_has_finished(days: Daily) -> None:
    """As with fifty days that are backfilled at once."""
    make_dag_run(DAG_ID, D1, D1)
    first = days.started(D1)
    days.computed(D2)
    assert days.execute(D2, LOOK) == "success"
    [name] = days.made()
    assert days.execute(name, START) == "deferred", days.said()
    assert f"waits until run {first.uid[:8]} of {D1}, in DAG run {D1}, has finished" in days.said()
    assert not days.log.list_runs(dag_run_id=name)
    assert days.execute(name, START, resumed=True) == "deferred"
    days.finish(first)
    assert days.execute(name, START, resumed=True) == "success", days.said()
    assert days.log.list_runs(dag_run_id=name)[0].partition == D1


@pytest.mark.parametrize("state", [DagRunState.FAILED, DagRunState.QUEUED, None])
def test_one_that_nothing_finishes_is_named(days: Daily, state: DagRunState | None) -> None:
    """A red one; one that was cleared, which may wait for a place that this DAG run has; and one that was deleted."""
    make_dag_run(DAG_ID, D1, D1)
    first = days.started(D1)
    days.computed(D2)
    assert days.execute(D2, LOOK) == "success"
    [name] = days.made()
    days.ended(D1, state)
    days.said()
    assert days.execute(name, START) == "failed"
    said = days.said()
    assert f"uid {first.uid[:8]}, of partition {D1}, has not finished" in said and "clear its red tasks" in said
    for group in first.spec.groups:
        start_driver(days.log, group=group, run=first).session.commit([fx.FinishGroup()])
    assert days.log.finish_run(first.run_id)
    assert days.started(name).partition == D1


def test_a_run_of_its_own_is_resumed_without_a_wait(days: Daily) -> None:
    days.computed(D1)
    days.computed(D2)
    assert days.execute(D2, LOOK) == "success"
    [name] = days.made()
    again = days.started(name)
    assert days.started(name).uid == again.uid


# --- what is left alone -----------------------------------------------------------------------------------------------


def test_without_a_run_of_the_day_before_it_is_skipped(days: Daily) -> None:
    days.computed(D2)
    assert f"no run of {D1} is there, so none is computed again" in days.left(D2)


def test_one_that_was_given_up_is_left_alone(days: Daily) -> None:
    first = days.computed(D1)
    days.computed(D2)
    assert days.log.supersede(first.run_id, because="a person")
    assert f"its run {first.uid[:8]} was given up, and the next one reads what has come since" in days.left(D2)


def test_one_that_was_removed_is_left_alone(days: Daily) -> None:
    """Its parameters are gone with it."""
    first = days.computed(D1)
    days.computed(D2)
    while days.log.remove_run(first.run_id, 100, reason="by a test").more:
        pass
    assert f"its run {first.uid[:8]} was removed from the log, with its parameters. A DAG run with" in days.left(D2)


def test_one_of_another_dag_or_of_a_command_or_that_only_adds_rows_is_left_alone(days: Daily) -> None:
    """Each in the place of the one before."""
    first = days.computed(D1)
    days.computed(D2)

    def begun(dag_id: str, **how: Any) -> str:
        spec = replace(first.spec, key=RunKey("clicks", dag_id, f"other {dag_id}"), **how)
        run = days.log.start_run(spec)
        for group in spec.groups:
            start_driver(days.log, group=group, run=run).session.commit([fx.FinishGroup()])
        assert days.log.finish_run(run.run_id)
        return run.uid[:8]

    uid = begun("elsewhere")
    assert f"its run {uid} is of DAG run other elsewhere of elsewhere: clear that in Airflow" in days.left(D2)
    uid = begun("logio run", supervision=Supervision.PROCESS)
    assert f"its run {uid} is of `logio run`: `logio again {uid}`, then that command" in days.left(D2)
    assert first.spec.writers is not None
    adding = tuple(replace(one, repeats=Repeats.ADDED) for one in first.spec.writers)
    uid = begun(DAG_ID, writers=adding)
    assert f"would be there twice. If they are to stay, or are removed: `logio again {uid}`" in days.left(D2)


def test_a_run_with_quarantine_or_that_has_not_finished_does_not_look_back(days: Daily) -> None:
    days.computed(D1)
    make_dag_run(DAG_ID, D2, D2)
    run = days.started(D2)
    assert days.execute(D2, LOOK) in ("failed", "up_for_retry")
    assert f"run {run.spec.key} is not finished" in days.said()
    driver = start_driver(days.log, group="all", run=run)
    aside(driver)
    driver.session.commit([fx.FinishGroup()])
    assert days.log.finish_run(run.run_id)
    assert "1 Input Set(s) are in quarantine. It does not look back" in days.left(D2)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_airflow_refuses_is_said(days: Daily) -> None:
    days.computed(D1)
    days.computed(D2)
    with settings.Session() as session:
        session.execute(update(DagModel).values(allowed_run_types=[DagRunType.SCHEDULED.value]))
        session.commit()
    assert days.execute(D2, LOOK) in ("failed", "up_for_retry")
    said = days.said()
    assert "does not allow operator-triggered runs" in said and "Add 'operator_triggered' to allowed_run_types" in said
    assert not days.made()


def test_what_its_supervisor_hands_on_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's supervisor says it otherwise than one in the process of a test."""

    def answering(answer: ErrorResponse | OKResponse, *, raised: bool) -> None:
        def send(message: TriggerDagRun) -> ErrorResponse | OKResponse:
            assert (message.dag_id, message.run_id, message.conf) == ("d", "r", {"a": 1})
            if raised:
                raise AirflowRuntimeError(answer)
            return answer

        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)

    answering(OKResponse(ok=True), raised=False)
    assert _compat.create_dag_run("d", "r", {"a": 1})
    for raised in (False, True):
        answering(ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS), raised=raised)
        assert not _compat.create_dag_run("d", "r", {"a": 1})
    detail = {"status_code": 400, "message": "", "detail": {"detail": {"reason": "denied_run_type"}}}
    answering(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail), raised=True)
    with pytest.raises(ConfigurationError, match="Add 'operator_triggered' to allowed_run_types"):
        _compat.create_dag_run("d", "r", {"a": 1})


BACK = Lookback("clicks", D1, D2, "f" * 32, "e" * 32)


def of(conf: object, key: str | None = None, begin: Any = None, end: Any = None) -> Any:
    return SimpleNamespace(conf=conf, partition_key=key, data_interval_start=begin, data_interval_end=end)


def pipeline(name: str = "clicks", *, has_days: bool = True, **how: Any) -> Pipeline:
    made = Pipeline(name, partition=Days("day") if has_days else None, connections=["warehouse"])
    writer = TableWriter("warehouse", "top", {"day": "date", "id": "bigint"}, ("day", "id"), **how)
    made.writer("save", writer, made.source("web", ParquetSource("web.parquet")))
    return made


def test_its_conf_is_its_partition() -> None:
    key = partition_of(pipeline(), of({"data": "/data", **BACK.conf()}))
    assert key is not None and key.text == D1
    for other in (
        of(BACK.conf(), D1),
        of(BACK.conf(), None, timezone.datetime(2026, 3, 1), timezone.datetime(2026, 3, 2)),
    ):
        with pytest.raises(ConfigurationError, match="leave one of the two out"):
            partition_of(pipeline(), other)
    assert [lookback_of(one) for one in (of(None), of({}), of({"data": "x"}), SimpleNamespace())] == [None] * 4


@pytest.mark.parametrize(
    "said", [D1, [], {}, {**BACK.conf()[CONF], "more": 1}, {**BACK.conf()[CONF], "run": 7}, {"partition": D1}]
)
def test_a_conf_of_another_form_is_refused(said: object) -> None:
    with pytest.raises(ConfigurationError, match="which task look_back writes, in another form"):
        lookback_of(of({CONF: said}))


OWNED: dict[str, Any] = {"on_new_run": "overwrite", "by": ("day",)}


@pytest.mark.parametrize(
    ("made", "lookback", "said"),
    [
        (pipeline(has_days=False), 1, "has no partition, so there is none before"),
        (pipeline(on_new_run="append"), 1, "what save has written would stay beside what the new run writes"),
        (pipeline(**OWNED), -1, "lookback is -1; give a number"),
        (pipeline(**OWNED), True, "lookback is True; give a number"),
        (pipeline(**OWNED), "1", "lookback is '1'; give a number"),
    ],
)
def test_what_can_never_look_back_is_refused_when_the_dag_is_parsed(made: Pipeline, lookback: Any, said: str) -> None:
    globals()["parsed"] = made
    with DAG("d", schedule=None), pytest.raises(PipelineDefinitionError, match=said):
        LogioPipelineGroup(made, connections={"warehouse": "warehouse_db"}, lookback=lookback)


FIRST, SECOND = pipeline("first", **OWNED), pipeline("second", **OWNED)


@pytest.mark.parametrize("counts", [(1, 0), (0, 1)])
def test_a_pipeline_beside_it_is_refused(counts: tuple[int, int]) -> None:
    """A look back would compute that one again, too."""
    with DAG("d", schedule=None):
        LogioPipelineGroup(FIRST, connections={"warehouse": "warehouse_db"}, lookback=counts[0])
        with pytest.raises(
            PipelineDefinitionError, match=r"has several pipelines, .*FIRST, .*SECOND, and one with lookback"
        ):
            LogioPipelineGroup(SECOND, connections={"warehouse": "warehouse_db"}, lookback=counts[1])


def test_a_dag_that_allows_no_dag_runs_of_tasks_is_refused() -> None:
    with (
        DAG("d", schedule="@daily", allowed_run_types=[DagRunType.SCHEDULED]),
        pytest.raises(PipelineDefinitionError, match=r"add DagRunType\.OPERATOR_TRIGGERED"),
    ):
        LogioPipelineGroup(FIRST, connections={"warehouse": "warehouse_db"}, lookback=1)


def test_it_is_behind_all_else_and_nothing_waits_for_it() -> None:
    with DAG("d", schedule=None) as dag:
        group = LogioPipelineGroup(FIRST, connections={"warehouse": "warehouse_db"}, lookback=1, assets=True)
    assert dag.get_task("first.look_back").upstream_task_ids >= {"first.finish_run", "first.assets"}
    assert [task.task_id for task in group.get_leaves()] == ["first.assets"]
