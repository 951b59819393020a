"""`LogioStopOperator` and `LogioStopTrigger` on a real log, with drivers that the test speaks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import BaseSerialization
from airflow.triggers.base import TriggerEvent

from airflow_logio.errors import ConfigurationError, LogUnavailable, ProtocolViolation, UnknownRun
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.triggers.stop import LogioStopTrigger
from pipelines.sales import sales
from tests.support.bundle.owned_day import days as owned_day
from tests.support.logs import SOMEBODY, finish
from tests.support.waiting import eventually
from tests.unit.airflow.support import DAG_ID, RUN_ID, context, write_transactions

REF = "pipelines.sales:sales"
GROUPS = ("hourly", "ingest", "publish", "totals")


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    params = {"transactions": str(write_transactions(tmp_path / "t.parquet"))}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    return log.find_run(start.execute(context(params=params)))


def drivers(log: LogStore, run: Run) -> dict[str, GroupRef]:
    """All groups run."""
    return {
        name: log.register(log.claim(run.run_id, name, expected=0, reason="test"), SOMEBODY) for name in run.spec.groups
    }


def operator(**arguments: Any) -> LogioStopOperator:
    return LogioStopOperator(**{"task_id": "stop", "pipeline": REF, "poll_interval": 0.01, **arguments})


def wishes(log: LogStore, run: Run) -> dict[str, str]:
    return {status.group: status.desired.value for status in log.groups(run.run_id)}


def fired(trigger: LogioStopTrigger, meanwhile: Callable[[], object]) -> Any:
    async def first() -> TriggerEvent:
        async def event() -> TriggerEvent:
            return await anext(aiter(trigger.run()))

        task = asyncio.create_task(event())
        await asyncio.to_thread(meanwhile)
        try:
            return await asyncio.wait_for(task, 120)
        finally:
            await trigger.cleanup()

    return asyncio.run(first()).payload


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"mode": "kill"}, "mode is 'kill'"),
        ({"pipeline": None}, "Give pipeline, or run_uid"),
        ({"run_uid": "x", "external_dag_id": "y"}, "leave out external_dag_id"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": timedelta(seconds=-1)}, "timeout is -1"),
        ({"poll_interval": 0.0}, "poll_interval is 0"),
        ({"pipeline": sales, "group": "nobody"}, "has no group 'nobody'"),
        ({"pipeline": REF, "group": "nobody"}, "has no group 'nobody'"),
        ({"pipeline": sales, "group": "totals"}, "has no source"),
        ({"pipeline": owned_day}, "pipeline 'owned_day' cannot be drained: .* writer 'keep' .*mode='halt'"),
        ({"pipeline": owned_day, "group": "reading"}, "pipeline 'owned_day' cannot be drained"),
    ],
)
def test_bad_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        operator(**arguments)


def test_what_can_be_known_only_later_is_accepted() -> None:
    operator(pipeline=sales, group="totals", mode="halt")
    operator(pipeline=sales, group="ingest")
    operator(pipeline=owned_day, group="beside")
    operator(pipeline=owned_day, mode="halt")
    operator(pipeline=sales, group="{{ params.group }}")
    operator(pipeline="not.here:sales", group="nobody")
    operator(pipeline="pipelines.sales_scaled:sales_scaled", group="hourly.2", mode="halt")


def test_a_drain_asks_the_sources_and_waits_in_the_triggerer(log: LogStore, run: Run) -> None:
    refs = drivers(log, run)
    stop = operator(timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        stop.execute(context())
    assert wishes(log, run) == {"ingest": "draining", "totals": "running", "hourly": "running", "publish": "running"}
    assert deferred.value.timeout == timedelta(seconds=60)
    trigger = deferred.value.trigger
    assert isinstance(trigger, LogioStopTrigger) and trigger.run_uid == run.uid

    def end() -> None:
        for ref in refs.values():
            finish(log, ref)

    event = fired(trigger, end)
    result = stop.resume(context(), event, **(deferred.value.kwargs or {}))
    assert result == {"run": run.uid, "mode": "drain", "groups": dict.fromkeys(GROUPS, "finished")}
    json.dumps(result)


def test_without_the_triggerer(log: LogStore, run: Run) -> None:
    for ref in drivers(log, run).values():
        finish(log, ref)
    assert operator(deferrable=False).execute(context())["groups"]["ingest"] == "finished"


def test_it_gives_up_waiting_and_the_wish_stays(log: LogStore, run: Run) -> None:
    drivers(log, run)
    with pytest.raises(AirflowFailException, match=r"not over after 0\.05 s: hourly running, ingest running"):
        operator(deferrable=False, timeout=0.05).execute(context())
    assert wishes(log, run)["ingest"] == "draining"


def test_a_halt_of_one_group(log: LogStore, run: Run) -> None:
    ref = drivers(log, run)["totals"]
    with pytest.raises(TaskDeferred) as deferred:
        operator(group="totals", mode="halt").execute(context())
    assert wishes(log, run) == dict.fromkeys(GROUPS, "running") | {"totals": "halted"}
    trigger = deferred.value.trigger
    assert isinstance(trigger, LogioStopTrigger)
    assert fired(trigger, lambda: log.halted(ref)) == {"states": {"totals": "halted"}}


def test_a_halt_of_a_run_without_drivers(log: LogStore, run: Run) -> None:
    result = operator(mode="halt").execute(context())
    assert result["groups"] == dict.fromkeys(GROUPS, "halted")
    assert log.group(run.run_id, "ingest").state is GroupState.HALTED


def test_a_drain_that_cannot_come_to_its_end(log: LogStore, run: Run) -> None:
    refs = drivers(log, run)
    log.park(refs["totals"], "KeyError: 'department'")
    with pytest.raises(AirflowFailException, match=r"is not drained: .*totals parked"):
        operator().execute(context())


def test_a_wish_that_nobody_would_obey_asks_nobody(log: LogStore, run: Run) -> None:
    drivers(log, run)
    with pytest.raises(ProtocolViolation, match="'publish' has no source"):
        operator(pipeline=None, run_uid=run.uid, group="publish").execute(context())
    log.request(run.run_id, "ingest", GroupState.HALTED)
    with pytest.raises(ProtocolViolation, match="asked to halt: `logio retry`"):
        operator().execute(context())
    assert wishes(log, run)["ingest"] == "halted"


def test_which_run(log: LogStore, run: Run) -> None:
    elsewhere = context()
    elsewhere["dag_run"].dag_id = "janitor"
    found = [
        operator(run_uid=run.uid)._find(log, elsewhere),
        operator(external_dag_id=DAG_ID)._find(log, elsewhere),
        operator(external_dag_id=DAG_ID, external_dag_run_id=RUN_ID)._find(log, elsewhere),
        operator(external_dag_run_id=RUN_ID)._find(log, context()),
        operator(pipeline=sales)._find(log, context()),
    ]
    assert {one.uid for one in found} == {run.uid}
    with pytest.raises(UnknownRun, match=r"DAG run .* of 'janitor'"):
        operator()._find(log, elsewhere)
    with pytest.raises(UnknownRun, match="for DAG 'janitor'"):
        operator(external_dag_id="janitor")._find(log, context())


def test_the_trigger_survives_serialization(run: Run) -> None:
    trigger = LogioStopTrigger(logio_conn_id="logio_default", run_uid=run.uid, mode="drain", poll_interval=0.5)
    path, arguments = trigger.serialize()
    assert path == f"{LogioStopTrigger.__module__}.{LogioStopTrigger.__qualname__}"
    assert "sqlite" not in json.dumps(arguments), "a connection id, never a URL"
    stored = BaseSerialization.deserialize(BaseSerialization.serialize(arguments))
    assert LogioStopTrigger(**stored).serialize() == (path, arguments)


@pytest.mark.parametrize("arguments", [{"poll_interval": 0}, {"mode": "kill"}])
def test_a_nonsensical_trigger_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"poll_interval|kill"):
        LogioStopTrigger(**{"logio_conn_id": "x", "run_uid": "x", "mode": "halt", **arguments})


def test_a_log_that_is_away_means_nothing(log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = drivers(log, run)
    trigger = LogioStopTrigger(logio_conn_id="logio_default", run_uid=run.uid, mode="drain", poll_interval=0.01)
    real, asked = SqlLogStore.groups, []

    def away(*_: Any) -> Any:
        asked.append(1)
        raise LogUnavailable("away")

    def outage() -> None:
        monkeypatch.setattr(SqlLogStore, "groups", away)
        eventually(lambda: len(asked) > 2)
        for ref in refs.values():
            finish(log, ref)
        monkeypatch.setattr(SqlLogStore, "groups", real)

    assert fired(trigger, outage)["states"]["ingest"] == "finished"


def test_what_cannot_be_watched_is_said(run: Run) -> None:
    trigger = LogioStopTrigger(logio_conn_id="logio_default", run_uid="nope", mode="drain")
    event = fired(trigger, lambda: None)
    assert "UnknownRun" in event["error"]
    with pytest.raises(AirflowException, match="cannot watch run"):
        operator().resume(context(), event, run_uid=run.uid)
