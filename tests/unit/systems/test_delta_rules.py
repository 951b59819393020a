"""Each rule by which a `DeltaWriter` is exact is needed: with it nothing is lost; without it, as a mutant, a row is.

The store that must refuse a second put is in `test_delta_in_buckets`, the marker and the retries in `test_delta_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ExternalUnavailable, LogInconsistent, WriteRefused
from airflow_logio.protocol import external_rules
from airflow_logio.systems.delta import delta_target, table_columns, written_files
from airflow_logio.systems.delta.table_log import Commit, LoadedTable, TableLog
from airflow_logio.systems.delta.written_files import FileWriter
from tests.support.delta_tables import COLUMNS, DeltaRun, files_of, orders, rows_of, version_of

Do = Callable[[], None]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def run(lake: str) -> DeltaRun:
    """A run that has begun, with row 1."""
    begun = DeltaRun(DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="append"), lake)
    begun.begin(orders(1))
    return begun


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Do], None]:
    """Something happens once, after an attempt has decided, and before its commit."""
    plain, waiting = TableLog.commit, list[Do]()

    def commit(self: TableLog, loaded: LoadedTable, commit: Commit) -> None:
        if waiting:
            waiting.pop()()
        plain(self, loaded, commit)

    monkeypatch.setattr(TableLog, "commit", commit)
    return waiting.append


@pytest.fixture
def after_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[Do], None]:
    """Something happens once, when files are written, and before they are looked for."""
    waiting = list[Do]()

    def passed(point: CrashPoint) -> None:
        if point is CrashPoint.AFTER_LAKE_FILES and waiting:
            waiting.pop()()

    monkeypatch.setattr(delta_target, "crash_here", passed)
    return waiting.append


def ids(lake: str) -> list[Any]:
    return [row[0] for row in rows_of(f"{lake}/orders", "id")]


def unnamed_files_go(lake: str) -> None:
    """As a VACUUM without retention."""
    uri = f"{lake}/orders"
    named = set(files_of(uri))
    for path in Path(uri).rglob("day=*/*.parquet"):
        if str(path.relative_to(uri)) not in named:
            path.unlink()


# --- the order of numbers ---------------------------------------------------------------------------------------------


def test_a_number_below_the_marker_is_not_applied_and_one_beyond_the_next_neither(lake: str, run: DeltaRun) -> None:
    """A write action that comes before the one in front of it waits for that."""
    with pytest.raises(LogInconsistent):
        run.write(4, orders(3))
    run.write(3, orders(2))
    run.write(4, orders(3))
    version = version_of(f"{lake}/orders")
    run.write(3, orders(2))
    run.apply(run.action(3, orders(2)), run.action(4, orders(3)))
    assert (ids(lake), version_of(f"{lake}/orders")) == ([1, 2, 3], version)


def test_numbers_that_need_only_rise_would_lose_one(lake: str, run: DeltaRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's ``txnVersion``, which skips what is not greater without a word."""

    def greater(actions: Sequence[Any], number: int) -> Sequence[Any]:
        return [action for action in actions if action.number > number]

    monkeypatch.setattr(external_rules, "unapplied", greater)
    run.write(4, orders(3))
    run.write(3, orders(2))
    assert ids(lake) == [1, 3]


# --- retention of markers ---------------------------------------------------------------------------------------------


def forgetful(lake: str) -> None:
    table = deltalake.DeltaTable(f"{lake}/orders")
    table.alter.set_table_properties({table_columns.RETENTION: "interval 0 seconds"})


def test_retention_that_is_set_between_decision_and_commit_is_refused(
    lake: str, run: DeltaRun, before_commit: Callable[[Do], None]
) -> None:
    before_commit(lambda: forgetful(lake))
    with pytest.raises(WriteRefused, match="forgets the markers"):
        run.write(3, orders(2))
    assert ids(lake) == [1]


def test_a_table_that_forgets_markers_would_apply_a_write_again(
    lake: str, run: DeltaRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group comes again, as the log did not hear that it is applied. Delta-rs forgets what says when it was
    written, Spark's Delta also what does not."""
    plain = deltalake.transaction.Transaction
    monkeypatch.setattr("deltalake.transaction.Transaction", lambda name, number, _: plain(name, number, 1))
    run.write(3, orders(2))
    forgetful(lake)
    deltalake.DeltaTable(f"{lake}/orders").create_checkpoint()
    monkeypatch.setattr(table_columns, "RETENTION", "delta.none")
    run.apply(run.action(1), run.action(2, orders(1)), run.action(3, orders(2)))
    assert ids(lake) == [1, 1, 2, 2]


# --- files are looked for before and after the commit -----------------------------------------------------------------


@pytest.fixture
def forgets_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bytes of a file are kept, as of those beyond 256 MB."""
    monkeypatch.setattr(delta_target, "FileWriter", partial(FileWriter, kept_bytes=0))


@pytest.mark.usefixtures("forgets_bytes")
def test_a_file_that_is_gone_before_the_commit_is_written_again(
    lake: str, run: DeltaRun, after_files: Callable[[Do], None]
) -> None:
    after_files(lambda: unnamed_files_go(lake))
    version = version_of(f"{lake}/orders")
    with pytest.raises(ExternalUnavailable, match="It is written again"):
        run.write(3, orders(2))
    assert version_of(f"{lake}/orders") == version
    run.write(3, orders(2))
    assert ids(lake) == [1, 2]


def without_look(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    plain = written_files.check_there

    def check(place: Any, files: Any, version: int | None = None) -> None:
        if (version is None) is not before:
            plain(place, files, version)

    monkeypatch.setattr(delta_target, "check_there", check)


@pytest.mark.usefixtures("forgets_bytes")
def test_without_a_look_before_it_a_commit_would_name_a_file_that_is_gone(
    lake: str, run: DeltaRun, after_files: Callable[[Do], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_look(monkeypatch, before=True)
    after_files(lambda: unnamed_files_go(lake))
    with pytest.raises(WriteRefused, match="RESTORE"):
        run.write(3, orders(2))
    with pytest.raises(duckdb.IOException):
        ids(lake)


def test_without_a_look_after_it_a_write_would_be_done_without_its_rows(
    lake: str, run: DeltaRun, before_commit: Callable[[Do], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it: `test_a_vacuum_without_retention_before_a_commit_loses_nothing`."""
    without_look(monkeypatch, before=False)
    before_commit(lambda: unnamed_files_go(lake))
    run.write(3, orders(2))
    with pytest.raises(duckdb.IOException):
        ids(lake)
