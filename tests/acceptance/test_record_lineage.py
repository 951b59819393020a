"""Lineage of records on real runs that are killed on their way, against records that carry the rows they were made of."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.launch import bundle
from airflow_logio.lineage.lineage_records import effect, records
from airflow_logio.lineage.record_fates import Fate
from airflow_logio.lineage.record_lineage import TracedRecords, records_behind
from airflow_logio.lineage.why_not import why_not
from airflow_logio.store.lineage.result import EventNode
from tests.support import carried as carried_columns
from tests.support.bundle.traced import CARRIED, CITIES, RECORDS_PER_EVENT
from tests.support.running import PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance

MODULE = Path(__file__).parents[1] / "support" / "bundle" / "traced.py"
ROWS = 60
"""One bit of a number each."""


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders of Section 7.3: several an hour, not one event an hour; some are alike in all but their row."""
    chance = random.Random(7)
    rows, at = [], dt.datetime(2025, 2, 23, 9, 30, tzinfo=dt.UTC)
    for row in range(ROWS):
        at += dt.timedelta(minutes=chance.choice((0, 0, 3, 11)))
        city = chance.randrange(len(CITIES))
        state = None if city == 3 and chance.random() < 0.5 else ("Ohio", "Massachusetts")[city == 1]
        rows.append(
            {
                "store_id": chance.randrange(3),
                "item_id": f"BZ{chance.randrange(3)}",
                "city": CITIES[city],
                "state": state,
                "date": at.replace(tzinfo=None),
                "amount": chance.choice((10, 30, 50, 70, 90)),
                "row": row,
                "bit": 1 << row,
            }
        )
    path = tmp_path_factory.mktemp("traced") / "orders.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def run_of(sqlite_url: str, warehouse_url: str, transactions: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Runs a pipeline, whose groups die twice on their way."""
    open_runs = []

    def ran(name: str, *groups: str, connections: Mapping[str, str]) -> Running:
        armed = {(group, incarnation): f"after_commit:{incarnation}" for group in groups for incarnation in (1, 2)}
        urls = {one: warehouse_url for one in connections}
        launcher = PlainLauncher(tmp_path / "drivers", armed)
        context = running(
            sqlite_url,
            warehouse_url,
            transactions,
            launcher,
            ref=bundle.parse_ref(f"{MODULE}:{name}"),
            connections=urls,
        )
        run = context.__enter__()
        open_runs.append(context)
        run.finish()
        assert all(run.status(group).incarnation > 1 for group in groups), "nothing has died"
        return run

    yield ran
    for context in open_runs:
        context.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def _no_one_looks_at_what_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    carried_columns.hide(monkeypatch, *CARRIED)


def carried(record: Mapping[str, Any]) -> set[int]:
    if "row" in record:
        return {record["row"]}
    if "rows" in record:
        return set(record["rows"])
    return {row for row in range(ROWS) if record["bit"] >> row & 1}


def found_rows(answer: TracedRecords) -> set[int]:
    """The rows of the source, by the numbers of its events."""
    return {
        (traced.event.event_id - 1) * RECORDS_PER_EVENT + int(place)
        for traced in answer.origins
        if str(traced.event.port) == "orders.out" and traced.places is not None
        for place in traced.places
    }


def compare(run: Running, port: str) -> tuple[int, int]:
    """All records of all events of a port, by their values; returns how many answers were exact, and how many were not."""
    exact = inexact = 0
    operator, _, name = port.partition(".")
    merged = f"merge({operator}).{name}"  # a Merger numbers the events of a replicated group
    sent = run.count(port, "out") or run.count(merged, "out")
    for number in range(1, sent + 1):
        made = records(run.store, run.run, EventNode(run.pipeline.output(port), number)).to_pylist()
        for record in made:
            values = {name: str(one) for name, one in record.items() if name not in CARRIED and one is not None}
            alike = [other for other in made if all(str(other[name]) == value for name, value in values.items())]
            wanted = set().union(*map(carried, alike))
            answer = records_behind(run.store, run.run, port, number, values, to="orders.out")
            found = found_rows(answer)
            assert wanted <= found, f"{port} {number} {record}: {wanted - found} are missing"
            if answer.is_exact:
                assert wanted == found, f"{port} {number} {record}: {found - wanted} are said to be exact"
            exact, inexact = exact + answer.is_exact, inexact + (not answer.is_exact)
        whole = records_behind(run.store, run.run, port, number, to="orders.out")
        assert found_rows(whole) >= set().union(*map(carried, made))
    assert exact + inexact, f"{port} has sent no record"
    return exact, inexact


def test_the_orders_of_the_paper(run_of: Callable[..., Running]) -> None:
    """Sums over windows of time are exact; what takes some of them is not, and says so, writer or not."""
    run = run_of("orders", "all", connections={"warehouse": ""})
    exact, inexact = compare(run, "op3.out")
    assert exact > 10 and not inexact
    exact, inexact = compare(run, "written.out")
    assert inexact and not exact
    answer = records_behind(run.store, run.run, "written.out", 1, to="orders.out")
    assert {doubt for one in answer.origins for doubt in one.doubts} == {
        "best may use only some of the records with these values"
    }


def test_filters_renamings_and_several_ports(run_of: Callable[..., Running], transactions: Path) -> None:
    """Where records are alike that were not, some of them may have been left out: of few it is not known."""
    run = run_of("cleaned", "all", connections={})
    exact, inexact = compare(run, "kept.out")
    assert exact > 20 and not inexact
    exact, inexact = compare(run, "parts.cheap")
    assert exact and inexact
    exact, inexact = compare(run, "parts.dear")
    assert exact and not inexact
    exact, inexact = compare(run, "shops.out")
    assert exact and not inexact
    for row, record in enumerate(pq.read_table(transactions).to_pylist()):
        values = {name: str(one) for name, one in record.items() if name not in CARRIED and one is not None}
        answer = why_not(run.store, run.run, "kept.out", values)
        assert answer.is_there == (record["amount"] > 20)
        if not answer.is_there:
            assert {met.fate for met in answer.searches[1].met} == {Fate.LEFT_OUT}
            assert 1 + row // RECORDS_PER_EVENT in answer.searches[1].found


def test_through_dispatchers_and_mergers(run_of: Callable[..., Running]) -> None:
    run = run_of("replicated", "before", "after", connections={})
    assert compare(run, "items.out")[1] == 0
    exact, inexact = compare(run, "every.out")
    assert exact > 5 and not inexact
    answer = records_behind(run.store, run.run, "every.out", 1)
    assert {str(one.event.port) for one in answer.origins} == {"items.out", "orders.out"}, "as their author named them"
    missing = why_not(run.store, run.run, "every.out", {"item_id": "BZ9"})
    assert str(missing.searches[-1].port) == "orders.out" and not missing.searches[-1].found
    assert missing.notes == ["orders is a source, and none of its events so far has such a record"]


def test_several_inputs_functions_and_reads(run_of: Callable[..., Running]) -> None:
    run = run_of("joined", "all", connections={"taxes": ""})
    assert compare(run, "functions.hours")[1] == 0, "their Input Sets are all that there is to know"
    assert compare(run, "functions.untold")[0] == 0
    exact, inexact = compare(run, "meeting.out")
    assert exact > 5 and not inexact
    answer = records_behind(run.store, run.run, "meeting.out", 1, {"state": "Ohio"})
    [read] = answer.reads
    rows, is_by_key = read.rows(effect(run.store, run.run, read.read))
    assert is_by_key and rows["state"].to_pylist() == ["Ohio"]
