"""Runs that own their day in a lake, with Spark: the old day counts until all of the new one is there. Exact by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import Count, DatasetWriter, Days, OwnPartition, published_files, stateless
from airflow_logio.crash import CrashPoint
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed
from airflow_logio.spark import publishing
from tests.support.frame_groups import Group, orders_at, query
from tests.unit.spark.test_spark_sources import kill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

DAYS = Days("day")
FIRST, SECOND = "2024-03-09", "2024-03-10"
COLUMNS = "id, epoch_us(ts), store, cents"


def dated(orders: Any, params: Any) -> Any:
    from pyspark.sql import functions as F

    return orders.withColumn("day", F.to_date("ts"))


def a_day(root: Path, sessions: SparkSessions, day: str, *tables: pa.Table, like: Group | None = None) -> Group:
    """A run that keeps its own records of the day; like another one, of the same log and lake."""
    root.mkdir()
    group = Group(root, sessions, day=(DAYS, day), orders=tables)
    if like is not None:
        group.store, group.lake, group.dag_run = like.store, like.lake, root.name
    own = group.operator("own", OwnPartition("day", on="ts", mode="dataframe"), "from_orders")
    named = group.operator("dated", stateless(mode="dataframe")(dated), own.port("own"))
    group.made.sink("late", Count(), own.port("other"))
    group.names += ["late", "keep"]
    kept = DatasetWriter("lake", "kept", partition_by=("day", "store"), on_new_run="overwrite", by=("day",))
    group.made.writer("keep", kept, named)
    return group


def counted(group: Group, day: str) -> list[tuple[Any, ...]]:
    """By the receipts."""
    found = published_files(group.lake / "kept" / f"day={day}")
    if not found:
        return []
    files = [file.path for file in found]
    return query(f"SELECT {COLUMNS} FROM read_parquet({files}, hive_partitioning=true) ORDER BY ALL")


def listed(group: Group, day: str) -> list[tuple[Any, ...]]:
    where = f"{group.lake}/kept/day={day}/**/*.parquet"
    return query(f"SELECT {COLUMNS} FROM read_parquet('{where}', hive_partitioning=true) ORDER BY ALL")


def expected(group: Group, day: str) -> list[tuple[Any, ...]]:
    return group.expected(COLUMNS, f"WHERE ts::DATE = DATE '{day}'")


def test_a_day_computed_again_replaces_itself_and_nothing_else(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two events each, with late records; the second run dies with all files there and no receipt."""
    late = orders_at(30, 5, first=100)
    first = a_day(tmp_path / "first", sessions, FIRST, orders_at(1, 2, 3, 25), orders_at(4, 5, 26, first=10))
    assert first.run()
    next_day = a_day(tmp_path / "next", sessions, SECOND, orders_at(3, 25, 26, 27, first=20), like=first)
    assert next_day.run()
    for group, day in ((first, FIRST), (next_day, SECOND)):
        assert counted(group, day) == listed(group, day) == expected(group, day) != []
    again = a_day(tmp_path / "again", sessions, FIRST, orders_at(7, 8, first=50), late, like=first)
    with monkeypatch.context() as patch, pytest.raises(Exception, match="killed"):
        kill(patch, publishing, CrashPoint.IN_PUBLICATION, 1)
        again.run()
    assert counted(first, FIRST) == expected(first, FIRST), "until the receipt"
    assert listed(first, FIRST) == sorted([*expected(first, FIRST), *expected(again, FIRST)])
    assert again.run()
    assert counted(again, FIRST) == listed(again, FIRST) == expected(again, FIRST)
    assert counted(next_day, SECOND) == listed(next_day, SECOND) == expected(next_day, SECOND)
    whole = pq.ParquetDataset([file.path for file in published_files(first.lake / "kept")]).read().num_rows
    assert whole == len(expected(again, FIRST)) + len(expected(next_day, SECOND))


def test_late_records_that_are_only_part_of_a_plan_are_counted_by_their_day(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """Behind a function, and right before a writer; one event has none."""
    (tmp_path / "one").mkdir()
    tables = orders_at(1, 25, 26, 49), orders_at(2, 3, first=10), orders_at(27, 24 * 99, first=20)
    group = Group(tmp_path / "one", sessions, day=(DAYS, FIRST), orders=tables)
    own = group.operator("own", OwnPartition("day", on="ts", mode="dataframe"), "from_orders")
    for port in ("own", "other"):
        group.save(group.operator(f"dated_{port}", stateless(mode="dataframe")(dated), own.port(port)), port)
    written = group.operator("written", OwnPartition("day", on="ts", mode="dataframe"), "from_orders")
    for port in ("own", "other"):
        group.save(written.port(port), f"written_{port}")
    assert group.run()
    for operator in ("own", "written"):
        assert group.late(operator) == {"2024-03-10": 3, "2024-03-11": 1, "later": 1}
    other = f"WHERE ts::DATE <> DATE '{FIRST}'"
    assert group.published(COLUMNS, "other") == group.expected(COLUMNS, other)


def test_a_record_of_another_day_is_refused_by_its_count_before_it_is_logged(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    (tmp_path / "one").mkdir()
    group = Group(tmp_path / "one", sessions, day=(DAYS, FIRST), orders=[orders_at(1, 25, 26, 49)])
    named = group.operator("dated", stateless(mode="dataframe")(dated), "from_orders")
    group.names.append("keep")
    kept = DatasetWriter("lake", "kept", partition_by=("day",), on_new_run="overwrite", by=("day",))
    group.made.writer("keep", kept, named)
    says = f"owns day={FIRST} only, and there are records of other days: 2 of day={SECOND}, 1 of day=2024-03-11"
    with pytest.raises(OperatorFailed, match=says):
        group.run()
    assert not list((group.lake / "kept").rglob("*.parquet"))
