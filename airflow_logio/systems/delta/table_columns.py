"""The columns of a Delta table: which tables are written exactly, and how records become what a table holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import WriteRefused

RETENTION = "delta.setTransactionRetentionDuration"
_KNOWN = frozenset(
    {
        "appendOnly",
        "invariants",
        "timestampNtz",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "v2Checkpoint",
        "variantType",
    }
)
"""Features of a table that we know: what they ask of a writer is done, or refused by name."""
_OF_COLUMNS = {
    "delta.generationExpression": "is computed from others",
    "delta.identity.start": "is numbered by the table (IDENTITY)",
    "delta.invariants": "has an invariant",
    "CURRENT_DEFAULT": "has a default",
}
_PLAIN = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "binary": pa.binary(),
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The type of a declared column."""
    return pa.decimal128(kind.precision, kind.scale) if kind.name == "decimal" else _PLAIN[kind.name]


@dataclass(frozen=True)
class TableColumns:
    """Those of a table of delta-rs, at one version; `named` is the table in words."""

    named: str
    table: Any

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema(self.table.schema())

    @cached_property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self.table.metadata().partition_columns)

    @cached_property
    def shape(self) -> tuple[str, ...]:
        """What a data file is written for: table, columns and partitions. A file of one shape is committed to no other."""
        return (str(self.table.metadata().id), self.table.schema().to_json(), *self.partition_by)

    def check(self, writer: DeltaWriter) -> None:
        """Raises `WriteRefused` for a table that the writer would not write exactly, or not as it is declared."""
        self._check_features(writer)
        self._check_properties(writer)
        for field in self.table.schema().fields:
            for key, what in _OF_COLUMNS.items():
                if key in (field.metadata or {}):
                    raise self._refused(
                        f"column {field.name!r} {what}, which delta-rs does not compute here", "drop that"
                    )
            if "variant" in str(field.type).lower():
                raise self._refused(f"column {field.name!r} is a variant", "write a table without it")
            if (inner := _needed_within(field)) is not None:
                raise self._refused(
                    f"column {field.name!r} has {inner} inside that may not be null", "allow null there"
                )
        self._check_declared(writer)

    def _check_features(self, writer: DeltaWriter) -> None:
        protocol = self.table.protocol()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        if unknown := sorted(features - _KNOWN):
            raise self._refused(
                f"it has the feature {unknown[0]}, which we have not seen exact", "write a table without it"
            )
        if "deletionVectors" in features and removes(writer):
            raise self._refused(
                "it has deletion vectors, and a file of one is not removed by delta-rs with the vector that it has",
                "append to it, or drop the feature (ALTER TABLE ... DROP FEATURE deletionVectors)",
            )

    def _check_properties(self, writer: DeltaWriter) -> None:
        given: Mapping[str, str] = self.table.metadata().configuration
        properties = {name.lower(): value.lower() for name, value in given.items()}  # as Spark compares them
        if RETENTION.lower() in properties:
            raise self._refused(
                f"it has the property {RETENTION}, by which it forgets the markers of writers: a write that comes again "
                "would be applied again",
                f"ALTER TABLE ... UNSET TBLPROPERTIES ('{RETENTION}')",
            )
        if properties.get("delta.columnmapping.mode", "none") != "none":
            raise self._refused("it has column mapping", "write a table without it")
        if constraints := sorted(name for name in given if name.lower().startswith("delta.constraints.")):
            name = constraints[0][len("delta.constraints.") :]
            raise self._refused(
                f"it has the constraint {name!r}, which no one asks of files", "drop it, or audit the day"
            )
        if properties.get("delta.appendonly") == "true" and removes(writer):
            raise self._refused(
                f"it is append-only, and on_new_run={writer.on_new_run!r} removes rows",
                "append to it, or ALTER TABLE ... SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
            )
        if properties.get("delta.enablechangedatafeed") == "true" and writer.upserts:
            raise self._refused(
                "it has a change data feed, and an upsert writes files anew, with rows that have not changed",
                "write a table without it, or upsert by another program",
            )

    def _check_declared(self, writer: DeltaWriter) -> None:
        kinds = writer.column_types()
        if kinds is not None:
            declared, found = (
                {name: arrow_type(kind) for name, kind in kinds.items()},
                dict(zip(self.schema.names, self.schema.types, strict=True)),
            )
            if declared != found:
                differ = sorted(name for name in {*declared, *found} if declared.get(name) != found.get(name))
                raise self._refused(
                    f"column {differ[0]!r} is {found.get(differ[0], 'not there')}, and is declared "
                    f"{declared.get(differ[0], 'nowhere')}",
                    "declare the columns that it has, or leave columns out",
                )
            if writer.partitions != self.partition_by:
                raise self._refused(
                    f"it is partitioned by {self.partition_by!r}, and declared partition_by={writer.partitions!r}",
                    "declare what it is",
                )
        for name in (*writer.primary_key, *filter(None, [writer.version])):
            if name not in self.schema.names:
                raise self._refused(
                    f"it has no column {name!r}.{did_you_mean(name, self.schema.names)}", "correct that"
                )
        if writer.run_column and not self._tells_runs(writer.run_column):
            raise self._refused(
                f"runs are told by the column {writer.run_column!r}, a text by which the table is partitioned, and it is "
                f"partitioned by {self.partition_by!r}",
                f"write it anew with partition_by=({writer.run_column!r},), null for rows of no run",
            )
        if writer.by and writer.by[0] not in self.partition_by:
            raise self._refused(
                f"it is partitioned by {self.partition_by!r}, and runs own its rows by {writer.by[0]!r}",
                f"partition it by {writer.by[0]!r}",
            )
        if writer.by and not _names_days(kind := self.schema.field(writer.by[0]).type):
            raise self._refused(
                f"column {writer.by[0]!r} is {kind}, and runs own its rows by the name of their {writer.by[0]}",
                "partition it by text, or days by a date",
            )

    def _tells_runs(self, name: str) -> bool:
        return name in self.partition_by and _family(self.schema.field(name).type) == "text"

    def _refused(self, what: str, step: str) -> WriteRefused:
        return _refused(self.named, what, step)

    @cached_property
    def records(self) -> RecordColumns:
        return RecordColumns(self.named, self.schema, self.partition_by)


@dataclass(frozen=True)
class RecordColumns:
    """How records become what a table holds: all that a task needs of it, which has no delta-rs. It is part of jobs."""

    named: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    constants: tuple[tuple[str, str], ...] = ()
    """Columns that the writer adds, with the same value everywhere."""

    def fitted(self, records: pa.Table, where: str) -> pa.Table:
        """The records with the columns and types of the table. Raises `WriteRefused` for what does not fit without loss."""
        for name, value in self.constants:
            records = records.append_column(name, pa.repeat(pa.scalar(value, pa.string()), records.num_rows))
        names = records.schema.names
        if len(set(names)) != len(names) or set(names) != set(self.schema.names):
            raise WriteRefused(f"{self.named}: it has columns {self.schema.names}, and {where} has {names}")
        columns = [self._fitted(records.column(field.name), field, where) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=pa.schema([field.remove_metadata() for field in self.schema]))

    def _fitted(self, column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if column.type != field.type:
            try:
                if not _may_become(column.type, field.type):
                    raise pa.ArrowInvalid(f"{column.type} is not taken for {field.type}")
                column = pc.cast(column, field.type, safe=True)
            except pa.ArrowException as error:
                raise WriteRefused(
                    f"{self.named}: column {field.name!r} is {field.type}, and the records of {where} do not fit without "
                    f"loss: {error}"
                ) from error
        if not field.nullable and column.null_count:
            raise WriteRefused(
                f"{self.named}: column {field.name!r} may not be null, and {column.null_count:,} records of {where} are"
            )
        return column

    def parts(self, records: pa.Table, where: str) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
        """Fitted records by partition: its values as the table's log has them, and the records without their columns."""
        if not self.partition_by:
            if records.num_rows:
                yield {}, records
            return
        for name in self.partition_by:
            if not _names_partitions(records.schema.field(name).type):
                raise _refused(
                    self.named,
                    f"it is partitioned by {name!r} of type {records.schema.field(name).type}",
                    "partition by text or date",
                )
        keys = records.select(self.partition_by).group_by(list(self.partition_by)).aggregate([])
        for row in self._keys(keys, where):
            mine = records
            for name, value in row.items():
                column = mine.column(name)
                is_it = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
                mine = mine.filter(is_it)
            yield self._values(row, where), mine.drop_columns(list(self.partition_by))

    def _keys(self, keys: pa.Table, where: str) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = keys.to_pylist()
        except (OverflowError, ValueError) as error:
            raise WriteRefused(
                f"{self.named}: {where} has records with a date of before the year 1, or after 9999, in a column of "
                f"{self.partition_by!r}, which no name of a partition says: let the records have null there, or another date"
            ) from error
        return found

    def _values(self, row: Mapping[str, Any], where: str) -> Mapping[str, str | None]:
        if "" in row.values():
            raise WriteRefused(
                f"{self.named}: {where} has records with an empty text in a column of {self.partition_by!r}, which Delta "
                "tables hold for null: let the records have null there, or another text"
            )
        return {name: partition_text(value) for name, value in row.items()}


def _refused(named: str, what: str, step: str) -> WriteRefused:
    return WriteRefused(f"{named}: {what}. Nothing is written. What helps: {step}")


def removes(writer: DeltaWriter) -> bool:
    """Whether it removes files that are there."""
    return writer.upserts or writer.on_new_run in ("replace", "overwrite", "supersede")


def partition_text(value: Any) -> str | None:
    """A value of a partition column, as the log of a Delta table has it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _names_partitions(kind: pa.DataType) -> bool:
    named = (pa.types.is_string, pa.types.is_integer, pa.types.is_date32, pa.types.is_boolean)
    return any(bool(is_it(kind)) for is_it in named)


def _may_become(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of one type are meant as those of another: no text becomes a number, and no local time an instant."""
    if pa.types.is_null(given) or given == kind:
        return True
    if pa.types.is_dictionary(given):
        return _may_become(given.value_type, kind)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(kind):
        return (given.tz is None) == (kind.tz is None)
    if pa.types.is_nested(given) or pa.types.is_nested(kind):
        return _parts_may_become(given, kind)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if any(is_it(given) for is_it in numbers):
        is_narrower = pa.types.is_floating(given) and given.bit_width > kind.bit_width
        to_float = pa.types.is_floating(kind) and not pa.types.is_decimal(given) and not is_narrower
        exact = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        return bool(to_float or (exact and not pa.types.is_floating(given)))
    return bool(_family(given) == _family(kind) != "")


def _parts_may_become(given: pa.DataType, kind: pa.DataType) -> bool:
    """As `_may_become`, of what is inside: Arrow's own cast drops fields that the other type lacks."""
    if pa.types.is_struct(given) and pa.types.is_struct(kind):
        fields = {field.name: field.type for field in given}
        wanted = {field.name: field.type for field in kind}
        same = len(fields) == given.num_fields and fields.keys() == wanted.keys()
        return same and all(_may_become(fields[name], wanted[name]) for name in wanted)
    if pa.types.is_map(given) or pa.types.is_map(kind):
        both = pa.types.is_map(given) and pa.types.is_map(kind)
        return both and _may_become(given.key_type, kind.key_type) and _may_become(given.item_type, kind.item_type)
    if _is_list(given) and _is_list(kind):
        return _may_become(given.value_type, kind.value_type)
    return False


def _is_list(kind: pa.DataType) -> bool:
    named = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    return any(bool(is_it(kind)) for is_it in named)


def _names_days(kind: pa.DataType) -> bool:
    return bool(_family(kind) == "text" or pa.types.is_date32(kind))


def _family(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    return "date" if pa.types.is_date(kind) else ""


def _needed_within(field: Any) -> str | None:
    """What of a nested column may not be null."""

    def look(kind: Any) -> str | None:
        found = json.loads(kind.to_json()) if not isinstance(kind, dict) else kind
        if not isinstance(found, dict):
            return None
        inner = [one for one in (found.get("elementType"), found.get("keyType"), found.get("valueType")) if one]
        if found.get("containsNull") is False or found.get("valueContainsNull") is False:
            return "values"
        for one in found.get("fields", ()):
            if not one.get("nullable", True):
                return f"a field {one['name']!r}"
            inner.append(one["type"])
        return next(filter(None, (look(one) for one in inner if isinstance(one, dict))), None)

    return look(field.type)
