"""Lineage of records that executors change, in files beside a log in PostgreSQL, against records that carry their rows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.lineage.lineage_records import records
from airflow_logio.lineage.record_lineage import TracedRecords, records_behind
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.systems.payloads import Payloads
from tests.support.bundle.traced import CARRIED
from tests.support.bundle.traced_frames import ROWS_PER_FILE
from tests.support.carried import hide
from tests.support.running import ArmedSparkLauncher, Running, running

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres, pytest.mark.timeout(600)]

FRAMES = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'traced_frames.py'}:frames")
FILES = 6


def write_orders(folder: Path) -> None:
    """Some of a file are alike in all but their row."""
    chance = random.Random(3)
    folder.mkdir()
    for number in range(FILES):
        rows = [
            {
                "store_id": chance.randrange(3),
                "item": chance.choice(["bread", "milk", None]),
                "amount": chance.choice((10, 30, 50)),
                "row": number * ROWS_PER_FILE + place,
            }
            for place in range(ROWS_PER_FILE)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"orders-{number}.parquet")


@pytest.fixture(autouse=True)
def _no_one_looks_at_what_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, *CARRIED)


def carried(record: Mapping[str, Any]) -> set[int]:
    return set(record["rows"]) if "rows" in record else {record["row"]}


def found_rows(run: Running, answer: TracedRecords, load: Payloads) -> set[int]:
    rows: set[int] = set()
    for one in answer.origins:
        assert one.places is not None, "the records of every event are kept"
        rows |= set(records(run.store, run.run, one.event, load)["row"].take(pa.array(one.places)).to_pylist())
    return rows


def compare(run: Running, port: str, load: Payloads) -> tuple[int, int]:
    """All records of all events of a port, by their values; returns how many answers were exact, and how many were not."""
    exact = inexact = 0
    for number in range(1, run.count(port, "out") + 1):
        made = records(run.store, run.run, EventNode(run.pipeline.output(port), number), load).to_pylist()
        for values, wanted in alike(made).items():
            answer = records_behind(run.store, run.run, port, number, dict(values), load, to="raw.out")
            found = found_rows(run, answer, load)
            assert wanted <= found, f"{port} {number} {values}: {wanted - found} are missing"
            assert wanted == found or not answer.is_exact, f"{port} {number} {values}: {found - wanted} are no origin"
            exact, inexact = exact + answer.is_exact, inexact + (not answer.is_exact)
    return exact, inexact


def alike(made: Sequence[Mapping[str, Any]]) -> dict[tuple[tuple[str, str], ...], set[int]]:
    """The rows of the records that have the same values, as far as they have any."""
    found: dict[tuple[tuple[str, str], ...], set[int]] = {}
    for record in made:
        asked = tuple((name, str(value)) for name, value in record.items() if name not in CARRIED and value is not None)
        others = (one for one in made if all(str(one[name]) == value for name, value in asked))
        found[asked] = set().union(*map(carried, others))
    return found


def test_records_of_executors(postgres_url: str, tmp_path: Path) -> None:
    """A driver has died between two commits. No row is missing; those that are said to be exact are no others."""
    write_orders(tmp_path / "orders")
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("all", 1): f"{CrashPoint.AFTER_COMMIT}:4"})
    settings = {
        "ref": FRAMES,
        "params": {"orders": str(tmp_path / "orders")},
        "connections": {},
        "payloads": str(tmp_path / "payloads"),
    }
    with running(postgres_url, "", Path(), launcher, **settings) as run:
        run.finish(timeout=500)
        assert run.status("all").incarnation == 2, "nothing has died"
        payloads = Payloads(str(tmp_path / "payloads"))
        assert len(run.store.references(run.run.run_id, f"{run.run.uid}/")) >= FILES, "records are in files"
        for port, least in {"kept.out": 40, "shops.out": 9, "items.out": 6}.items():
            exact, inexact = compare(run, port, payloads)
            assert exact >= least and not inexact
