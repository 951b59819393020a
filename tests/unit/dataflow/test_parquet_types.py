"""Several Parquet files of one source are one schema; times of old files are what Spark reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import ParquetSource
from airflow_logio.errors import ConfigurationError, OperatorFailed

NOON = dt.datetime(2024, 5, 17, 12, 0, 0, 123456, tzinfo=dt.UTC)


def written(folder: Path, *columns: pa.Array | pa.ChunkedArray, **options: Any) -> str:
    """A file for each column `x`."""
    for number, column in enumerate(columns):
        pq.write_table(pa.table({"x": column}), folder / f"{number}.parquet", **options)
    return f"{folder}/*.parquet"


def read(source: ParquetSource, params: Mapping[str, Any] | None = None) -> list[pa.Table]:
    """The events of all files, as a driver asks for them: the plan is kept, the rest is what the log has."""
    action: dict[str, Any] | None = source.action(params or {})
    plan = None if action is None else action.pop("plan", None)
    events = []
    while action is not None:
        events += [batch.table for batch in source.read(params or {}, action, 0)]
        action = source.next_action(params or {}, action if plan is None else {**action, "plan": plan})
    return events


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (pa.array([1], pa.int32()), pa.array([2**40]), pa.int64()),
        (pa.array([2**40]), pa.array([1], pa.int8()), pa.int64()),
        (pa.array([2**31], pa.uint32()), pa.array([-1], pa.int32()), pa.int64()),
        (pa.array([1], pa.uint8()), pa.array([-1], pa.int8()), pa.int16()),
        (pa.nulls(1), pa.array(["a"]), pa.string()),
        (pa.array(["a"]), pa.nulls(1), pa.string()),
        (pa.nulls(1), pa.array([[1.5]]), pa.list_(pa.float64())),
        (pa.array([[None]]), pa.array([[1.5]]), pa.list_(pa.float64())),
        (pa.array(["a"], pa.large_string()), pa.array(["b"], pa.string_view()), pa.string()),
        (pa.array(["a"]), pa.array(["b"]).dictionary_encode(), pa.string()),
        (pa.array([b"a"], pa.large_binary()), pa.array([b"b"]), pa.binary()),
        (pa.array([[1]], pa.large_list(pa.int32())), pa.array([[2**40]]), pa.list_(pa.int64())),
        (pa.array([{"n": 1}], pa.struct([("n", pa.int8())])), pa.array([{"n": 300}]), pa.struct([("n", pa.int64())])),
        (
            pa.array([NOON], pa.timestamp("us", "UTC")),
            pa.array([NOON], pa.timestamp("ms", "+00:00")),
            pa.timestamp("us"),
        ),
        (pa.array([1.5], pa.float32()), pa.array([0.1]), pa.float64()),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1234.5")]), pa.decimal128(6, 2)),
        (pa.array([dt.time(1)], pa.time32("ms")), pa.array([dt.time(2)], pa.time64("us")), pa.time64("us")),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.array([[3]]), pa.list_(pa.int64())),
        (
            pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
            pa.array([[1, 2, 3]], pa.list_(pa.int8(), 3)),
            pa.list_(pa.int8()),
        ),
        (
            pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int8())),
            pa.array([[("b", 2)]], pa.map_(pa.string(), pa.int64())),
            pa.map_(pa.string(), pa.int64()),
        ),
        (pa.array([NOON.date()], pa.date64()), pa.array([NOON.date()]), pa.date32()),
        (pa.array([Decimal("1.50")], pa.decimal256(20, 2)), pa.array([Decimal("1.5")]), pa.decimal128(20, 2)),
    ],
)
def test_files_that_differ_without_loss_are_one_schema(one: Any, other: Any, wanted: Any, tmp_path: Path) -> None:
    events = read(ParquetSource(written(tmp_path, one, other, one)))
    assert [event.schema for event in events] == [pa.schema([("x", wanted)])] * 3
    values = [event["x"].to_pylist() for event in events]
    plain = [
        column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column for column in (one, other)
    ]
    assert values == [plain[0].to_pylist(), plain[1].to_pylist(), plain[0].to_pylist()]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1]), pa.array([1.5])),
        (pa.array([1], pa.uint64()), pa.array([-1])),
        (pa.array(["1"]), pa.array([1])),
        (pa.array([NOON], pa.timestamp("us")), pa.array([NOON.date()])),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}])),
    ],
)
def test_files_that_no_type_holds_exactly_are_refused_by_name_before_a_run(
    one: Any, other: Any, tmp_path: Path
) -> None:
    where = written(tmp_path, one, one, other)
    with pytest.raises(
        ConfigurationError, match=r"column 'x' is .* in .*/0\.parquet and .* in .*/2\.parquet, and no type"
    ):
        ParquetSource(where).action({})
    assert len(read(ParquetSource(where, transform=lambda table: pa.table({"y": list(map(str, table["x"]))})))) == 3


def test_a_column_that_a_later_file_does_not_have_is_told_before_a_run(tmp_path: Path) -> None:
    where = written(tmp_path, pa.array([1]))
    pq.write_table(pa.table({"y": [1]}), tmp_path / "1.parquet")
    with pytest.raises(ConfigurationError, match=r"/1\.parquet has no column 'x', only \['y'\]"):
        ParquetSource(where, columns=["x"]).action({})
    assert ParquetSource(where).action({})["total_rows"] == 2, "where none is named, each file has its own"


def test_columns_are_in_the_order_of_the_first_file(tmp_path: Path) -> None:
    """Where all have the same: a window could not put them together otherwise. The plan says it to later drivers."""
    tables = [{"a": [1], "b": ["x"]}, {"b": ["y"], "a": [2]}, {"b": [None], "c": [0]}]
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    events = read(ParquetSource(f"{tmp_path}/*.parquet"))
    assert [event.column_names for event in events] == [["a", "b"], ["a", "b"], ["b", "c"]]
    assert pa.concat_tables(events[:2]).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert [event.column_names for event in read(ParquetSource(f"{tmp_path}/[01].parquet", columns=["b", "a"]))] == [
        ["b", "a"]
    ] * 2


@pytest.mark.parametrize("begins", ["", "file://"])
def test_a_pattern_finds_files_by_any_name_but_hidden_ones(tmp_path: Path, begins: str) -> None:
    """As a path and as a URI, in which signs of a name may mean something else."""
    names = ["a b.parquet", "c%20d.parquet", "e#f?.parquet", "g=h,i.parquet", "ü.parquet"]
    for number, name in enumerate(names):
        pq.write_table(pa.table({"n": [number]}), tmp_path / name)
    (tmp_path / ".half.parquet").write_bytes(b"PAR1")
    events = read(ParquetSource(f"{begins}{tmp_path}/*.parquet"))
    assert [event["n"][0].as_py() for event in events] == list(range(len(names)))


def test_a_column_that_has_no_order_is_refused_before_a_run(tmp_path: Path) -> None:
    where = written(tmp_path, pa.array([[1]]))
    with pytest.raises(
        ConfigurationError, match=r"0\.parquet, column 'x' is list<.*>, which has no order: name another"
    ):
        ParquetSource(where, ordered_by="x").action({})


def test_files_of_pandas_and_polars_side_by_side(tmp_path: Path) -> None:
    columns = {"s": ["a", None], "c": ["x", "y"], "t": [NOON, NOON], "n": [1, 2], "z": ["q", "r"]}
    frame = pd.DataFrame({**columns, "z": [None, None]}).astype({"c": "category", "n": "int32"})
    frame.to_parquet(tmp_path / "a.parquet")
    pl.DataFrame(columns).with_columns(pl.col("c").cast(pl.Categorical)).write_parquet(tmp_path / "b.parquet")
    pq.write_table(pa.table({**columns, "z": ["q", "r"]}), tmp_path / "c.parquet")
    events = read(ParquetSource(f"{tmp_path}/*.parquet"))
    kinds = [("s", pa.string()), ("c", pa.string()), ("t", pa.timestamp("us")), ("n", pa.int64()), ("z", pa.string())]
    assert [event.schema for event in events] == [pa.schema(kinds)] * 3
    assert pa.concat_tables(events).num_rows == 6
    assert events[0].drop(["z"]) == events[1].drop(["z"]) and events[0]["z"].null_count == 2


def test_files_of_one_schema_are_read_and_logged_as_they_were(tmp_path: Path) -> None:
    source = ParquetSource(written(tmp_path, pa.array(["a"], pa.large_string()), pa.array(["b"], pa.large_string())))
    action = source.action({})
    assert action["plan"] == [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")] and "types" not in action
    assert read(source)[0].schema == pa.schema([("x", pa.large_string())])


def test_the_schema_of_files_without_rows_is_that_of_all(tmp_path: Path) -> None:
    from airflow_logio.dataflow.arrow_tables import schema_of

    action = ParquetSource(written(tmp_path, pa.nulls(0), pa.array([], pa.int64()))).action({})
    assert schema_of(action["schema"]) == pa.schema([("x", pa.int64())])


# --- times ------------------------------------------------------------------------------------------------------------


def of_spark(*columns: Any, version: str = "2.4.5", zone: str = "UTC", **said: str) -> pa.Table:
    metadata = {"org.apache.spark.version": version, "org.apache.spark.timeZone": zone}
    metadata |= {f"org.apache.spark.{name}": value for name, value in said.items()}
    return pa.table({f"x{number}": column for number, column in enumerate(columns)}).replace_schema_metadata(metadata)


# Days as an old Spark has written a date, and the same date today, from Java's own GregorianCalendar and LocalDate.
DATES = [
    (-719_164, dt.date(1, 1, 1)),
    (-354_221, dt.date(1000, 3, 1)),  # 29 February 1000, which is in no calendar of today
    (-354_220, dt.date(1000, 3, 1)),
    (-141_428, dt.date(1582, 10, 4)),
    (-141_427, dt.date(1582, 10, 15)),
    (0, dt.date(1970, 1, 1)),
]


def test_dates_and_times_of_the_julian_calendar_are_those_that_spark_reads(tmp_path: Path) -> None:
    days = [*(day for day, _ in DATES), None]
    dates = [*(date for _, date in DATES), None]
    noon = [None if day is None else day * 86_400_000_000 + 43_200_000_000 for day in days]
    micros = pa.array(noon, pa.timestamp("us", "UTC"))
    plain = pa.array(noon, pa.timestamp("us"))  # without a zone, and so without a calendar
    noons = [None if date is None else dt.datetime.combine(date, dt.time(12)) for date in dates]
    for table in (
        of_spark(pa.array(days, pa.date32()), micros, plain),
        of_spark(pa.array(days, pa.date32()), micros, plain, version="4.2.0", legacyDateTime=""),
    ):
        pq.write_table(table, tmp_path / "old.parquet")
        (event,) = read(ParquetSource(str(tmp_path / "old.parquet")))
        assert event["x0"].to_pylist() == dates
        assert event["x1"].to_pylist() == noons
        assert event["x2"].cast(pa.int64()).to_pylist() == noon
    new = of_spark(pa.array(days, pa.date32()), micros, version="4.2.0", legacyINT96="")
    pq.write_table(new, tmp_path / "new.parquet")
    (event,) = read(ParquetSource(str(tmp_path / "new.parquet")))
    assert event["x0"].cast(pa.int32()).to_pylist() == days and event["x1"].cast(pa.int64()).to_pylist() == noon


def test_old_times_of_a_zone_are_refused_by_file_column_and_row(tmp_path: Path) -> None:
    old = dt.datetime(1899, 12, 31, 23, tzinfo=dt.UTC)
    for zone in ("Europe/Berlin", ""):
        times = pa.array([NOON, None, old], pa.timestamp("us", "UTC"))
        pq.write_table(of_spark(pa.array([1, 2, 3]), times, zone=zone), tmp_path / "old.parquet")
        with pytest.raises(OperatorFailed, match=r"old\.parquet, column 'x1', row 2 .* a time before 1900"):
            read(ParquetSource(str(tmp_path / "old.parquet")))
        assert read(ParquetSource(str(tmp_path / "old.parquet"), columns=["x0"]))[0].num_rows == 3
    inside = pa.array([[{"d": dt.date(1500, 1, 1)}]])
    pq.write_table(of_spark(inside), tmp_path / "old.parquet")
    with pytest.raises(OperatorFailed, match=r"column 'x0', inside of a list or struct"):
        read(ParquetSource(str(tmp_path / "old.parquet")))
    recent = pa.array([NOON, dt.datetime(1900, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    pq.write_table(of_spark(recent, zone="Europe/Berlin"), tmp_path / "old.parquet")
    assert read(ParquetSource(str(tmp_path / "old.parquet")))[0]["x0"].to_pylist()[1] == dt.datetime.fromisoformat(
        "1900-01-01"
    )


def test_int96_is_exact_far_beyond_nanoseconds_of_64_bits_or_refused(tmp_path: Path) -> None:
    said = ["0001-01-01T00:00", "1677-01-01T00:00", "2262-04-12T00:00", "9999-12-31T23:59:59.999999"]
    far = [None, *map(dt.datetime.fromisoformat, said)]
    table = pa.table({"n": list(range(5)), "t": pa.array(far, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "far.parquet", use_deprecated_int96_timestamps=True, row_group_size=2)
    source = ParquetSource(str(tmp_path / "far.parquet"), records_per_event=2)
    assert pa.concat_tables(read(source)) == table
    assert [batch.table["t"].to_pylist() for batch in source.read({}, source.action({}), 3)] == [far[3:]]

    nanos = pa.table({"t": pa.array([0, 1_000, 1_500], pa.timestamp("ns"))})
    pq.write_table(nanos, tmp_path / "ns.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(OperatorFailed, match=r"ns\.parquet, column 't', row 2 .* it has 500 ns more.*columns=\.\.\."):
        read(ParquetSource(str(tmp_path / "ns.parquet")))

    lists = pa.table({"t": pa.array([[moment] for moment in far], pa.list_(pa.timestamp("us")))})
    pq.write_table(lists, tmp_path / "far.parquet", use_deprecated_int96_timestamps=True)
    assert (
        pa.concat_tables(read(ParquetSource(str(tmp_path / "far.parquet"))))["t"].to_pylist() == lists["t"].to_pylist()
    )
    fine = pa.table({"t": pa.array([[1_500]], pa.list_(pa.timestamp("ns")))})
    pq.write_table(fine, tmp_path / "ns.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(OperatorFailed, match=r"column 't': a time within a list or struct does not fit"):
        read(ParquetSource(str(tmp_path / "ns.parquet")))
