"""Audits of a day in a lake, with Spark: what they see is what readers will see, and what they refuse stays unseen."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_logio import DatasetWriter, published_files, stateless
from airflow_logio.dataflow.arrow_tables import as_table
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import LogioError, OperatorFailed, WriteRefused
from airflow_logio.spark import dataset_jobs, lake_audits
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from tests.support.frame_groups import Group, orders_at
from tests.unit.spark.test_days_in_a_lake import DAYS, FIRST, counted, dated

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

PLACES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "word": (pa.string(), ["a=b/c", "100%", None, "Öl ü", "1"]),
    "number": (pa.int64(), [-(2**62), None, 0, 7, 2**40]),
    "small": (pa.int16(), [1, 2, None, 3, -4]),
    "on_day": (
        pa.date32(),
        [dt.date(1, 1, 1), dt.date(2026, 3, 28), dt.date(9999, 12, 31), None, dt.date(1969, 7, 20)],
    ),
    "is_late": (pa.bool_(), [True, False, None, True, False]),
}


def parts(
    spark: Any, epoch: EpochPayloads, count: int, *, partition_by: tuple[str, ...]
) -> tuple[pa.Table, list[Dataset]]:
    """Records, and the datasets in which they are, twice."""
    rows = range(count)
    columns = {name: pa.array([values[row % 5] for row in rows], kind) for name, (kind, values) in PLACES.items()}
    table = pa.table({"id": pa.array(rows, pa.int64()), **columns})
    frame = dataset_jobs.frame_of_table(spark, table)
    made = [dataset_jobs.materialized(epoch, "event 1", f"d/{one}", frame, partition_by) for one in range(2)]
    return pa.concat_tables([table, table]), made


def same(found: pa.Table, given: pa.Table) -> bool:
    """By DuckDB, rows and types."""
    names = ", ".join(given.schema.names)
    with duckdb.connect() as database:
        database.register("found", found)
        database.register("given", given)
        left, right = (f"SELECT {names} FROM {one}" for one in ("found", "given"))
        query = f"SELECT count(*) FROM (({left} EXCEPT ALL {right}) UNION ALL ({right} EXCEPT ALL {left}))"
        types = [[row[1] for row in database.execute(f"DESCRIBE {one}").fetchall()] for one in (left, right)]
        return database.execute(query).fetchall() == [(0,)] and types[0] == types[1]


@pytest.mark.parametrize("partition_by", [tuple(PLACES), ("word",), ("on_day", "small")])
def test_columns_in_the_names_of_folders_have_their_values_and_types(
    spark: Any, epoch: EpochPayloads, partition_by: tuple[str, ...]
) -> None:
    given, made = parts(spark, epoch, 50, partition_by=partition_by)
    found = lake_audits.frame_of_parts(spark, made)
    assert found.columns == [*(name for name in given.schema.names if name not in partition_by), *partition_by]
    table = as_table(found.toArrow())
    assert table is not None and same(table, given)


def test_one_folder_and_none_at_all(spark: Any, epoch: EpochPayloads) -> None:
    for count in (1, 0):
        given, made = parts(spark, epoch, count, partition_by=("on_day", "word"))
        table = as_table(lake_audits.frame_of_parts(spark, made).toArrow())
        assert table is not None and same(table, given) and table.num_rows == 2 * count


def a_group(root: Path, sessions: SparkSessions, audit: Any, *hours: float) -> Group:
    root.mkdir()
    group = Group(root, sessions, day=(DAYS, FIRST), orders=[orders_at(*hours), orders_at(*hours, first=100)])
    named = group.operator("dated", stateless(mode="dataframe")(dated), "from_orders")
    group.names.append("keep")
    kept = DatasetWriter(
        "lake", "kept", partition_by=("day", "store"), on_new_run="overwrite", by=("day",), audit=audit
    )
    group.made.writer("keep", kept, named)
    return group


def refused(group: Group, kind: type[LogioError] = WriteRefused) -> str:
    with pytest.raises(kind) as error:
        group.run()
    assert not list((group.lake / "kept").rglob("*.parquet")), "and no file of it is there"
    return str(error.value)


def test_a_query_and_a_function_see_the_records_of_the_run_before_any_reader(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """They refuse one after the other; asked again, they let pass. Types of columns, and instants, are what they were."""
    said: dict[str, Any] = {"few": True}
    views = [one.name for one in sessions.get().catalog.listTables()]

    def enough(records: Any, params: Any) -> Any:
        assert params["day"] == FIRST
        said["columns"] = dict(records.dtypes)
        said["listed"] = list((group.lake / "kept").rglob("*.parquet"))
        return f"only {records.count()} rows" if said["few"] else None

    audit = {
        "enough": enough,
        "all of the day": "SELECT * FROM records WHERE day <> :day OR ts < :day_start OR ts >= :day_end OR store > 2",
        "cheap": "WITH dear AS (SELECT * FROM records WHERE cents >= 21) SELECT id, cents, day FROM dear ORDER BY id; -- !",
    }
    group = a_group(tmp_path / "one", sessions, audit, 1, 2, 3, 14.9)
    text = refused(group)
    assert f"day={FIRST} of folder {group.lake}/kept of connection 'lake': audit 'enough' refuses" in text
    assert ": only 8 rows. The day stays as it is." in text and "`logio retry` asks again" in text
    assert f"`logio again --pipeline work --partition {FIRST}`" in text
    assert said["columns"] == {"id": "bigint", "ts": "timestamp", "cents": "bigint", "day": "date", "store": "int"}
    said["few"] = False
    day = f"day={FIRST}"
    assert "audit 'cheap' refuses the rows of run" in (text := refused(group))
    assert f": 2 rows: (id=3, cents=21, {day}), (id=100, cents=94, {day}). The day" in text
    assert said["listed"] == [] and published_files(group.lake / "kept") == []
    assert [one.name for one in sessions.get().catalog.listTables()] == views, "none is left behind"


def test_one_that_finds_nothing_lets_pass(tmp_path: Path, sessions: SparkSessions) -> None:
    """A DataFrame of no rows is no fault either; one that has some is shown."""
    found: list[bool] = []

    def unknown(records: Any) -> Any:
        found.append(True)
        return records.filter(f"id >= {0 if len(found) == 1 else 1_000}").select("id", "day")

    group = a_group(
        tmp_path / "one", sessions, {"unknown": unknown, "none": "SELECT 1 FROM records WHERE id < 0"}, *range(9)
    )
    assert "audit 'unknown' refuses" in (text := refused(group)) and "more than 5 rows; the first are (id=" in text
    assert group.run()
    assert counted(group, FIRST) == group.expected("id, epoch_us(ts), store, cents", "") != []


def a_fault(records: Any) -> Any:
    raise ValueError("the author's own; all of it")


def of_a_task(records: Any) -> Any:
    from pyspark.sql import functions as F

    return records.select(F.raise_error(F.lit("in a task")))


def a_zone(records: Any) -> None:
    records.sparkSession.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize(
    ("audit", "kind", "says"),
    [
        (
            {"odd": "SELECT missing FROM records"},
            WriteRefused,
            "Spark refused audit 'odd': .*missing.*It was: SELECT mi",
        ),
        ({"odd": "SELECT * FROM records WHERE ("}, WriteRefused, "Spark refused audit 'odd': .*SYNTAX_ERROR"),
        (
            {"odd": "SELECT 1 FROM records WHERE 1 / (id * 0) > 0"},
            WriteRefused,
            "audit 'odd': .*DIVIDE_BY_ZERO",
        ),
        (a_fault, OperatorFailed, "(?s)audit 'a_fault': ValueError: the author's own; all of it.*test_lake_audits.py"),
        (of_a_task, OperatorFailed, "audit 'of_a_task': .*in a task"),
        (a_zone, OperatorFailed, "audit 'a_zone' sets spark.sql.session.timeZone from 'Asia/Tokyo' to 'UTC'"),
        ({"odd": lambda records: 3}, OperatorFailed, "audit 'odd': it returned int; return None or an empty text"),
    ],
)
def test_what_an_author_has_wrong_is_named_and_not_waited_for(
    tmp_path: Path, sessions: SparkSessions, audit: Any, kind: type[LogioError], says: str
) -> None:
    group = a_group(tmp_path / "one", sessions, audit, 1, 2)
    with pytest.raises(kind, match=says):
        group.run()
    assert not list((group.lake / "kept").rglob("*.parquet"))
    assert sessions.get().conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
