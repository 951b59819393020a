"""Lineage of records through ready-made operators, on a run in this process, against records that carry their rows."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_logio.dataflow import (
    AllOfRun,
    Count,
    Days,
    EveryEvents,
    OwnPartition,
    Pipeline,
    TableRead,
    Tumbling,
    filtered,
    joined,
    selected,
    summed,
)
from airflow_logio.driver.epoch import GroupEpoch, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.lineage.lineage_records import effect, records
from airflow_logio.lineage.record_fates import Fate
from airflow_logio.lineage.record_lineage import TracedRecords, records_behind
from airflow_logio.lineage.why_not import why_not
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, ScopeShape
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing import ScriptedSource
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.carried import hide
from tests.support.logs import spec, start_driver
from tests.support.warehouse import change

ROWS, PER_EVENT = 60, 7
PATIENCE_SECONDS = 20.0
SCOPES = tuple(ScopeShape("orders.out", target) for target in ("hourly.out", "whole.out", "own.other"))
PRODUCTS = {"i0": "MEAT", "i1": "DAIRY", "i2": "MEAT"}
"""Not i3: its records are left out by the join."""


def orders() -> pa.Table:
    """In order of time; some are alike in all but their bit, which says which row they are."""
    chance = random.Random(11)
    rows, at = [], dt.datetime(2025, 2, 23, 9, 30, tzinfo=dt.UTC)
    for row in range(ROWS):
        at += dt.timedelta(minutes=chance.choice((0, 0, 0, 9, 21)))
        item = chance.choice(["i0", "i1", "i2", "i3", None])
        amount = chance.choice((10, 30, 30, None))
        rows.append(
            {
                "store_id": chance.randrange(2),
                "item": item,
                "date": at.replace(tzinfo=None),
                "amount": amount,
                "bit": 1 << row,
            }
        )
    return pa.Table.from_pylist(rows)


def fill(url: str) -> None:
    """The products that are joined, in the warehouse."""
    change(url, "CREATE TABLE products (item TEXT PRIMARY KEY, department TEXT)")
    for item, department in PRODUCTS.items():
        change(url, f"INSERT INTO products VALUES ('{item}', '{department}')")


TOKYO = Days("day", zone="Asia/Tokyo")
DAY = TOKYO.key_of("2025-02-23")
"""Most of the orders are in it, and the last ones are not."""


def is_own(order: Mapping[str, Any]) -> bool:
    return bool(order["date"] < dt.datetime(2025, 2, 23, 15, tzinfo=dt.UTC).replace(tzinfo=None))


def pipeline() -> Pipeline:
    one = Pipeline("ready_made", partition=TOKYO, connections=["warehouse"])
    source = one.source("orders", ScriptedSource(orders(), PER_EVENT))
    own = one.operator("own", OwnPartition("day", on="date"), source)
    kept = one.operator("kept", filtered(pc.field("amount") > 10), own.port("own"))
    names = {"shop": "store_id", "item": "item", "at": "date", "cents": "amount", "bit": "bit"}
    renamed = one.operator("renamed", selected(names), kept)
    read = TableRead("warehouse", "products", ("item", "department"), key="item")
    priced = one.operator("priced", joined("products", read), renamed, window=EveryEvents(2))
    sums = summed(by=["shop", "department"], of=["cents", "bit"], start="hour")
    one.sink("end", Count(), one.operator("hourly", sums, priced, window=Tumbling("1h", on="at")))
    whole = one.operator("whole", summed(by=["shop"], of=["cents", "bit"]), renamed, window=AllOfRun())
    one.sink("whole_end", Count(), whole)
    one.sink("late", Count(), own.port("other"))
    one.group("all", *("orders", "own", "kept", "renamed", "priced", "hourly", "whole", "end", "whole_end", "late"))
    for scope in SCOPES:
        one.lineage(scope.start, scope.target)
    return one.freeze()


@dataclass
class Ran:
    store: LogStore
    run: Run

    def made(self, port: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        operator, _, name = port.partition(".")
        with self.store.lineage(self.run) as log:
            many = log.sent(Port(operator, name))
        for number in range(1, many + 1):
            yield number, records(self.store, self.run, EventNode(Port(operator, name), number)).to_pylist()

    def behind(self, port: str, number: int, values: Mapping[str, str]) -> TracedRecords:
        return records_behind(self.store, self.run, port, number, values, to="orders.out")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The pipeline, run to its end by a driver's own epoch."""
    folder: Path = tmp_path_factory.mktemp("payloads")
    url = f"sqlite:///{folder / 'warehouse.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server").new_database(migrated=False)
    fill(url)
    one, store = pipeline(), MemoryLogStore()
    actions, params = {"orders": {"records": ROWS}}, one.check_params({}, DAY)
    named = replace(spec("all"), operators=operator_shapes(one), scopes=SCOPES, actions=actions, params=params)
    driver = start_driver(store, group="all", run=store.start_run(named))
    identity = WriterIdentity(driver.run.uid, 1, driver.run.created_at)
    connections, stop = Connections("all", {"warehouse": url}, identity, 1.0, params=params), threading.Event()
    settings = EpochSettings(
        one, driver.run, "all", connections, SparkSessions(), lambda _: None, stop, payloads=Payloads(str(folder))
    )
    timer = threading.Timer(PATIENCE_SECONDS, stop.set)
    timer.start()
    try:
        recovered = driver.session.recover(operators_of(settings, None))
        assert GroupEpoch(settings, driver.session, 0, recovered).run(), "it did not end"
    finally:
        timer.cancel()
        connections.close()
    return Ran(store, driver.run)


@pytest.fixture(autouse=True)
def _what_is_carried_is_hidden(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "bit")


def rows_of(bits: int) -> set[int]:
    return {row for row in range(ROWS) if bits >> row & 1}


def found_rows(answer: TracedRecords) -> set[int]:
    """The rows of the source, by the numbers of its events."""
    return {
        (traced.event.event_id - 1) * PER_EVENT + int(place)
        for traced in answer.origins
        if str(traced.event.port) == "orders.out" and traced.places is not None
        for place in traced.places
    }


@pytest.mark.parametrize(
    "port", ["own.own", "own.other", "kept.out", "renamed.out", "priced.out", "hourly.out", "whole.out"]
)
def test_each_record_leads_to_its_rows_and_to_no_others(ran: Ran, port: str) -> None:
    asked = 0
    for number, made in ran.made(port):
        for record in made:
            values = {name: str(one) for name, one in record.items() if name != "bit" and one is not None}
            alike = [one for one in made if all(str(one[name]) == value for name, value in values.items())]
            answer, wanted = ran.behind(port, number, values), set().union(*(rows_of(one["bit"]) for one in alike))
            found = found_rows(answer)
            assert wanted <= found, f"{port} {number} {record}: {wanted - found} are missing"
            assert answer.is_exact, {doubt for one in answer.origins for doubt in one.doubts}
            assert wanted == found, f"{port} {number} {record}: {found - wanted} are said to be exact"
            asked += 1
    assert asked > {"whole.out": 1, "own.other": 3}.get(port, 8)


def test_the_run_is_what_plain_python_makes_of_the_orders(ran: Ran) -> None:
    """Also of some values of a sum: all records of one hour, or of one department."""
    wanted: dict[tuple[Any, ...], int] = {}
    for row, order in enumerate(orders().to_pylist()):
        if is_own(order) and order["amount"] is not None and order["amount"] > 10 and order["item"] in PRODUCTS:
            key = order["date"].replace(minute=0), order["store_id"], PRODUCTS[order["item"]]
            wanted[key] = wanted.get(key, 0) | 1 << row
    made = [(number, record) for number, event in ran.made("hourly.out") for record in event]
    assert {(one["hour"], one["shop"], one["department"]): one["bit"] for _, one in made} == wanted
    for number, record in made:
        bits = sum(one["bit"] for _, one in made if all(one[n] == record[n] for n in ("hour", "department")))
        answer = ran.behind("hourly.out", number, {"department": record["department"]})
        assert answer.is_exact and found_rows(answer) == rows_of(bits)


def test_the_rows_of_the_read_are_those_of_the_records(ran: Ran) -> None:
    number, made = next(iter(ran.made("priced.out")))
    record = next(one for one in made if one["department"] == "MEAT")
    answer = records_behind(ran.store, ran.run, "priced.out", number, {"item": record["item"]})
    [read] = answer.reads
    rows, is_by_key = read.rows(effect(ran.store, ran.run, read.read))
    assert is_by_key and rows.to_pylist() == [{"item": record["item"], "department": "MEAT"}]


def test_why_a_record_is_not_there(ran: Ran) -> None:
    """A department is in no order: it is named, and records are sought by the rest."""
    missing = why_not(ran.store, ran.run, "priced.out", {"item": "i3", "department": "MEAT"})
    found = missing.searches[-1]
    assert str(found.port) == "renamed.out" and found.not_followed == {"department": "priced"}
    assert found.found and {met.fate for met in found.met} == {Fate.LEFT_OUT}
