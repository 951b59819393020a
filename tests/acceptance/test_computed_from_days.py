"""Two pipelines, the second reads the first one's table: what was computed from a day that was replaced since is marked.

By `logio run`, with real drivers; the rows of each day are those that the inputs say.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

PIPELINES = """
import pyarrow as pa
from airflow_logio import AllOfRun, Days, ParquetSource, Pipeline, QuerySource, TableWriter, generate

def owned(table, column):
    columns = {"day": "text", column: "bigint"}
    return TableWriter("wh", table, columns, ("day",), on_new_run="overwrite", by=("day",))

@generate
def counted(rows: pa.Table, params) -> pa.Table:
    return pa.table({"day": [params["day"]], "n": [rows.num_rows]})

@generate
def doubled(rows: pa.Table, params) -> pa.Table:
    return pa.table({"day": [params["day"]], "twice": [2 * sum(rows.column("n").to_pylist())]})

clicks = Pipeline("clicks", partition=Days("day"), params={"data": str}, connections=["wh"])
web = clicks.source("web", ParquetSource("{data}/{day}.parquet"))
clicks.writer("save", owned("clicks", "n"), clicks.operator("count", counted, web, window=AllOfRun()))

report = Pipeline("report", partition=Days("day"), connections=["wh"])
query = QuerySource("wh", "SELECT n FROM clicks WHERE day = :day", columns={"n": "bigint"})
read = report.source("read", query, days={"clicks": "day={day}"})
report.writer("save", owned("report", "twice"), report.operator("double", doubled, read, window=AllOfRun()))
"""
DAY, NEXT = "2026-03-28", "2026-03-29"


class Terminal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "days.py").write_text(PIPELINES)

    def logio(self, *arguments: str) -> str:
        names = {
            "LOGIO_CONN_WH": f"sqlite:///{self.folder}/wh.db",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "COLUMNS": "400",
        }
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | names
        command = [sys.executable, "-m", "airflow_logio.cli", *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return " ".join(ended.stdout.split())

    def computes(self, pipeline: str, day: str, rows: int | None = None) -> None:
        """`rows`: of the input, from now on."""
        if rows is not None:
            pq.write_table(pa.table({"id": list(range(rows))}), self.folder / f"{day}.parquet")
        given = ("--param", f"data={self.folder}") if pipeline == "clicks" else ()
        self.logio("run", f"days.py:{pipeline}", *given, "--partition", day)

    def again(self, pipeline: str, day: str) -> str:
        return self.logio("again", "--partition", day, "--pipeline", pipeline)

    def reported(self) -> dict[str, int]:
        return dict(rows_of(f"sqlite:///{self.folder}/wh.db", "SELECT day, twice FROM report"))


def test_what_was_computed_from_a_day_of_a_table_that_was_replaced_is_marked(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.computes("clicks", DAY, 3)
    terminal.computes("report", DAY)
    assert terminal.reported() == {DAY: 6}
    assert "computed from" not in terminal.logio("days", "report")

    assert "1 run was computed from what run" in (said := terminal.again("clicks", DAY)) and f"report@{DAY}" in said
    terminal.computes("clicks", DAY, 5)
    marked = terminal.logio("days", "report")
    assert f"computed from day={DAY} of table clicks of connection wh as run" in marked
    assert "which was replaced by run" in marked and terminal.reported() == {DAY: 6}
    assert "which was replaced by run" in terminal.logio("status", f"report@{DAY}")

    terminal.again("report", DAY)
    terminal.computes("report", DAY)
    assert terminal.reported() == {DAY: 10}
    assert "computed from" not in terminal.logio("days", "report")


def test_a_report_that_was_before_its_day_is_marked_when_the_day_is_there(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.computes("clicks", DAY, 3)
    terminal.computes("report", NEXT)
    assert terminal.reported() == {}
    assert "computed from" not in terminal.logio("days", "report")
    terminal.computes("clicks", NEXT, 4)
    assert "before a run was known to have it, which was replaced by run" in terminal.logio("days", "report")
