"""Runs of one day, which own it in two tables: what they read, what is there, and what is to be there, by DuckDB."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import psutil

from airflow_logio.dataflow import Days
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.driver_config import FINISHED, REPLACED
from airflow_logio.launch.launcher import Launcher
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.supervision.retry import check_days
from tests.support.logs import SOMEBODY
from tests.support.running import PlainLauncher, Running, has_ended, running
from tests.support.waiting import eventually
from tests.support.warehouse import change, rows_of

OWNED_DAY = parse_ref(f"{Path(__file__).parent / 'bundle' / 'owned_day.py'}:days")
DAY, OTHER = "2026-03-01", "2026-03-02"
TABLES: Mapping[str, str] = {
    "clicks": "SELECT day::text, id, page FROM clicks",
    "pages": "SELECT '{day}', page, count(*), sum(id)::bigint FROM clicks GROUP BY page",
}


LEASE = Lease(seconds=600, launch_seconds=600)
NOT_FIRST = (FINISHED, REPLACED)
"""What a slow driver of a replaced run ends with: it finds that it was replaced, or has read before that its run halts."""
"""Nothing is found dead by it: the test says what is taken for dead, and when."""


class OwnedDay:
    """A day whose input changes: each change makes another result."""

    def __init__(self, log_url: str, warehouse_url: str, folder: Path) -> None:
        self.log_url, self.warehouse_url, self.folder = log_url, warehouse_url, folder
        self.fault = folder / "fault"
        self._begun = 0

    def reads(
        self, first: int, count: int = 1_000, *, rows: str = "", day: str = DAY
    ) -> dict[str, list[tuple[Any, ...]]]:
        """From now on the day has so many clicks, numbered from `first`, and `rows` more. What its tables are to have."""
        with duckdb.connect() as connection:
            made = (
                f"SELECT DATE '{day}' AS day, i AS id, 'p' || i % 7 AS page FROM range({first}, {first + count}) t(i)"
            )
            more = f" UNION ALL {rows}" if rows else ""
            connection.execute(f"CREATE TABLE clicks AS {made}{more}")
            connection.execute(f"COPY clicks TO '{self.folder / day}.parquet' (FORMAT parquet)")
            return {
                table: sorted(connection.execute(query.format(day=day)).fetchall()) for table, query in TABLES.items()
            }

    def run(
        self,
        name: str,
        armed: Mapping[tuple[str, int], str] | None = None,
        *,
        launcher: Launcher | None = None,
        **more: Any,
    ) -> Any:
        """A run of the day, whose drivers die where they are armed."""
        if launcher is None:
            self._begun += 1
            launcher = PlainLauncher(
                self.folder / "drivers" / f"{self._begun}_{name}", armed or {}, more.pop("variables", {})
            )
        given = {
            "params": {"data": str(self.folder), "fault": str(self.fault)},
            "partition": Days("day").key_of(more.pop("day", DAY)),
            "ref": OWNED_DAY,
            "name": name,
            **more,
        }
        return running(self.log_url, self.warehouse_url, self.folder, launcher, **given)

    def there(self, day: str = DAY, tables: Collection[str] = ("clicks", "pages")) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of the day, table by table."""
        found = {}
        for table in tables:
            rows = rows_of(self.warehouse_url, f"SELECT * FROM {table} WHERE day = '{day}'")
            found[table] = sorted((str(row[0]), *row[1:]) for row in rows)
        return found

    def live(self) -> dict[str, tuple[str, str]]:
        """Table → the run that has claimed the day, and the one whose rows are there."""
        query = f"SELECT table_name, claimed_by, live_run FROM logio_scope WHERE scope = 'day={DAY}'"
        return {
            table.rpartition(".")[2]: (claimed, live) for table, claimed, live in rows_of(self.warehouse_url, query)
        }

    def claim(self, uid: str, ordinal: int) -> None:
        """By another run of the pipeline, in one of the two tables, which have their rows of runs."""
        ((log_uid,),) = rows_of(self.log_url, "SELECT uid FROM logio_log")
        columns = "table_name, scope, pipeline, log_uid, claimed_ordinal, claimed_by"
        values = f"'pages', 'day={DAY}', 'owned_day', '{log_uid}', {ordinal}, '{uid}'"
        change(self.warehouse_url, f"INSERT INTO logio_scope ({columns}) VALUES ({values})")

    def begin(self) -> None:
        """A day from before, by a script: the tables are there, and rows of the day and of another one."""
        change(self.warehouse_url, "CREATE TABLE clicks (day DATE, id BIGINT, page TEXT, PRIMARY KEY (day, id))")
        change(
            self.warehouse_url,
            "CREATE TABLE pages (day DATE, page TEXT, clicks BIGINT, sum BIGINT, PRIMARY KEY (day, page))",
        )
        for day in (DAY, OTHER):
            change(self.warehouse_url, f"INSERT INTO clicks VALUES ('{day}', -1, 'script')")
            change(self.warehouse_url, f"INSERT INTO pages VALUES ('{day}', 'script', 1, 1)")

    OLD: Mapping[str, list[tuple[Any, ...]]] = {
        "clicks": [(DAY, -1, "script")],
        "pages": [(DAY, "script", 1, 1)],
    }

    def assert_is(self, wanted: Mapping[str, list[tuple[Any, ...]]]) -> None:
        """The day has these rows, and the other day those of the script."""
        assert self.there() == dict(wanted)
        others = {table: [(OTHER, *row[1:]) for row in rows] for table, rows in self.OLD.items()}
        assert self.there(OTHER) == others, "rows of another day are not touched"


def until_stopped(run: Running) -> psutil.Process:
    """The driver of the closing group stands still, and the others have ended."""
    run.until(lambda: run.is_running("replacing"), "it runs")
    process = run.process("replacing")
    run.until(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still")
    until_alone(run)
    return process


def wake(process: psutil.Process) -> None:
    """One that stands still: it continues, finds out that it was replaced, and ends."""
    process.send_signal(signal.SIGCONT)
    eventually(lambda: has_ended(process), what="it has ended", timeout=120)


def give_up(run: Running) -> None:
    """A person has: its first driver of the closing group is taken for dead, and a fresh run may take its place."""
    assert run.store.declare_dead(GroupRef(run.run.run_id, "replacing", 1), "test")
    assert run.store.supersede(run.run.run_id)


def until_alone(run: Running) -> None:
    """The other groups have ended."""
    others = [group for group in run.groups if group != "replacing"]
    run.until(lambda: all(run.status(one).state in CONCLUDED for one in others), "the others have ended", *others)


def parked(run: Running, group: str = "replacing") -> str:
    """Supervise until the group is parked; why it is."""
    run.until(lambda: run.status(group).state is GroupState.PARKED, f"{group} is parked")
    return run.status(group).error or ""


@contextmanager
def parked_before_it_wrote(day: OwnedDay) -> Iterator[Running]:
    """A run whose closing group is parked; nothing of it is in the tables but what they keep of runs."""
    day.begin()
    day.reads(0)
    with day.run("old") as begun:
        check_days(begun.context, begun.groups)
        claim = begun.store.claim(begun.run.run_id, "replacing", expected=0, reason="test")
        session = begun.store.session(begun.store.register(claim, SOMEBODY))
        session.open()
        session.park("a fault")
        session.close()
        yield begun
