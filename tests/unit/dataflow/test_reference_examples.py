"""The examples of docs/reference-pipelines.md do what the page says; the page is what docstrings and examples say."""

from __future__ import annotations

import datetime as dt
import runpy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import airflow_logio
from airflow_logio import (
    Count,
    EveryEvents,
    InputEvent,
    Marker,
    ParquetSource,
    Pipeline,
    TableWriter,
    WriteAction,
    generate,
)
from airflow_logio.dataflow.unavailability import is_outage
from airflow_logio.testing import Simulator, pipeline_scenario
from tests.unit.dataflow import reference_examples as examples

ROOT = Path(__file__).parents[3]
PIPELINES = {name: value for name, value in vars(examples).items() if isinstance(value, Pipeline)}
NOON = dt.datetime(2026, 3, 2, 12)  # noqa: DTZ001  # UTC, as Arrow has it


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """Three hours of sales, a minute apart."""
    at = [NOON + dt.timedelta(minutes=minute) for minute in range(180)]
    table = pa.table({"store_id": [minute % 3 for minute in range(180)], "cents": range(180), "at": at})
    path = tmp_path / "sales.parquet"
    pq.write_table(table, path)
    return path


def event(**columns: Any) -> InputEvent:
    return InputEvent("in", 1, pa.table(columns))


def action(number: int, token: int) -> WriteAction:
    return WriteAction("uid", "books", "books", number, token, pa.table({"cents": [number, 10 * number]}))


def simulated(pipeline: Pipeline, schedules: int = 8, **given: Any) -> None:
    simulator = Simulator(pipeline_scenario(pipeline, **given))
    for seed in range(schedules):
        _, failure = simulator.run(seed)
        assert failure is None, failure


def test_the_page_is_what_docstrings_and_examples_say() -> None:
    """Making it refuses a public name without a topic or an example, and an argument of a ready-made one that none shows."""
    page = (ROOT / "docs" / "reference-pipelines.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / ".ci" / "reference"))["pipelines"]() == page
    missing = [name for name in airflow_logio.__all__ if name != "__version__" and f"\n### {name}\n" not in page]
    assert missing == []


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_each_pipeline_of_the_examples_is_whole(name: str) -> None:
    assert PIPELINES[name].validate().fingerprint()["graph"]


@pytest.mark.parametrize("name", ["shop", "scaled", "keyed"])
def test_pipelines_of_the_examples_survive_crashes(name: str, sales: Path) -> None:
    simulated(PIPELINES[name], params={"sales": str(sales)})


def test_ready_made_functions_fit_together(sales: Path) -> None:
    pipeline = Pipeline("ready_made", params={"sales": str}, connections=["warehouse"])
    source = pipeline.source("sales", ParquetSource("{sales}", ordered_by="at", records_per_event=20))
    positive = pipeline.operator("positive", examples.positive, source)
    pipeline.operator("per_store", examples.per_store, positive, window=examples.quarters)
    pipeline.sink("done", Count(), "per_store")
    pipeline.operator("top_stores", examples.top_stores, positive, window=examples.every_hundred)
    pipeline.sink("counted", examples.counting, "top_stores")
    pipeline.operator("renamed", examples.renamed, positive)
    pipeline.sink("latest", examples.Latest(), "renamed")
    pipeline.operator("changes", examples.Changes(), positive)
    pipeline.sink("changed", Count(), "changes")
    simulated(pipeline, params={"sales": str(sales)}, schedules=5)


def test_a_source_and_a_window_of_ones_own() -> None:
    @generate
    def first(records: pa.Table) -> pa.Table:
        return records.slice(0, 1)

    pipeline = Pipeline("own", connections=["warehouse"])
    counted = pipeline.source("countdown", examples.Countdown())
    pipeline.operator("first", first, counted, window=examples.Batches())
    pipeline.writer("saved", TableWriter("warehouse", "t", columns={"left": "bigint", "n": "bigint"}), "first")
    simulated(pipeline)


def test_a_join_looks_products_up(sales: Path) -> None:
    pipeline = Pipeline("lookup", params={"sales": str}, connections=["warehouse"])
    pq.write_table(pa.table({"product_id": [1, 2], "cents": [5, 6]}), sales)
    source = pipeline.source("sales", ParquetSource("{sales}"))
    pipeline.operator("named", examples.named, source, window=EveryEvents(1))
    pipeline.sink("done", Count(), "named")
    products = pa.table({"product_id": [1, 2], "name": ["apple", "pear"]})
    simulated(pipeline, params={"sales": str(sales)}, tables={"warehouse": {"products": products}}, schedules=5)


def test_functions_of_the_examples() -> None:
    sold = pa.table({"store_id": [1, 1], "product_id": [7, 8], "cents": [5, 9]})
    products = pa.table({"product_id": [7, 8], "name": ["apple", "pear"]})
    best = examples.best_seller(sold, products, NOON)
    assert best.to_pylist() == [{"name": "pear", "cents_sum": 9, "hour": NOON}]
    assert examples.large(sold).num_rows == 0
    assert examples.how_many(sold).to_pydict() == {"records": [2]}
    assert examples.shops(sold).column_names == ["shop", "cents"]
    assert examples.visits(sold, NOON).column("cents_count").to_pylist() == [2]
    assert examples.missing(pa.table({"order_id": [1, 2]}), pa.table({"order_id": [2]})).to_pydict() == {
        "order_id": [1]
    }
    assert examples.in_cents(pa.table({"amount": [1.25]})).to_pydict() == {"cents": [125]}
    rates = examples.exchange.fetch("bank", pa.array(["EUR"]), {"rate": 2})
    assert rates.to_pydict() == {"currency": ["EUR"], "rate": [2]}


class Bank:
    """The `External` of an operator that reads rates and writes."""

    params: Mapping[str, Any] = {"least": 10}

    def __init__(self) -> None:
        self.written: list[pa.Table] = []

    def read(self, read: Any, keys: Any = None) -> pa.Table:
        return read.fetch("bank", keys, {"rate": 2})

    def write(self, connection: str, table: pa.Table) -> None:
        self.written.append(table)


def test_operators_of_ones_own() -> None:
    bank = Bank()
    found = dict(examples.Rated().process(event(currency=["EUR", "EUR"], cents=[5, 50]), bank))
    assert {port: table.column("cents").to_pylist() for port, table in found.items()} == {"out": [50], "small": [5]}
    list(examples.Journaled().process(event(cents=[1]), bank))
    assert len(bank.written) == 1
    slots = examples.Alternating()
    assert [slot for slot, _ in slots.part(event(n=[1]), 2, None)] == [1]


def test_a_source_of_ones_own_that_reads_a_connection() -> None:
    class Station:
        url = "station"

        def query(
            self, statement: str, values: Mapping[str, Any], columns: Any, table: Any = None, key: Any = ()
        ) -> Iterator[pa.Table]:
            assert values == {"since": 3} and ":since" in statement and set(columns) == {"id", "celsius"}
            yield pa.table({"id": [4, 5], "celsius": [20.5, 21.0]})

        def quoted(self, name: str) -> str:
            return name

        def column(self, rows: str, name: str) -> str:
            return name

    source = examples.measurements
    (batch,) = source.read_from(Station(), {}, source.action({"since": 3}), 0)
    assert (batch.table.num_rows, batch.next_offset) == (2, 2)
    assert is_outage(ConnectionError("away"))


def test_a_range_source_reads_its_connection() -> None:
    asked: list[Any] = []

    class Warehouse:
        def rows(self, table: str, columns: Any = (), **where: Any) -> Any:
            asked.append((table, where))
            return "a DataFrame"

    source = examples.Numbered().connected(lambda name: Warehouse() if name == "warehouse" else None)
    end = source.latest({}, source.first({}), source.last({}))
    assert source.frame(None, {}, 0, end) == "a DataFrame"
    assert asked == [("orders", {"by": "id", "after": 0, "until": 1_000_000})]


def test_a_conditional_writer_applies_each_action_once(tmp_path: Path) -> None:
    marker = Marker("uid", "books", "books", 0, token=1, started_at=0.0)
    with examples.journal.connect(str(tmp_path / "books.db")) as client:
        examples.journal.apply(client, marker, [action(1, 1)])
        examples.journal.apply(client, marker, [action(1, 1), action(2, 1)])
        assert client.execute("SELECT cents FROM entries").fetchall() == [(1,), (10,), (2,), (20,)]


def test_a_checkable_writer_knows_what_it_has_applied(tmp_path: Path) -> None:
    with examples.ledger.connect(str(tmp_path / "books.db")) as client:
        assert not examples.ledger.is_applied(client, action(1, 1))
        examples.ledger.write(client, action(1, 1))
        assert examples.ledger.is_applied(client, action(1, 2)), "whichever driver asks"


def test_an_idempotent_writer_leaves_the_same_behind(tmp_path: Path) -> None:
    with examples.drop.connect(str(tmp_path)) as client:
        for _ in range(2):
            examples.drop.write(client, action(1, 1))
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "1\n10"


@pytest.mark.parametrize("run", [examples.published_rows, examples.open_log], ids=lambda run: run.__name__)
def test_what_programs_call(run: Callable[[Path], Any], tmp_path: Path) -> None:
    assert not run(tmp_path)
