"""Readings in a file that is replaced again and again, and what `by_hand` must make of one version of it.

The oracle is plain Python over the rows, and knows nothing of events but that each holds so many records.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from airflow_logio.launch import bundle
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import log_engine
from tests.support.warehouse import rows_of

BY_HAND = bundle.parse_ref(f"{Path(__file__).parents[2] / 'dags' / 'pipelines' / 'by_hand.py'}:by_hand")
RECORDS_PER_EVENT = 20
RECORDS = 330
PLACES = ("attic", "cellar", "hall")


class Reading(NamedTuple):
    day: int
    place: str
    value: int | None


def readings(version: int) -> list[Reading]:
    """Some days are missing, some events hold several; the fourth event holds no value at all."""
    chance = random.Random(version)
    rows, day = [], 0
    for number in range(RECORDS):
        day += chance.choice((0,) * 14 + (1, 2, 3))
        missing = 60 <= number < 80 or chance.random() < 0.1
        value = None if missing else chance.randrange(1_000)
        rows.append(Reading(day, f"{chance.choice(PLACES)} {version}", value))
    return rows


def write(path: Path, version: int) -> None:
    """Replace the file by another version, at once."""
    rows = readings(version)
    table = pa.table(
        {
            "day": pa.array([row.day for row in rows], pa.int64()),
            "place": pa.array([row.place for row in rows], pa.string()),
            "value": pa.array([row.value for row in rows], pa.int64()),
        }
    )
    pq.write_table(table, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


@contextlib.contextmanager
def changing(path: Path, every_seconds: float = 0.05) -> Iterator[None]:
    """No two reads of the file find the same."""
    write(path, 1)
    stop = threading.Event()

    def change() -> None:
        for version in itertools.count(2):
            if stop.wait(every_seconds):
                return
            write(path, version)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


Row = tuple[int, str, int, int]
"""day, place, total, readings seen when the day was closed"""


@dataclass
class Expected:
    """The written rows in order, and for each output event the events of the source that it comes from."""

    rows: list[Row] = field(default_factory=list)
    lineage: dict[int, set[int]] = field(default_factory=dict)


def expected(version: int) -> Expected:
    rows, result = readings(version), Expected()
    totals: dict[int, Counter[str]] = {}
    events: dict[int, set[int]] = {}
    seen = 0

    def close(day: int) -> None:
        result.rows += [(day, place, total, seen) for place, total in sorted(totals.pop(day).items())]
        result.lineage[len(result.lineage) + 1] = events.pop(day)

    for number, begin in enumerate(range(0, len(rows), RECORDS_PER_EVENT), 1):
        for row in rows[begin : begin + RECORDS_PER_EVENT]:
            if row.value is not None:
                seen += 1
                totals.setdefault(row.day, Counter())[row.place] += row.value
                events.setdefault(row.day, set()).add(number)
        for day in sorted(totals)[:-1]:  # the latest day stays open
            close(day)
    for day in sorted(totals):
        close(day)
    return result


def assert_exact(log_url: str, warehouse_url: str, store: Path, run_uid: str, zombies: Iterable[int] = ()) -> None:
    """Both tables and the lineage are those of one version of the file, and no stored effect is left.

    Except what `zombies` (tokens) stored after they were replaced, before they heard of it: no driver reads that.
    """
    published = rows_of(warehouse_url, "SELECT day, place, total, seen FROM published_days")
    versions = {place.split()[1] for _, place, _, _ in published}
    assert len(versions) == 1, f"the file was read more than once: versions {sorted(versions)}"
    want = expected(version := int(versions.pop()))
    assert published == want.rows
    assert_days(warehouse_url, run_uid, version)
    assert lineage(log_url) == want.lineage
    left = {path.stem for path in store.rglob("*.parquet")}
    assert left <= {str(token) for token in zombies}, "a stored effect is left"


def assert_days(warehouse_url: str, run_uid: str, version: int) -> None:
    """What `days` has written itself, in order."""
    query = f"SELECT day, place, total, seen FROM day_totals WHERE run = '{run_uid}'"
    assert rows_of(warehouse_url, query) == expected(version).rows


def lineage(log_url: str) -> dict[int, set[int]]:
    """Output event of `days` → events of `readings`, as the log says."""
    found: dict[int, set[int]] = {}
    of, rows = schema.event_lineage, schema.event_log
    query = sa.select(of.c.event_id, rows.c.event_id.label("origin")).where(
        of.c.send_op == "days",
        rows.c.run_id == of.c.run_id,
        rows.c.rec_op == "days",
        rows.c.rec_port == "in",
        rows.c.inset_id == of.c.inset_id,
    )
    engine = log_engine(log_url)
    with engine.connect() as connection:
        for row in connection.execute(query):
            found.setdefault(row.event_id, set()).add(row.origin)
    engine.dispose()
    return found
