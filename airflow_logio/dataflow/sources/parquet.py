"""`ParquetSource`: a replayable read action whose offset is a row number (Algorithm 1 Step 3)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.arrow_tables import (
    SCHEMA,
    OrderCheck,
    check_values,
    has_order,
    needed_table,
    regroup,
    schema_of,
    schema_text,
    uniform,
)
from airflow_logio.dataflow.describing import source, stable_name
from airflow_logio.dataflow.names import check_column, check_count, did_you_mean
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator
from airflow_logio.dataflow.parameters import for_function
from airflow_logio.dataflow.placeholders import placeholders_of, resolved
from airflow_logio.dataflow.sources.files import (
    WILD,
    OpenFile,
    footer,
    matching,
    opened,
    parquet,
    parquet_fingerprint,
)
from airflow_logio.dataflow.sources.old_times import OldTimes
from airflow_logio.dataflow.sources.parquet_types import changed_types, common_types, with_types
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    OperatorFailed,
    PipelineDefinitionError,
    SourceChanged,
)

_READ_ROWS = 65_536
"""About so many rows are decoded at a time: enough to be fast, little to hold."""
FILES, TYPES, ORDER = "files", "types", "order"
_READ_AGAIN = 5
"""A file that was touched is read again so often in a row, without a new event, before it counts as unavailable."""


class _Touched(Exception):
    """The file was written, renamed or removed since its fingerprint was taken; its content may be the same."""


class ParquetSource(SourceOperator):
    """The rows of Parquet files, in file order. Replayable: a file must not change during a run.

    :param path: a local path, or a URI that Arrow can open (``s3://...``); it may contain ``{param}`` placeholders. Or
        a sequence of them. Or a pattern, whose last part has ``*``, ``?`` or ``[...]``: what it matches when the run is
        started, in the order of names.
    :param ordered_by: a column that each file must be sorted by, ascending, ties allowed; a row out of order fails the
        group. Windows of time rely on such an order.
    :param records_per_event: rows in each event, 1,000 by default; the last one of a file has the rest.
    :param columns: the columns to read; by default all.
    :param transform: a pure function table → table with the same number of rows, applied to each event; it may take
        ``params``, the run's parameters.

    Files whose columns differ without loss are one schema: integers are widened, columns of nulls alone get the type of
    the others, texts of pandas and polars are texts, and columns are in the order of the first file. Others are refused
    by name when the run is started. Dates and times of old versions of Spark (the Julian calendar, INT96) are those that
    Spark reads; the times of a zone before 1900, which only Spark knows, are refused.

    Each file is a read action of its own. A file that is overwritten is noticed before any event is made of the change,
    and parks the group (docs/correctness.md says what is not seen: memory maps, and bytes patched in files above 256
    MiB). Timestamps become timestamp[us] in UTC without zone. Raises PipelineDefinitionError; when a run is started,
    ConfigurationError for a file or column that is not there.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        *,
        ordered_by: str | None = None,
        records_per_event: int = 1000,
        columns: Iterable[str] | None = None,
        transform: Callable[..., pa.Table] | None = None,
    ) -> None:
        if not isinstance(records_per_event, int) or isinstance(records_per_event, bool) or records_per_event < 1:
            raise PipelineDefinitionError(
                f"records_per_event is {records_per_event!r}; give a whole number, at least 1"
            )
        if isinstance(columns, str):
            raise PipelineDefinitionError(f"columns is the single string {columns!r}: write ({columns!r},)")
        self.path = tuple(path) if isinstance(path, list | tuple) else path
        self.ordered_by = None if ordered_by is None else check_column(ordered_by)
        self.records_per_event = check_count("records_per_event", records_per_event)
        self.columns = None if columns is None else tuple(columns)
        self._transform = transform
        self._placeholders = frozenset().union(*map(placeholders_of, self.paths))
        if not self.paths:
            raise PipelineDefinitionError("a ParquetSource of no files; give a path, several, or a pattern")

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths as they were given."""
        return self.path if isinstance(self.path, tuple) else (self.path,)

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def settings(self) -> dict[str, Any]:
        transform = None if self._transform is None else stable_name(self._transform)
        return super().settings() | {"transform": transform}

    def code(self) -> str:
        return "" if self._transform is None else source(self._transform)

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """path (absolute), rows, size in bytes, fingerprint (see `parquet_fingerprint`), columns; of the first file.

        If there are several: also ``part`` (its number, from 0), ``total_rows`` of all, and the ``plan``, their paths. If
        they have no rows at all: also their ``schema``, as events would have it, except with a `transform`.
        Raises ConfigurationError if there is no such file, or no such column in it.
        """
        try:
            files = [file for path in self.paths for file in matching(resolved(path, self._placeholders, params))]
        except ValueError as error:  # a NUL, half a surrogate pair
            raise ConfigurationError(f"no file can have the name {self.paths!a}: {error}") from error
        path = files[0]
        try:
            if len(files) == 1:
                first = self._action(path)
                return first if first["rows"] else first | self._schema(path, first)
            total, schemas = 0, list[tuple[str, pa.Schema]]()
            for path in files:
                rows, schema = footer(path)
                self._columns_in(path, schema.names)
                total += rows
                schemas.append((path, schema))
            path, types, order = files[0], self._common(schemas), self._order([schema.names for _, schema in schemas])
            first = self._action(path, types)
            if not total:
                first |= self._schema(path, first)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ConfigurationError(f"cannot read Parquet file {path!r}: {error}{_hint(path)}") from error
        plan = {FILES: files, TYPES: types, ORDER: order} if types or order else files
        return first | {"part": 0, "total_rows": total, "plan": plan}

    def _common(self, schemas: Sequence[tuple[str, pa.Schema]]) -> str | None:
        """What the columns that differ from file to file are read as; None if none does. A `transform` may know better."""
        try:
            wanted = common_types(schemas, self.columns)
        except ConfigurationError:
            if self._transform is None:
                raise
            return None
        return schema_text(wanted) if wanted.names else None

    def _order(self, names: Sequence[Sequence[str]]) -> list[str] | None:
        """The columns of the first file, if one of the others has the same in another order."""
        first = list(names[0])
        other = any(list(one) != first and sorted(one) == sorted(first) for one in names)
        return first if other and self.columns is None else None

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        """As `action`, for the next of the files that were there when the run was started.

        Raises SourceChanged if it no longer exists or is no longer a Parquet file, ExternalUnavailable.
        """
        part, files, types, order = int(previous.get("part", 0)) + 1, previous.get("plan", ()), None, None
        if isinstance(files, Mapping):
            files, types, order = files[FILES], files[TYPES], files.get(ORDER)
        if part >= len(files):
            return None
        path = files[part]
        try:
            return self._action(path, types, order) | {"part": part}
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise SourceChanged(
                f"{path} was there when the run was started, and cannot be read now: {error}"
            ) from error
        except OSError as error:
            raise ExternalUnavailable(f"cannot read {path}: {error}") from error

    def _action(self, path: str, types: str | None = None, order: Sequence[str] | None = None) -> dict[str, Any]:
        with opened(path) as file:
            size = file.size()
            fingerprint = parquet_fingerprint(file.handle, size)
            content = parquet(file.handle)
            columns = self._columns_in(path, content.schema_arrow.names)
            if order is not None and sorted(columns) == sorted(order):
                columns = list(order)
            self._check_order(path, content.schema_arrow)
            rows = content.metadata.num_rows
            changed = None if types is None else changed_types(content.schema_arrow, schema_of(types), columns)
        action = {"path": path, "rows": rows, "size": size, "fingerprint": fingerprint, "columns": columns}
        return action | ({TYPES: schema_text(changed)} if changed else {})

    def _check_order(self, path: str, schema: pa.Schema) -> None:
        if self.ordered_by is not None and not has_order(kind := schema.field(self.ordered_by).type):
            raise ConfigurationError(
                f"{path}, column {self.ordered_by!r} is {kind}, which has no order: name another column in ordered_by"
            )

    def _schema(self, path: str, action: Mapping[str, Any]) -> dict[str, str]:
        if self._transform is not None:  # it was promised records
            return {}
        with opened(path) as file:
            empty = parquet(file.handle).schema_arrow.empty_table().select(list(action["columns"]))
        return {SCHEMA: schema_text(with_types(uniform(empty), _types_of(action)).schema)}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        """The events after the first `offset` rows. With the same offset they are always the same.

        Each says its ``first`` and ``last`` row of the file, counted from 0.
        Raises SourceChanged if the file is not the one of `action`: when the first event is asked for, before any event
        whose records were read after a change, and once more behind the last event. ExternalUnavailable if the file cannot
        be reached. On the way, SourceNotOrdered, and OperatorFailed for a `transform` that changes the number of rows or
        for a timestamp that does not fit into microseconds.
        """
        path = action["path"]
        try:
            with opened(path) as file:
                attempts, reached = 0, offset
                while attempts < _READ_AGAIN:
                    try:
                        for event in self._events(file, params, action, offset):
                            offset = event.next_offset
                            yield event
                        return
                    except _Touched:
                        attempts, reached = (1 if offset > reached else attempts + 1), offset
                raise ExternalUnavailable(f"{path} is written again and again while it is read")
        except FileNotFoundError as error:
            raise SourceChanged(
                f"{path} no longer exists; put the file back, or start a new run on another one"
            ) from error
        except OSError as error:
            raise ExternalUnavailable(f"cannot read {path}: {error}") from error

    def _events(
        self, file: OpenFile, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        """Raises _Touched if the file was touched: what was read after that, and not handed over, must be read again."""
        # Fingerprint and rows come from one open handle: a file replaced in between is not read half and half.
        stamp = file.settled_stamp()
        _check_unchanged(file, action, offset)
        for table in regroup(self._rows(file, stamp, action, offset), self.records_per_event):
            first, offset = offset, offset + table.num_rows
            yield self._batch(table, params, action["path"], first)
        _check_unchanged(file, action, offset)  # for a change that the file system does not show

    def _batch(self, table: pa.Table, params: Mapping[str, Any], path: str, first: int) -> SourceBatch:
        """Raises OperatorFailed, with file, column and row, for a value that is none. A transform may mend it."""
        offset = first + table.num_rows
        try:
            return SourceBatch(self._transformed(table, params), offset, {"first": first, "last": offset - 1})
        except OperatorFailed:
            check_values(table, f"{path} has", first)
            raise

    def _rows(
        self, file: OpenFile, stamp: tuple[Any, ...], action: Mapping[str, Any], offset: int
    ) -> Iterator[pa.Table]:
        columns = list(action["columns"])
        needed = dict.fromkeys([*columns, *filter(None, [self.ordered_by])])
        check, first, wanted = None, offset, _types_of(action)
        if self.ordered_by is not None:
            first = max(offset - 1, 0)  # the last row of the event before says whether the next one is in order
            check = OrderCheck(action["path"], self.ordered_by, first)
        for raw in _untouched(file, stamp, _undamaged(action["path"], file, needed, first)):
            table = with_types(uniform(raw), wanted)
            if check is not None:
                check.see(table)
            yield table.slice(offset - first).select(columns)
            first = offset

    def _transformed(self, table: pa.Table, params: Mapping[str, Any]) -> pa.Table:
        if self._transform is None:
            return table
        name = f"transform {stable_name(self._transform)!r}"
        changed = needed_table(self._transform(table, **for_function(self._transform, params)), name)
        if changed.num_rows != table.num_rows:
            raise OperatorFailed(
                f"{name} made {changed.num_rows} rows of a table of {table.num_rows} rows; the "
                "offset of a source counts rows, so a transform must keep them all (filter in an operator behind it)"
            )
        return changed

    def _columns_in(self, path: str, names: list[str]) -> list[str]:
        columns = list(names if self.columns is None else self.columns)
        for name in [*columns, *filter(None, [self.ordered_by])]:
            if name not in names:
                raise ConfigurationError(f"{path} has no column {name!r}, only {names}.{did_you_mean(name, names)}")
            if names.count(name) > 1:
                raise ConfigurationError(f"{path} has {names.count(name)} columns {name!r}; rename them in the file")
        return columns


def _types_of(action: Mapping[str, Any]) -> pa.Schema:
    """The columns that are read as another type, because other files of the source have it."""
    return schema_of(action[TYPES]) if TYPES in action else pa.schema([])


def _hint(path: str) -> str:
    """What to do about a file that cannot be read, if its name tells."""
    if os.path.isdir(path):
        return f". It is a folder: write {path.rstrip('/')}/*.parquet for the files in it"
    if WILD & set(path.rpartition("/")[0]) and not os.path.exists(path):
        return (
            ". Only the last part of a path may be a pattern; a folder of partitions is for a SparkSource, which reads "
            "spark.read.parquet(...)"
        )
    return ""


def _tables_from(file: Any, columns: Iterable[str], first: int) -> Iterator[pa.Table]:
    """Rows from number `first` on; row groups before it are skipped unread, the rest of the way is decoded, dropped."""
    names = list(columns)
    groups: list[int] = []
    skip = first
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if groups or skip < rows:
            groups.append(group)
        else:
            skip -= rows
    if not groups:
        return
    for batch in file.iter_batches(batch_size=_READ_ROWS, row_groups=groups, columns=names):
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield pa.Table.from_batches([batch.slice(skip)])
        skip = 0


def _undamaged(path: str, file: OpenFile, columns: Iterable[str], first: int) -> Iterator[pa.Table]:
    """The rows from number `first` on, with the dates and times that Spark finds in the file."""
    names = list(columns)
    try:
        content = parquet(file.handle)
        times = OldTimes(path, content)
        tables: Iterator[pa.Table] = _tables_from(content, names, first)
        nanoseconds: Iterator[pa.Table | None] = repeat(None)
        if int96 := times.int96(names):
            tables = regroup(tables, _READ_ROWS)
            nanoseconds = regroup(_tables_from(parquet(file.handle, int96_unit="ns"), int96, first), _READ_ROWS)
        for table in tables:
            yield times.corrected(table, next(nanoseconds, None), first)
            first += table.num_rows
    except pa.ArrowException as error:
        raise OperatorFailed(f"{path} is damaged, or no Parquet file that Arrow can read: {error}") from error


def _untouched(file: OpenFile, stamp: tuple[Any, ...], tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables, each with the knowledge that the file was not touched before all of it was read. Raises _Touched."""
    while True:
        try:
            table = next(tables, None)
        except (OSError, OperatorFailed) as error:
            if file.stamp() != stamp:
                raise _Touched from error
            raise
        if file.stamp() != stamp:
            raise _Touched
        if table is None:
            return
        yield table


def _check_unchanged(file: OpenFile, action: Mapping[str, Any], offset: int) -> None:
    path, fingerprint = action["path"], parquet_fingerprint(file.handle, file.size())
    if fingerprint != action["fingerprint"]:
        raise SourceChanged(
            f"{path} is not the file this run began with: its fingerprint is {fingerprint}, recorded was "
            f"{action['fingerprint']}. Put the recorded file back, or start a new run to read the new one"
        )
    if offset > action["rows"]:
        raise SourceChanged(f"{path} has {action['rows']:,} rows, but {offset:,} were read before")
