"""Times at the edges: the years 1 and 9999, before 1970, nanoseconds, zones, the hour that exists twice."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.sources import ParquetSource
from airflow_logio.dataflow.windows import Tumbling
from airflow_logio.errors import ConfigurationError, LogioError, OperatorFailed

FIRST, LAST = -62_135_596_800, 253_402_300_799
"""Seconds since 1970 of the first and the last second of the years 1 to 9999."""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LENGTHS = {"1s": 1, "30s": 30, "1m": 60, "15m": 900, "1h": 3600, "1d": 86400}
SECONDS = st.integers(FIRST, LAST) | st.sampled_from([FIRST, FIRST + 1, -1, 0, 1, LAST - 1, LAST])
ZONES = [None, "UTC", "Europe/Berlin", "America/New_York", "+14:00", "-09:30"]


@given(
    seconds=st.lists(SECONDS, min_size=1, max_size=8),
    length=st.sampled_from(sorted(LENGTHS)),
    unit=st.sampled_from(["s", "ms", "us"]),
    zone=st.sampled_from(ZONES),
)
@settings(max_examples=200, deadline=None)
def test_a_record_is_in_the_window_that_contains_it(
    seconds: list[int], length: str, unit: str, zone: str | None
) -> None:
    """By UTC, whatever the zone of the column: each record once, and the part of an event is found again."""
    column = pa.array([second * PER_SECOND[unit] for second in seconds], pa.timestamp(unit, zone))
    event = InputEvent("in", 1, pa.table({"t": column, "n": list(range(len(seconds)))}))
    window = Tumbling(length, "t")
    parts = window.assign(event, window.initial_state())
    seen: list[int] = []
    for inset, records in parts.items():
        start = datetime.fromisoformat(inset).replace(tzinfo=UTC)
        for place in records.column("n").to_pylist():
            assert (
                timedelta(0) <= EPOCH + timedelta(seconds=seconds[place]) - start < timedelta(seconds=LENGTHS[length])
            )
            seen.append(place)
        assert window.part(event, inset).equals(records)
        assert len(inset) <= 19
    assert sorted(seen) == list(range(len(seconds)))
    starts = [datetime.fromisoformat(inset) for inset in parts]
    assert window.tags(list(parts))["window_start"].to_pylist() == starts
    assert sorted(parts) == [name for _, name in sorted(zip(starts, parts, strict=True))], "names sort like times"


@given(nanoseconds=st.integers(-(2**63) + 1, 2**63 - 1) | st.sampled_from([-1, 0, 1, -(10**9), 2**63 - 1]))
@settings(max_examples=100, deadline=None)
def test_a_nanosecond_before_the_window_is_before_the_window(nanoseconds: int) -> None:
    window = Tumbling("1h", "t")
    table = pa.table({"t": pa.array([nanoseconds], pa.timestamp("ns"))})
    (inset,) = window.assign(InputEvent("in", 1, table), window.initial_state())
    start = datetime.fromisoformat(inset).replace(tzinfo=UTC)
    assert (start - EPOCH) // timedelta(hours=1) == nanoseconds // (3600 * 10**9)


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("ticks", [-(2**63), 2**63 - 1, "before the year 1", "after the year 9999"])
def test_a_time_that_no_calendar_has_is_refused(unit: str, ticks: int | str) -> None:
    if isinstance(ticks, str):
        ticks = (FIRST - 1 if "before" in ticks else LAST + 1) * PER_SECOND[unit]
    if not -(2**63) <= ticks < 2**63 or (unit == "ns"):
        return  # 64 bits of nanoseconds end in the years 1677 and 2262
    window = Tumbling("1h", "t")
    state = window.initial_state()
    table = pa.table({"t": pa.array([ticks], pa.timestamp(unit))})
    with pytest.raises(OperatorFailed, match="'t' holds a time outside the years 1 to 9999"):
        window.assign(InputEvent("in", 1, table), state)
    assert state == window.initial_state()


def test_the_hour_that_exists_twice_is_two_windows() -> None:
    """27 October 2024 in Berlin: 02:30 summer time, then 02:30 winter time."""
    ticks = [int(datetime(2024, 10, 27, hour, 30, tzinfo=UTC).timestamp()) for hour in (0, 1)]
    table = pa.table({"t": pa.array(ticks, pa.timestamp("s", "Europe/Berlin"))})
    window = Tumbling("1h", "t")
    assert list(window.assign(InputEvent("in", 1, table), window.initial_state())) == [
        "2024-10-27T00:00",
        "2024-10-27T01:00",
    ]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_from_the_first_to_the_last(kind: Any) -> None:
    window = Tumbling("1d", "d")
    table = pa.table({"d": pa.array([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)], kind)})
    assert list(window.assign(InputEvent("in", 1, table), window.initial_state())) == [
        "0001-01-01T00:00",
        "1969-12-31T00:00",
        "9999-12-31T00:00",
    ]


# --- Parquet ----------------------------------------------------------------------------------------------------------


def read(path: Path, **options: Any) -> pa.Table:
    source = ParquetSource("{file}", **options)
    params = {"file": str(path)}
    action = source.action(params)
    tables = [batch.table for batch in source.read(params, action, 0)]
    return pa.concat_tables(tables) if tables else pa.table({})


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_file_with_times_at_the_edges(tmp_path: Path, unit: str, zone: str | None) -> None:
    seconds = [FIRST, -1, 0, LAST]
    ticks = [second * PER_SECOND[unit] for second in seconds]
    pq.write_table(pa.table({"t": pa.array(ticks, pa.timestamp(unit, zone))}), tmp_path / "f.parquet")
    found = read(tmp_path / "f.parquet", ordered_by="t").column("t")
    assert found.type == pa.timestamp("us")
    assert found.cast(pa.int64()).to_pylist() == [second * 10**6 for second in seconds]


@given(ticks=st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_nanoseconds_are_exact_or_refused(tmp_path_factory: pytest.TempPathFactory, ticks: list[int]) -> None:
    path = tmp_path_factory.mktemp("ns") / "f.parquet"
    pq.write_table(pa.table({"t": pa.array(ticks, pa.timestamp("ns"))}), path)
    if any(tick % 1000 for tick in ticks):
        with pytest.raises(OperatorFailed, match=r"column\(s\) t does not fit into microseconds"):
            read(path)
    else:
        assert read(path).column("t").cast(pa.int64()).to_pylist() == [tick // 1000 for tick in ticks]


# --- files ------------------------------------------------------------------------------------------------------------

ODD_NAMES = ['it\'s "q" \n é %20 {x} {{y}} #?&;', "日本 😀", "-rf *", "a" * 240, "..x", "$HOME `id` \\"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_file_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.parquet"
    pq.write_table(pa.table({"né 'q\" \n": [1, 2], "": [3, 4]}), path)
    assert read(path).to_pydict() == {"né 'q\" \n": [1, 2], "": [3, 4]}


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 5000, "", "no/such"])
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        read(tmp_path / name)


def test_a_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "f.parquet")
    with pytest.raises(ConfigurationError, match="2 columns 'a'"):
        read(tmp_path / "f.parquet")


def test_a_file_of_dictionaries_gives_their_values(tmp_path: Path) -> None:
    """What pandas calls categories: each event would have a dictionary of its own."""
    values = ["a", "b", "a", "c"]
    pq.write_table(pa.table({"k": pa.array(values).dictionary_encode()}), tmp_path / "f.parquet")
    found = read(tmp_path / "f.parquet", records_per_event=2).column("k")
    assert (found.type, found.to_pylist()) == (pa.string(), values)


@pytest.mark.parametrize("table", [pa.table({}), pa.table({"a": pa.array([], pa.int64())})], ids=["columns", "rows"])
def test_a_file_of_nothing_has_no_events(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "f.parquet")
    assert read(tmp_path / "f.parquet").num_rows == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "f.parquet"
    pq.write_table(pa.table({"a": list(range(50)), "s": [str(n) for n in range(50)]}), path)
    return path.read_bytes()


def test_a_file_that_breaks_off_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "f.parquet"
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigurationError, match="cannot read Parquet file"):
            read(path)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        read(path)
    except LogioError as error:
        assert "damaged.parquet" in str(error) or "column" in str(error)
