"""The data files of a Delta table at one version: which there are, their records, and their removal by a commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio.errors import WriteRefused
from airflow_logio.systems.delta.table_columns import TableColumns, partition_text
from airflow_logio.systems.delta.table_place import TablePlace

_UNQUOTED = "!$&'()+,-./:;=@_~"
"""What delta-rs leaves as it is in a path of the log, beside letters and digits of ASCII."""


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A file that a version of the table has. `path` as it stands in the log."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    bounds: Mapping[str, tuple[Any, Any]]
    """Column → least and greatest value, as far as the log says them."""

    def removal(self, named: str) -> Any:
        """Raises `WriteRefused` for a path that delta-rs would write differently: no reader would take it for this file."""
        from deltalake.transaction import RemoveAction

        plain = unquote(self.path)
        if quote(plain, safe=_UNQUOTED) != self.path:
            raise WriteRefused(
                f"{named}: the name of its file {self.path} is quoted in another way than by delta-rs, which could not "
                "remove it. Nothing is written. What helps: let the table's own OPTIMIZE write it anew"
            )
        return RemoveAction(plain, True, int(time.time() * 1000), self.size, dict(self.partition))


def active_files(table: Any) -> Sequence[ActiveFile]:
    """Those of a table of delta-rs, as it is loaded."""
    found = pa.table(table.get_add_actions())
    rows = found.select([name for name in _READ if name in found.column_names]).to_pylist()
    return [_file(row) for row in rows]


def named_of(table: Any, paths: Sequence[str]) -> set[str]:
    """Those of the paths that are files of a table of delta-rs, as it is loaded."""
    there = pa.table(table.get_add_actions()).column("path")
    wanted = pa.array(paths, there.type)
    return set(wanted.filter(pc.is_in(wanted, there)).to_pylist())


_READ = ("path", "size_bytes", "partition", "min", "max")


def _file(row: Mapping[str, Any]) -> ActiveFile:
    least, greatest = row.get("min") or {}, row.get("max") or {}
    bounds = {
        name: (least[name], greatest[name])
        for name in least
        if least[name] is not None and greatest.get(name) is not None
    }
    partition = {name: partition_text(value) for name, value in (row.get("partition") or {}).items()}
    return ActiveFile(row["path"], row["size_bytes"], partition, bounds)


def of_partition(files: Sequence[ActiveFile], column: str, value: str) -> list[ActiveFile]:
    """Those of one value of a partition column."""
    return [file for file in files if file.partition.get(column) == value]


# --- records ----------------------------------------------------------------------------------------------------------


def records_of(
    place: TablePlace, columns: TableColumns, file: ActiveFile, names: Sequence[str] | None = None
) -> pa.Table:
    """The records of a file, with the columns and types of the table, or with some of them. Raises `WriteRefused`."""
    wanted = columns.schema if names is None else pa.schema([columns.schema.field(name) for name in names])
    if "://" in file.path:
        raise WriteRefused(
            f"{columns.named}: its file {file.path} lies elsewhere (a shallow clone): write to a table of its own files"
        )
    try:
        with (
            place.asked(),
            place.open(unquote(file.path)) as opened,
            pq.ParquetFile(opened, coerce_int96_timestamp_unit="us") as parquet,
        ):
            there = [name for name in wanted.names if name in parquet.schema_arrow.names and name not in file.partition]
            read = parquet.read(columns=there) if there else None
            rows = parquet.metadata.num_rows
    except pa.ArrowException as error:
        raise WriteRefused(
            f"{columns.named}: its file {file.path}, which has rows that are to be updated, is not read: {error}"
        ) from error
    made = [_column(columns, file, field, read, rows) for field in wanted]
    return pa.Table.from_arrays(made, schema=pa.schema([field.remove_metadata() for field in wanted]))


def _column(columns: TableColumns, file: ActiveFile, field: pa.Field, read: pa.Table | None, rows: int) -> Any:
    if field.name in file.partition:
        value = file.partition[field.name]
        return pa.repeat(pa.scalar(value, pa.string()), rows).cast(field.type)
    if read is None or field.name not in read.column_names:  # the column came later
        return pa.nulls(rows, field.type)
    column = read.column(field.name)
    if pa.types.is_timestamp(column.type) and column.type.tz is None and getattr(field.type, "tz", None):
        column = pc.assume_timezone(column, "UTC")  # as Spark writes instants by default
    try:
        return pc.cast(column, field.type, safe=True)
    except pa.ArrowException as error:
        raise WriteRefused(f"{columns.named}: column {field.name!r} of its file {file.path}: {error}") from error
