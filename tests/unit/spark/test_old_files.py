"""Files that another Spark, pandas or polars has written: `ParquetSource` and `FolderSource` read what Spark reads."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import FolderSource, ParquetSource
from airflow_logio.errors import OperatorFailed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

DATES = ["0001-01-01", "0004-02-29", "1000-02-28", "1582-10-04", "1582-10-15", "1899-12-31", "1900-01-01"]
DATES += ["2024-05-17", "2263-01-01", "9999-12-31"]
WRITE_MODES = ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite")
NUMBERS = ("unix_date(d) AS d", "unix_micros(t) AS t")


def by_spark(session: Any, path: Path) -> list[tuple[int, int]]:
    return sorted(map(tuple, session.read.parquet(str(path)).selectExpr(*NUMBERS).collect()))


def by_folder_source(session: Any, path: Path) -> list[tuple[int, int]]:
    source = FolderSource(str(path))
    action = source.action({})
    return sorted(map(tuple, source.frame(session, {}, action["start"], action["end"]).selectExpr(*NUMBERS).collect()))


def by_parquet_source(path: Path) -> list[tuple[int, int]]:
    source = ParquetSource(f"{path}/*.parquet")
    events = pa.concat_tables([batch.table for batch in source.read({}, source.action({}), 0)])
    columns = events["d"].cast(pa.int32()).to_pylist(), events["t"].cast(pa.int64()).to_pylist()
    return sorted(zip(*columns, strict=True))


def test_files_of_every_calendar_and_kind_of_time_are_read_as_spark_reads_them(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    rows = session.createDataFrame([(text,) for text in DATES], "text string")
    rows = rows.selectExpr("CAST(text AS date) AS d", "CAST(text || ' 12:34:56.789012' AS timestamp) AS t")
    for zone in ("UTC", "Europe/Berlin"):
        for mode in ("LEGACY", "CORRECTED"):
            for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
                session.conf.set("spark.sql.session.timeZone", zone)
                session.conf.set("spark.sql.parquet.outputTimestampType", kind)
                for name in WRITE_MODES:
                    session.conf.set(f"spark.sql.parquet.{name}", mode)
                path = tmp_path / zone.replace("/", "_") / mode / kind
                rows.coalesce(1).write.parquet(str(path))
                session.conf.set("spark.sql.session.timeZone", "UTC")
                expected = by_spark(session, path)
                assert by_folder_source(session, path) == expected and len(expected) == len(DATES)
                if (zone, mode) == ("Europe/Berlin", "LEGACY"):
                    with pytest.raises(OperatorFailed, match=r"column 't', row 0 .* in the zone 'Europe/Berlin'"):
                        by_parquet_source(path)
                else:
                    assert by_parquet_source(path) == expected, path

    path = tmp_path / "february"
    path.mkdir()
    days = [-354_222, -354_221, -354_220, -200_000, -141_428, -141_427]
    micros = [day * 86_400_000_000 + 1 for day in days]
    old = pa.table({"d": pa.array(days, pa.date32()), "t": pa.array(micros, pa.timestamp("us", "UTC"))})
    said = {"org.apache.spark.version": "2.4.5", "org.apache.spark.timeZone": "UTC"}
    pq.write_table(old.replace_schema_metadata(said), path / "a.parquet")
    assert by_parquet_source(path) == by_folder_source(session, path) == by_spark(session, path)


def test_files_of_pandas_and_polars_side_by_side_are_one_schema_to_a_folder_source(spark: Any, tmp_path: Path) -> None:
    noon = dt.datetime(2024, 5, 17, 12, 0, 0, 123456, tzinfo=dt.UTC)
    columns = {"s": ["a", None], "c": ["x", "y"], "t": [noon, noon]}
    pd.DataFrame(columns).astype({"c": "category"}).to_parquet(tmp_path / "a.parquet")
    pl.DataFrame(columns).with_columns(pl.col("c").cast(pl.Categorical)).write_parquet(tmp_path / "b.parquet")
    arrow = pa.table(
        {
            **columns,
            "s": pa.array(["a", None], pa.string_view()),
            "t": pa.array([noon] * 2, pa.timestamp("us", "+00:00")),
        }
    )
    pq.write_table(arrow, tmp_path / "c.parquet")
    source = FolderSource(str(tmp_path), files_per_event=3)
    action = source.action({})
    frame = source.frame(spark, {}, action["start"], action["end"])
    rows = frame.selectExpr("s", "c", "unix_micros(t)").collect()
    instant = int(noon.timestamp()) * 1_000_000 + 123456
    assert sorted(map(str, map(tuple, rows))) == sorted(map(str, [("a", "x", instant), (None, "y", instant)] * 3))
