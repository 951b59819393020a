"""Input Sets of mode ``dataframe``: parts of datasets, windows of time, one DataFrame for many of them (ADR-84).

The arithmetic of windows is that of `dataflow.windows.timeline` in whole seconds since 1970 UTC: instants as they are, wall
times and dates as if they were UTC. Nothing here depends on the zone of the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import INSET_ID, check_free, tag_input_sets
from airflow_logio.dataflow.functions.own_partition import Dividing
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.quantities import DAY
from airflow_logio.dataflow.windows import WINDOW_START, Window, zones
from airflow_logio.dataflow.windows.timeline import Grid, check_named, no_moment, no_time, nulls, too_many_windows
from airflow_logio.errors import LogInconsistent
from airflow_logio.spark.dataset_jobs import frame_of_all, frame_of_table
from airflow_logio.systems.payloads.dataset import Dataset, metadata_of


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """What of an event is in an Input Set: all its records, or those in the window of time that the Input Set is."""

    dataset: Dataset
    nbytes: int = field(default=0, compare=False)
    """Its share of the bytes of the files, about; 0 where it was not counted, which is after a recovery."""


Part: TypeAlias = DatasetPart | pa.Table
"""An event that came as a table is held as one."""


def frame_of_sets(
    session: Any,
    window: Window,
    names: Sequence[str],
    held: Sequence[Sequence[Part]],
    columns: Sequence[str],
    schema: str,
) -> SparkFrame:
    """The records of Input Sets on one port, with column ``inset_id``, the place of an Input Set in `names`, from 0, and
    for windows of time ``window_start``.

    `held` has the parts of each. The result has `columns` only, or all; `schema` is that of the records, as Spark has it.
    Raises OperatorFailed for records that have a column of such a name, and as `frame_of_all`.
    """
    tables = [[part for part in parts if isinstance(part, pa.Table)] for parts in held]
    datasets = [[part.dataset for part in parts if isinstance(part, DatasetPart)] for parts in held]
    if not any(tables):
        return _of_datasets(session, window, names, datasets, columns, schema)
    tagged = frame_of_table(session, tag_input_sets(tables, window.tags(names)))
    if not any(datasets):
        return tagged
    return tagged.unionByName(_of_datasets(session, window, names, datasets, columns, schema))


def frame_of_set(
    session: Any,
    window: Window,
    name: str,
    held: Sequence[Part],
    columns: Sequence[str],
    schema: str,
    spans: FileSpans,
) -> SparkFrame:
    """The records of one Input Set on one port, and no other column. Arguments as for `frame_of_sets`. Raises as
    `frame_of_all`."""
    tables = [part for part in held if isinstance(part, pa.Table)]
    datasets = [part.dataset for part in held if isinstance(part, DatasetPart)]
    table = frame_of_table(session, pa.concat_tables(tables)) if tables else None
    if table is not None and not datasets:
        return table
    grid = window.grid()
    if grid is None:
        frame = frame_of_all(session, schema, datasets)
    else:
        number = window.number(name)
        near = partial(spans.may_have, grid=grid, number=number)
        # A dataset may be that of several events; in a window, all its records of that time are there once.
        distinct = {dataset.reference.path: dataset for dataset in datasets}
        frame = within(frame_of_all(session, schema, list(distinct.values()), near), grid, number, number)
    kept = frame.select(*columns) if columns else frame
    return kept if table is None else table.unionByName(kept)


class FileSpans:
    """Which windows of time the records of files may be in, each footer read once: many plans of one job look at them."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], tuple[int, int] | None] = {}

    def may_have(self, path: str, where: str, *, grid: Grid, number: int) -> bool:
        """False only if the footer of a file says that it has no record of the window. Raises as `metadata_of`."""
        key = (path, repr(grid))
        if key not in self._spans:
            self._spans[key] = _span(metadata_of(path, where), grid)
        span = self._spans[key]
        return span is None or span[0] <= number <= span[1]


def _span(metadata: Any, grid: Grid) -> tuple[int, int] | None:
    """The first and the last window of the records of a file; None if its statistics do not tell."""
    arrow = metadata.schema.to_arrow_schema()
    if grid.on not in arrow.names:
        return None
    kind, numbers = arrow.field(grid.on).type, []
    for index in range(metadata.num_row_groups):
        statistics = _statistics(metadata.row_group(index), grid.on)
        if statistics is None or not statistics.has_min_max:
            return None
        numbers += [grid.number(_seconds(raw, kind)) for raw in (statistics.min_raw, statistics.max_raw)]
    return (min(numbers), max(numbers)) if numbers else None


def _of_datasets(
    session: Any,
    window: Window,
    names: Sequence[str],
    held: Sequence[Sequence[Dataset]],
    columns: Sequence[str],
    schema: str,
) -> SparkFrame:
    distinct = {dataset.reference.path: dataset for datasets in held for dataset in datasets}
    frame = frame_of_all(session, schema, list(distinct.values()))
    check_free((INSET_ID, *window.tags(())), frame.columns)
    kept = list(columns) or frame.columns
    grid = window.grid()
    if grid is not None:
        return _by_window(session, frame, grid, [window.number(name) for name in names], kept)
    return _by_file(session, frame, held, kept)


def _by_window(session: Any, frame: SparkFrame, grid: Grid, numbers: Sequence[int], kept: Sequence[str]) -> SparkFrame:
    """An event that is in an Input Set is in it with all its records of that window: the number says it all."""
    from pyspark.sql import functions as F

    near = within(frame, grid, min(numbers), max(numbers))
    if len(numbers) == 1:
        tags = (F.lit(0).cast("long").alias(INSET_ID), start_of(grid, numbers[0]).alias(WINDOW_START))
        return near.select(*tags, *kept)
    key = _free("window", frame)
    number = F.col(key)
    places = _places(session, key, numbers).select(
        key_from(number, grid, kind_of(frame, grid.on)).alias(key),
        INSET_ID,
        start_of(grid, number).alias(WINDOW_START),
    )
    spans = (grid.start(min(numbers)), grid.end(max(numbers)))
    placed = near.withColumn(key, key_of(near, grid, spans)).join(F.broadcast(places), key)
    return placed.select(INSET_ID, WINDOW_START, *kept)


def _by_file(session: Any, frame: SparkFrame, held: Sequence[Sequence[Dataset]], kept: Sequence[str]) -> SparkFrame:
    """Events are as a whole in one Input Set, and whose records they are, the names of files tell.

    A file may have several names in the payload store, in several folders (`EpochPayloads.own`). Where two of them meet
    here, each Input Set is read by itself.
    """
    from pyspark.sql import functions as F

    whose = {
        file.path: place
        for place, datasets in enumerate(held)
        for dataset in datasets
        for file in dataset.manifest.files
    }
    if len(held) == 1 or not whose:
        return frame.select(F.lit(0).cast("long").alias(INSET_ID), *kept)
    places = {PurePosixPath(path).name: place for path, place in whose.items()}
    if len(places) < len(whose):
        return _one_by_one(session, held, kept)
    name = _free("file", frame)
    named = frame.select("*", frame.metadataColumn("_metadata")["file_name"].alias(name))
    placed = named.join(F.broadcast(_places(session, name, list(places), list(places.values()))), name)
    return placed.select(INSET_ID, *kept)


def _one_by_one(session: Any, held: Sequence[Sequence[Dataset]], kept: Sequence[str]) -> SparkFrame:
    from pyspark.sql import functions as F

    tagged = [
        frame_of_all(session, datasets[0].manifest.schema, datasets).select(
            F.lit(place).cast("long").alias(INSET_ID), *kept
        )
        for place, datasets in enumerate(held)
        if datasets
    ]
    return reduce(lambda some, more: some.unionByName(more), tagged)


def _places(session: Any, key: str, values: Sequence[Any], places: Sequence[int] | None = None) -> SparkFrame:
    """Value → place of the Input Set."""
    table = pa.table({key: list(values), INSET_ID: pa.array(places or range(len(values)), pa.int64())})
    return session.createDataFrame(table)


def _free(name: str, frame: SparkFrame) -> str:
    """A name that no column has."""
    name = f"_{name}"
    while name.lower() in (column.lower() for column in frame.columns):
        name = f"_{name}"
    return name


# --- windows of time: which ones an event is in -----------------------------------------------------------------------

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
    _check_moments(frame, grid)
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


def _check_moments(frame: SparkFrame, grid: Grid) -> None:
    if grid.zone and (kind := kind_of(frame, grid.on)) != INSTANT:
        raise no_moment(grid.on, grid.zone, kind)


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
    """A statistic in seconds since 1970, rounded down."""
    return raw * DAY if pa.types.is_date32(kind) else raw // _PER_SECOND[kind.unit]


def late_in(frame: SparkFrame, own: Dividing, params: Mapping[str, Any]) -> dict[str, int]:
    """Partition → how many records of a DataFrame are of it. All of them are of others than the run's."""
    from pyspark.sql import functions as F

    kind, time = kind_of(frame, own.on), frame[own.on]
    first, last = own.near(params, is_date=kind == DATE)
    grid = own.grid(has_zone=kind == INSTANT)
    bounds = [_day(at // DAY) if kind == DATE else _moment(at * 10**6, kind) for at in (first, last)]
    near = frame.where((time >= bounds[0]) & (time < bounds[1]))
    counts = windows_by_job(near, grid, (first, last - 1))
    far = frame.agg(F.count_if(time < bounds[0]), F.count_if(time >= bounds[1]))
    [(earlier, later)] = far.collect()
    starts = {grid.start(number): records for number, records in counts.items()}
    return own.named(earlier, starts, later, is_date=kind == DATE)


def windows_by_job(frame: SparkFrame, grid: Grid, spans: tuple[int, int] | None = None) -> Mapping[int, int]:
    """As `windows_of`, by a job. Records without a time are not counted. `spans` are the first and the last second, if they
    are known."""
    from pyspark.sql import functions as F

    spans = spans or _spans(frame, grid)
    if spans is None:
        return {}
    keys = frame.select(key_of(frame, grid, spans).alias(_TOLD))
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


# --- windows of time: which records of an event are in one ------------------------------------------------------------


def _spans(frame: SparkFrame, grid: Grid) -> tuple[int, int] | None:
    """The first and the last time, in seconds, which windows of a zone need to know; None if there is none."""
    from pyspark.sql import functions as F

    if not grid.zone:
        return (0, 0)
    seconds = F.unix_seconds(frame[grid.on])
    [(first, last)] = frame.agg(F.min(seconds), F.max(seconds)).collect()
    return None if first is None else (first, last)


def key_of(frame: SparkFrame, grid: Grid, spans: tuple[int, int] = (0, 0)) -> Any:
    """A column with the same value for all records of a window, and for no others: of times its start, of the type that they
    have, of dates, and of windows of a zone, its number. Null, or no row at all, where a record has none. `spans` are the
    first and the last second, for windows of a zone.

    Nothing in it depends on the zone of the session. It is computed once per record, and wall times are not taken apart.
    """
    from pyspark.sql import functions as F

    if grid.zone:
        return _number_in_zone(frame[grid.on], grid, spans)
    if kind_of(frame, grid.on) == DATE:
        return _number_of_day(F.unix_date(frame[grid.on]).cast("long"), grid)
    begins = f"{grid.origin % grid.seconds} seconds"
    return F.window(frame[grid.on], f"{grid.seconds} seconds", startTime=begins).getField("start")


def key_from(number: Any, grid: Grid, kind: str) -> Any:
    """As `key_of`, from a column of numbers of windows; `kind` is the type of the times."""
    from pyspark.sql import functions as F

    if kind == DATE or grid.zone:
        return number
    if kind == INSTANT:
        return start_of(grid, number)
    since = (_long(number) * _long(grid.seconds) + _long(grid.origin)).cast("decimal(18,6)")
    return F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'") + F.make_dt_interval(secs=since)


def _number_in_zone(time: Any, grid: Grid, spans: tuple[int, int]) -> Any:
    """As `zones.number`, by the same table: the Java of an executor may have other rules for the zone."""
    from pyspark.sql import functions as F

    at, found = F.unix_seconds(time), None
    for one in zones.within(grid.zone, grid.seconds, grid.origin, *spans):
        start = at - F.pmod(at + _long(one.offset - grid.origin), _long(grid.seconds))
        begun = F.when(start >= _long(one.first), start).otherwise(_long(one.before))
        found = begun if found is None else F.when(at >= _long(one.begin), begun).otherwise(found)
    return F.when(time.isNotNull(), found)


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
    begin, end = grid.start(first), grid.end(last)
    time = frame[grid.on]
    if kind == DATE:  # a day is in a window if its midnight is
        return frame.where((time >= _day(-(-begin // DAY))) & (time <= _day((end - 1) // DAY)))
    return frame.where((time >= _moment(begin * 10**6, kind)) & (time <= _moment(end * 10**6 - 1, kind)))


def start_of(grid: Grid, number: Any) -> Any:
    """A column: the start of a window, as an instant. `number` is a column, or a number."""
    from pyspark.sql import functions as F

    if grid.zone:
        return F.timestamp_seconds(_long(number))
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
