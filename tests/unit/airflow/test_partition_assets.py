"""Asset events of partitions, by Airflow's own tasks and scheduler, on its own database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from airflow import settings
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models import DagRun
from airflow.models.asset import AssetEvent
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.tasklog import LogTemplate
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, CronPartitionTimetable, PartitionedAssetTimetable, timezone
from airflow.sdk.definitions.dag import _run_task
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from sqlalchemy import select, update

from airflow_logio import Days, ParquetSource, Pipeline, TableWriter, _compat
from airflow_logio.errors import ConfigurationError
from airflow_logio.operators.assets import LogioAssetsOperator
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port
from airflow_logio.ready_dags import build_assets_dag
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunKey
from tests.support.logs import spec, start_driver
from tests.unit.airflow.support import make_dag_run

TOP = "logio://warehouse_db/top"
CONNECTIONS = {"warehouse": "warehouse_db"}


def clicks(**how: Any) -> Pipeline:
    made = Pipeline("clicks", connections=["warehouse"], **how)
    columns = {"day": "date", "id": "bigint"}
    writer = TableWriter("warehouse", "top", columns, ("day", "id"))
    made.writer("save", writer, made.source("web", ParquetSource("web.parquet")))
    return made


OF_DAYS, WITHOUT = clicks(partition=Days("day")), clicks()


@dataclass
class Airflow:
    """A DAG that tells of days, and two that are scheduled on what it tells of."""

    log: LogStore
    producer: DAG

    def dag_run(self, run_id: str, key: str | None) -> None:
        make_dag_run("producer", run_id, key)

    def computed(self, run_id: str, day: str, records: int) -> Run:
        """A run of that DAG run, which has written."""
        shape = replace(spec("g"), key=RunKey("clicks", "producer", run_id), partition=day)
        driver = start_driver(self.log, run=self.log.start_run(shape))
        driver.session.commit([fx.LogWrite("save", "warehouse", 1, {}, records, body=b"")])
        count = fx.CountEvents(Port("save", "warehouse"), "write", 1, records)
        driver.session.commit([fx.WritesDone("save", "warehouse", 1, 1), count, fx.FinishGroup()])
        return driver.run

    def told(self, run_id: str) -> str | None:
        """The next attempt of task `assets`; returns the state that it ends in."""
        with settings.Session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == "producer", DagRun.run_id == run_id))
            assert run is not None
            task = run.get_task_instance("assets", session=session)
            assert task is not None
            task.try_number += 1
            task.state = "scheduled"
            session.commit()
            _run_task(ti=task, task=self.producer.get_task("assets"))
            return str(getattr(task.state, "value", task.state))

    def events(self) -> list[tuple[str | None, str, int]]:
        """Of each event: its key, the run that it is about, and how many records."""
        with settings.Session() as session:
            found = session.scalars(select(AssetEvent).order_by(AssetEvent.id)).all()
            return [(one.partition_key, one.extra["run"], one.extra["records"]) for one in found]

    def begin(self) -> None:
        """The scheduler lets the DAG runs of the consumer begin."""
        with settings.Session() as session:
            session.execute(update(DagRun).where(DagRun.dag_id == "consumer").values(start_date=timezone.utcnow()))
            session.commit()

    def consumed(self, dag_id: str = "consumer") -> list[str | None]:
        """The keys of the runs of a DAG, when the scheduler has looked for new ones."""
        with settings.Session() as session:
            SchedulerJobRunner(Job())._create_dagruns_for_partitioned_asset_dags(session)
            session.commit()
            of = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id)
            return [run.partition_key for run in session.scalars(of).all()]


@pytest.fixture
def airflow(airflow_database: None, log: LogStore) -> Airflow:
    with DAG("producer", schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1)) as producer:
        LogioAssetsOperator(task_id="assets", pipeline=OF_DAYS, connections=CONNECTIONS)
    with DAG("consumer", schedule=PartitionedAssetTimetable(assets=Asset(TOP))) as consumer:
        EmptyOperator(task_id="read")
    dags = [LazyDeserializedDAG.from_dag(dag) for dag in (producer, consumer)]
    with settings.Session() as session:
        session.add(LogTemplate(id=0, filename="log", elasticsearch_id="log"))
        session.add(DagBundleModel(name="dags"))
        session.flush()
        SerializedDAG.bulk_write_to_db("dags", None, dags, session=session)
        for dag in dags:
            SerializedDagModel.write_dag(dag, "dags", session=session)
        session.execute(update(DagModel).values(is_paused=False))
        session.commit()
    return Airflow(log, producer)


def test_each_day_has_an_event_with_its_key_and_its_consumer_a_run(airflow: Airflow) -> None:
    """Whatever the DAG run calls the day: a timetable's key, a person's, or none, as a data interval gives it."""
    ways = {"scheduled": "2026-03-01T00:00:00", "by_hand": "2026-03-02", "by_interval": None}
    runs = {}
    for number, (run_id, key) in enumerate(ways.items(), 1):
        airflow.dag_run(run_id, key)
        runs[run_id] = airflow.computed(run_id, f"2026-03-0{number}", 10 * number)
        assert airflow.told(run_id) == "success"
    assert airflow.events() == [
        (f"2026-03-0{number}", runs[run_id].uid, 10 * number) for number, run_id in enumerate(ways, 1)
    ]
    assert airflow.consumed() == ["2026-03-01", "2026-03-02", "2026-03-03"]


def test_a_day_that_is_computed_again_has_another_event_and_a_cleared_task_none(airflow: Airflow) -> None:
    airflow.dag_run("monday", "2026-03-02")
    first = airflow.computed("monday", "2026-03-02", 10)
    assert [airflow.told("monday"), airflow.told("monday")] == ["success", "success"]
    assert airflow.events() == [("2026-03-02", first.uid, 10)]
    assert airflow.consumed() == ["2026-03-02"]
    airflow.begin()
    assert airflow.log.supersede(first.run_id)
    again = airflow.computed("monday", "2026-03-02", 12)
    assert again.uid != first.uid
    assert [airflow.told("monday"), airflow.told("monday")] == ["success", "success"]
    assert airflow.events() == [("2026-03-02", first.uid, 10), ("2026-03-02", again.uid, 12)]
    assert airflow.consumed() == ["2026-03-02", "2026-03-02"]


def test_a_consumer_that_is_queued_keeps_no_day_from_being_told_of(
    airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow 3.3.2 reads no events of an asset while a DAG run that one of them has started is queued. A task that may
    have told of its run waits for it; others tell."""
    airflow.dag_run("sunday", "2026-03-01")
    airflow.dag_run("monday", "2026-03-02")
    first = airflow.computed("sunday", "2026-03-01", 10)
    assert airflow.told("sunday") == "success"
    assert airflow.consumed() == ["2026-03-01"]
    second = airflow.computed("monday", "2026-03-02", 20)
    assert airflow.told("monday") == "success"
    told = [("2026-03-01", first.uid, 10), ("2026-03-02", second.uid, 20)]
    assert airflow.events() == told
    capsys.readouterr()
    assert airflow.told("sunday") == "failed"
    assert "clear this task when it has begun" in capsys.readouterr().out
    airflow.begin()
    assert [airflow.told("sunday"), airflow.told("monday")] == ["success", "success"]
    assert airflow.events() == told
    assert airflow.consumed() == ["2026-03-01", "2026-03-02"]


def test_a_day_that_is_not_complete_has_no_event(airflow: Airflow) -> None:
    airflow.dag_run("monday", "2026-03-02")
    shape = replace(spec("g"), key=RunKey("clicks", "producer", "monday"), partition="2026-03-02")
    start_driver(airflow.log, run=airflow.log.start_run(shape))
    assert airflow.told("monday") == "failed"
    assert airflow.events() == []


def test_below_airflow_3_3_events_of_partitions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "may_give_partition_keys", lambda: False)
    with pytest.raises(ConfigurationError, match=r"'clicks' has a run for each 'day', and only tasks of Airflow 3\.3"):
        LogioAssetsOperator(task_id="assets", pipeline=OF_DAYS, connections=CONNECTIONS)
    assert LogioAssetsOperator(task_id="assets", pipeline=WITHOUT, connections=CONNECTIONS).assets


def test_events_while_a_run_is_going_have_no_partition() -> None:
    with pytest.raises(ConfigurationError, match="has a run for each 'day', and an event says that one is complete"):
        build_assets_dag(OF_DAYS, CONNECTIONS)
    assert build_assets_dag(WITHOUT, CONNECTIONS).get_task("assets").while_running
