"""The clock, the same for all sides: from the first record read to the commit of the last row in PostgreSQL.

All processes are up before, and Spark has processed a first micro-batch. Each side notes in a file how many records it has
read by when: a line ``0 <seconds>`` just before its first record. For Structured Streaming the records of a micro-batch count
as read when its trigger begins. Commits have the times that PostgreSQL gives them, on the same host: those before their
flush, which is left out on all sides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg2

from tests.bench.peers.work import BEGIN, COLUMNS, KEY, TABLE, WINDOW_RECORDS, Work
from tests.bench.throughput import WrongResult


@dataclass(frozen=True, slots=True)
class Taken:
    """One run."""

    records: int
    seconds: float
    latencies: tuple[float, ...]
    """Of each minute, seconds from the noted time of its last record to the commit of the last of its rows. At full speed
    what is queued between the two is in it."""
    commits: Mapping[int, float]
    """Minute → when the last of its rows was there."""

    @property
    def latency(self) -> float:
        """The median of all minutes."""
        return median(self.latencies)

    @property
    def steady(self) -> float:
        """Records per second between the commits of a tenth and of nine tenths of the minutes: without start and end."""
        first, last = len(self.commits) // 10, len(self.commits) * 9 // 10
        return (last - first) * WINDOW_RECORDS / (self.commits[last] - self.commits[first])

    @property
    def speed(self) -> float:
        """Records per second."""
        return self.records / self.seconds


def create_table(warehouse: str) -> None:
    """As our writer makes it, where it is missing."""
    columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in COLUMNS.items())
    with psycopg2.connect(warehouse) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} ({columns}, PRIMARY KEY ({', '.join(KEY)}))")
    connection.close()


def taken(side: str, work: Work, reads: Path, warehouse: str) -> Taken:
    """Raises `WrongResult` unless the rows are those that must come of the records."""
    found = _rows(warehouse)
    if (rows := [row[:4] for row in found]) != list(work.rows):
        wrong = len(set(rows) ^ set(work.rows))
        raise WrongResult(f"{side}: {len(rows)} rows, not {len(work.rows)} as expected; {wrong} differ")
    marks = marks_of(side, reads)
    commits: dict[int, float] = {}
    begin = BEGIN.item()
    for minute, _, _, _, committed in found:
        number = round((minute - begin).total_seconds()) // 60
        commits[number] = max(committed, commits.get(number, 0.0))
    seconds = max(commits.values()) - marks[0][1]
    return Taken(work.records, seconds, tuple(latencies(work.records, marks, commits)), commits)


def marks_of(side: str, reads: Path) -> list[tuple[int, float]]:
    """How many records were read by when. Raises `WrongResult` if some were read twice."""
    marks = [(int(count), float(at)) for count, at in map(str.split, reads.read_text().splitlines())]
    counts = [count for count, _ in marks]
    if counts != sorted(set(counts)) or counts[0] != 0:
        raise WrongResult(f"{side}: it has read records twice, so that no one knows when they were read first")
    return marks


def latencies(records: int, marks: list[tuple[int, float]], commits: dict[int, float]) -> list[float]:
    """Of each minute, seconds. `marks`: records that were read by when; `commits`: minute → when its last row was there."""
    counts = [count for count, _ in marks]
    ends = {number: min(records, (number + 1) * WINDOW_RECORDS) for number in commits}
    return [commits[number] - marks[bisect_left(counts, end)][1] for number, end in ends.items()]


def _rows(warehouse: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(warehouse)
    try:
        with connection.cursor() as cursor:
            committed = "extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8"
            cursor.execute(f"SELECT {', '.join(COLUMNS)}, {committed} FROM {TABLE} ORDER BY {', '.join(KEY)}")
            return list(cursor.fetchall())
    finally:
        connection.close()
