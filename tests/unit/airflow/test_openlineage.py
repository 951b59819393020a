"""OpenLineage: what the installed provider makes of the tasks of a run, and that nothing happens without it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage import conf as openlineage
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
from airflow.utils.state import TaskInstanceState

from airflow_logio.openlineage import running
from airflow_logio.openlineage.running import EVENT_SECONDS, STALE_SECONDS, RunningEvents
from airflow_logio.operators._task import openlineage_answers
from airflow_logio.operators._task.openlineage_answers import running_task
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Run
from airflow_logio.triggers.group import LogioGroupTrigger
from tests.support.airflow_connections import connection
from tests.support.logs import Driver, replace_driver, sent, start_driver
from tests.support.openlineage_events import counted, datasets, events_of
from tests.unit.airflow.support import DAG_ID, RUN_ID, run_started

REF = "pipelines.sales:sales"
AT = datetime(2026, 11, 21, tzinfo=UTC)
SHOP = "postgres://db.example.com:5433"
GROUPS = ("ingest", "totals", "hourly", "publish")


@pytest.fixture
def run(log: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    fields: dict[str, Any] = {
        "host": "db.example.com",
        "port": 5433,
        "schema": "shop",
        "login": "me",
        "password": "s3cret-word",
    }
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", connection("postgres", **fields))
    return run_started(log, REF, tmp_path)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the file transport of this deployment writes."""

    def forget() -> None:
        get_openlineage_listener.cache_clear()
        for name in dir(openlineage):
            getattr(getattr(openlineage, name), "cache_clear", lambda: None)()

    events = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    forget()
    yield events
    monkeypatch.undo()
    forget()


def instance(task: Any, attempt: int = 1) -> Any:
    """The attempt of a task, as a worker has it."""
    dag_run = SimpleNamespace(
        dag_id=DAG_ID, run_id=RUN_ID, logical_date=AT, run_after=AT, clear_number=0, conf={}
    )  # fmt: skip
    named = {"dag_id": DAG_ID, "run_id": RUN_ID, "task_id": task.task_id, "map_index": -1, "try_number": attempt}
    return SimpleNamespace(**named, task=task, get_template_context=lambda: {"dag_run": dag_run})


def tell(task: Any, state: TaskInstanceState, error: str | None = None) -> None:
    """What the provider's listener does when a task has come to that state."""
    ti = instance(task)
    metadata = ExtractorManager().extract_metadata(SimpleNamespace(run_id=RUN_ID), task, state, ti)
    run_id = OpenLineageAdapter.build_task_instance_run_id(
        dag_id=DAG_ID, task_id=task.task_id, try_number=1, logical_date=AT, map_index=-1
    )
    given = {
        "run_id": run_id, "job_name": f"{DAG_ID}.{task.task_id}", "task": metadata, "nominal_start_time": AT.isoformat(),
        "nominal_end_time": AT.isoformat(), "owners": ["me"], "tags": ["logio"], "job_description": "a task",
    }  # fmt: skip
    adapter = OpenLineageAdapter()
    if state == TaskInstanceState.RUNNING:
        adapter.start_task(event_time=AT.isoformat(), **given)
    elif state == TaskInstanceState.FAILED:
        adapter.fail_task(end_time=AT.isoformat(), error=error, **given)
    else:
        adapter.complete_task(end_time=AT.isoformat(), **given)


def group_task(group: str, run: Run | None) -> LogioSparkOperator:
    return LogioSparkOperator(task_id=group, pipeline=REF, run_uid=None if run is None else run.uid)


def closing_task(run: Run) -> LogioFinishRunOperator:
    return LogioFinishRunOperator(task_id="finish_run", pipeline=REF, run_uid=run.uid)


def drivers_of(log: LogStore, run: Run) -> dict[str, Driver]:
    return {group: start_driver(log, group=group, run=run) for group in run.spec.groups}


def work(drivers: dict[str, Driver]) -> None:
    """The counters of a run, each with a number of its own; the driver of `totals` was replaced."""
    drivers["totals"] = replace_driver(drivers["totals"])
    counts = {
        "ingest": [("ingest.out", "out", 3)],
        "totals": [("totals.in", "in", 5), ("totals.out", "out", 7), ("save_totals.warehouse", "write", 11)],
        "hourly": [("hourly.in", "in", 13), ("hourly.out", "out", 17)],
        "publish": [("publish.in", "in", 19), ("publish.warehouse", "write", 23)],
    }
    for group, rows in counts.items():
        found: list[fx.Effect] = [
            fx.CountEvents(Port(*port.split(".")), way, 1, records, 100) for port, way, records in rows
        ]
        drivers[group].session.commit(found)


def finish(drivers: dict[str, Driver]) -> None:
    for driver in drivers.values():
        driver.session.commit([fx.FinishGroup()])


def test_the_groups_of_a_run_are_one_graph_with_the_counts_of_the_log(log: LogStore, run: Run, file: Path) -> None:
    drivers = drivers_of(log, run)
    work(drivers)
    finish(drivers)
    for group in GROUPS:
        tell(group_task(group, run), TaskInstanceState.SUCCESS)
    tell(closing_task(run), TaskInstanceState.SUCCESS)
    ingest, totals, hourly, publish, whole = events_of(file)
    ports = f"logio://{log_file(log)}"
    transactions = "file", run.spec.params["transactions"]
    rows = list(log.progress(run.run_id))
    assert datasets(ingest, "inputs") == {transactions: counted(rows, "ingest.out", "out")}
    assert datasets(ingest, "outputs") == {(ports, "sales.ingest.out"): 3}
    assert datasets(totals, "inputs") == {(ports, "sales.ingest.out"): counted(rows, "totals.in", "in")}
    assert datasets(totals, "outputs") == {(SHOP, "shop.public.item_totals"): 11}
    assert datasets(hourly, "inputs") == {(ports, "sales.ingest.out"): 13, (SHOP, "shop.public.products"): None}
    assert datasets(hourly, "outputs") == {(ports, "sales.hourly.out"): 17}
    assert datasets(publish, "inputs") == {(ports, "sales.hourly.out"): 19}
    assert datasets(publish, "outputs") == {(SHOP, "shop.public.hourly_sales"): 23}
    assert datasets(whole, "inputs") == {transactions: 3, (SHOP, "shop.public.products"): None}
    assert datasets(whole, "outputs") == {
        (SHOP, "shop.public.item_totals"): 11,
        (SHOP, "shop.public.hourly_sales"): 23,
    }
    assert {event["eventType"] for event in (ingest, totals, hourly, publish, whole)} == {"COMPLETE"}
    assert "s3cret-word" not in file.read_text()


def log_file(log: LogStore) -> str:
    return str(log.engine.url.database)  # type: ignore[attr-defined]


def test_the_run_facet_says_who_has_worked_and_what_is_set_aside(log: LogStore, run: Run, file: Path) -> None:
    drivers = drivers_of(log, run)
    work(drivers)
    drivers["ingest"].session.commit([sent(1, receiver=Port("totals", "in"), sender=Port("ingest", "out"))])
    drivers["totals"].session.commit(
        [fx.Acknowledge(Port("ingest", "out"), Port("totals", "in"), 1, (("1", Status.UNDONE),))]
    )
    tell(group_task("totals", run), TaskInstanceState.RUNNING)
    drivers["totals"].session.commit([fx.SetAside("totals", "1", 1, "KeyError: a value of a record")])
    tell(group_task("totals", run), TaskInstanceState.FAILED, "parked")
    tell(closing_task(run), TaskInstanceState.FAILED, "unfinished")
    start, failed, whole = (event["run"]["facets"]["logio"] for event in events_of(file))
    assert (start["inputSets"]["openEvents"], start["inputSets"]["quarantined"]) == (1, 0)
    assert {name: failed[name] for name in ("pipeline", "run", "group", "incarnations", "recoveries", "groups")} == {
        "pipeline": "sales", "run": run.uid, "group": "totals", "incarnations": 2, "recoveries": 1,
        "groups": [{"group": "totals", "state": "running", "incarnation": 2, "recoveries": 1}],
    }  # fmt: skip
    assert failed["inputSets"] == whole["inputSets"] == {"openEvents": 0, "quarantined": 1}
    assert {"port": "save_totals.warehouse", "direction": "written", "events": 1, "records": 11} in failed["ports"]
    assert {row["port"].split(".")[0] for row in failed["ports"]} == {"totals", "save_totals"}
    assert "group" not in whole and (whole["incarnations"], whole["recoveries"]) == (5, 1)
    assert "a value of a record" not in file.read_text()


@pytest.mark.parametrize("state", [TaskInstanceState.RUNNING, TaskInstanceState.FAILED])
def test_a_start_and_a_failure_have_datasets_and_no_counts(
    log: LogStore, run: Run, file: Path, state: TaskInstanceState
) -> None:
    """Another attempt counts on from there, and tells the sum at its end."""
    work(drivers_of(log, run))
    tell(group_task("publish", run), state)
    [start] = events_of(file)
    assert set(datasets(start, "outputs").values()) == set(datasets(start, "inputs").values()) == {None}
    [output] = start["outputs"]
    fields = {one["name"]: one["type"] for one in output["facets"]["schema"]["fields"]}
    assert fields["hour"] == "timestamp" and fields.keys() == output["facets"]["columnLineage"]["fields"].keys()


def test_a_task_that_finds_its_run_by_its_dag_run_has_datasets_at_its_end(run: Run, log: LogStore, file: Path) -> None:
    tell(group_task("publish", None), TaskInstanceState.RUNNING)
    tell(group_task("publish", None), TaskInstanceState.SUCCESS)
    start, complete = events_of(file)
    assert not start["outputs"] and "logio" not in start["run"]["facets"]
    assert complete["run"]["facets"]["logio"]["run"] == run.uid
    assert datasets(complete, "outputs") == {(SHOP, "shop.public.hourly_sales"): 0}


def test_a_connection_that_is_gone_costs_its_datasets_and_no_event(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE_DB")
    tell(group_task("hourly", run), TaskInstanceState.SUCCESS)
    [event] = events_of(file)
    assert [name for _, name in datasets(event, "inputs")] == ["sales.ingest.out"]


def test_a_log_that_does_not_answer_costs_the_facet_and_no_event(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"path": "/nowhere/logio.db"}))
    tell(group_task("totals", run), TaskInstanceState.SUCCESS)
    [event] = events_of(file)
    assert (event["eventType"], event["outputs"]) == ("COMPLETE", [])


def test_a_log_that_takes_long_costs_what_only_the_log_knows(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall that drops packets: a server that takes a connection, and never says a word."""
    assert openlineage.execution_timeout() > 2 * openlineage_answers.READ_SECONDS
    monkeypatch.setattr(openlineage_answers, "READ_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        fields: dict[str, Any] = {"host": "127.0.0.1", "port": port, "schema": "logs", "login": "me"}
        monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", **fields, extra={"connect_timeout": 120}))
        began = time.monotonic()
        tell(group_task("totals", run), TaskInstanceState.SUCCESS)
        assert time.monotonic() - began < 60, "the timeout of the connection is longer"
    [event] = events_of(file)
    assert datasets(event, "inputs") == {(f"logio://127.0.0.1:{port}/logs", "sales.ingest.out"): None}
    assert (event["eventType"], event["outputs"], "logio" in event["run"]["facets"]) == ("COMPLETE", [], False)


def test_the_end_of_a_run_names_tables_by_the_connections_of_their_groups(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"host": "other.example.com", "schema": "shop"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_DB", connection("postgres", **fields))
    log.note_launch(run.run_id, "publish", LaunchRecipe(connections={"warehouse": "other_db"}))
    task = LogioSparkOperator(
        task_id="publish", pipeline=REF, run_uid=run.uid, connections={"warehouse": "other_db"}
    )  # fmt: skip
    tell(task, TaskInstanceState.RUNNING)
    tell(closing_task(run), TaskInstanceState.SUCCESS)
    group, whole = (set(datasets(event, "outputs")) for event in events_of(file))
    hourly_sales = ("postgres://other.example.com:5432", "shop.public.hourly_sales")
    assert group == {hourly_sales}
    assert whole == {hourly_sales, (SHOP, "shop.public.item_totals")}


def identity_of(task: Any) -> dict[str, Any] | None:
    return running_task(task, {"ti": instance(task)})


def test_a_long_run_has_a_running_event_at_most_every_five_minutes(log: LogStore, run: Run, file: Path) -> None:
    work(drivers_of(log, run))
    task = group_task("totals", run)
    tell(task, TaskInstanceState.RUNNING)
    now = [0.0]
    told = RunningEvents(identity_of(task), run, "totals", lambda: now[0])
    for second in range(0, int(2.5 * EVENT_SECONDS), 10):
        now[0] = float(second)
        told.ask(log)
        running._sending.submit(lambda: None).result()  # what was sent before has arrived
    start, *rest = events_of(file)
    assert [event["eventType"] for event in rest] == ["RUNNING", "RUNNING"]
    for event in rest:
        assert (event["run"]["runId"], event["job"]) == (start["run"]["runId"], {**start["job"], "facets": {}})
        facets = event["run"]["facets"]
        parent = OpenLineageAdapter.build_dag_run_id(dag_id=DAG_ID, logical_date=AT, clear_number=0)
        assert facets["parent"]["run"]["runId"] == facets["parent"]["root"]["run"]["runId"] == str(uuid.UUID(parent))
        assert (facets["logio"]["incarnations"], facets["logio"]["recoveries"]) == (2, 1)
        assert (event.get("inputs", []), event.get("outputs", [])) == ([], [])


class Told:
    """The RUNNING events of a group, with a clock and a busy transport. They are due all the time."""

    def __init__(self, log: LogStore, run: Run, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(running, "EVENT_SECONDS", 0.0)
        self.now = 0.0
        self.events = RunningEvents(identity_of(group_task("totals", run)), run, "totals", lambda: self.now)
        self._log = log
        self._is_free = threading.Event()

    def look(self) -> None:
        running._sending.submit(self._is_free.wait, 10)
        self.events.ask(self._log)

    def free(self) -> None:
        self._is_free.set()
        running._sending.submit(lambda: None).result()


def test_an_event_says_when_the_log_was_looked_at(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(log, run, monkeypatch)
    told.look()
    looked = datetime.now(UTC)
    told.free()
    [event] = events_of(file)
    assert datetime.fromisoformat(event["eventTime"]) <= looked


def test_an_event_that_had_to_wait_is_not_sent_and_the_next_one_is(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(log, run, monkeypatch)
    told.look()
    told.now = STALE_SECONDS + 1
    told.free()
    assert events_of(file) == []
    told.events.ask(log)
    told.free()
    assert len(events_of(file)) == 1


def test_five_minutes_pass_from_when_an_event_was_sent(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(log, run, monkeypatch)
    monkeypatch.setattr(running, "EVENT_SECONDS", 300.0)
    told.now = 300.0
    told.look()
    told.now = 320.0
    told.free()
    told.now = 610.0
    assert len(events_of(file)) == 1 and not told.events.is_due()
    told.now = 620.0
    assert told.events.is_due()


def test_a_task_that_ends_takes_back_what_was_not_sent(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(log, run, monkeypatch)
    told.look()
    told.events.close()
    told.free()
    told.events.ask(log)
    told.free()
    assert events_of(file) == []


def test_what_is_wrong_with_them_is_said_once_and_stops_no_look(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(log, run, monkeypatch)
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(running, "_sending", ended)
    figures = log.figures([run.run_id])[run.run_id]
    for _ in range(3):
        told.events.look(log.groups(run.run_id), figures)
    assert len([one for one in caplog.records if "no RUNNING event" in one.getMessage()]) == 1


@pytest.mark.parametrize("fires", [True, False])
def test_a_trigger_closes_them_before_it_fires_and_when_it_is_cancelled(fires: bool, log: LogStore, run: Run) -> None:
    if fires:
        drivers_of(log, run)["ingest"].session.commit([fx.FinishGroup()])
    trigger = LogioGroupTrigger(logio_conn_id="logio_default", run_uid=run.uid, group="ingest", poll_interval=0.05)
    begun = trigger._begin(log, run)
    trigger._observers = begun

    async def end() -> bool:
        try:
            if fires:
                assert (await anext(trigger.run())).payload["state"] == "finished"
                return begun.running._is_closed
        finally:
            await trigger.cleanup()
        return begun.running._is_closed

    assert asyncio.run(end())


def test_a_trigger_makes_them_from_what_it_has_read(
    log: LogStore, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "EVENT_SECONDS", 0.0)
    task, drivers = group_task("totals", run), drivers_of(log, run)
    work(drivers)
    given: dict[str, Any] = {
        "logio_conn_id": "logio_default",
        "run_uid": run.uid,
        "group": "totals",
        "lineage": identity_of(task),
    }
    trigger = LogioGroupTrigger(**given)
    assert trigger.serialize()[1]["lineage"] == json.loads(json.dumps(given["lineage"])), "plain data"
    sight = next(one for one in log.sight([run.uid]) if one.run.uid == run.uid)
    look = SimpleNamespace(
        asked_at=0.0, supervisors=(), output={}, figures=log.figures([run.run_id]), store=log, runs={run.uid: sight}
    )
    assert trigger._see(look) is None  # type: ignore[arg-type]
    running._sending.submit(lambda: None).result()
    [event] = events_of(file)
    assert event["eventType"] == "RUNNING" and event["run"]["facets"]["logio"]["group"] == "totals"


def test_the_extra_alone_emits_nothing(log: LogStore, run: Run) -> None:
    assert openlineage.is_disabled(), "no transport is configured"
    assert identity_of(group_task("totals", run)) is None


@pytest.mark.parametrize("control", ["emit", "extract_operator_metadata"])
def test_a_task_that_the_deployment_excludes_has_no_running_events(
    control: str, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert identity_of(group_task("totals", run)) is not None
    controls = {control: False}
    rule = {"scope": {"operator": "airflow_logio.operators.spark.LogioSparkOperator"}, "controls": controls}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EMISSION_POLICY", json.dumps([rule]))
    assert identity_of(group_task("totals", run)) is None


def test_without_the_extra_nothing_of_it_is_imported() -> None:
    """Neither by the operators nor by the trigger, and no module of ours needs it to be there."""
    script = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "openlineage":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name.startswith("airflow.providers.openlineage.") and not name.endswith("get_provider_info"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
import airflow_logio.operators.spark, airflow_logio.operators.finish_run, airflow_logio.triggers.group
from airflow_logio.operators._task.openlineage_answers import running_task

assert running_task(None, {}) is None
ours = [name for name in sys.modules if name.startswith("airflow_logio.openlineage.")]
assert ours == ["airflow_logio.openlineage.running"], ours
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
