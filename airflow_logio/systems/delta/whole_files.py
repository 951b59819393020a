"""Whether a Parquet file of a dataset is what a Delta table would get of its records, so that it can be copied as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio.systems.delta.table_columns import RecordColumns
from airflow_logio.systems.delta.written_files import STATISTICS, said_of

_COMPRESSIONS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
"""What all readers of Delta tables know."""
_OF_LIBRARIES = ("is_from_converted_type", "force_set_converted_type")
"""What Arrow says of a type beside the type itself."""


def statistics_as_it_is(columns: RecordColumns, file: pq.ParquetFile) -> str | None:
    """What the table's log says of the file, from its footer alone.

    None if its records have to be decoded: the table has partitions; a column is not written as the table's, or is nested; it
    may not be null, and has nulls; or the footer does not say how many. Bounds are as wide as those of the records, or wider:
    a writer may have shortened texts.
    """
    metadata, schema = file.metadata, columns.schema
    if columns.partition_by or not metadata.num_rows or not _is_as_written(schema, file):
        return None
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    groups = [group for group in groups if group.num_rows]
    nulls, bounds = dict[str, int](), dict[str, pa.ChunkedArray]()
    for number, field in enumerate(schema):
        chunks = [group.column(places[field.name]) for group in groups]
        counts = [_nulls(chunk) for chunk in chunks]
        if None in counts or any(chunk.compression not in _COMPRESSIONS for chunk in chunks):
            return None
        count = sum(one for one in counts if one is not None)
        if count and not field.nullable:
            return None
        if number < STATISTICS:
            nulls[field.name], bounds[field.name] = count, _bounds(field.type, chunks)
    return said_of(metadata.num_rows, nulls, bounds)


def _is_as_written(schema: pa.Schema, file: pq.ParquetFile) -> bool:
    """Whether the file has the columns of a table, in any order, each of the type that `written_files.put` would give it."""
    found = {field.name: field.type for field in file.schema_arrow}
    if len(found) != len(file.schema_arrow) or found != {field.name: field.type for field in schema}:
        return False
    if any(pa.types.is_nested(kind) for kind in found.values()):
        return False
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return _types(file.schema) == _types(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)


def _types(schema: Any) -> dict[str, tuple[Any, ...]]:
    """Column → its physical and its logical type."""
    found = {}
    for column in (schema.column(place) for place in range(len(schema))):
        logical = json.loads(column.logical_type.to_json())
        said = {key: value for key, value in logical.items() if key not in _OF_LIBRARIES}
        found[column.path] = (column.physical_type, column.length, said)
    return found


def _nulls(chunk: Any) -> int | None:
    found = chunk.statistics
    return found.null_count if found is not None and found.has_null_count else None


def _bounds(kind: pa.DataType, chunks: Sequence[Any]) -> pa.ChunkedArray:
    """The least and the greatest value of each part, where there is one: of a type whose bounds the table's log has. None at
    all if a part does not say them."""
    raw = list[Any]()
    for chunk in chunks:
        found = chunk.statistics
        if found.null_count == chunk.num_values:
            continue
        if not found.has_min_max:
            return pa.chunked_array([], kind)
        raw += [found.min_raw, found.max_raw]
    made: pa.Array = pa.array([], kind)
    with suppress(pa.ArrowException):  # a text that was shortened within a character; types that are not compared
        if pa.types.is_string(kind):
            made = pa.array(raw, pa.binary()).cast(kind)
        elif pa.types.is_date32(kind) or pa.types.is_int32(kind):
            made = pa.array(raw, pa.int32()).cast(kind)
        elif pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
            made = pa.array(raw, pa.int64()).cast(kind)
    return pa.chunked_array([made], kind)
