"""What days cost: fifty that are backfilled at once, one of a year that is computed again, one that is held in the log.

Figures beside each other are measured in turn, in one process, on the same machine; only their ratios say something.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from statistics import median

import duckdb
import psutil
import pyarrow.parquet as pq
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.dataflow import Days
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.driver_folders import processes_under
from airflow_logio.protocol.states import GroupState
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.throughput import WrongResult
from tests.support.running import PlainLauncher, Running, running
from tests.support.warehouse import change, rows_of, warehouse_engine

PIPELINES = Path(__file__).parent / "pipelines" / "days.py"
FIRST = date(2025, 1, 1)
YEAR, BACKFILLED, ROWS = 365, 50, 2_000
"""Days; rows of a day of these."""
LARGE_ROWS = 100_000
"""Rows of a day that is written in three ways."""
SAMPLE_SECONDS = 0.2


def measure(databases: Databases, runs: int, held_mb: int) -> Iterator[Figure]:
    """Raises `WrongResult` if a day has not exactly its rows."""
    yield from _backfill(databases)
    yield from _one_of_a_year(databases, runs)
    yield from _three_ways(databases, runs)
    yield _held(databases, held_mb)


# --- fifty at once ----------------------------------------------------------------------------------------------------


@dataclass
class Looks:
    """How many drivers are there, and what memory they have, seen every so often."""

    folder: Path
    most: int = 0
    memory: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            found = processes_under(self.folder)
            self.most = max(self.most, len(found))
            with contextlib.suppress(psutil.Error):
                self.memory = max(self.memory, sum(process.memory_info().rss for process in found))

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        thread = threading.Thread(target=self.look)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


def _backfill(databases: Databases) -> Iterator[Figure]:
    """By `logio run --at-once 50`: the pipeline says drivers_at_once=4, and each day has one."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse_url = databases.fresh(folder)
        days = days_from_first(BACKFILLED)
        for day in days:
            write_day(folder / f"{day}.parquet", day, ROWS)
        alone = by_command(log_url, warehouse_url, folder, days[:1], 1)
        looks = Looks(folder)
        with looks.looking():
            together = by_command(log_url, warehouse_url, folder, days[1:], BACKFILLED)
        _check(warehouse_url, folder, days)
        lasted = json.loads((folder / "summary.json").read_text())["partitions"]
        drivers = [driver for one in lasted for driver in one["summary"]["drivers"]]
        seconds = [driver["seconds_after_claim"]["ended"] for driver in drivers]
        details = (
            f"one alone: {alone:.1f} s; at most {looks.most} drivers at a time, {looks.memory >> 20} MB of memory in all; "
            f"from its claim to its end each takes {median(seconds):.1f} s (median), {sum(seconds):.0f} s in all"
        )
        yield Figure(databases.name, f"{len(days) - 1} days at once, 4 drivers", together, "s", "none", details)


def by_command(
    log_url: str, warehouse_url: str, folder: Path, days: Sequence[str], at_once: int, way: str = "at_the_end"
) -> float:
    """Seconds of `logio run` for all these days. Raises `WrongResult` if one is not green."""
    command = [sys.executable, "-m", "airflow_logio.cli", "run", f"{PIPELINES}:{way}", "--param", f"data={folder}"]
    command += ["--partition", f"{days[0]}..{days[-1]}", "--at-once", str(at_once), "--json", "summary.json"]
    command += ["--connection", "warehouse=warehouse"]
    names = {"LOGIO_URL": log_url, "LOGIO_CONN_WAREHOUSE": warehouse_url, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=os.environ | names, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WrongResult(done.stdout[-2_000:] + done.stderr[-2_000:])
    return time.monotonic() - started


# --- one of a year ----------------------------------------------------------------------------------------------------


def _one_of_a_year(databases: Databases, runs: int) -> Iterator[Figure]:
    """Beside a script, and beside a table that has that day only."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse_url = databases.fresh(folder)
        days = days_from_first(YEAR)
        day = days[YEAR // 2]
        write_day(folder / f"{day}.parquet", day, ROWS)
        ours = {1: list[float](), YEAR: list[float]()}
        script = {1: list[float](), YEAR: list[float]()}
        for size, seconds in ours.items():
            _fill(warehouse_url, [day] if size == 1 else days)
            for number in range(runs):
                script[size].append(_script(warehouse_url, folder, day))
                seconds.append(_run(log_url, warehouse_url, folder, f"{size}_{number}", day, "at_the_end"))
                _check(warehouse_url, folder, [day])
        for size, seconds in ours.items():
            beside = median(script[size])
            details = f"a script's DELETE and INSERT: {beside:.2f} s; medians of {runs} in turn, {ROWS:,} rows"
            yield Figure(
                databases.name, f"one of {size} days again, with its driver", median(seconds), "s", "none", details
            )


def _script(warehouse_url: str, folder: Path, day: str) -> float:
    """What a person writes who has no run: one transaction, in a process that has its imports already."""
    started = time.monotonic()
    records = pq.read_table(folder / f"{day}.parquet").to_pylist()
    statement = "INSERT INTO filled (day, id, text) VALUES (:day, :id, :text)"
    rows = [{**record, "day": str(record["day"])} for record in records]
    with warehouse_engine(warehouse_url).begin() as connection:
        connection.execute(sa.text(f"DELETE FROM filled WHERE day = '{day}'"))
        connection.execute(sa.text(statement), rows)
    return time.monotonic() - started


def _fill(warehouse_url: str, days: Sequence[str]) -> None:
    for table in ("filled", "logio_scope", "logio_owner", "logio_marker"):
        change(warehouse_url, f"DROP TABLE IF EXISTS {table}")
    change(warehouse_url, "CREATE TABLE filled (day DATE, id BIGINT, text TEXT)")
    with warehouse_engine(warehouse_url).begin() as connection:
        statement = sa.text("INSERT INTO filled VALUES (:day, :id, :text)")
        for day in days:
            connection.execute(statement, [{"day": day, "id": one, "text": "x" * 100} for one in range(ROWS)])
    change(warehouse_url, "CREATE INDEX of_days ON filled (day)")


# --- one, in three ways -----------------------------------------------------------------------------------------------


def _three_ways(databases: Databases, runs: int) -> Iterator[Figure]:
    """The rows are held in the log and put at the end; or put as they come, into a day that is emptied first, or added."""
    ways = {"at_the_end": list[float](), "at_once": list[float](), "added": list[float]()}
    day = str(FIRST)
    for number in range(runs):
        for way, seconds in ways.items():
            with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
                folder = Path(name)
                log_url, warehouse_url = databases.fresh(folder)
                write_day(folder / f"{day}.parquet", day, LARGE_ROWS)
                seconds.append(_run(log_url, warehouse_url, folder, f"{way}_{number}", day, way))
                _check(warehouse_url, folder, [day])
    least = median(ways["added"])
    for way, seconds in ways.items():
        times = median(seconds) / least
        details = f"{LARGE_ROWS:,} rows, with its driver's start; medians of {runs} in turn; {times:.2f} times append"
        yield Figure(databases.name, f"a day written {way.replace('_', ' ')}", median(seconds), "s", "none", details)


def _held(databases: Databases, mb: int) -> Figure:
    """The driver stands still when all is held; then another one closes."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse_url = databases.fresh(folder)
        day, rows = str(FIRST), mb * 1_000
        write_day(folder / f"{day}.parquet", day, rows, width=1_000)
        before = _size(log_url, folder)
        launcher = PlainLauncher(folder / "drivers", {("read", 1): f"{CrashPoint.BEFORE_CLOSING}:1"})
        with _started(log_url, warehouse_url, folder, "held", day, "at_the_end", launcher) as run:
            started = time.monotonic()
            run.until(lambda: run.is_running(run.groups[0], 2), "the second driver runs", timeout=3_000)
            held, seconds = _size(log_url, folder) - before, time.monotonic() - started
            memory = 0
            while run.tend()[run.groups[0]].state is not GroupState.FINISHED:  # type: ignore[union-attr]
                with contextlib.suppress(psutil.Error, AssertionError):
                    memory = max(memory, run.process(run.groups[0]).memory_info().rss)
                time.sleep(SAMPLE_SECONDS)
            closed = time.monotonic() - started - seconds
        _check(warehouse_url, folder, [day])
        details = (
            f"held in {seconds:.0f} s; another driver closes it in {closed:.0f} s with {memory >> 20} MB of memory; "
            f"{(_size(log_url, folder) - before) >> 20} MB when it has finished"
        )
        return Figure(databases.name, f"the log while {mb:,} MB are held", held / 2**20, "MB", "none", details)


# --- both -------------------------------------------------------------------------------------------------------------


def _run(log_url: str, warehouse_url: str, folder: Path, name: str, day: str, way: str) -> float:
    """Seconds from its begin, with the start of a driver, to the end of its run."""
    launcher = PlainLauncher(folder / "drivers" / name)
    started = time.monotonic()
    with _started(log_url, warehouse_url, folder, name, day, way, launcher) as run:
        run.finish(timeout=3_000)
        seconds = time.monotonic() - started
        run.store.supersede(run.run.run_id)
    return seconds


def _started(
    log_url: str, warehouse_url: str, folder: Path, name: str, day: str, way: str, launcher: PlainLauncher
) -> contextlib.AbstractContextManager[Running]:
    given = {"params": {"data": str(folder)}, "partition": Days("day").key_of(day), "name": name}
    return running(log_url, warehouse_url, folder, launcher, ref=parse_ref(f"{PIPELINES}:{way}"), **given)


def days_from_first(count: int) -> list[str]:
    return [str(FIRST + timedelta(days=one)) for one in range(count)]


def write_day(file: Path, day: str, rows: int, width: int = 100) -> None:
    """With texts that can be compressed a little: hexadecimal digits."""
    with duckdb.connect() as connection:
        text = f"left(repeat(md5(i::text), {width // 32 + 1}), {width})"
        if width > 100:
            text = "||".join(f"md5((i * 100 + {one})::text)" for one in range(width // 32))
        made = f"SELECT DATE '{day}' AS day, i AS id, {text} AS text FROM range({rows}) t(i)"
        connection.execute(f"COPY ({made}) TO '{file}' (FORMAT parquet)")


def _check(warehouse_url: str, folder: Path, days: Sequence[str]) -> None:
    for day in days:
        with duckdb.connect() as connection:
            query = f"SELECT count(*), sum(id)::bigint, sum(length(text))::bigint FROM '{folder}/{day}.parquet'"
            wanted = connection.execute(query).fetchone()
        (found,) = rows_of(
            warehouse_url, f"SELECT count(*), sum(id), sum(length(text)) FROM filled WHERE day = '{day}'"
        )
        if tuple(map(int, found)) != wanted:
            raise WrongResult(f"{day} has {found} and must have {wanted}")


def _size(log_url: str, folder: Path) -> int:
    """Of the log with its payload store, which an SQLite log has beside it for large bodies."""
    if not log_url.startswith("sqlite"):
        return int(rows_of(log_url, "SELECT pg_database_size(current_database())")[0][0])
    others = ("warehouse.db", "drivers")
    own = [path for path in folder.iterdir() if path.suffix != ".parquet" and not path.name.startswith(others)]
    return sum(file.stat().st_size for path in own for file in (path.rglob("*") if path.is_dir() else [path]))
