"""`logio gc`, as a person types it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.cli.app import main
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import UnknownRun
from airflow_logio.launch.driver_folders import FORGOTTEN_SECONDS, KEPT_SECONDS
from airflow_logio.launch.launcher import LocalProcessLauncher
from airflow_logio.launch.processes import own_identity
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.payload_roots import payload_root
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.warehouse import Warehouse
from tests.store.test_maintenance import finish, rows_of, started
from tests.support.datasets import dataset_of
from tests.support.garbage import NOTHING, event, left, used
from tests.support.logs import IN, Driver, open_sql_store, spec
from tests.support.warehouse import rows_of as warehouse_rows


@dataclass
class Terminal:
    """A log with runs, in a folder of its own."""

    store: SqlLogStore
    payloads: Payloads
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def logio(self, *arguments: str) -> tuple[int, str]:
        self.monkeypatch.setattr(sys, "argv", ["logio", *arguments])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = self.capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    def run(self, name: str, *, ended: bool = True) -> tuple[Run, dict[str, Driver]]:
        """Three done events, one of them with its body in the payload store."""
        run, drivers = started(self.store, name)
        ref = self.payloads.epoch(run.uid, "a", 1, 0).store("body", b"large")
        large = fx.LogEvent(Event(Port("sender", "out"), 3, records=1, body=b"", ref=str(ref)), (fx.Delivery(IN),))
        drivers["a"].session.commit([event(1), event(2), large, used(1, "A"), used(2, "A"), used(3, "A")])
        if ended:
            finish(drivers, "a", "b", "c")
            assert self.store.finish_run(run.run_id)
        return run, drivers

    def files(self, run: Run) -> list[str]:
        return self.payloads.find(run.uid)


@pytest.fixture
def terminal(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    root = payload_root(sqlite_url, None)
    assert root is not None
    store = open_sql_store(sqlite_url)
    yield Terminal(store, Payloads(root), monkeypatch, capsys)
    store.dispose()


def test_what_ended_runs_have_left_is_collected(terminal: Terminal) -> None:
    run, _ = terminal.run("run-1")
    assert len(terminal.files(run)) == 1
    code, said = terminal.logio("gc", "run-1")
    assert code == 0 and "3 rows collected" in said
    assert left(terminal.store) == NOTHING
    assert terminal.files(run) == []
    assert terminal.store.find_run(run.uid) is not None
    assert "0 rows of 1 ended run(s)" in terminal.logio("gc")[1]


def test_what_a_zombie_writes_after_the_end_is_swept(terminal: Terminal) -> None:
    """The end of a run sweeps, and a driver that was replaced may write behind it; what rows name stays."""
    run, _ = terminal.run("run-1")
    assert terminal.logio("gc", "run-1")[0] == 0
    terminal.payloads.epoch(run.uid, "b", 1, 0).store("datasets/late", b"of nobody")
    assert len(terminal.files(run)) == 1
    code, said = terminal.logio("gc", "run-1")
    assert code == 0 and "0 rows" in said
    assert terminal.files(run) == []


def test_a_dry_run_changes_nothing(terminal: Terminal) -> None:
    run, _ = terminal.run("run-1")
    before = rows_of(terminal.store, run.run_id)
    assert "would collect 3 rows of run run-1" in terminal.logio("gc", "--dry-run")[1]
    assert "nothing would be done" not in terminal.logio("gc", "--dry-run", "--older-than", "30d")[1]
    assert rows_of(terminal.store, run.run_id) == before
    assert len(terminal.files(run)) == 1


def staged(url: str, run: Run, epoch: EpochPayloads) -> None:
    """A staging table, as a driver leaves it that dies before the move."""
    writer = TableWriter("warehouse", "t", {"id": "bigint"}, on_new_run="append")
    marker = Marker(run.uid, "save", "warehouse", 0, 1, run.created_at)
    opening = WriteAction(run.uid, "save", "warehouse", 1, 1, pa.table({}), {"action": "begin"})
    made = dataset_of(epoch, pa.table({"id": [1, 2, 3]}), purpose=run.uid)
    warehouse = Warehouse("warehouse", url)
    warehouse.apply(marker, writer, [opening])
    insert = replace(opening, number=2, description={"action": "insert"}, dataset=str(made.reference))
    assert StagingTables(warehouse).make(marker, writer, insert, made) is not None
    warehouse.close()


@pytest.mark.postgres
def test_staging_tables_of_ended_runs_are_dropped(terminal: Terminal, postgres_url: str, tmp_path: Path) -> None:
    """In databases that are known here; those of a live run stay. What cannot be reached is told, and not forgotten:
    an old run stays in the log until its tables are gone."""
    epoch = Payloads(str(tmp_path / "elsewhere")).epoch("run", "g", 1, 0)
    for name, ended in (("run-1", True), ("run-2", False)):
        staged(postgres_url, terminal.run(name, ended=ended)[0], epoch)
    count = "SELECT count(*) FROM pg_class WHERE relname LIKE 'logio_staging_%' AND relkind = 'r'"
    assert "staging" not in terminal.logio("gc", "--dry-run")[1], "the connection is not known here"
    away = sa.make_url(postgres_url).set(port=1).render_as_string()
    terminal.monkeypatch.setenv("LOGIO_CONN_WAREHOUSE_DEFAULT", away)
    assert "the staging tables of run run-1" in terminal.logio("gc")[1]
    with terminal.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE logio_run SET ended_at = ended_at - 7200")
    said = terminal.logio("gc", "--older-than", "1h")[1]
    assert "stays in the log" in said and "removed run" not in said
    terminal.monkeypatch.setenv("LOGIO_CONN_WAREHOUSE_DEFAULT", postgres_url)
    assert "would drop public.logio_staging_" in terminal.logio("gc", "--dry-run")[1]
    assert warehouse_rows(postgres_url, count) == [(2,)]
    said = terminal.logio("gc", "--older-than", "1h")[1]
    assert "1 staging table(s) dropped" in said and "removed run run-1" in said
    assert warehouse_rows(postgres_url, count) == [(1,)]


def test_files_of_the_drivers_of_ended_runs_are_removed(terminal: Terminal, tmp_path: Path) -> None:
    """Where the log says that they are, on this machine; those of other runs stay."""
    folders = {}
    for name in ("run-1", "run-2"):
        run = terminal.store.start_run(spec("g", dag_run=name))
        folders[name] = tmp_path / "anywhere" / run.uid
        log = folders[name] / "g" / "1" / "driver.log"
        log.parent.mkdir(parents=True)
        log.write_text("said")
        claim = terminal.store.claim(run.run_id, "g", expected=0, reason="test")
        terminal.store.submitted(claim, log_path=str(log), launcher=own_identity())
        ref = terminal.store.register(claim, own_identity())
        if name == "run-1":
            session = terminal.store.session(ref)
            session.open()
            session.commit([fx.FinishGroup()])
    assert f"would remove {folders['run-1']}" in terminal.logio("gc", "--dry-run")[1]
    assert folders["run-1"].is_dir()
    assert "files of the drivers of 1 run(s) removed" in terminal.logio("gc")[1]
    assert [folder.is_dir() for folder in folders.values()] == [False, True]
    assert "files of" not in terminal.logio("gc")[1]


def test_a_launch_removes_the_files_of_runs_that_ended_long_ago(terminal: Terminal, tmp_path: Path) -> None:
    old, _ = terminal.run("run-1")
    with terminal.store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE logio_run SET ended_at = ended_at - {KEPT_SECONDS + 60}")
    young, _ = terminal.run("run-2")
    halted, _ = terminal.run("run-3", ended=False)
    gone, _ = terminal.run("run-4")
    long_ago = time.time() - FORGOTTEN_SECONDS - 60
    for run in (old, young, halted, gone):
        (tmp_path / "work" / run.uid / "a" / "1").mkdir(parents=True)
        for folder in (tmp_path / "work" / run.uid, *(tmp_path / "work" / run.uid).rglob("*")):
            if run is not gone:
                os.utime(folder, (long_ago, long_ago))
    for number in range(60):
        terminal.store.start_run(spec("g", dag_run=f"newer-{number}"))
    while terminal.store.remove_run(gone.run_id, 100).more:
        pass
    assert LocalProcessLauncher(tmp_path / "work").tidy_up(terminal.store) == 2, "also of one that the log has removed"
    assert {folder.name for folder in (tmp_path / "work").iterdir()} == {young.uid, halted.uid}


def test_old_runs_are_removed_altogether(terminal: Terminal) -> None:
    old, _ = terminal.run("run-1")
    terminal.run("run-2", ended=False)
    assert "would remove" not in terminal.logio("gc", "--older-than", "1h", "--dry-run")[1]
    with terminal.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE logio_run SET ended_at = ended_at - 7200")
    assert "would remove run run-1" in terminal.logio("gc", "--older-than", "1h", "--dry-run")[1]
    code, said = terminal.logio("gc", "--older-than", "1h")
    assert code == 0 and "removed run run-1" in said
    with pytest.raises(UnknownRun):
        terminal.store.find_run(old.uid)
    assert rows_of(terminal.store, old.run_id) == {}
    assert terminal.files(old) == []
    assert [run.spec.key.dag_run_id for run in terminal.store.list_runs()] == ["run-2"]


def test_what_a_zombie_of_a_removed_run_writes_is_removed_and_nothing_of_runs_of_which_this_log_knows_nothing(
    terminal: Terminal,
) -> None:
    """Another log may keep its payloads in the same place, or this one may be a copy of it that lacks its youngest runs."""
    gone, _ = terminal.run("run-1")
    with terminal.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE logio_run SET ended_at = ended_at - 7200")
    terminal.run("run-2", ended=False)
    assert "removed run run-1" in terminal.logio("gc", "--older-than", "1h")[1]
    terminal.payloads.epoch(gone.uid, "a", 1, 0).store("datasets/late", b"of nobody")
    terminal.payloads.epoch("0" * 32, "a", 1, 0).store("datasets/elsewhere", b"of another log")
    assert "1 files of removed runs" in terminal.logio("gc")[1]
    assert terminal.files(gone) == []
    assert len(terminal.payloads.find("0" * 32)) == 1
    assert "of removed runs" not in terminal.logio("gc")[1]


def test_a_run_that_has_not_ended_is_refused(terminal: Terminal) -> None:
    _, drivers = terminal.run("run-1", ended=False)
    code, said = terminal.logio("gc", "run-1")
    assert code == 1 and "has not ended: a is running, b is running, c is running" in said
    finish(drivers, "a", "b")
    terminal.store.halted(drivers["c"].ref)
    code, said = terminal.logio("gc", "run-1")
    assert code == 1 and "--unfinished gives it up" in said
    assert terminal.logio("gc", "run-1", "--unfinished")[0] == 0


def test_an_age_that_is_none(terminal: Terminal) -> None:
    code, said = terminal.logio("gc", "--older-than", "a month")
    assert code == 2 and "is not" in said
