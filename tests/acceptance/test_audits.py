"""Audits of a day, on real drivers: what is refused leaves the old day and waits for a person, whatever dies meanwhile.

Each day is compared with DuckDB's answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.databases import plain_engine, read_url
from airflow_logio.dataflow import Days
from airflow_logio.launch.bundle import PipelineRef, parse_ref
from airflow_logio.protocol.states import GroupState
from tests.support.crash_sites import IN_AUDITS
from tests.support.running import PlainLauncher, running

pytestmark = pytest.mark.acceptance

DAY, OTHER = "2026-03-28", "2026-03-29"
ZONE = Days("day", zone="Europe/Berlin")
SALES = """
import os
import signal
from pathlib import Path

from airflow_logio import Days, ParquetSource, Pipeline, TableWriter

UNKNOWN = "SELECT DISTINCT shop FROM sold WHERE day = :day AND shop NOT IN (SELECT name FROM shops) ORDER BY shop"


def enough(records, params):
    rows = sum(table.num_rows for table in records)
    if (fault := Path(params["data"]) / "fault").exists():
        fault.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return None if rows >= 10 else f"{rows} rows"


sales = Pipeline("sales", partition=Days("day", zone="Europe/Berlin"), params={"data": str}, connections=["warehouse"])
sold = sales.source("sold", ParquetSource("{data}/dt={day}/*.parquet", records_per_event=100))
audit = {"every shop is known": UNKNOWN, "enough": enough}
columns = {"day": "date", "id": "bigint", "shop": "text"}
save = TableWriter("warehouse", "sold", columns, ("day", "id"), on_new_run="overwrite", by=("day",), audit=audit)
sales.writer("save", save, sold)
sales.group("all", sold, "save")
"""


@pytest.fixture
def ref(tmp_path: Path) -> PipelineRef:
    (tmp_path / "sales.py").write_text(SALES)
    for day in (DAY, OTHER):
        write(tmp_path, day, "a", range(1_000))
    return parse_ref(f"{tmp_path / 'sales.py'}:sales")


def write(folder: Path, day: str, name: str, ids: range, shops: int = 3) -> None:
    found = folder / f"dt={day}"
    found.mkdir(exist_ok=True)
    columns = {"day": [day] * len(ids), "id": list(ids), "shop": [f"s{one % shops}" for one in ids]}
    table = pa.table(columns)
    pq.write_table(table.set_column(0, "day", table["day"].cast(pa.date32())), found / f"{name}.parquet")


def expected(folder: Path, *days: str) -> list[tuple[str, int, str]]:
    files = [f"{folder}/dt={day}/*.parquet" for day in days]
    with duckdb.connect() as connection:
        return connection.execute("SELECT day::text, id, shop FROM read_parquet(?) ORDER BY ALL", [files]).fetchall()


def found(url: str) -> list[tuple[str, int, str]]:
    engine = plain_engine(read_url(url), "the test")
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT day, id, shop FROM sold ORDER BY day, id")).all()
    engine.dispose()
    return [(str(row[0]), *row[1:]) for row in rows]


def execute(url: str, *statements: str) -> None:
    engine = plain_engine(read_url(url), "the test")
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


KNOWN = ("CREATE TABLE shops (name TEXT)", "INSERT INTO shops VALUES ('s0'), ('s1'), ('s2')")


def test_an_audit_that_refuses_keeps_the_old_day_until_a_person_asks_again(
    log_url: str, tables_url: str, ref: PipelineRef, tmp_path: Path
) -> None:
    """Drivers die in a function, behind a query, and behind the transaction; then the next run of the day is refused."""
    execute(tables_url, *KNOWN)
    given = {"ref": ref, "params": {"data": str(tmp_path)}}
    (tmp_path / "fault").touch()
    points = [*IN_AUDITS, CrashPoint.IN_WAREHOUSE_TRANSACTION, CrashPoint.AFTER_WRITE]
    armed = {("all", number): f"{point}:1" for number, point in enumerate(points, 2)}
    # The opening action passes two of these points as well: later incarnations find it applied.
    launcher = PlainLauncher(tmp_path / "drivers" / "first", armed)
    with running(log_url, tables_url, tmp_path, launcher, partition=ZONE.key_of(DAY), name="first", **given) as run:
        run.finish()
        assert run.status("all").incarnation == 1 + len(points) + 1, "every one of them was passed"
    assert not (tmp_path / "fault").exists()
    before = expected(tmp_path, DAY)
    assert found(tables_url) == before
    write(tmp_path, DAY, "b", range(1_000, 1_200), shops=5)
    launcher = PlainLauncher(tmp_path / "drivers" / "again", {("all", 1): "before_park:1"})
    with running(
        log_url,
        tables_url,
        tmp_path,
        launcher,
        partition=ZONE.key_of(DAY),
        name="again",
        **given,
    ) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group parks")
        assert run.status("all").incarnation == 2
        said = str(run.status("all").error)
        assert "audit 'every shop is known' refuses the rows" in said and "2 rows: (shop=s3), (shop=s4)" in said
        assert "What is in the table stays as it is" in said and "`logio retry`" in said
        assert found(tables_url) == before
        execute(tables_url, "INSERT INTO shops VALUES ('s3'), ('s4')")
        run.relaunch("all")
        run.finish()
    assert found(tables_url) == expected(tmp_path, DAY) != before


def test_an_audit_that_is_wrong_is_corrected_from_the_command_line(ref: PipelineRef, tmp_path: Path) -> None:
    """`logio check` finds a query that the database does not take; `logio retry --code new` asks with another one."""
    url = f"sqlite:///{tmp_path / 'wh.db'}"
    execute(url, *KNOWN)
    program = tmp_path / "sales.py"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    environment["LOGIO_CONN_WAREHOUSE"] = url
    of_day = ["--partition", DAY, "--param", f"data={tmp_path}", "--connection", "warehouse=warehouse"]

    def logio(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_logio.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    program.write_text(SALES.replace("shop NOT IN", "stop NOT IN"))
    code, said = logio("check", f"{program}:sales", *of_day)
    assert code and "refused audit 'every shop is known'" in said and "stop" in said, said
    program.write_text(SALES.replace("rows >= 10", "rows >= 10_000"))
    code, said = logio("run", f"{program}:sales", *of_day)
    assert code and "audit 'enough' refuses the rows of run" in said and "1000 rows" in said, said
    assert found(url) == []
    program.write_text(SALES)
    code, said = logio("retry", "sales__" + DAY, "--code", "new")
    assert code == 0, said
    code, said = logio("run", f"{program}:sales", *of_day)
    assert code == 0, said
    assert found(url) == expected(tmp_path, DAY)
