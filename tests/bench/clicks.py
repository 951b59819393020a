"""What a click on the lineage of a run with a million events costs: what the page's server does for it, over the log.

A source's events go into windows of a thousand; the rows are those of one window, as the protocol has logged them, copied
under further numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import httpx
import pyarrow as pa
import sqlalchemy as sa
import uvicorn

from airflow_logio.lineage.record_lineage import MOST_STEP_RECORDS
from airflow_logio.protocol.record_rules import WHOLE, Dependence, RecordRules, Uses
from airflow_logio.protocol.values import Kind
from airflow_logio.store.lineage.result import Direction
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import encode_header, read_channel
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.arrow import encode
from airflow_logio.ui.alone import PageServer, alone_app
from airflow_logio.ui.lineage_documents import (
    Sought,
    event_node,
    found_document,
    ports_document,
    read_node,
    records_document,
    step_document,
)
from airflow_logio.ui.looks import LogSource
from airflow_logio.ui.record_documents import behind_document
from airflow_logio.ui.searches import Streams
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.growth import copy, small_run
from tests.support.page_readers import Retries
from tests.support.served import served
from tests.support.streams import events
from tests.support.waiting import eventually
from tests.unit.lineage.flows import Flow, Op

WINDOW = 1_000
WINDOWS = 1_000
RECORDS = 20
"""Of each event of the windows whose records are followed."""
MOST_RECORDS = MOST_STEP_RECORDS // WINDOW - 1
"""Of each event of other windows: nearly as many as a click may search through."""
CHAIN = {
    "a": Op(events=WINDOW),
    "b": Op(("a.out",), window="count", size=WINDOW, emits={"out": 1}, reads=1),
    "c": Op(("b.out",), emits={"out": 1}),
}
BESIDE = 40
FEW_ROWS, MOST_ROWS = 100, MOST_STEP_RECORDS
"""Of the read action of a window; of other windows: as many as a click may search through."""
CLICKS = 9
TARGET_MS = 300.0

Click = Callable[[int], Any]
"""The click about the n-th window."""


def measure(databases: Databases) -> Iterator[Figure]:
    """Wall time of each kind of click, each about another part of the run; the first one of each is not counted."""
    with small_run(databases, CHAIN, ("a.out", "b.out"), WINDOW) as (store, flow):
        copy(store, flow.run.run_id, WINDOW, 1, WINDOWS)
        windows = [_window(number) for number in range(CLICKS + 1)]
        _give_records(store, flow.run, windows, RECORDS, FEW_ROWS)
        _give_records(store, flow.run, [window + BESIDE for window in windows], MOST_RECORDS, MOST_ROWS)
        for what, click in _clicks(flow).items():
            yield _figure(databases.name, what, click)
        yield from _streamed(databases.name, store, flow.run)


def _clicks(flow: Flow) -> dict[str, Click]:
    """`copy` numbers the one event of each window as the first of its thousand."""

    def step(direction: Direction, port: str, events: list[int]) -> Any:
        return step_document(flow.store, flow.run, direction, port, events, with_data=True)

    def find(sought: Sought) -> Any:
        return found_document(flow.store, flow.run, "b.out", sought)

    dependent = _with_rules(flow.run)

    return {
        "what one event was made from, 1,000 events": lambda n: step(Direction.BACKWARD, "b.out", [first(n)]),
        "the same of 100 events at once": lambda n: step(
            Direction.BACKWARD, "b.out", [first(n + k) for k in range(100)]
        ),
        "what was made from one event": lambda n: step(Direction.FORWARD, "a.out", [first(n) + 500]),
        "what was made from 100 events": lambda n: step(
            Direction.FORWARD, "a.out", [first(n + k) + 500 for k in range(100)]
        ),
        "what a record was made from, 20,000 records": lambda n: behind_document(
            flow.store, dependent, "b.out", first(n), n % RECORDS, None
        ),
        f"the same, {WINDOW * MOST_RECORDS:,} records, and {MOST_ROWS:,} rows of a read": lambda n: behind_document(
            flow.store, dependent, "b.out", first(n + BESIDE), n % MOST_RECORDS, None
        ),
        "the ports of the run": lambda _: ports_document(flow.store, flow.run),
        "the records of an event": lambda n: records_document(
            flow.store, flow.run, event_node(flow.run, "a.out", first(n)), None
        ),
        f"the rows of a read, {MOST_ROWS:,} in all": lambda n: records_document(
            flow.store, flow.run, read_node("b", "db", first(n + BESIDE)), None
        ),
        "find by number": lambda n: find(Sought(event=first(n))),
        "find by Input Set": lambda n: find(Sought(input_set=f"0000-{n}")),
        "find by time": lambda n: find(Sought(at=0.0)),
    }


def _window(number: int) -> int:
    """The window that the n-th click of each kind is about."""
    return 100 + number * 80


def first(window: int) -> int:
    return window * WINDOW + 1


def _give_records(store: SqlLogStore, run: Run, windows: Sequence[int], many: int, rows_read: int) -> None:
    """Orders of so many stores in each event of these windows, one sum for each store in what was made of a window, and so
    many rows that were read for it."""
    read = pa.table({"store": range(rows_read), "city": [f"city {number % 1000}" for number in range(rows_read)]})
    stores = pa.array(range(many), pa.int64())
    bodies = []
    for window in windows:
        sums = pa.table({"store": stores, "amount": pa.array([window * WINDOW] * many, pa.int64())})
        bodies += [("b", "out", first(window), sums), ("b", read_channel("db"), first(window), read)]
        for event in range(first(window), first(window + 1)):
            amounts = pa.array([event + place for place in range(many)], pa.int64())
            rows = {"store": stores, "amount": amounts, "item": [f"item {event % 97}"] * many}
            bodies.append(("a", "out", event, pa.table(rows)))
    statement = "UPDATE logio_event_data SET header = :header, body = :body WHERE run_id = :run AND send_op = :op"
    changes = [
        {
            "run": run.run_id,
            "op": op,
            "channel": channel,
            "event": event,
            "body": (body := encode(table)),
            "header": encode_header(Kind.DATA, table.num_rows, body),
        }
        for op, channel, event, table in bodies
    ]
    with store.engine.begin() as connection:
        connection.execute(sa.text(statement + " AND channel = :channel AND event_id = :event"), changes)


def _streamed(database: str, store: SqlLogStore, run: Run) -> Iterator[Figure]:
    """A search for what is missing, over a socket: it is stopped once it has told how far it is."""
    _give_records(store, run, range(WINDOWS - 20, WINDOWS), RECORDS, FEW_ROWS)
    app = alone_app(LogSource(lambda: store, None), "token", Retries().retrying())
    streams: Streams = app.state.streams
    began, told, counted, ended = [], [], [], []
    with served(PageServer(uvicorn.Config(app, log_level="warning"), streams)) as address, httpx.Client() as client:
        asked = client.build_request(
            "POST",
            f"{address}/api/runs/{run.uid}/lineage/why_not",
            json={"port": "a.out", "where": {"store": "-1"}},
            headers={"Authorization": "Bearer token"},
        )
        for _ in range(CLICKS + 1):
            began.append(time.perf_counter())
            answer = client.send(asked, stream=True)
            found = (data for name, data in events(answer.iter_lines()) if name == "progress")
            next(found)
            told.append(time.perf_counter())
            far = next(data for data in found if data and data["searched"])
            counted.append(time.perf_counter())
            answer.close()
            eventually(lambda: streams.under_way == 0)
            ended.append(time.perf_counter())
    details = f"a run of {WINDOW * WINDOWS:,} events"
    for what, since, times, target in (
        ("the first byte", began, told, f"{TARGET_MS:g}"),
        (f"the first {far['searched']:,} events are told of", began, counted, f"{TARGET_MS:g}"),
        ("its thread has ended after Stop", counted, ended, "none"),
    ):
        took = [(end - start) * 1_000 for start, end in zip(since, times, strict=True)][1:]
        slowest = f"{details}; the slowest of {CLICKS} {max(took):.0f} ms"
        yield Figure(database, f"page, why is it not there: {what}", median(took), "ms", target, slowest)


def _with_rules(run: Run) -> Run:
    """The run as if the author had said that a sum of a store is made from every order of the store in the window."""
    every = Dependence(Uses.EVERY, {"in1": {"store": "store"}})
    summing = replace(run.spec.operators["b"], rules=RecordRules({"out": every}, {"": WHOLE}))
    return replace(run, spec=replace(run.spec, operators={**run.spec.operators, "b": summing}))


def _figure(database: str, what: str, click: Click) -> Figure:
    took = []
    for number in range(CLICKS + 1):
        began = time.perf_counter()
        found = click(_window(number))
        took.append((time.perf_counter() - began) * 1_000)
        if not any(found.get(name) for name in ("ports", "rows", "events")):
            raise RuntimeError(f"{what} has found nothing: {str(found)[:300]}")
    details = f"a run of {WINDOW * WINDOWS:,} events; the slowest of {CLICKS} {max(took[1:]):.0f} ms"
    return Figure(database, f"page, a click: {what}", median(took[1:]), "ms", f"{TARGET_MS:g}", details)
