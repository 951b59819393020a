"""Ready-made sources. `ParquetSource`: a replayable read action whose offset is a row number (Algorithm 1 Step 3)."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.describing import source, stable_name
from airflow_logio.dataflow.fingerprints import parquet_fingerprint
from airflow_logio.dataflow.names import check_column, check_count, check_name, did_you_mean
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator
from airflow_logio.dataflow.rows import OrderCheck, regroup, uniform
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    OperatorFailed,
    PipelineDefinitionError,
    SourceChanged,
)

_READ_ROWS = 65_536
"""About so many rows are decoded at a time: enough to be fast, little to hold."""


class ParquetSource(SourceOperator):
    """The rows of one Parquet file, in file order, `records_per_event` of them in each event (the last has the rest).

    `path` is a local path or a URI that Arrow can open, and may contain ``{param}`` placeholders. `columns` are those
    to read (all by default). `ordered_by` names a column the file must be sorted by, ascending, ties allowed.
    `transform` is a pure function table → table with the same number of rows, applied to each event. Timestamps become
    timestamp[us] in UTC without zone. Raises PipelineDefinitionError.
    """

    def __init__(
        self,
        path: str,
        *,
        ordered_by: str | None = None,
        records_per_event: int = 1000,
        columns: Iterable[str] | None = None,
        transform: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        if not isinstance(records_per_event, int) or isinstance(records_per_event, bool) or records_per_event < 1:
            raise PipelineDefinitionError(
                f"records_per_event is {records_per_event!r}; give a whole number, at least 1"
            )
        if isinstance(columns, str):
            raise PipelineDefinitionError(f"columns is the single string {columns!r}: write ({columns!r},)")
        self.path = path
        self.ordered_by = None if ordered_by is None else check_column(ordered_by)
        self.records_per_event = check_count("records_per_event", records_per_event)
        self.columns = None if columns is None else tuple(columns)
        self._transform = transform
        self._placeholders = _placeholders(path)

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def settings(self) -> dict[str, Any]:
        transform = None if self._transform is None else stable_name(self._transform)
        return super().settings() | {"transform": transform}

    def code(self) -> str:
        return "" if self._transform is None else source(self._transform)

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """path (absolute), rows, size in bytes, fingerprint (see `parquet_fingerprint`), columns.

        Raises ConfigurationError if there is no such file, or no such column in it.
        """
        path = self._resolved(params)
        try:
            with _opened(path) as (handle, size):
                fingerprint = parquet_fingerprint(handle, size)
                file = _parquet(handle)
                columns = self._columns_in(path, file.schema_arrow.names)
                rows = file.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(f"cannot read Parquet file {path}: {error}") from error
        return {"path": path, "rows": rows, "size": size, "fingerprint": fingerprint, "columns": columns}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        """The events after the first `offset` rows. With the same offset they are always the same.

        Raises, when the first event is asked for, SourceChanged if the file is not the one of `action`, and
        ExternalUnavailable if it cannot be reached. On the way, SourceNotOrdered, and OperatorFailed for a `transform`
        that changes the number of rows or for a timestamp that does not fit into microseconds.
        """
        path = action["path"]
        try:
            with _opened(path) as (handle, size):
                # Fingerprint and rows come from one open handle: a file replaced in between is not read half and half.
                _check_unchanged(path, action, offset, parquet_fingerprint(handle, size))
                tables = regroup(self._rows(handle, action, offset), self.records_per_event)
                for table in tables:
                    offset += table.num_rows
                    yield SourceBatch(self._transformed(table), offset)
        except FileNotFoundError as error:
            raise SourceChanged(f"{path} is gone; put the file back, or start a new run on another one") from error
        except OSError as error:
            raise ExternalUnavailable(f"cannot read {path}: {error}") from error

    def _rows(self, handle: Any, action: Mapping[str, Any], offset: int) -> Iterator[pa.Table]:
        columns = list(action["columns"])
        needed = dict.fromkeys([*columns, *filter(None, [self.ordered_by])])
        check, first = None, offset
        if self.ordered_by is not None:
            first = max(offset - 1, 0)  # the last row of the event before says whether the next one is in order
            check = OrderCheck(action["path"], self.ordered_by, first)
        for raw in _tables_from(_parquet(handle), needed, first):
            table = uniform(raw)
            if check is not None:
                check.see(table)
            yield table.slice(offset - first).select(columns)
            first = offset

    def _transformed(self, table: pa.Table) -> pa.Table:
        if self._transform is None:
            return table
        changed = self._transform(table)
        if not isinstance(changed, pa.Table) or changed.num_rows != table.num_rows:
            got = f"{changed.num_rows} rows" if isinstance(changed, pa.Table) else type(changed).__name__
            raise OperatorFailed(
                f"transform {stable_name(self._transform)!r} made {got} of a table of {table.num_rows} rows; the "
                "offset of a source counts rows, so a transform must keep them all (filter in an operator behind it)"
            )
        return changed

    def _resolved(self, params: Mapping[str, Any]) -> str:
        missing = sorted(self._placeholders - set(params))
        if missing:
            raise ConfigurationError(f"path {self.path!r} needs run parameter {missing[0]!r}, which has no value")
        path = self.path.format_map({name: str(params[name]) for name in self._placeholders})
        # Recorded as absolute: the driver that replays the action may have another working directory.
        return path if "://" in path else os.path.abspath(os.path.expanduser(path))

    def _columns_in(self, path: str, names: list[str]) -> list[str]:
        columns = list(names if self.columns is None else self.columns)
        for name in [*columns, *filter(None, [self.ordered_by])]:
            if name not in names:
                raise ConfigurationError(f"{path} has no column {name!r}, only {names}.{did_you_mean(name, names)}")
        return columns


def _placeholders(path: object) -> frozenset[str]:
    if not isinstance(path, str) or not path:
        raise PipelineDefinitionError(f"path is {path!r}; give a string")
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(path)]
    except ValueError as error:
        raise PipelineDefinitionError(f"path {path!r}: {error}") from error
    names = set()
    for name, spec, conversion in fields:
        if name is not None:
            if spec or conversion:
                raise PipelineDefinitionError(f"path {path!r}: write {{{name}}} without format or conversion")
            names.add(check_name("parameter", name))
    return frozenset(names)


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, int]]:
    from pyarrow import fs

    system, inner = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    with system.open_input_file(inner) as handle:
        yield handle, handle.size()


def _parquet(handle: Any) -> Any:
    import pyarrow.parquet as pq

    # Without pre_buffer a row group is read page by page, so that a file of one huge row group stays small in memory.
    return pq.ParquetFile(handle, pre_buffer=False, buffer_size=1 << 20)


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


def _check_unchanged(path: str, action: Mapping[str, Any], offset: int, fingerprint: str) -> None:
    if fingerprint != action["fingerprint"]:
        raise SourceChanged(
            f"{path} is not the file this run began with: its fingerprint is {fingerprint}, recorded was "
            f"{action['fingerprint']}. Put the recorded file back, or start a new run to read the new one"
        )
    if offset > action["rows"]:
        raise SourceChanged(f"{path} has {action['rows']:,} rows, but {offset:,} were read before")
