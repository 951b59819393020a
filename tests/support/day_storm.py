"""A storm of days: backfilled at once, computed again with other code and late rows, by drivers that die and stand still.

A seed says what is to happen, but not when: that is up to the machine. At each look, and at the end, each day must have, in
each table, exactly the rows that DuckDB makes of what the run has read whose rows are there, with the code that it has.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import psutil
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.dataflow import Days
from airflow_logio.launch.bundle import PipelineRef, parse_ref
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.owned_day import OwnedDay
from tests.support.running import LOOK_SECONDS, PlainLauncher, Running, has_ended, running
from tests.support.warehouse import change, warehouse_engine

CODE = """
import os

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import AllOfRun, Days, ParquetSource, Pipeline, TableWriter, generate, stateless

FACTOR = {factor}


@stateless(on_error="quarantine")
def usable(clicks: pa.Table, params) -> pa.Table:
    if clicks["id"][0].as_py() % 300 == 0 and os.path.exists(params["data"] + "/fault"):
        raise ValueError("this event cannot be used today")
    return clicks.set_column(1, "id", pc.multiply(clicks["id"], FACTOR))


@generate
def counted(clicks: pa.Table, params) -> pa.Table:
    pages = clicks.group_by("page").aggregate([("id", "count"), ("id", "sum")]).sort_by("page")
    day = pa.array([params["day"]] * len(pages)).cast(pa.date32())
    sums = pc.multiply(pages["id_sum"], FACTOR)
    return pa.table([day, pages["page"], pages["id_count"], sums], names=["day", "page", "clicks", "sum"])


days = Pipeline("owned_day", partition=Days("day"), params={{"data": str}}, connections=["warehouse"])
web = days.source("web", ParquetSource("{{data}}/{{day}}/*.parquet", records_per_event=100))
clean = days.operator("clean", usable, web)
top = days.operator("top", counted, web, window=AllOfRun())
owns = {{"on_new_run": "overwrite", "by": ("day",)}}
clicks = dict(day="date", id="bigint", page="text")
days.writer("keep", TableWriter("warehouse", "clicks", clicks, ("day", "id"), **owns), clean)
pages = dict(day="date", page="text", clicks="bigint", sum="bigint")
days.writer("save", TableWriter("warehouse", "pages", pages, ("day", "page"), **owns), top)
days.group("reading", web, clean)
days.group("replacing", top, "keep", "save")
"""
TABLES = {
    "clicks": "SELECT day::text, (id * {factor})::bigint, page FROM {read}",
    "pages": "SELECT day::text, page, count(*), sum(id * {factor})::bigint FROM {read} GROUP BY ALL",
}
COLUMNS = {"clicks": "CAST(day AS TEXT), id, page, NULL", "pages": "CAST(day AS TEXT), page, clicks, sum"}
SCRIPT = "the script"
"""What has filled the first day before any run."""
LEASE = Lease(seconds=600, launch_seconds=600)
"""Only the storm takes a driver for dead that is not."""
POINTS = (
    CrashPoint.AFTER_REGISTER,
    CrashPoint.AFTER_RECOVERY,
    CrashPoint.BEFORE_COMMIT,
    CrashPoint.AFTER_COMMIT,
    CrashPoint.BEFORE_WRITE,
    CrashPoint.AFTER_WRITE,
    CrashPoint.BEFORE_CLOSING,
    CrashPoint.AFTER_CLOSING,
    CrashPoint.IN_DAY_SWITCH,
    CrashPoint.IN_WAREHOUSE_TRANSACTION,
    CrashPoint.BEFORE_FINISH,
)
MOST_HURT = 2
"""Drivers for each run that are killed or stopped, beside those that are armed."""
MOST_SECONDS = 600.0
Rows = list[tuple[Any, ...]]


@dataclass
class StormRun:
    """A run of the storm."""

    day: str
    running: Running
    wanted: dict[str, Rows]
    fault: Path
    retried: bool = False
    """Its Input Sets were, at a moment of the storm's choice."""


@dataclass
class DayStorm:
    """`days` days are begun at once, and `again` runs follow; each of a day that chance draws."""

    seed: int
    log_url: str
    warehouse_url: str
    folder: Path
    days: int = 3
    again: int = 5
    told: Counter[str] = field(default_factory=Counter)
    """What has happened."""

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.is_sqlite = self.warehouse_url.startswith("sqlite")
        self.keys = [str(date(2026, 3, 1) + timedelta(days=one)) for one in range(self.days)]
        self._inputs = dict.fromkeys(self.keys, 0)
        """Day → how many files it has."""
        self._runs: list[StormRun] = []
        self._live: dict[tuple[str, str], int] = {}
        """Table and day → the index of the run whose rows are there."""
        self._stopped: list[psutil.Process] = []
        self._stack = ExitStack()

    # --- from begin to end --------------------------------------------------------------------------------------------

    def blow(self) -> None:
        """Until each day has a run that has finished."""
        OwnedDay(self.log_url, self.warehouse_url, self.folder).begin()
        change(self.warehouse_url, f"DELETE FROM clicks WHERE day <> '{self.keys[0]}'")
        change(self.warehouse_url, f"DELETE FROM pages WHERE day <> '{self.keys[0]}'")
        ends_at = time.monotonic() + MOST_SECONDS
        with self._stack:
            for day in self.keys:
                self._begin(day)
            left = [self.chance.choice(self.keys) for _ in range(self.again)]
            while left or not all(self._has_finished(run) for run in self._newest()):
                assert time.monotonic() < ends_at, f"seed {self.seed}: the days are never done: {self._states()}"
                if left and (self.chance.random() < 0.15 or all(map(self._has_finished, self._newest()))):
                    self._again(left.pop())
                self._look()
            self._wake()
            self.check()
            for run in self._newest():
                live = {self._live[table, run.day] for table in TABLES}
                assert live == {self._runs.index(run)}, f"seed {self.seed}: {run.day} has rows of another run"

    def close(self) -> None:
        """No process of it is left."""
        for process in self._stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _look(self) -> None:
        for run in self._newest():
            if not self._has_finished(run):
                self._tend(run)
        roll = self.chance.random()
        if roll < 0.1:
            self._wake()
        elif roll < 0.5 and self.told["killed"] + self.told["stood still"] < MOST_HURT * len(self._runs):
            stands = roll < 0.25 and not self.is_sqlite  # it would lock the file
            self._stop() if stands else self._kill()
        self.check()
        time.sleep(LOOK_SECONDS)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _begin(self, day: str) -> None:
        """With all files of the day until now, in a folder of its own, and code of its own."""
        number, factor = len(self._runs), self.chance.randint(2, 5)
        self._inputs[day] += 1
        data = self.folder / "read" / str(number)
        (data / day).mkdir(parents=True)
        with duckdb.connect() as connection:
            for one in range(self._inputs[day]):
                count = 200 + 100 * (int(day[-2:]) % 3)
                ids = f"range({one * 1000}, {one * 1000 + count}) t(i)"
                made = f"SELECT DATE '{day}' AS day, i AS id, 'p' || i % 7 AS page FROM {ids}"
                connection.execute(f"COPY ({made}) TO '{data}/{day}/{one}.parquet' (FORMAT parquet)")
            read = f"read_parquet('{data}/{day}/*.parquet')"
            wanted = {
                table: sorted(connection.execute(query.format(factor=factor, read=read)).fetchall())
                for table, query in TABLES.items()
            }
        fault = data / "fault"
        if self.chance.random() < 0.3:
            fault.touch()
        self._runs.append(StormRun(day, self._running(number, day, data, factor), wanted, fault))

    def _running(self, number: int, day: str, data: Path, factor: int) -> Running:
        launcher = PlainLauncher(self.folder / "drivers" / str(number), self._armed())
        given: dict[str, Any] = {
            "ref": self._code(factor),
            "name": f"run{number}",
            "params": {"data": str(data)},
            "partition": Days("day").key_of(day),
            "lease": LEASE,
            "end_old_drivers": self.is_sqlite,
        }
        begun = running(self.log_url, self.warehouse_url, self.folder, launcher, **given)
        return self._stack.enter_context(begun)

    def _armed(self) -> dict[tuple[str, int], str]:
        """Some drivers die by themselves, where it hurts."""
        return {
            (group, incarnation): f"{self.chance.choice(POINTS)}:{self.chance.randint(1, 3)}"
            for group in ("reading", "replacing")
            for incarnation in (1, 2)
            if self.chance.random() < 0.4
        }

    def _code(self, factor: int) -> PipelineRef:
        file = self.folder / "code" / str(factor) / "owned_day.py"
        if not file.exists():
            file.parent.mkdir(parents=True)
            file.write_text(CODE.format(factor=factor))
        return parse_ref(f"{file}:days")

    def _again(self, day: str) -> None:
        """The day's run is given up, whatever it is at; its drivers may live on."""
        run = next(one for one in self._newest() if one.day == day)
        self.told["again, finished" if self._has_finished(run) else "again, at work"] += 1
        for group in run.running.groups:
            status = run.running.status(group)
            if status.state in ALIVE:
                if self.is_sqlite and status.identity is not None and status.identity.pid:
                    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                        run.running.signal(group, signal.SIGKILL)
                run.running.store.declare_dead(GroupRef(run.running.run.run_id, group, status.incarnation), "the storm")
        assert run.running.store.supersede(run.running.run.run_id)
        self._begin(day)

    def _tend(self, run: StormRun) -> None:
        """A supervisor, and a person who mends what sets Input Sets aside, and retries."""
        states = {group: status and status.state for group, status in run.running.tend().items()}
        if GroupState.PARKED not in states.values():
            return
        said = run.running.status("replacing").error or ""
        assert "set aside" in said and run.fault.exists(), f"seed {self.seed}: {said}\n{run.running.last_words()}"
        self.told["kept the old day, then retried"] += 1
        run.fault.unlink()
        run.running.store.retry_quarantined(run.running.run.run_id)
        for group in run.running.groups:
            if run.running.status(group).state not in ALIVE:
                run.running.relaunch(group)

    def _newest(self) -> list[StormRun]:
        """Of each day."""
        return list({run.day: run for run in self._runs}.values())

    def _has_finished(self, run: StormRun) -> bool:
        return all(run.running.status(group).state in CONCLUDED - {GroupState.PARKED} for group in run.running.groups)

    # --- weather ------------------------------------------------------------------------------------------------------

    def _alive(self) -> list[tuple[StormRun, str]]:
        return [
            (run, group)
            for run in self._newest()
            for group in run.running.groups
            if run.running.status(group).state is GroupState.RUNNING
        ]

    def _kill(self) -> None:
        if alive := self._alive():
            run, group = self.chance.choice(alive)
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                run.running.signal(group, signal.SIGKILL)
                self.told["killed"] += 1

    def _stop(self) -> None:
        """A driver stands still, and another one takes its place."""
        if alive := self._alive():
            run, group = self.chance.choice(alive)
            status = run.running.status(group)
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                self._stopped.append(run.running.signal(group, signal.SIGSTOP))
                run.running.store.declare_dead(GroupRef(run.running.run.run_id, group, status.incarnation), "it stands")
                self.told["stood still"] += 1

    def _wake(self) -> None:
        """All that stand still continue, as zombies."""
        while self._stopped:
            process = self._stopped.pop()
            if not has_ended(process):
                process.send_signal(signal.SIGCONT)
                self.told["woke up"] += 1

    # --- what is seen -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each day of each table has exactly what the run has made whose rows are there, which is never an older one."""
        for table in TABLES:
            live, rows = self._seen(table)
            for day in self.keys:
                index, wanted = self._wanted(table, day, live.get(day))
                found = sorted(rows.get(day, []))
                assert found == wanted, f"seed {self.seed}: {table} {day} of {live.get(day)}: {len(found)} rows"
                assert index >= self._live.get((table, day), -1), f"seed {self.seed}: {day} is that of an older run"
                self._live[table, day] = index
        self.told["looks"] += 1

    def _wanted(self, table: str, day: str, uid: str | None) -> tuple[int, Rows]:
        if uid is None:
            old = OwnedDay.OLD[table] if day == self.keys[0] else []
            return -1, [(day, *row[1:]) for row in old]
        index = next(index for index, run in enumerate(self._runs) if run.running.run.uid == uid)
        return index, self._runs[index].wanted[table]

    def _seen(self, table: str) -> tuple[dict[str, str], dict[str, Rows]]:
        """Day → the run whose rows are said to be there, and day → rows, by one statement."""
        has_scopes = sa.inspect(warehouse_engine(self.warehouse_url)).has_table("logio_scope")
        scopes = "SELECT scope, live_run, table_name, NULL, 'live' FROM logio_scope "
        scopes += f"WHERE table_name LIKE '%{table}' UNION ALL "
        query = f"{scopes if has_scopes else ''}SELECT {_texts(COLUMNS[table])}, 'row' FROM {table}"
        live, rows = dict[str, str](), dict[str, Rows]()
        with warehouse_engine(self.warehouse_url).connect() as connection:
            found: Sequence[Any] = connection.execute(sa.text(query)).all()
        for first, second, third, fourth, what in found:
            if what == "live":
                live |= {first.partition("=")[2]: second} if second is not None else {}
            elif table == "clicks":
                rows.setdefault(first, []).append((first, int(second), third))
            else:
                rows.setdefault(first, []).append((first, second, int(third), int(fourth)))
        return live, rows

    def _states(self) -> str:
        return "; ".join(
            f"{run.day} {group} {status.state} {status.incarnation} {status.error or ''}"
            for run in self._newest()
            for group in run.running.groups
            for status in [run.running.status(group)]
        )


def _texts(columns: str) -> str:
    return ", ".join(f"CAST({one.strip()} AS TEXT)" for one in columns.replace("CAST(day AS TEXT)", "day").split(","))
