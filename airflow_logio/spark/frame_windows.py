"""Windows of time over datasets: which ones an event is in, and which of its records are in one (ADR-84).

The arithmetic is that of `dataflow.timeline` in whole seconds since 1970 UTC: instants as they are, wall times and dates as
if they were UTC. Nothing here depends on the zone of the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.durations import DAY
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.timeline import Grid, check_named, no_time, nulls, too_many_windows
from airflow_logio.errors import LogInconsistent
from airflow_logio.systems.payloads.dataset import Dataset, metadata_of

INSTANT, WALL, DATE = "timestamp", "timestamp_ntz", "date"
"""Types of times, as Spark names them."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_TOLD = "window"


def windows_of(dataset: Dataset, frame: SparkFrame, grid: Grid) -> Mapping[int, int]:
    """Number of a window → how many records of the dataset it has; `frame` is that of the dataset.

    From the footers, if each row group is within a window, otherwise by a job that reads one column. Raises OperatorFailed
    for a column that is missing, or no time, or null somewhere, and for more than `grid.most` windows; LogInconsistent.
    """
    kind_of(frame, grid.on)
    told = windows_by_footers(dataset, grid)
    counts = windows_by_job(frame, grid) if told is None else told
    if (found := sum(counts.values())) != dataset.num_rows:
        if without := frame.where(frame[grid.on].isNull()).count():
            raise nulls(grid.on, without)
        raise LogInconsistent(
            f"the dataset of {dataset.where} has {found:,} records, its manifest says {dataset.num_rows:,}"
        )
    return counts


def kind_of(frame: SparkFrame, on: str) -> str:
    """The type of the column of times. Raises OperatorFailed."""
    check_named(on, frame.columns)
    kind = str(frame.schema[on].dataType.typeName())
    if kind not in (INSTANT, WALL, DATE):
        raise no_time(on, kind)
    return kind


# --- which windows ----------------------------------------------------------------------------------------------------


def windows_by_footers(dataset: Dataset, grid: Grid) -> Mapping[int, int] | None:
    """As `windows_of`; None if the statistics do not tell it exactly."""
    counts: Counter[int] = Counter()
    for path in dataset.file_paths():
        metadata = metadata_of(path, dataset.where)
        field = metadata.schema.to_arrow_schema().field(grid.on)
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            number = _only_window(_statistics(group, grid.on), field.type, grid)
            if number is None:
                return None
            counts[number] += group.num_rows
    _check_few(len(counts), grid, counts)
    return counts


def _statistics(group: Any, on: str) -> Any:
    columns = (group.column(index) for index in range(group.num_columns))
    return next((column.statistics for column in columns if column.path_in_schema == on), None)


def _only_window(statistics: Any, kind: Any, grid: Grid) -> int | None:
    """The window of all records of a row group; None if it is not known to be a single one."""
    exact = statistics is not None and statistics.has_min_max and statistics.has_null_count
    if not exact or statistics.null_count:
        return None
    first, last = (grid.number(_seconds(raw, kind)) for raw in (statistics.min_raw, statistics.max_raw))
    return first if first == last else None


def _seconds(raw: int, kind: Any) -> int:
    """Since 1970, rounded down."""
    return raw * DAY if pa.types.is_date32(kind) else raw // _PER_SECOND[kind.unit]


def windows_by_job(frame: SparkFrame, grid: Grid) -> Mapping[int, int]:
    """As `windows_of`, by a job. Records without a time are not counted."""
    from pyspark.sql import functions as F

    keys = frame.select(key_of(frame, grid).alias(_TOLD))
    counted = keys.groupBy(_TOLD).count()
    few = (counted if grid.most is None else counted.limit(grid.most + 2)).toArrow()
    numbers = _numbers(few.column(_TOLD), grid)
    if grid.most is not None and len(numbers) > grid.most:
        told = keys.agg(F.count_distinct(_TOLD), F.min(_TOLD), F.max(_TOLD)).toArrow()
        first, last = (_numbers(told.column(place), grid)[0] for place in (1, 2))
        _check_few(told.column(0)[0].as_py(), grid, (first, last))
    return {
        number: count
        for number, count in zip(numbers, few.column("count").to_pylist(), strict=True)
        if number is not None
    }


def _check_few(count: int, grid: Grid, numbers: Any) -> None:
    if grid.most is not None and count > grid.most:
        raise too_many_windows(grid, count, min(numbers), max(numbers))


# --- which records ----------------------------------------------------------------------------------------------------


def key_of(frame: SparkFrame, grid: Grid) -> Any:
    """A column with the same value for all records of a window, and for no others: of times its start, of the type that they
    have, of dates its number. Null, or no row at all, where a record has none.

    Nothing in it depends on the zone of the session. It is computed once per record, and wall times are not taken apart.
    """
    from pyspark.sql import functions as F

    if kind_of(frame, grid.on) == DATE:
        return _number_of_day(F.unix_date(frame[grid.on]).cast("long"), grid)
    begins = f"{grid.origin % grid.seconds} seconds"
    return F.window(frame[grid.on], f"{grid.seconds} seconds", startTime=begins).getField("start")


def key_from(number: Any, grid: Grid, kind: str) -> Any:
    """As `key_of`, from a column of numbers of windows; `kind` is the type of the times."""
    from pyspark.sql import functions as F

    if kind == DATE:
        return number
    if kind == INSTANT:
        return start_of(grid, number)
    since = (_long(number) * _long(grid.seconds) + _long(grid.origin)).cast("decimal(18,6)")
    return F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'") + F.make_dt_interval(secs=since)


def _number_of_day(day: Any, grid: Grid) -> Any:
    from pyspark.sql import functions as F

    def divided(seconds: Any) -> Any:
        return F.call_function("div", seconds, _long(grid.seconds))  # towards 0, without doubles

    at = day * _long(DAY) - _long(grid.origin)
    return F.when(at >= 0, divided(at)).otherwise(divided(at + 1) - 1)


def _numbers(keys: pa.ChunkedArray, grid: Grid) -> list[int | None]:
    """The numbers of windows, from what `key_of` gave."""
    if not pa.types.is_timestamp(keys.type):
        return list(keys.to_pylist())
    per_second = _PER_SECOND[keys.type.unit]
    starts = keys.cast(pa.int64()).to_pylist()
    return [None if start is None else grid.number(start // per_second) for start in starts]


def within(frame: SparkFrame, grid: Grid, first: int, last: int) -> SparkFrame:
    """The records of windows `first` to `last`, by a comparison that lets Spark pass over files and row groups."""
    kind = kind_of(frame, grid.on)
    begin, end = grid.start(first), grid.start(last + 1)
    time = frame[grid.on]
    if kind == DATE:  # a day is in a window if its midnight is
        return frame.where((time >= _day(-(-begin // DAY))) & (time <= _day((end - 1) // DAY)))
    return frame.where((time >= _moment(begin * 10**6, kind)) & (time <= _moment(end * 10**6 - 1, kind)))


def start_of(grid: Grid, number: Any) -> Any:
    """A column: the start of a window, as an instant. `number` is a column, or a number."""
    from pyspark.sql import functions as F

    return F.timestamp_seconds(_long(number) * _long(grid.seconds) + _long(grid.origin))


def _long(number: Any) -> Any:
    """A column of 64 bits: products of small literals overflow otherwise."""
    from pyspark.sql import functions as F

    return F.lit(number).cast("long")


def _moment(micros: int, kind: str) -> Any:
    """A literal. `micros` since 1970."""
    from pyspark.sql import functions as F

    if kind == INSTANT:
        return F.timestamp_micros(F.lit(micros))
    wall = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    return F.expr(f"TIMESTAMP_NTZ '{wall.replace(tzinfo=None).isoformat(sep=' ')}'")


def _day(days: int) -> Any:
    from pyspark.sql import functions as F

    return F.date_from_unix_date(F.lit(days))
