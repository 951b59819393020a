"""Delta tables: records and marker in one commit, whatever else commits, and whoever else writes (Algorithms 5 and 8)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ConfigurationError, Fenced, LockHeld, LogInconsistent, WriteRefused
from airflow_logio.systems.delta import active_files, delta_target, table_rows
from airflow_logio.systems.delta.table_log import Commit, LoadedTable, TableLog
from tests.support.delta_tables import (
    COLUMNS,
    STARTED,
    DeltaRun,
    day_params,
    files_of,
    numbers_of,
    orders,
    rows_of,
    version_of,
)

Before = Callable[[], None]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path)


def appending(**more: Any) -> DeltaWriter:
    return DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="append", **more)


def ids(lake: str) -> list[Any]:
    return [row[0] for row in rows_of(f"{lake}/orders", "id")]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Before], None]:
    """Something happens once, after an attempt has decided, and before its commit."""
    plain = TableLog.commit
    waiting: list[Before] = []

    def commit(self: TableLog, loaded: LoadedTable, commit: Commit) -> None:
        if waiting:
            waiting.pop()()
        plain(self, loaded, commit)

    monkeypatch.setattr(TableLog, "commit", commit)
    return waiting.append


# --- one run ----------------------------------------------------------------------------------------------------------


def test_a_group_is_one_commit_with_its_marker_and_is_applied_once(lake: str) -> None:
    """Delta-rs' own reading says the same as ours."""
    run = DeltaRun(appending(), lake)
    run.begin(pa.concat_tables([orders(1, 2), orders(3, day="2026-03-02")]))
    assert version_of(f"{lake}/orders") == 1, "the table is made, and filled"
    run.begin(orders(1, 2))
    assert version_of(f"{lake}/orders") == 1, "what the marker has is not applied again"
    found = rows_of(f"{lake}/orders", "day", "id", "amount")
    assert found == [("2026-03-01", 1, 1), ("2026-03-01", 2, 1), ("2026-03-02", 3, 1)]
    read = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table().sort_by("id").to_pylist()
    assert [(str(row["day"]), row["id"], row["amount"]) for row in read] == found
    numbers = numbers_of(f"{lake}/orders")
    assert (numbers["logio/run1/orders/lake/0"], numbers["logio-token/run1/orders/lake/0"]) == (2, 1)
    assert all(path.startswith(("day=2026-03-01/run1.", "day=2026-03-02/run1.")) for path in files_of(f"{lake}/orders"))


def test_a_part_that_was_applied_is_left_out_of_a_longer_group(lake: str) -> None:
    """An earlier driver applied 1 and 2; its successor executes 1 to 3."""
    first = DeltaRun(appending(), lake)
    first.begin(orders(1))
    second = DeltaRun(appending(), lake, token=2)
    second.apply(second.action(1), second.action(2, orders(1)), second.action(3, orders(2)))
    assert ids(lake) == [1, 2]
    with pytest.raises(Fenced, match="token 2 has written"):
        first.write(4, orders(3))
    with pytest.raises(LogInconsistent):
        second.write(9, orders(3))
    assert ids(lake) == [1, 2]


def test_each_type_arrives_as_it_is_and_what_does_not_fit_is_refused(lake: str) -> None:
    kinds = {"i": "int", "d": "decimal(10,2)", "z": "timestamptz", "n": "timestamp", "b": "binary", "f": "double"}
    run = DeltaRun(DeltaWriter("lake", "orders", kinds, on_new_run="append"), lake)
    instant = datetime(2026, 3, 1, 1, 2, 3, 456_789, tzinfo=UTC)
    row = {
        "i": 7,
        "d": Decimal("1.50"),
        "z": instant,
        "n": instant.replace(tzinfo=None),
        "b": b"\x00",
        "f": float("nan"),
    }
    records = pa.Table.from_pylist([row, dict.fromkeys(row)])
    run.begin(records)
    read = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table().to_pylist()
    assert repr(sorted(map(repr, read))) == repr(sorted(map(repr, records.to_pylist())))
    for name, wrong in (("i", 2**40), ("i", "7"), ("i", 1.0), ("d", Decimal("1.505")), ("n", instant), ("b", "x")):
        with pytest.raises(WriteRefused, match=f"column '{name}' is .* do not fit without loss"):
            run.write(3, pa.Table.from_pylist([row | {name: wrong}]))
    with pytest.raises(WriteRefused, match="it has columns"):
        run.write(3, records.drop_columns(["i"]))
    assert version_of(f"{lake}/orders") == 1


def test_bounds_of_a_file_hold_for_all_its_values(lake: str) -> None:
    """Times are told by the millisecond, so that the greatest one is the next. No bound of floats: a NaN has no place."""
    run = DeltaRun(
        DeltaWriter("lake", "orders", {"z": "timestamptz", "f": "double", "t": "text"}, on_new_run="append"), lake
    )
    instant = datetime(2026, 3, 1, 1, 2, 3, 456_789, tzinfo=UTC)
    run.begin(pa.table({"z": [instant, None], "f": [1.0, float("nan")], "t": ["é", "x" * 100]}))
    lines = (Path(lake) / "orders/_delta_log" / f"{1:020}.json").read_text().splitlines()
    (stats,) = [json.loads(one["add"]["stats"]) for one in map(json.loads, lines) if "add" in one]
    assert stats["minValues"] == {"z": "2026-03-01T01:02:03.456Z"}
    assert stats["maxValues"] == {"z": "2026-03-01T01:02:03.457Z"}
    assert (stats["numRecords"], stats["nullCount"]) == (2, {"z": 1, "f": 0, "t": 0})


def test_odd_values_of_partitions_are_found_again(lake: str) -> None:
    """Their files have no folder by which a reader could go wrong."""
    writer = DeltaWriter("lake", "orders", {"p": "text", "id": "bigint"}, partition_by=["p"], on_new_run="append")
    values = ["a b", "ü/%", None, "__HIVE_DEFAULT_PARTITION__", "x=y", "'"]
    DeltaRun(writer, lake).begin(pa.table({"p": values, "id": range(len(values))}))
    read = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table().sort_by("id")
    assert read.column("p").to_pylist() == values
    with pytest.raises(WriteRefused, match="empty text"):
        DeltaRun(writer, lake, "run2").begin(pa.table({"p": [""], "id": [1]}))
    replacing = DeltaRun(DeltaWriter("lake", "orders", on_new_run="replace"), lake, "run3", started=STARTED + 9)
    replacing.begin(pa.table({"p": ["z"], "id": [9]}))
    assert rows_of(f"{lake}/orders", "p", "id") == [("z", 9)], "each of the odd files is removed"


# --- whoever else commits ---------------------------------------------------------------------------------------------


def test_a_zombie_that_has_decided_commits_nothing_after_its_successor(
    lake: str, before_commit: Callable[[Before], None]
) -> None:
    zombie, successor = DeltaRun(appending(), lake), DeltaRun(appending(), lake, token=2)
    zombie.begin(orders(1))
    before_commit(lambda: successor.write(3, orders(2)))
    with pytest.raises(Fenced):
        zombie.write(3, orders(2))
    assert ids(lake) == [1, 2]


def test_an_action_that_a_zombie_applied_first_is_not_applied_again(
    lake: str, before_commit: Callable[[Before], None]
) -> None:
    zombie, successor = DeltaRun(appending(), lake), DeltaRun(appending(), lake, token=2)
    zombie.begin(orders(1))
    before_commit(lambda: zombie.write(3, orders(2)))
    successor.apply(successor.action(3, orders(2)), successor.action(4, orders(3)))
    assert ids(lake) == [1, 2, 3]


def test_a_commit_of_another_program_in_between_costs_another_attempt(
    lake: str, before_commit: Callable[[Before], None]
) -> None:
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    before_commit(lambda: deltalake.write_deltalake(f"{lake}/orders", orders(50), mode="append"))
    run.write(3, orders(2))
    assert ids(lake) == [1, 2, 50]


def test_a_lost_answer_of_a_commit_is_found_in_the_table(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an error that comes after it, as of a checkpoint: none of them says that nothing was committed."""
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    plain = deltalake.DeltaTable.create_write_transaction

    def lost(self: Any, *args: Any, **more: Any) -> None:
        plain(self, *args, **more)
        raise OSError("the answer was lost")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lost)
    run.write(3, orders(2))
    assert (ids(lake), version_of(f"{lake}/orders")) == ([1, 2], 2)


@pytest.mark.parametrize("commits", [True, False], ids=["delta-rs, which commits", "a program that does not"])
def test_a_vacuum_without_retention_before_a_commit_loses_nothing(
    lake: str, before_commit: Callable[[Before], None], commits: bool
) -> None:
    """It removes what no commit names yet. What is gone is put again: before the next attempt, or after the commit, which
    succeeds without the file, and before the write action is done."""

    def vacuum() -> None:
        named = set(files_of(f"{lake}/orders"))
        there = {str(path.relative_to(f"{lake}/orders")) for path in Path(lake, "orders").rglob("day=*/*.parquet")}
        assert len(there - named) == 1, "the file that is about to be committed"
        if commits:
            table = deltalake.DeltaTable(f"{lake}/orders")
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        for path in there - named:
            Path(lake, "orders", path).unlink(missing_ok=commits)

    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    before_commit(vacuum)
    run.write(3, orders(2))
    assert ids(lake) == [1, 2]


def test_only_a_commit_that_others_have_taken_is_waited_for(
    lake: str, before_commit: Callable[[Before], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(delta_target, "_pause", pauses.append)
    run, other = DeltaRun(appending(), lake), DeltaRun(appending(), lake, "run2", started=STARTED + 9)
    run.begin(orders(1))
    run.write(3, orders(2))
    assert not pauses
    before_commit(lambda: other.begin(orders(3)))
    run.write(4, orders(4))
    assert (pauses, ids(lake)) == ([1], [1, 2, 3, 4])


def test_what_is_appended_is_looked_for_without_an_object_for_each_file_of_the_table(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5,000 files they would be half of a commit's CPU time."""
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    monkeypatch.delattr(active_files.ActiveFile, "__init__")
    run.write(3, orders(2))
    assert ids(lake) == [1, 2]


def test_a_table_that_the_writer_makes_is_opened_by_a_few_commits(lake: str) -> None:
    """Each opening reads all commits since the last checkpoint; what they say outlives it."""
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    for number in range(3, 13):
        run.write(number, orders(number))
    log = Path(lake, "orders", "_delta_log")
    assert version_of(log.parent) == 11 and [one.name[:20] for one in log.glob("*.checkpoint.parquet")] == [f"{9:020}"]
    for number in range(10):
        (log / f"{number:020}.json").unlink()
    run.write(12, orders(12))
    run.write(13, orders(13))
    assert sorted(deltalake.DeltaTable(str(log.parent)).to_pyarrow_table().column("id").to_pylist()) == [
        1,
        *range(3, 14),
    ]


def test_markers_outlive_checkpoints(lake: str) -> None:
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    table = deltalake.DeltaTable(f"{lake}/orders")
    table.create_checkpoint()
    for log in (Path(lake) / "orders/_delta_log").glob("*.json"):
        log.unlink()
    run.begin(orders(1))
    assert deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table().num_rows == 1


# --- the rules are needed: without one of them, a row is lost or there twice ------------------------------------------


def test_a_marker_outside_of_the_commit_would_write_twice(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    monkeypatch.setattr(table_rows, "marked", lambda marker, last: {})
    monkeypatch.setattr(delta_target, "_CONFLICTS", 2)
    for _ in range(2):
        with pytest.raises(LockHeld, match="others have committed"):
            run.write(3, orders(2))
    assert ids(lake) == [1, 2, 2]


def test_retries_of_delta_rs_itself_would_let_a_run_that_was_given_up_add_rows(
    lake: str, before_commit: Callable[[Before], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = DeltaRun(appending(), lake)
    fresh = DeltaRun(appending(), lake, "run2", started=STARTED + 9, given_up=("run1",))
    old.begin(orders(1))
    before_commit(fresh.open)
    with pytest.raises(WriteRefused, match="was given up"):
        old.write(3, orders(2))
    assert ids(lake) == [1]

    third = DeltaRun(appending(), lake, "run3", started=STARTED + 20, given_up=("run2",))
    before_commit(third.open)
    plain = deltalake.CommitProperties

    def retrying(**given: Any) -> deltalake.CommitProperties:
        return plain(**{**given, "max_commit_retries": 5})

    monkeypatch.setattr("deltalake.transaction.CommitProperties", retrying)
    fresh.write(2, orders(10))
    assert ids(lake) == [1, 10], "delta-rs has put the commit of a run that was given up behind the one that says so"


def test_a_table_that_forgets_markers_is_refused(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this refusal, a checkpoint drops the marker, and an action is applied again."""
    run = DeltaRun(appending(), lake)
    run.begin(orders(1))
    table = deltalake.DeltaTable(f"{lake}/orders")
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})
    with pytest.raises(WriteRefused, match="forgets the markers"):
        run.write(3, orders(2))
    assert ids(lake) == [1]


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_that_replaces_shuts_out_earlier_ones(lake: str) -> None:
    old = DeltaRun(appending(), lake)
    old.begin(orders(1))
    new = DeltaRun(DeltaWriter("lake", "orders", on_new_run="replace"), lake, "run2", started=STARTED + 1)
    new.begin(orders(2))
    new.write(3, orders(3))
    assert ids(lake) == [2, 3], "only its first commit removes"
    with pytest.raises(WriteRefused, match="belongs to run run2"):
        old.write(3, orders(4))
    with pytest.raises(WriteRefused, match="belongs to run run2"):
        DeltaRun(DeltaWriter("lake", "orders", on_new_run="replace"), lake, "run0", started=STARTED - 1).open()
    with pytest.raises(WriteRefused, match="is not empty"):
        DeltaRun(DeltaWriter("lake", "orders"), lake, "run3", started=STARTED + 2).open()
    assert ids(lake) == [2, 3]


def test_runs_that_append_join_each_other_and_a_younger_one_is_not_removed(lake: str) -> None:
    old, young = DeltaRun(appending(), lake), DeltaRun(appending(), lake, "run2", started=STARTED + 5)
    young.begin(orders(1))
    old.begin(orders(2))
    young.write(3, orders(3))
    assert ids(lake) == [1, 2, 3]
    between = DeltaRun(DeltaWriter("lake", "orders", on_new_run="replace"), lake, "run3", started=STARTED + 1)
    with pytest.raises(WriteRefused, match="run run2 writes to it as well, and was started later"):
        between.open()
    fresh = DeltaRun(appending(), lake, "run4", started=STARTED + 9, given_up=("run1",))
    fresh.open()
    with pytest.raises(WriteRefused, match="was given up, and run run4 has begun"):
        old.write(3, orders(4))
    assert ids(lake) == [1, 2, 3]


# --- days -------------------------------------------------------------------------------------------------------------


def of_day(day: str = "2026-03-01", **more: Any) -> DeltaWriter:
    writer = DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="overwrite", by=["day"], **more)
    return writer.for_run(day_params(day))


def test_a_day_is_replaced_in_one_commit_when_all_of_it_is_there(lake: str) -> None:
    deltalake.write_deltalake(f"{lake}/orders", orders(1, 2), partition_by=["day"])
    deltalake.write_deltalake(f"{lake}/orders", orders(3, day="2026-03-02"), mode="append")
    run = DeltaRun(of_day(), lake)
    run.open()
    assert ids(lake) == [1, 2, 3]
    run.close(orders(10), orders(11, 12))
    run.close(orders(10), orders(11, 12))
    assert (ids(lake), version_of(f"{lake}/orders")) == ([10, 11, 12, 3], 3)
    with pytest.raises(WriteRefused, match="are not of day=2026-03-01"):
        other = DeltaRun(of_day(), lake, "run2", ordinal=2)
        other.open()
        other.close(orders(20, day="2026-03-02"))
    with pytest.raises(WriteRefused, match="has rows, and run run3 has none"):
        other = DeltaRun(of_day(), lake, "run3", ordinal=3)
        other.open()
        other.close()
    assert ids(lake) == [10, 11, 12, 3]
    emptied = DeltaRun(of_day(empty="replace"), lake, "run4", ordinal=4)
    emptied.open()
    emptied.close()
    assert ids(lake) == [3]


def test_only_the_run_that_has_claimed_a_day_last_closes_it(lake: str, before_commit: Callable[[Before], None]) -> None:
    old, new = DeltaRun(of_day(), lake), DeltaRun(of_day(), lake, "run2", started=STARTED - 9, ordinal=2)
    other = DeltaRun(of_day("2026-03-02"), lake, "run3", ordinal=3)
    old.open()
    other.open()
    other.close(orders(3, day="2026-03-02"))
    before_commit(new.open)
    with pytest.raises(WriteRefused, match="was claimed by run run2 of pipeline 'shop' since run run1 began"):
        old.close(orders(1))
    new.close(orders(2))
    assert ids(lake) == [2, 3]
    with pytest.raises(WriteRefused, match="is younger than run run0"):
        DeltaRun(of_day(), lake, "run0", ordinal=1).open()
    foreign = DeltaRun(of_day(), lake, "run9", ordinal=9, pipeline="till")
    with pytest.raises(WriteRefused, match="belongs to pipeline 'shop'"):
        foreign.open()
    with pytest.raises(WriteRefused, match="own it by"):
        DeltaRun(appending(), lake, "run5", started=STARTED + 50).open()
    foreign.takes_over = True
    foreign.open()
    foreign.close(orders(4))
    assert ids(lake) == [3, 4]


def test_a_day_that_is_filled_at_once_is_emptied_by_the_first_commit_only(lake: str) -> None:
    old = DeltaRun(of_day(switch="at once"), lake)
    old.begin(orders(1))
    old.write(3, orders(2))
    new = DeltaRun(of_day(switch="at once"), lake, "run2", ordinal=2)
    new.open()
    assert ids(lake) == []
    with pytest.raises(WriteRefused, match="was claimed by run run2"):
        old.write(4, orders(3))
    new.write(2, orders(5))
    new.write(3, orders(6))
    assert ids(lake) == [5, 6]


def test_an_audit_that_finds_a_fault_leaves_the_old_day(lake: str) -> None:
    found: list[int] = []

    def too_few(records: Any) -> str | None:
        found.append(sum(table.num_rows for table in records))
        return "too few" if found[-1] < 3 else None

    run = DeltaRun(of_day(audit=too_few), lake)
    run.open()
    with pytest.raises(WriteRefused, match="audit 'too_few' refuses the rows of run run1: too few"):
        run.close(orders(1), orders(2))
    assert ids(lake) == []
    run.close(orders(1), orders(2), orders(3))
    assert (ids(lake), found) == ([1, 2, 3], [2, 3])


# --- upserts ----------------------------------------------------------------------------------------------------------


def upserting(version: str | None = None, **more: Any) -> DeltaWriter:
    return DeltaWriter("lake", "orders", COLUMNS, mode="upsert", primary_key=["id"], version=version, **more)


def test_the_last_event_of_a_key_wins_and_other_files_stay(lake: str) -> None:
    run = DeltaRun(upserting(), lake)
    run.begin(orders(1, 2))
    run.write(3, orders(5))
    before = set(files_of(f"{lake}/orders"))
    run.apply(run.action(4, orders(2, 3, amount=2)), run.action(5, orders(3, amount=3)))
    assert rows_of(f"{lake}/orders", "id", "amount") == [(1, 1), (2, 2), (3, 3), (5, 1)]
    assert len(before & set(files_of(f"{lake}/orders"))) == 1, "the file without such keys is not written anew"
    run.write(6, orders(9).slice(0, 0))
    assert numbers_of(f"{lake}/orders")["logio/run1/orders/lake/0"] == 6, "what changes nothing advances the marker"
    with pytest.raises(WriteRefused, match="has a key twice"):
        run.write(7, orders(7, 7))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_greatest_version_wins_in_whichever_order_it_comes(lake: str, order: tuple[int, ...]) -> None:
    events = [orders(1, 2, amount=1), orders(2, 3, amount=5), orders(1, 3, amount=3)]
    run = DeltaRun(upserting("amount"), lake)
    run.open()
    for number, event in enumerate(order, 2):
        run.write(number, events[event])
    assert rows_of(f"{lake}/orders", "id", "amount") == [(1, 3), (2, 5), (3, 5)]
    run.write(5, orders(1, amount=3))
    with pytest.raises(WriteRefused, match="have the version 3, and differ"):
        run.write(6, orders(1, amount=3, day="2026-03-02"))
    assert rows_of(f"{lake}/orders", "id", "amount") == [(1, 3), (2, 5), (3, 5)]


# --- tables that are not written --------------------------------------------------------------------------------------


def _with_properties(**properties: str) -> Callable[[str], None]:
    def make(uri: str) -> None:
        named = {f"delta.{name}": value for name, value in properties.items()}
        deltalake.DeltaTable.create(uri, orders(1).schema, configuration=named)

    return make


def _constrained(uri: str) -> None:
    deltalake.DeltaTable.create(uri, orders(1).schema)
    deltalake.DeltaTable(uri).alter.add_constraint({"few": "amount < 10"})


def _with_feature(name: str) -> Callable[[str], None]:
    def make(uri: str) -> None:
        deltalake.DeltaTable.create(uri, orders(1).schema)
        feature = getattr(deltalake._internal.TableFeatures, name)
        deltalake.DeltaTable(uri).alter.add_feature(feature, allow_protocol_versions_increase=True)

    return make


REFUSED: list[tuple[str, Callable[[str], None], str, str]] = [
    ("append-only", _with_properties(appendOnly="true"), "replace", "it is append-only"),
    ("column mapping", _with_properties(**{"columnMapping.mode": "name"}), "append", "it has column mapping"),
    ("constraint", _constrained, "append", "it has the constraint 'few'"),
    ("deletion vectors", _with_properties(enableDeletionVectors="true"), "replace", "it has deletion vectors"),
    ("row tracking", _with_feature("RowTracking"), "append", "it has the feature rowTracking"),
    ("domains", _with_feature("DomainMetadata"), "append", "it has the feature domainMetadata"),
    ("identity", _with_feature("IdentityColumns"), "append", "it has the feature identityColumns"),
]


@pytest.mark.parametrize(("make", "mode", "said"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_table_that_would_not_be_written_exactly_is_refused_by_name(
    lake: str, make: Callable[[str], None], mode: str, said: str
) -> None:
    make(f"{lake}/orders")
    before = version_of(f"{lake}/orders")
    run = DeltaRun(DeltaWriter("lake", "orders", on_new_run=mode), lake)
    with pytest.raises(WriteRefused, match=said):
        run.begin(orders(1))
    with pytest.raises(WriteRefused, match=said):
        run.target.inspect(lake)
    assert version_of(f"{lake}/orders") == before


@pytest.mark.parametrize("properties", [{"appendOnly": "true"}, {"enableChangeDataFeed": "true"}])
def test_what_asks_nothing_of_one_that_appends_is_written(lake: str, properties: dict[str, str]) -> None:
    _with_properties(**properties)(f"{lake}/orders")
    DeltaRun(DeltaWriter("lake", "orders", on_new_run="append"), lake).begin(orders(1))
    assert ids(lake) == [1]


def test_null_where_a_table_has_none_is_refused(lake: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    deltalake.DeltaTable.create(f"{lake}/orders", schema)
    run = DeltaRun(DeltaWriter("lake", "orders", on_new_run="append"), lake)
    run.begin(pa.table({"id": [1]}))
    with pytest.raises(WriteRefused, match="column 'id' may not be null, and 1 records"):
        run.write(3, pa.table({"id": pa.array([None], pa.int64())}))


def test_what_is_not_there_or_not_as_declared_is_said(lake: str) -> None:
    with pytest.raises(WriteRefused, match="is not there, and its writer declares no columns"):
        DeltaRun(DeltaWriter("lake", "orders", on_new_run="append"), lake).open()
    with pytest.raises(ConfigurationError, match="there is no folder"):
        DeltaRun(appending(), f"{lake}/missing").open()
    assert os.listdir(lake) == []
    deltalake.write_deltalake(f"{lake}/orders", pa.table({"id": ["a"]}))
    with pytest.raises(WriteRefused, match="column 'amount' is not there, and is declared int64"):
        DeltaRun(appending(), lake).open()
    for url in ("s3a://bucket", "wasb://c@a/x", "gs://bucket"):
        with pytest.raises(ConfigurationError, match="no Delta table is written to"):
            DeltaRun(appending(), url).open()


def test_a_driver_compares_the_marker_before_it_makes_anything(lake: str) -> None:
    """A log that was restored from a copy is noticed before a table is made for it (ADR-88)."""
    seen: list[Any] = []

    class Looked(Exception):
        pass

    def look(row: Any) -> None:
        seen.append(row)
        raise Looked

    run = DeltaRun(appending(), lake)
    with run.target.connect(lake) as log, pytest.raises(Looked):
        run.target.apply(log, run.marker(look), [run.action(1)])
    assert (os.listdir(lake), seen) == ([], [(0, 0)])


def test_names_of_runs_come_from_the_log_of_the_table(lake: str) -> None:
    DeltaRun(appending(), lake).begin(orders(1))
    about = deltalake.DeltaTable(f"{lake}/orders").history(1)[0]["logio"]
    assert (about["run"], about["operator"], about["write"]) == ("run1", "orders", 2)
    assert about["owner"] == int(STARTED * 1e6) << 10 | about["owner"] % 1024
