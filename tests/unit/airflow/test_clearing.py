"""A clear of the task that starts the run of a partition: by Airflow's own tasks, on its own database.

What a scheduler does between attempts, the test does; drivers are what it tells the log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
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
from airflow.sdk import DAG, CronPartitionTimetable, timezone
from airflow.sdk.definitions.dag import _run_task
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.state import DagRunState

from airflow_logio.hooks.connections import database_url, external_url
from airflow_logio.operators._task.partition_start import PartitionStart
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.scope_rules import DayRun
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.day_records import Standing
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql import run_log
from airflow_logio.systems import warehouse_rows
from airflow_logio.systems.databases.table_names import table_name
from airflow_logio.systems.warehouse import Warehouse
from tests.store.test_calendar import reader
from tests.support import table_days
from tests.support.faults import inject
from tests.support.logs import Driver, sent, start_driver
from tests.unit.airflow.support import make_dag_run

D1, D2, D3 = "2026-03-01", "2026-03-02", "2026-03-03"
START, GROUPS = "clicks.start_run", ("clicks.read", "clicks.count")
CLICKS = """
from airflow_logio import Count, Days, OwnPartition, ParquetSource, Pipeline, TableWriter

clicks = Pipeline("clicks", partition=Days("day"), params={"data": str}, connections=["warehouse"])
web = clicks.source("web", ParquetSource("{data}/*.parquet"))
own = clicks.operator("own", OwnPartition("day", on="ts"), web)
columns = {"day": "date", "id": "bigint"}
LAST = TableWriter("warehouse", "top", columns, ("day", "id"), on_new_run="overwrite", by=("day",))
clicks.writer("save", LAST, "own.own")
clicks.sink("late", Count(), "own.other")
clicks.group("read", web, own, "late")
clicks.group("count", "save")
"""
READING = f"""{CLICKS.replace("import ", "import QuerySource, ")}
raw = QuerySource(
    "warehouse", "SELECT id FROM raw", columns={{"id": "bigint"}}, order_by="id", append_only=True, replayable=True
)
clicks.sink("seen", Count(), clicks.source("raw", raw, days={{"raw": "day={{day}}"}}))
"""
ADDING = CLICKS.replace(', on_new_run="overwrite", by=("day",)', ', on_new_run="append"')


@dataclass
class Cleared:
    """A DAG with the pipeline's tasks in Airflow's database."""

    log: LogStore
    folder: Path
    said: Callable[[], str]
    dag: DAG

    def begin(self, key: str | None = D1, run_id: str = "first") -> None:
        """What a trigger or the scheduler does."""
        make_dag_run(self.dag.dag_id, run_id, key)

    def execute(self, run_id: str = "first", task_id: str = START) -> str | None:
        """The next attempt of a task; returns the state that it ends in."""
        with settings.Session() as session:
            run = self._dag_run(session, run_id)
            if run.state == DagRunState.QUEUED:
                run.state, run.start_date = DagRunState.RUNNING, timezone.utcnow()
            task = run.get_task_instance(task_id, session=session)
            task.try_number += 1
            task.state = "scheduled"
            session.commit()
            _run_task(ti=task, task=self.dag.get_task(task_id))
            return str(getattr(task.state, "value", task.state))

    def started(self, run_id: str = "first") -> Run:
        assert self.execute(run_id) == "success", self.said()
        [newest, *_] = self.log.list_runs(dag_run_id=run_id)
        return newest

    def refused(self, run_id: str = "first") -> str:
        before = [(one.uid, one.state) for one in self.log.list_runs()]
        self.said()
        assert self.execute(run_id) in ("failed", "up_for_retry")
        assert [(one.uid, one.state) for one in self.log.list_runs()] == before
        return self.said()

    def mark(self, state: str, *task_ids: str, run_id: str = "first") -> None:
        """What tasks have ended as; the DAG run has ended with them."""
        with settings.Session() as session:
            run = self._dag_run(session, run_id)
            for task in run.get_task_instances(session=session):
                if task.task_id != START and task.task_id in (task_ids or (task.task_id,)):
                    task.state = state
                    task.try_number += state != "upstream_failed"
            run.state = DagRunState.FAILED if state == "failed" else DagRunState.SUCCESS
            session.commit()

    def clear(self, *task_ids: str, run_id: str = "first") -> None:
        """As *Clear* does: these tasks, by default all."""
        with settings.Session() as session:
            dag = DBDagBag().get_latest_version_of_dag(self.dag.dag_id, session=session)
            assert dag is not None
            dag.clear(run_id=run_id, task_ids=task_ids or [task.task_id for task in dag.tasks], session=session)
            session.commit()

    def delete(self, run_id: str = "first") -> None:
        with settings.Session() as session:
            session.delete(self._dag_run(session, run_id))
            session.commit()

    def finish(self, run: Run) -> None:
        """Its groups, its tasks, its DAG run."""
        for group in run.spec.groups:
            driver = start_driver(self.log, group=group, run=run)
            driver.session.commit([fx.FinishGroup()])
        assert self.log.finish_run(run.run_id)
        self.mark("success", run_id=run.spec.key.dag_run_id)

    def change_code(self, text: str) -> None:
        """Of the file: what this process has imported of it stays."""
        with (self.folder / f"{self.folder.name}.py").open("a") as file:
            file.write(f"\n# {text}\n")

    def _dag_run(self, session: Any, run_id: str) -> DagRun:
        found: DagRun = session.query(DagRun).filter(DagRun.run_id == run_id).one()
        return found


@pytest.fixture
def make(
    airflow_database: None,
    log: LogStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Cleared]:
    data = {"ts": pa.array([1_772_330_400_000_000], pa.timestamp("us", "UTC")), "id": pa.array([1], pa.int64())}
    pq.write_table(pa.table(data), tmp_path / "a.parquet")

    monkeypatch.syspath_prepend(tmp_path)  # a module of the test's own name

    def said() -> str:
        text = caplog.text + "".join(capsys.readouterr())
        caplog.clear()
        return text

    def made(clicks: str = CLICKS, retries: int = 3) -> Cleared:
        (tmp_path / f"{tmp_path.name}.py").write_text(clicks)
        schedule = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1)
        with DAG("days", schedule=schedule, start_date=timezone.utcnow(), default_args={"retries": retries}) as dag:
            LogioPipelineGroup(
                f"{tmp_path.name}:clicks",
                params={"data": str(tmp_path)},
                connections={"warehouse": "warehouse_db"},
            )
        with settings.Session() as session:
            session.add(DagBundleModel(name="dags"))
            session.flush()
            session.add(DagModel(dag_id="days", bundle_name="dags", fileloc="x", is_paused=False))
            session.add(LogTemplate(id=0, filename="log", elasticsearch_id="log"))
            session.commit()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "dags", session=session)
            session.commit()
        return Cleared(log, tmp_path, said, dag)

    return made


@pytest.fixture
def days(make: Callable[..., Cleared]) -> Cleared:
    return make()


def test_the_days_of_tables_that_a_run_reads_are_noted_when_it_begins(make: Callable[..., Cleared]) -> None:
    """What is wrong with them is refused before, and stops no run that resumes."""
    days, url = make(READING), database_url("warehouse_db")
    days.begin()
    assert "source 'raw': days of table 'raw': there is no table" in days.refused()
    with closing(Warehouse("warehouse", url)) as warehouse:
        table_days.Run(1, uid="f" * 32, table="raw", log_uid="another").all(warehouse, 7)
        days.clear()
        first = days.started()
        (noted,) = days.log.days_read([first.run_id])[first.run_id]
        assert (noted.operator, noted.scope, noted.standing) == ("raw", f"day={D1}", Standing.ELSEWHERE)
        assert noted.place.startswith("table ") and noted.place.endswith("raw of connection warehouse_db")
        table_days.execute(warehouse, "DROP TABLE raw")
    days.mark("failed")
    days.clear()
    assert days.started().uid == first.uid
    assert "which run had left the days of table 'raw' is not known" in days.said()


def test_a_finished_one_is_computed_again_with_the_code_that_the_task_has(days: Cleared) -> None:
    days.begin()
    first = days.started()
    days.finish(first)
    days.log.start_run(reader(first.uid))
    days.clear()
    second = days.started()
    assert (second.uid != first.uid, second.spec.key.generation, second.partition) == (True, 2, D1)
    said = days.said()
    assert f"{D1} is computed again, as run {second.uid}, in the place of {first.uid} (its DAG run was cleared)" in said
    assert f"1 run was computed from what run {first.uid[:8]} had left: top@2026-03-05" in said
    assert "the same as before. Airflow gives a cleared task the code of its DAG run's own version" in said
    old = days.log.find_run(first.uid)
    assert (old.state, old.superseded_by) == (RunState.SUPERSEDED, second.uid)
    days.finish(second)
    days.change_code("a fix")
    days.clear()
    third = days.started()
    assert third.spec.code_digest != second.spec.code_digest
    assert f"its code is {third.spec.code_digest}, another than before ({second.spec.code_digest})" in days.said()


def test_an_unfinished_one_resumes_and_says_both_digests(days: Cleared) -> None:
    """Its drivers are dead: what they have done stays. What was quarantined is put back."""
    days.begin()
    first = days.started()
    driver = start_driver(days.log, group="read", run=first)
    assert days.log.declare_dead(driver.ref, "test")
    days.mark("failed")
    days.clear()
    assert days.started().uid == first.uid
    assert "logio again" not in days.said(), "it has the same code"
    days.mark("failed")
    days.change_code("a fix")
    days.clear()
    assert days.started().uid == first.uid
    said = days.said()
    assert f"its code is {first.spec.code_digest}, that of this task " in said
    assert f"`logio again {first.uid[:8]}`, then clear this task with downstream" in said
    assert days.log.supersede(first.run_id, because="a person says so")
    days.mark("failed")
    days.clear()
    second = days.started()
    assert second.uid != first.uid and f"in the place of {first.uid} (a person says so)" in days.said()
    days.mark("failed")
    days.clear()
    assert days.started().uid == second.uid and "computed again" not in days.said()


def test_what_was_quarantined_is_put_back(days: Cleared) -> None:
    days.begin()
    first = days.started()
    aside(start_driver(days.log, group="read", run=first))
    parked = start_driver(days.log, group="count", run=first)
    assert days.log.park(parked.ref, "the database says no")
    days.mark("failed")
    days.clear()
    assert days.started().uid == first.uid
    assert "1 quarantined Input Set(s) are put back" in days.said()
    assert (days.log.quarantined(first.run_id), days.log.find_run(first.uid).state) == ([], RunState.RUNNING)


def test_a_day_that_a_younger_run_has_claimed_is_not_resumed(days: Cleared) -> None:
    """As `logio retry` refuses it: all of it would be computed, and then parked."""
    days.begin()
    first = days.started()
    assert days.log.park(start_driver(days.log, group="read", run=first).ref, "the database says no")
    with (
        closing(Warehouse("warehouse", external_url("warehouse_db"))) as warehouse,
        warehouse.for_writes() as connection,
    ):
        warehouse_rows.make_tables(connection, None, for_scopes=True)
        younger = DayRun("clicks", days.log.log_uid(), first.ordinal + 1, "f" * 32)
        warehouse_rows.make_scope(connection, table_name(connection, "top"), f"day={D1}", younger)
        connection.commit()
    days.mark("failed")
    days.clear()
    said = days.refused()
    assert "is not resumed: its writer 'save' would be refused" in said and f"`logio again {first.uid[:8]}`" in said
    assert days.log.supersede(first.run_id)
    assert days.started().uid != first.uid, "Airflow's own retry"


def aside(driver: Driver) -> None:
    """An Input Set of `own`."""
    sender, receiver = Port("web", "out"), Port("own", "in")
    driver.session.commit([sent(1, receiver=receiver, sender=sender)])
    driver.session.commit([fx.Acknowledge(sender, receiver, 1, (("1", Status.UNDONE),))])
    state = encode_state(Context(aside=["1"]), {})
    driver.session.commit([fx.SetAside("own", "1", 1, "KeyError: 'id'"), fx.StoreState("own", state)])


def test_red_then_fixed_then_cleared(days: Cleared) -> None:
    """A row that its code cannot use has parked it; with other code it begins anew, with the same it would not."""
    days.begin()
    first = days.started()
    driver = start_driver(days.log, group="read", run=first)
    assert days.log.park(driver.ref, "KeyError: 'id'")
    days.mark("failed")
    days.clear()
    assert days.started().uid == first.uid
    days.change_code("a fix")
    days.mark("failed")
    days.clear()
    second = days.started()
    assert (second.uid != first.uid, second.partition) == (True, D1)
    assert f"another than before ({first.spec.code_digest})" in days.said()


def test_rows_that_would_be_there_twice_are_refused(make: Callable[..., Cleared]) -> None:
    days = make(ADDING)
    days.begin()
    first = days.started()
    days.finish(first)
    days.clear()
    said = days.refused()
    assert "save" in said and f"`logio again {first.uid[:8]}`, and clear this task again with downstream" in said
    assert days.log.supersede(first.run_id, because="removed them")
    assert days.started().uid != first.uid, "Airflow's own retry"


# --- what was cleared with it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", [(), GROUPS[:1], ("clicks.finish_run", "clicks.supervise")])
def test_alone_it_is_refused(also: tuple[str, ...], days: Cleared) -> None:
    """Nothing would launch what it starts: of a finished run, of a red one, of one that could not start at first."""
    days.begin()
    first = days.started()
    days.finish(first)
    days.clear(START, *also)
    said = days.refused()
    assert "clicks.count (success)" in said and "Clear it with downstream" in said
    assert ("clicks.read (success)" in said) == (also != GROUPS[:1])
    days.clear()
    second = days.started()
    assert second.uid != first.uid
    days.mark("failed")
    days.clear(START, *also)
    assert "clicks.count (failed)" in days.refused()
    for state in ("up_for_retry", "removed"):  # cleared while it ran; of another version of the DAG
        days.mark(state)
        days.clear(START)
        assert days.started().uid == second.uid
    days.delete()
    days.begin()
    days.mark("upstream_failed")
    days.clear(START)
    assert "clicks.count (upstream_failed)" in days.refused()


def test_a_group_cleared_by_itself_starts_nothing(days: Cleared) -> None:
    days.begin()
    first = days.started()
    days.finish(first)
    days.clear("clicks.count")
    assert days.execute(task_id="clicks.count") == "success"
    assert [one.uid for one in days.log.list_runs()] == [first.uid]
    said = days.said()
    assert "has finished, and nothing of it is computed again" in said and "logio fresh" not in said
    assert "Clear DAG run first of days from the task that starts the run onwards" in said


def test_three_days_at_once_shut_out_none(days: Cleared) -> None:
    keys = {"first": D1, "second": D2, "third": D3}
    before = []
    for run_id, key in keys.items():
        days.begin(key, run_id)
        before.append(days.started(run_id))
        days.finish(before[-1])
    for run_id in keys:
        days.clear(run_id=run_id)
    after = [days.started(run_id) for run_id in keys]
    assert [one.partition for one in after] == list(keys.values())
    assert all(one.state is RunState.RUNNING for one in after) and {one.uid for one in after}.isdisjoint(
        one.uid for one in before
    )
    for run in after:
        days.finish(run)


# --- one clear decides once -------------------------------------------------------------------------------------------


def test_a_retry_after_a_kill_does_what_was_decided(days: Cleared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between giving up and beginning, then behind the decision; and the run finishes before the next attempt."""
    days.begin()
    first = days.started()
    days.finish(first)
    days.clear()
    with monkeypatch.context() as patched:
        begin = run_log._begin
        patched.setattr(run_log, "_begin", inject)
        assert days.execute() == "up_for_retry"
        assert days.log.find_run(first.uid).state is RunState.SUPERSEDED, "given up, and nothing has begun"
        patched.setattr(run_log, "_begin", begin)
        patched.setattr(PartitionStart, "_say_again", inject)
        assert days.execute() == "up_for_retry"
    [second, _] = days.log.list_runs()
    for group in second.spec.groups:
        start_driver(days.log, group=group, run=second).session.commit([fx.FinishGroup()])
    assert days.started().uid == second.uid
    said = days.said()
    assert "has finished, and nothing of it is computed again" in said and "logio fresh" not in said
    days.mark("success")
    days.clear()
    assert days.started().uid != second.uid, "the next clear means again"


@pytest.mark.parametrize("retries", [0, 2])
def test_tasks_cleared_beside_it_are_no_clear_of_it(retries: int, make: Callable[..., Cleared]) -> None:
    days = make(retries=retries)
    days.begin()
    first = days.started()
    days.clear("clicks.count")
    if retries:
        assert days.started().uid == first.uid
    days.finish(first)
    for _ in range(2):
        days.clear()
        second = days.started()
        assert second.uid != first.uid
        days.clear("clicks.count")
        if retries:
            assert days.started().uid == second.uid
        days.finish(second)
        first = second


def test_a_dag_run_deleted_and_made_again_decides_anew(days: Cleared) -> None:
    days.begin()
    first = days.started()
    days.finish(first)
    days.clear()
    second = days.started()
    days.finish(second)
    days.delete()
    days.begin()
    third = days.started()
    assert third.uid not in (first.uid, second.uid)
    assert days.started().uid == third.uid, "its own retry"


# --- which partition --------------------------------------------------------------------------------------------------


def test_a_key_that_airflow_has_taken_away_is_that_of_before(days: Cleared) -> None:
    """`airflow partitions clear --clear-task-instances` (of Airflow 3.3) takes it away, and clears the tasks."""
    from airflow.models.dagrun import clear_partition_runs

    days.begin()
    first = days.started()
    days.finish(first)
    with settings.Session() as session:
        arguments: dict[str, Any] = dict.fromkeys(("dag", "run_id", "partition_date_start", "partition_date_end"))
        clear_partition_runs(
            dag_id="days", partition_key=D1, clear_tis=True, dry_run=False, session=session, **arguments
        )
        session.commit()
        assert [one.partition_key for one in session.query(DagRun)] == [None]
    second = days.started()
    assert (second.uid != first.uid, second.partition) == (True, D1)
    days.begin(None, "another")
    assert "this run has none" in days.refused("another"), "it has no former one"


def test_another_key_is_refused(days: Cleared) -> None:
    days.begin()
    first = days.started()
    days.finish(first)
    days.delete()
    days.begin(D2)
    said = days.refused()
    assert f"is for {D1}, and now is asked for {D2}" in said
