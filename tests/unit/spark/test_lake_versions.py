"""A Delta table as a source: what Spark reads of a range is what the table's log says, and stays so until it is vacuumed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_logio import DatasetWriter, DeltaSource
from airflow_logio.crash import CrashPoint
from airflow_logio.driver import committer
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, SourceChanged
from tests.unit.dataflow.test_delta_source import FEED, ranges
from tests.unit.spark.test_spark_sources import Reading, kill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

VERSIONS, RECORDS = 3, 10


def ids(version: int) -> range:
    return range(version * RECORDS, (version + 1) * RECORDS)


def reading(root: Path, sessions: SparkSessions, source: type[DeltaSource] = DeltaSource) -> Reading:
    """A group that publishes a table of three versions."""
    one = Reading(root, sessions, source("{orders}"))
    for version in range(VERSIONS):
        write_deltalake(one.orders, pa.table({"id": pa.array(ids(version), pa.int64())}), mode="append")
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    one.names = ("save",)
    return one


@pytest.fixture
def dead(tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Its driver has published something, and was killed before it committed the rest."""
    one = reading(tmp_path, sessions)
    with monkeypatch.context() as patch:
        kill(patch, committer, CrashPoint.BEFORE_COMMIT, 3)
        one.die()
    return one


def compacted(table: Path | str, *, vacuumed: bool) -> None:
    """Its files become one; those that were are kept, or removed."""
    found = DeltaTable(table)
    found.optimize.compact()
    if vacuumed:
        assert found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_a_pinned_version_is_read_again_whatever_has_become_of_the_table(dead: Reading) -> None:
    DeltaTable(dead.orders).delete("id < 15")
    write_deltalake(dead.orders, pa.table({"id": pa.array([10**6], pa.int64())}), mode="append")
    compacted(dead.orders, vacuumed=False)
    dead.finish()
    assert sorted(row["id"] for row in dead.published("out")) == list(range(VERSIONS * RECORDS))


def test_a_version_that_was_vacuumed_is_a_source_that_has_changed(dead: Reading) -> None:
    compacted(dead.orders, vacuumed=True)
    with pytest.raises(SourceChanged, match=r"version \d of .*/orders cannot be read any more: 1 of 1 files are gone"):
        dead.run(*dead.names)


class VacuumedMeanwhile(DeltaSource):
    """Vacuumed between the plan and the job, when Spark alone notices."""

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> Any:
        frame = super().frame(spark, params, start, end)
        if end["version"] == 1:
            compacted(params["orders"], vacuumed=True)
        return frame


class StoredAndVacuumedMeanwhile(VacuumedMeanwhile):
    """Its effects are stored before they are used."""

    replayable = False


@pytest.mark.parametrize("source", [VacuumedMeanwhile, StoredAndVacuumedMeanwhile])
def test_a_version_that_is_vacuumed_while_spark_reads_has_changed_and_nobody_has_failed(
    source: type[DeltaSource], tmp_path: Path, sessions: SparkSessions
) -> None:
    one = reading(tmp_path, sessions, source)
    with pytest.raises(SourceChanged, match=r"version 1 of .*/orders cannot be read any more: 1 of 1 files are gone"):
        one.run(*one.names)
    assert {row["id"] for row in one.published("out")} <= set(ids(0))


# --- what Spark reads -------------------------------------------------------------------------------------------------

DAYS = ["x y", "a:b", "50%", "é", "+p", None, "it's \\n", "a/b"]
NIGHT = dt.datetime(2024, 1, 31, 23, 30, 0, 123456, dt.UTC)


def sales(version: int) -> pa.Table:
    """Of each day one, with partitions by text, date, number, truth and decimal; their values are in no file."""
    many = len(DAYS)
    return pa.table(
        {
            "id": pa.array(range(version * many, (version + 1) * many), pa.int64()),
            "day": DAYS,
            "on": pa.array([dt.date(2024, 2, 1 + number % 2) for number in range(many)]),
            "store": pa.array([7 if number % 2 else None for number in range(many)], pa.int32()),
            "paid": [number % 3 == 0 for number in range(many)],
            "rate": pa.array([Decimal("1.50")] * many, pa.decimal128(6, 2)),
            "price": pa.array([Decimal(f"{number}.10") for number in range(many)], pa.decimal128(20, 2)),
            "at": pa.array([NIGHT] * many, pa.timestamp("us", "UTC")),
            "wall": pa.array([NIGHT.replace(tzinfo=None)] * many, pa.timestamp("us")),
            "tags": [[{"name": day, "weights": [1.5, None]}] for day in DAYS],
        }
    )


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    """Its records by `id`, an instant as one of UTC."""
    found = sorted(table.to_pylist(), key=lambda row: (row["id"], str(row.get("_change_type"))))
    return [
        tuple(value.astimezone(dt.UTC) if getattr(value, "tzinfo", None) else value for value in row.values())
        for row in found
    ]


def test_records_and_types_are_those_of_the_table_whatever_its_partitions_are_called(
    tmp_path: Path, spark: Any
) -> None:
    """Compared with what was written: delta-rs itself finds no file of the change feed whose folder has such a name."""
    table = str(tmp_path / "a lake, é 50%" / "sales")
    by = ["day", "on", "store", "paid", "rate"]
    for version in range(2):
        write_deltalake(table, sales(version), mode="append", partition_by=by, configuration=FEED)
    source = DeltaSource(table)
    for version, (start, end) in enumerate(ranges(source)):
        source.observed({}, start, end)
        frame = source.frame(spark, {}, start, end)
        assert told(frame.toArrow()) == told(sales(version))
        kinds = dict(frame.dtypes)
        assert (kinds["at"], kinds["wall"], kinds["on"], kinds["store"]) == (
            "timestamp",
            "timestamp_ntz",
            "date",
            "int",
        )
        assert (kinds["rate"], kinds["price"]) == ("decimal(6,2)", "decimal(20,2)")
    DeltaTable(table).delete("id in (3, 12)")
    DeltaTable(table).update(predicate="day = '50%'", updates={"price": "99.99"})
    DeltaTable(table).optimize.compact()
    whole = DeltaSource(table, snapshot=True)
    ((start, end),) = ranges(whole)
    assert told(whole.frame(spark, {}, start, end).toArrow()) == told(pa.table(DeltaTable(table).to_pyarrow_table()))
    assert told_changes(table, spark) == {
        **{version: {"insert": {row[0]: row[6] for row in told(sales(version))}} for version in range(2)},
        2: {"delete": {3: Decimal("3.10"), 12: Decimal("4.10")}},
        3: {
            "update_preimage": {2: Decimal("2.10"), 10: Decimal("2.10")},
            "update_postimage": dict.fromkeys((2, 10), Decimal("99.99")),
        },
    }
    feed, behind = DeltaSource(table, changes=True), ranges(DeltaSource(table, changes=True))[-1][1]
    nothing = feed.frame(spark, {}, behind, behind)
    columns = [*sales(0).schema.names, "_change_type", "_commit_version", "_commit_timestamp"]
    assert (nothing.columns, nothing.count()) == (columns, 0)


def test_rows_of_a_table_that_was_partitioned_anew_keep_their_values(tmp_path: Path, spark: Any) -> None:
    """Delta's own reader has null for the days of the rows that were removed. Dates are those that were written, whatever the
    session takes files without Spark's name for."""
    table = str(tmp_path / "sales")
    old, new = dt.date(1000, 1, 1), dt.date(2024, 2, 29)
    first = pa.table({"id": [1, 2], "day": ["x y", None], "on": [old, new]})
    second = pa.table({"id": [3], "day": ["z"], "on": [old]})
    write_deltalake(table, first, partition_by=["day"], configuration=FEED)
    write_deltalake(table, second, mode="overwrite", schema_mode="overwrite", partition_by=["id"])
    names, found = [f"spark.sql.parquet.{kind}RebaseModeInRead" for kind in ("datetime", "int96")], []
    for name in names:
        spark.conf.set(name, "LEGACY")
    try:
        for many in (1, 9):
            feed = DeltaSource(table, changes=True, versions_per_event=many)
            rows = [row for start, end in ranges(feed) for row in feed.frame(spark, {}, start, end).collect()]
            found.append(sorted((row._commit_version, row._change_type, row.id, row.day, row.on) for row in rows))
    finally:
        for name in names:
            spark.conf.unset(name)
    kept = [(1, "x y", old), (2, None, new)]
    expected = [
        *((0, "insert", *row) for row in kept),
        *((1, "delete", *row) for row in kept),
        (1, "insert", 3, "z", old),
    ]
    assert found == [expected, expected]


def test_a_session_without_delta_is_told_what_to_add(tmp_path: Path, spark: Any) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    source = DeltaSource(str(tmp_path / "t"), snapshot=True, reader="delta")
    ((start, end),) = ranges(source)
    with pytest.raises(
        ConfigurationError, match=r"no extension of Delta: .*io\.delta:delta-spark.*spark\.sql\.extensions="
    ):
        source.frame(spark, {}, start, end)


def told_changes(table: str, spark: Any) -> dict[int, dict[str, dict[int, Decimal]]]:
    """Version → change → id → price, of the change feed. The times are those of the commits."""
    feed, found = DeltaSource(table, changes=True, versions_per_event=3), dict[int, dict[str, dict[int, Decimal]]]()
    times = {commit["version"]: commit["timestamp"] for commit in DeltaTable(table).history()}
    for start, end in ranges(feed):
        for row in feed.frame(spark, {}, start, end).toArrow().to_pylist():
            changed = found.setdefault(row["_commit_version"], {}).setdefault(row["_change_type"], {})
            assert row["id"] not in changed
            changed[row["id"]] = row["price"]
            assert row["day"] == DAYS[row["id"] % len(DAYS)]
            assert row["_commit_timestamp"].timestamp() == times[row["_commit_version"]] / 1000
    return found
