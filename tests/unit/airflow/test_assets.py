"""Asset events: what they say, for which runs there is one, and what is refused when the DAG is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException
from airflow.sdk import Asset, AssetAlias
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio import DatasetWriter, FolderSource, Pipeline
from airflow_logio.asset_uris import create_asset
from airflow_logio.errors import ConfigurationError
from airflow_logio.operators._task.run_lookup import task_key
from airflow_logio.operators.assets import LogioAssetsOperator, assets_of
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.values import Port, Status
from airflow_logio.ready_dags import build_assets_dag
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from tests.support.logs import Driver, sent, start_driver
from tests.unit.airflow.support import DAG_ID, RUN_ID, context, run_started
from tests.unit.airflow.test_pipeline_group import tiny

REF = "pipelines.sales:sales"
PARAMS = {"transactions": ""}
WAREHOUSE = {"warehouse": "warehouse_db"}
HOURLY, TOTALS = "logio://warehouse_db/hourly_sales", "logio://warehouse_db/item_totals"


@dataclass
class Events:
    """Asset events as Airflow keeps them: `told` are there, `added` those of one attempt of a task."""

    told: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    added: dict[str, _Outlet] = field(default_factory=dict)
    attempt: int = 1

    def context(self) -> dict[str, Any]:
        found = {"inlet_events": _Inlets(self.told), "outlet_events": _Outlets(self.added)}
        return {**context(attempt=self.attempt), **found}

    def of(self, task: LogioAssetsOperator) -> dict[str, dict[str, Any]]:
        """What an attempt adds, which is kept: Airflow commits it with the end of the task."""
        self.added.clear()
        task.execute(self.context())
        for uri, outlet in self.added.items():
            self.told.setdefault(uri, []).extend(outlet.extras)
        return {uri: outlet.extras[-1] for uri, outlet in self.added.items()}


class _Inlets:
    def __init__(self, told: Mapping[str, list[dict[str, Any]]]) -> None:
        self._told = told

    def __getitem__(self, alias: AssetAlias) -> _Inlet:
        return _Inlet(self._told.get(alias.name, []))


class _Inlet:
    """As Airflow's: the oldest first, unless it is told otherwise."""

    def __init__(self, extras: list[dict[str, Any]]) -> None:
        self._extras = extras

    def after(self, moment: str) -> _Inlet:
        assert datetime.fromisoformat(moment).tzinfo is not None
        return self

    def ascending(self, ascending: bool) -> _Inlet:
        return self if ascending else _Inlet(self._extras[::-1])

    def limit(self, limit: int) -> _Inlet:
        return _Inlet(self._extras[:limit])

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter([SimpleNamespace(extra=extra) for extra in self._extras])


@dataclass
class _Outlet:
    name: str
    extras: list[dict[str, Any]] = field(default_factory=list)

    def add(self, asset: Asset, extra: dict[str, Any]) -> None:
        assert asset.uri == self.name
        self.extras.append(extra)


class _Outlets:
    def __init__(self, added: dict[str, _Outlet]) -> None:
        self._added = added

    def __getitem__(self, alias: AssetAlias) -> _Outlet:
        return self._added.setdefault(alias.name, _Outlet(alias.name))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


def drivers_of(log: LogStore, run: Run) -> dict[str, Driver]:
    return {group: start_driver(log, group=group, run=run) for group in run.spec.groups}


def finish(drivers: Mapping[str, Driver]) -> None:
    for driver in drivers.values():
        driver.session.commit([fx.FinishGroup()])


def write(driver: Driver, operator: str, first: int, last: int) -> None:
    """Write actions of ten records each, applied at the warehouse."""
    numbers = range(first, last + 1)
    driver.session.commit([fx.LogWrite(operator, "warehouse", number, {}, 10, body=b"") for number in numbers])
    count = fx.CountEvents(Port(operator, "warehouse"), "write", len(numbers), 10 * len(numbers))
    driver.session.commit([fx.WritesDone(operator, "warehouse", first, last), count])


def telling(run: Run | None, **more: Any) -> LogioAssetsOperator:
    uid = None if run is None else run.uid
    return LogioAssetsOperator(task_id="assets", pipeline=REF, connections=WAREHOUSE, run_uid=uid, **more)


def test_a_finished_run_has_one_event_for_each_of_its_tables(log: LogStore, run: Run, events: Events) -> None:
    drivers = drivers_of(log, run)
    with pytest.raises(AirflowException, match=r"is not finished: .*totals is running"):
        events.of(telling(run))
    write(drivers["totals"], "save_totals", 1, 3)
    finish(drivers)
    said = {
        "pipeline": "sales", "dag_id": DAG_ID, "dag_run_id": RUN_ID, "run": run.uid, "state": "finished", "records": 0,
        "last_write_action": {}, "params": dict(run.spec.params),
    }  # fmt: skip
    assert said["params"]
    written = {**said, "records": 30, "last_write_action": {"save_totals": 3}}
    assert events.of(telling(run)) == {HOURLY: said, TOTALS: written}
    assert events.of(telling(run)) == {}
    events.told[HOURLY].append({**said, "run": "a later one"})
    assert log.finish_run(run.run_id)
    assert events.of(telling(run)) == {}
    del events.told[TOTALS]
    assert events.of(telling(run)) == {TOTALS: written}, "an asset that the DAG has got since then"


def test_where_it_cannot_read_events_only_an_attempt_tells_that_is_the_first_to_do_so(
    log: LogStore, run: Run, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier one may have ended before: while the run had not finished, say."""
    events.attempt = 2
    finish(drivers_of(log, run))

    def unreadable(self: LogioAssetsOperator, *_: Any) -> None:
        raise RuntimeError("500")

    monkeypatch.setattr(LogioAssetsOperator, "_last_of", unreadable)
    assert events.of(telling(run)).keys() == {HOURLY, TOTALS}
    events.attempt = 3
    with pytest.raises(AirflowException, match="an earlier attempt of this task may have told"):
        events.of(telling(run))
    assert set(log.told_by(run.run_id, task_key(events.context(), "assets")) or ()) == {HOURLY, TOTALS}


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_with_quarantine_has_events_only_if_asked(log: LogStore, run: Run, events: Events, asked: bool) -> None:
    drivers, feed, to = drivers_of(log, run), Port("ingest", "out"), Port("totals", "in")
    drivers["ingest"].session.commit([sent(1, receiver=to, sender=feed)])
    drivers["totals"].session.commit([fx.Acknowledge(feed, to, 1, (("1", Status.UNDONE),))])
    state = encode_state(Context(aside=["1"], finished=True), {})
    drivers["totals"].session.commit([fx.SetAside("totals", "1", 1, "KeyError"), fx.StoreState("totals", state)])
    finish(drivers)
    if asked:
        assert events.of(telling(run, with_quarantine=True))[TOTALS]["state"] == "finished with quarantine"
        return
    assert events.of(telling(run)) == {}


def test_an_endless_run_has_an_event_when_it_has_written_more(log: LogStore, events: Events, run: Run) -> None:
    """Only for what it has written, and a last one when it has ended."""

    def tell() -> dict[str, dict[str, Any]]:
        return events.of(telling(None, while_running=True))

    drivers = drivers_of(log, run)
    assert tell() == {}
    write(drivers["totals"], "save_totals", 1, 1)
    assert {uri: extra["state"] for uri, extra in tell().items()} == {TOTALS: "running"}
    assert tell() == {}
    write(drivers["totals"], "save_totals", 2, 3)
    assert tell()[TOTALS]["records"] == 30
    finish(drivers)
    assert log.finish_run(run.run_id)
    assert log.told_by(run.run_id, task_key(events.context(), "assets")) is None, "each DAG run would leave an entry"
    last = tell()
    assert {uri: (extra["state"], extra["records"]) for uri, extra in last.items()} == {TOTALS: ("finished", 30)}
    assert tell() == {}


def test_the_group_has_them_behind_its_end() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(REF, connections=WAREHOUSE, assets=True)
    task = dag.get_task("sales.assets")
    assert task.upstream_task_ids == {"sales.finish_run", "sales.start_run"}
    assert {alias.name for alias in task.outlets} == {HOURLY, TOTALS}
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("sales.assets")
    assert {alias.name for alias in stored.outlets} == {HOURLY, TOTALS}


def test_with_quarantine_the_end_of_the_run_stays_a_leaf() -> None:
    """Otherwise the DAG run would be green."""
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(
            REF, connections=WAREHOUSE, assets={"publish": "postgres://host/db/s/t"}, assets_with_quarantine=True
        )
    task = dag.get_task("sales.assets")
    assert {one.task_id for one in dag.leaves} >= {"sales.assets", "sales.finish_run"}
    assert "sales.hourly" in task.upstream_task_ids
    assert "postgres://host/db/s/t" in {alias.name for alias in task.outlets}


def test_an_endless_pipeline_has_a_dag_for_them() -> None:
    dag = build_assets_dag(REF, WAREHOUSE)
    assert (dag.dag_id, dag.max_active_runs) == ("logio_assets_sales", 1)
    assert dag.get_task("assets").while_running


@pytest.mark.parametrize(
    "assets, expected",
    [
        ({"nobody": "x://y"}, "pipeline 'sales' has no writer 'nobody'; it has"),
        ({"publish": "postgres://me:secret@host/db"}, "a URI has a password in it"),
    ],
)
def test_what_cannot_be_an_asset_is_refused_when_the_dag_is_parsed(assets: dict[str, str], expected: str) -> None:
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(ConfigurationError, match=expected) as refused,
    ):
        LogioPipelineGroup(REF, connections=WAREHOUSE, assets=assets)
    assert "secret" not in str(refused.value)


def test_a_writer_into_the_folder_that_its_connection_names_has_one() -> None:
    lake = Pipeline("lake", connections=["lake"])
    lake.writer("save", DatasetWriter("lake"), lake.source("orders", FolderSource("/orders")))
    assert assets_of(lake, {"lake": "lake_folder"}) == {"save": create_asset(connection_id="lake_folder", place="")}
    named = assets_of(lake, {"lake": "lake_folder"}, {"save": "s3://bucket/numbers"})
    assert named["save"].uri == "s3://bucket/numbers"


def test_a_pipeline_that_writes_nothing_has_none() -> None:
    with (
        pytest.raises(ConfigurationError, match="writes no table and no dataset"),
        DAG("d", schedule=None, params=PARAMS),
    ):
        LogioAssetsOperator(task_id="assets", pipeline=tiny(), connections={})
