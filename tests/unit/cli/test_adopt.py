"""`logio adopt`, as a person types it: rows from before, whose next run replaces them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.cli.app import main
from airflow_logio.store import open_store
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import D1, D2, execute
from tests.support.table_runs import Superseding, numbered

Logio = Callable[..., tuple[int, str]]
CLICKS = """
from airflow_logio import DatasetWriter, Days, FolderSource, ParquetSource, Pipeline, TableWriter

clicks = Pipeline("clicks", partition=Days("day"), connections=["wh"])
columns = {"day": "date", "a": "bigint", "who": "text"}
late = TableWriter("wh", "t", columns, on_new_run="supersede")
clicks.writer("save", late, clicks.source("read", ParquetSource("day.parquet")))
lake = Pipeline("lake", partition=Days("day"), connections=["wh"])
folder = DatasetWriter("wh", "late_clicks", on_new_run="supersede")
lake.writer("save", folder, lake.source("read", FolderSource("days")))
plain = Pipeline("plain", connections=["wh"])
plain.writer("save", TableWriter("wh", "t", columns), plain.source("read", ParquetSource("day.parquet")))
"""
BEFORE = ("CREATE TABLE t (day DATE, a BIGINT, who TEXT, logio_run BIGINT)", "CREATE INDEX of_runs ON t (logio_run)")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("LOGIO_CONN_WH", url)
    opened = Warehouse("wh", url)
    execute(
        opened, *BEFORE, f"INSERT INTO t VALUES ('{D1}', 1, 'old', NULL), ('{D2}', 2, 'old', 0), ('{D2}', 3, 'x', 0)"
    )
    yield opened
    opened.close()


@pytest.fixture
def logio(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Logio:
    module = tmp_path / f"adopting_{tmp_path.name.replace('-', '_')}.py"
    module.write_text(CLICKS)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)

    def command(*arguments: str, partition: str = D1, pipeline: str = "clicks") -> tuple[int, str]:
        named = f"{module}:{pipeline}" if pipeline in ("clicks", "lake", "plain") else pipeline
        given = ["--connection", "wh", "--pipeline", named, "--partition", partition, *arguments]
        monkeypatch.setattr(sys, "argv", ["logio", "adopt", "t", *given])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((said.out + said.err).split())

    return command


def log_uid(url: str) -> str:
    store = open_store(url)
    try:
        return store.log_uid()
    finally:
        store.dispose()


def test_rows_from_before_are_replaced_by_the_next_run_of_their_day(
    warehouse: Warehouse, logio: Logio, sqlite_url: str
) -> None:
    """Also where a run has been there already, and by no run of another day."""
    assert logio("--where", "who = 'old'", "--yes") == (
        0,
        "2 rows belong to 2026-03-01 of clicks: the next run of it replaces them",
    )
    assert numbered(warehouse) == [(D1, 1, "old", 1), (D2, 2, "old", 1), (D2, 3, "x", 0)]
    uid = log_uid(sqlite_url)
    Superseding(1, D2, log_uid=uid).all(warehouse, 20)
    Superseding(2, log_uid=uid).all(warehouse, 10)
    assert numbered(warehouse) == [(D1, 10, "clicks2", 1), (D2, 3, "x", 0), (D2, 20, "clicks1", 2)]
    assert logio("--where", "a = 3", "--yes", partition=D2)[0] == 0
    Superseding(3, D2, log_uid=uid).all(warehouse, 21)
    assert numbered(warehouse) == [(D1, 10, "clicks2", 1), (D2, 21, "clicks3", 2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "a = 1"], "1 rows of table 't' are to belong to 2026-03-01 of pipeline 'clicks': say --yes"),
        (["--where", "a = 99", "--yes"], "no row of table 't' that belongs to no run fulfils 'a = 99'"),
        (["--where", " ", "--yes"], "--where is empty"),
        (["--where", "a = :a", "--yes"], "--where has a parameter, 'a': write the value itself"),
        (["--where", "1 = 1); DELETE FROM t; --", "--yes"], "is none"),
        (["--where", "nothing = 1", "--yes"], "nothing"),
        (["--where", "a = 1", "--run-column", "who", "--yes"], "must be bigint or integer"),
        (["--where", "a = 1", "--run-column", "other", "--yes"], "has no column 'other'"),
    ],
)
def test_what_is_not_adopted_changes_nothing(
    warehouse: Warehouse, logio: Logio, arguments: list[str], said: str
) -> None:
    before = numbered(warehouse)
    code, told = logio(*arguments)
    assert code == 1 and said in told, told
    assert numbered(warehouse) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partition": "yesterday"}, "yesterday"),
        ({"pipeline": "plain"}, "pipeline 'plain' has no partitions"),
        ({"pipeline": "lake"}, "connection 'wh' is a folder, and only rows of tables can be adopted"),
        ({"pipeline": "unknown"}, "the log has no run of pipeline 'unknown'; name its file instead"),
    ],
)
def test_a_day_that_is_not_known_is_refused(warehouse: Warehouse, logio: Logio, given: Any, said: str) -> None:
    code, told = logio("--where", "1 = 1", "--yes", **given)
    assert code != 0 and said in told, told


def test_rows_that_a_run_owns_are_not_given_to_another_day(warehouse: Warehouse, logio: Logio, sqlite_url: str) -> None:
    Superseding(1, D2, log_uid=log_uid(sqlite_url)).all(warehouse, 20)
    before = numbered(warehouse)
    code, told = logio("--where", "a > 1", "--yes")
    assert code == 1 and "1 rows that fulfil 'a > 1' belong to runs already" in told, told
    Superseding(1, uid="laptop", log_uid="another").all(warehouse, 30)
    code, told = logio("--where", "a = 1", "--yes")
    assert code == 1 and "belongs to runs of another log" in told, told
    assert [row for row in numbered(warehouse) if row[1] != 30] == before


def test_rows_that_change_meanwhile_are_not_adopted(warehouse: Warehouse) -> None:
    run = Superseding(0, uid="adopted")
    found = warehouse.adopt(run.writer, run.target(warehouse).run, "who = 'old'")  # type: ignore[arg-type]
    execute(warehouse, f"INSERT INTO t VALUES ('{D2}', 9, 'old', NULL)")
    before = numbered(warehouse)
    with pytest.raises(Exception, match="2 rows were to belong to day=2026-03-01, and 3 would"):
        warehouse.adopt(run.writer, run.target(warehouse).run, "who = 'old'", expected=found)  # type: ignore[arg-type]
    assert found == 2 and numbered(warehouse) == before
