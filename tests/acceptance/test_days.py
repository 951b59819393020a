"""Days as a user writes them: a folder for each, late rows elsewhere, the day's pages in the place of those from before.

On real drivers, which are killed; each day is compared with DuckDB's answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.databases import plain_engine, read_url
from airflow_logio.dataflow import Days
from airflow_logio.launch.bundle import PipelineRef, parse_ref
from tests.support.crash_sites import OPENING, QUESTION, SWITCH
from tests.support.running import PlainLauncher, running

pytestmark = pytest.mark.acceptance

D1, D2 = "2026-03-28", "2026-03-29"
"""The second one has 23 hours."""
ZONE = Days("day", zone="Europe/Berlin")
CLICKS = """
import pyarrow as pa

from airflow_logio import AllOfRun, Count, Days, OwnPartition, ParquetSource, Pipeline, TableWriter, generate


@generate
def pages(records: pa.Table, params) -> pa.Table:
    counted = records.group_by("page").aggregate([("id", "count"), ("id", "sum")]).sort_by("page")
    day = pa.array([params["day"]] * len(counted)).cast(pa.date32())
    columns = [day, counted["page"], counted["id_count"], counted["id_sum"]]
    return pa.table(columns, names=["day", "page", "clicks", "sum"])


clicks = Pipeline("clicks", partition=Days("day", zone="Europe/Berlin"), params={"data": str}, connections=["warehouse"])
web = clicks.source("web", ParquetSource("{data}/web/dt={day}/*.parquet", records_per_event=100))
own = clicks.operator("own", OwnPartition("day", on="ts"), web)
top = clicks.operator("top", pages, "own.own", window=AllOfRun())
columns = {"day": "date", "page": "text", "clicks": "bigint", "sum": "bigint"}
days = TableWriter("warehouse", "top", columns, ("day", "page"), on_new_run="overwrite", by=("day",))
clicks.writer("save", days, top)
clicks.sink("late", Count(), "own.other")
clicks.group("all", web, own, top, "save", "late")
"""


@pytest.fixture
def ref(tmp_path: Path) -> PipelineRef:
    (tmp_path / "clicks.py").write_text(CLICKS)
    for day in (D1, D2):
        write(tmp_path, day, "a", range(1_000))
    return parse_ref(f"{tmp_path / 'clicks.py'}:clicks")


def write(folder: Path, day: str, name: str, ids: range) -> None:
    """Clicks of the day, and late ones of the day before: one in fifty."""
    start = ZONE.key_of(day).start
    times = [start + timedelta(seconds=-60 if one % 50 == 0 else 30 * (one % 2_700)) for one in ids]
    found = folder / "web" / f"dt={day}"
    found.mkdir(parents=True, exist_ok=True)
    columns = {
        "id": list(ids),
        "ts": pa.array(times, pa.timestamp("us", "UTC")),
        "page": [f"p{one % 7}" for one in ids],
    }
    pq.write_table(pa.table(columns), found / f"{name}.parquet")


def expected(folder: Path, day: str) -> list[tuple[str, str, int, int]]:
    key = ZONE.key_of(day)
    query = f"""SELECT '{day}', page, count(*), sum(id)::bigint FROM read_parquet('{folder}/web/dt={day}/*.parquet')
        WHERE ts >= ? AND ts < ? GROUP BY page ORDER BY page"""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(query, [key.start, key.end]).fetchall()


def found(url: str) -> list[tuple[str, str, int, int]]:
    engine = plain_engine(read_url(url), "the test")
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT day, page, clicks, sum FROM top ORDER BY day, page")).all()
    engine.dispose()
    return [(str(row[0]), *row[1:]) for row in rows]


def test_each_day_is_exact_whatever_dies_in_its_closing(
    log_url: str, tables_url: str, ref: PipelineRef, tmp_path: Path
) -> None:
    """Two days, then the first one again, with a file that came late. Drivers die in and around the transactions of each."""
    uids: list[str] = []
    expected_before: list[tuple[str, str, int, int]] = []
    for number, (day, points) in enumerate(((D1, OPENING), (D2, QUESTION), (D1, OPENING))):
        if number == 2:
            write(tmp_path, D1, "b", range(1_000, 1_500))
            assert found(tables_url) == expected_before + expected(tmp_path, D2)
        armed = {("all", incarnation): point for incarnation, point in enumerate((*points, *SWITCH), 1)}
        launcher = PlainLauncher(tmp_path / "drivers" / str(number), armed)
        given = {"ref": ref, "params": {"data": str(tmp_path)}, "partition": ZONE.key_of(day), "name": f"run{number}"}
        with running(log_url, tables_url, tmp_path, launcher, **given) as run:
            run.finish()
            assert run.status("all").incarnation == 1 + len(armed), "each point was passed"
            uids.append(run.run.uid)
        if number == 0:
            expected_before = expected(tmp_path, D1)
            assert found(tables_url) == expected_before
    assert found(tables_url) == expected(tmp_path, D1) + expected(tmp_path, D2)
    engine = plain_engine(read_url(tables_url), "the test")
    with engine.connect() as connection:
        live = connection.execute(sa.text("SELECT scope, live_run FROM logio_scope ORDER BY scope")).all()
    engine.dispose()
    assert [tuple(row) for row in live] == [(f"day={D1}", uids[2]), (f"day={D2}", uids[1])]


def test_days_from_the_command_line(ref: PipelineRef, tmp_path: Path) -> None:
    """Into a table that a script has filled: its other days stay."""
    url = f"sqlite:///{tmp_path / 'clicks.db'}"
    engine = plain_engine(read_url(url), "the test")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE top (day DATE, page TEXT, clicks BIGINT, sum BIGINT)")
        connection.exec_driver_sql(f"INSERT INTO top VALUES ('2026-03-27', 'p0', 1, 1), ('{D1}', 'p9', 9, 9)")
    engine.dispose()
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    command = ["run", f"{tmp_path / 'clicks.py'}:clicks"]
    environment["LOGIO_CONN_WAREHOUSE"] = url
    command += ["--partition", D1, "--param", f"data={tmp_path}", "--connection", "warehouse=warehouse"]

    def logio(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_logio.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    logio(*command)
    before = expected(tmp_path, D1)
    assert found(url) == [("2026-03-27", "p0", 1, 1), *before]
    write(tmp_path, D1, "b", range(1_000, 1_500))
    logio(*command)
    assert found(url)[1:] == before, "a day that is done is not computed again by itself"
    assert "is given up" in logio("again", "--partition", D1, "--because", "a late file")
    assert found(url)[1:] == before, "the old day stays until the next run replaces it"
    logio(*command)
    assert found(url) == [("2026-03-27", "p0", 1, 1), *expected(tmp_path, D1)]
    assert expected(tmp_path, D1) != before
