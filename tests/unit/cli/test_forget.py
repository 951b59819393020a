"""`logio forget`, as a person types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio.cli.app import main
from airflow_logio.crash import VARIABLE, CrashPoint
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.warehouse import Warehouse
from tests.support.logs import sent, spec, start_driver
from tests.support.table_days import D1, D2, params_of, rows
from tests.support.table_days import Run as TableRun

Logio = Callable[..., tuple[int, str]]
CLICKS = """
from airflow_logio import Days, ParquetSource, Pipeline, TableWriter

clicks = Pipeline("clicks", partition=Days("day"), connections=["wh"])
columns = {"day": "date", "a": "bigint", "who": "text"}
read = clicks.source("read", ParquetSource("day.parquet"))
clicks.writer("save", TableWriter("wh", "t", columns, on_new_run="overwrite", by=("day",)), read)
plain = Pipeline("plain", connections=["wh"])
plain.writer("save", TableWriter("wh", "p", columns), plain.source("read", ParquetSource("day.parquet")))
"""

OWNS = (WriterShape("save", "TableWriter", ("warehouse_default", "t"), Together.BY_PARTITION, Repeats.REPLACED),)


@pytest.fixture
def store(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("LOGIO_CONN_WAREHOUSE_DEFAULT", f"sqlite:///{tmp_path}/warehouse.db")
    opened = open_store(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    opened = Warehouse("wh", f"sqlite:///{tmp_path}/warehouse.db")
    yield opened
    opened.close()


@pytest.fixture
def logio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Logio:
    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["logio", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((said.out + said.err).split())

    return command


def begin(store: LogStore, folder: Path, day: str | None, name: str = "clicks") -> Run:
    module = folder / f"forgotten_{folder.name.replace('-', '_')}.py"
    module.write_text(CLICKS)
    plain = spec(dag_run=f"{name} {day}")
    plain = replace(plain, pipeline_ref=f"{module.stem}:{name}", bundle_root=str(folder))
    params = {} if day is None else params_of(day)
    key, connections = replace(plain.key, pipeline=name), {"wh": "warehouse_default"}
    return store.start_run(replace(plain, key=key, params=params, partition=day, connections=connections, writers=OWNS))


def finished(store: LogStore, warehouse: Warehouse, folder: Path, day: str, *numbers: int) -> Run:
    run = begin(store, folder, day)
    driver = start_driver(store, run=run)
    driver.session.commit([sent(1), fx.FinishGroup()])
    driver.session.close()
    TableRun(run.ordinal, day, run.uid, log_uid=store.log_uid(), started_at=run.created_at).all(warehouse, *numbers)
    assert store.finish_run(run.run_id)
    return run


def test_a_day_is_forgotten_when_a_person_says_so(
    store: LogStore, warehouse: Warehouse, logio: Logio, tmp_path: Path
) -> None:
    run = finished(store, warehouse, tmp_path, D1, 1, 2)
    finished(store, warehouse, tmp_path, D2, 20)
    code, said = logio("forget", "clicks", "--partition", D1)
    assert code == 1 and "cannot be undone: say --yes" in said, said
    assert [row[1] for row in rows(warehouse)] == [1, 2, 20]
    code, said = logio("forget", "clicks", "--partition", f"{D1}T00:00:00", "--yes")
    assert code == 0 and f"{D1} is empty where writer 'save', connection 'wh', puts it" in said, said
    assert f"1 run(s) of {D1} removed from the log, with their lineage" in said
    assert [row[1] for row in rows(warehouse)] == [20]
    code, said = logio("status", run.uid)
    assert code == 1 and "by `logio forget`" in said
    assert [one.partition for one in store.list_runs(pipeline="clicks", partitions=(D2, D2))] == [D2]


def test_what_cannot_be_meant_is_refused(store: LogStore, warehouse: Warehouse, logio: Logio, tmp_path: Path) -> None:
    finished(store, warehouse, tmp_path, D1, 1)
    begin(store, tmp_path, None, "plain")
    begin(store, tmp_path, D2)
    for arguments, told in {
        ("never", D1): "the log has no run of pipeline 'never'",
        ("plain", D1): "pipeline 'plain' has no partitions: `logio gc` removes its runs",
        ("clicks", "2026-13-01"): "is no day of a calendar",
        ("clicks", "2026-03-09"): "the log has had no run of 2026-03-09",
        ("clicks", D2): "has not ended: it could fill the day again",
    }.items():
        code, said = logio("forget", arguments[0], "--partition", arguments[1], "--yes")
        assert code == 1 and told in said, said
    assert [row[1] for row in rows(warehouse)] == [1]


def test_a_day_of_another_log_is_forgotten_when_a_person_says_so(
    store: LogStore, warehouse: Warehouse, logio: Logio, tmp_path: Path
) -> None:
    """What the refusal says is what helps."""
    finished(store, warehouse, tmp_path, D1, 1, 2)
    TableRun(7, D1, "elsewhere", log_uid="another", takes_over=True).all(warehouse, 3)
    code, said = logio("forget", "clicks", "--partition", D1, "--yes")
    assert code == 1 and "of another log" in said, said
    word = ("again", "--pipeline", "clicks", "--partition", D1, "--take-over")
    assert f"`logio {' '.join(word)}`" in said
    code, said = logio(*word)
    assert code == 0 and f"The next run of {D1} has --take-over" in said, said
    assert [row[1] for row in rows(warehouse)] == [3]
    code, said = logio("forget", "clicks", "--partition", D1, "--yes")
    assert code == 0 and f"1 run(s) of {D1} removed" in said, said
    assert rows(warehouse) == []


POINTS = (
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.IN_DAY_SWITCH}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:2",
)


def test_a_command_that_is_killed_leaves_the_day_and_is_given_again(
    store: LogStore, warehouse: Warehouse, logio: Logio, tmp_path: Path
) -> None:
    """In the opening transaction, when the rows are deleted, and before the commit: a real process each."""
    finished(store, warehouse, tmp_path, D1, 1, 2)
    finished(store, warehouse, tmp_path, D2, 20)
    command = [sys.executable, "-m", "airflow_logio.cli", "forget", "clicks", "--partition", D1, "--yes"]
    for point in POINTS:
        died = subprocess.run(
            command, env={**os.environ, VARIABLE: point}, capture_output=True, timeout=120, check=False
        )
        assert died.returncode == -signal.SIGKILL, (point, died.stderr)
        assert [row[1] for row in rows(warehouse)] == [1, 2, 20], point
        assert [one.partition for one in store.list_runs(state=RunState.FINISHED)] == [D2, D1], point
    code, said = logio("forget", "clicks", "--partition", D1, "--yes")
    assert code == 0 and f"1 run(s) of {D1} removed" in said, said
    assert [row[1] for row in rows(warehouse)] == [20]
    assert [one.partition for one in store.list_runs() if one.state is not RunState.REMOVING] == [D2]
