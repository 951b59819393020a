"""Updating rows of a Delta table by their keys: files that have such rows are written anew without them (copy on write)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.delta.active_files import ActiveFile, records_of
from airflow_logio.systems.delta.table_columns import TableColumns, partition_text
from airflow_logio.systems.delta.table_place import TablePlace

_ROW = "logio_row"
MOST_BYTES = 1 << 30
"""The most bytes of Arrow that the new rows of one commit have: they are in the memory of the driver."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What a commit does: files go, records come."""

    removed: Sequence[ActiveFile]
    records: Sequence[pa.Table]


class KeyedMerge:
    """`actions` are the fitted records of write actions, in order."""

    def __init__(
        self, place: TablePlace, columns: TableColumns, writer: DeltaWriter, actions: Sequence[tuple[str, pa.Table]]
    ) -> None:
        self._place = place
        self._columns = columns
        self._key = list(writer.primary_key)
        self._version = writer.version
        self._check_key()
        if sum(records.nbytes for _, records in actions) > MOST_BYTES:
            raise WriteRefused(
                f"{columns.named}: an upsert of more than {MOST_BYTES:,} bytes in one commit does not fit into the driver: "
                "let events be smaller (batch_bytes of the source), or write days with on_new_run='overwrite'"
            )
        self.new = self._newest(actions)

    def merged(self, files: Sequence[ActiveFile]) -> Merge:
        """The rows of `files` that the new ones replace, and those that are newer than a new one. Raises `WriteRefused`."""
        removed, kept, new = [], [], self.new
        for file in files:
            if not new.num_rows or not self._may_have(file, new):
                continue
            at = self._rows_of(file, new)
            if not len(at):
                continue
            records = records_of(self._place, self._columns, file)
            if self._version is not None:
                at, new = self._older(file, records, at, new)
            if len(at):
                removed.append(file)
                kept.append(records.filter(pc.invert(pc.is_in(_numbers(records), value_set=at))))
        return Merge(removed, [*kept, new])

    # --- the new rows -------------------------------------------------------------------------------------------------

    def _check_key(self) -> None:
        for name in self._key:
            kind = self._columns.schema.field(name).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                raise WriteRefused(
                    f"{self._columns.named}: key column {name!r} is {kind}, and is not compared: use another key"
                )

    def _newest(self, actions: Sequence[tuple[str, pa.Table]]) -> pa.Table:
        """One row of each key. Raises `WriteRefused` where what comes last, or is newest, is not said."""
        empty = pa.Table.from_batches([], schema=_plain(self._columns.schema))
        found = [empty]
        for where, records in actions:
            for name in (*self._key, *filter(None, [self._version])):
                self._check_values(where, name, records.column(name))
            if self._version is None and _groups(records, self._key).num_rows != records.num_rows:
                raise WriteRefused(
                    f"{self._columns.named}: {where} has a key twice ({', '.join(self._key)}), and no version says which row "
                    "is newer: name the column that does (version='updated_at'), or let the records of an event have each "
                    "key once"
                )
            found.append(records)
        rows = pa.concat_tables(found)
        if self._version is None:
            return _take_last(rows, self._key)
        return self._greatest(rows)

    def _check_values(self, where: str, name: str, column: pa.ChunkedArray) -> None:
        is_nan = pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()
        if column.null_count or is_nan:
            raise WriteRefused(
                f"{self._columns.named}: {where} has {column.null_count:,} records without {name!r}"
                f"{', or with NaN there' if is_nan else ''}, by which rows are updated"
            )

    def _greatest(self, rows: pa.Table) -> pa.Table:
        """Of each key the rows of the greatest version, which are all alike."""
        version = str(self._version)
        most = rows.group_by(self._key).aggregate([(version, "max")])
        numbered = rows.select([*self._key, version]).append_column(_ROW, _numbers(rows))
        most = most.select([*self._key, f"{version}_max"]).rename_columns([*self._key, version])
        at = numbered.join(most, [*self._key, version], join_type="left semi")
        chosen = rows.take(at.column(_ROW).combine_chunks().sort())
        once = _take_last(chosen, self._key)
        if once.num_rows != chosen.num_rows:
            self._check_alike(once, chosen)
        return once

    def _check_alike(self, once: pa.Table, rows: pa.Table) -> None:
        """Raises `WriteRefused` for two rows of one key and version that are not equal in everything."""
        known = {tuple(row[name] for name in self._key): row for row in _told(once)}
        for row in _told(rows):
            key = tuple(row[name] for name in self._key)
            if key in known and not _alike(row, known[key]):
                raise WriteRefused(
                    f"{self._columns.named}: two rows of key {dict(zip(self._key, map(str, key), strict=True))} have the "
                    f"version {row[str(self._version)]}, and differ: which one is newer? Let the version tell them apart"
                )

    # --- rows that are there ------------------------------------------------------------------------------------------

    def _may_have(self, file: ActiveFile, new: pa.Table) -> bool:
        """Whether a file may have rows with keys of the new ones, by its partition and its bounds."""
        for name in self._key:
            if name in file.partition:
                values = pc.unique(new.column(name)).to_pylist()
                if file.partition[name] not in {partition_text(value) for value in values}:
                    return False
            elif name in file.bounds and pa.types.is_integer(new.schema.field(name).type):
                least, greatest = file.bounds[name]
                column = new.column(name)
                if not pc.any(pc.and_(pc.greater_equal(column, least), pc.less_equal(column, greatest))).as_py():
                    return False
        return True

    def _rows_of(self, file: ActiveFile, new: pa.Table) -> pa.Array:
        """The places of rows whose keys are among the new ones."""
        return _places(records_of(self._place, self._columns, file, self._key), new, self._key)

    def _older(self, file: ActiveFile, records: pa.Table, at: pa.Array, new: pa.Table) -> tuple[pa.Array, pa.Table]:
        """The places of rows that are older than new ones, and the new ones that are newer than what is there."""
        version, given = str(self._version), "logio_version"
        there = records.select([*self._key, version]).append_column(_ROW, _numbers(records)).take(at)
        self._check_values(f"its file {file.path}", version, there.column(version))
        both = there.join(
            new.select([*self._key, version]).rename_columns([*self._key, given]), self._key, join_type="inner"
        )
        same = both.filter(pc.equal(both.column(version), both.column(given)))
        if same.num_rows:
            self._check_alike(_with_keys(new, same, self._key), records.take(same.column(_ROW).combine_chunks()))
        older = both.filter(pc.less(both.column(version), both.column(given)))
        stays = both.filter(pc.greater_equal(both.column(version), both.column(given)))
        return older.column(_ROW).combine_chunks(), _without_keys(new, stays, self._key)


def _told(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python has them; times and dates as texts, as they may be of years that Python lacks."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            rows = rows.set_column(at, field.name, pc.cast(rows.column(at), pa.string()))
    return list(rows.to_pylist())


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals NaN, as in SQL."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (isnan(one) and isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


def _numbers(rows: pa.Table) -> pa.Array:
    return pa.array(range(rows.num_rows), pa.int64())


def _groups(rows: pa.Table, key: list[str]) -> pa.Table:
    return rows.group_by(key).aggregate([])


def _take_last(rows: pa.Table, key: list[str]) -> pa.Table:
    """The last row of each key, in the order in which they come."""
    last = rows.select(key).append_column(_ROW, _numbers(rows)).group_by(key).aggregate([(_ROW, "max")])
    return rows.take(last.column(f"{_ROW}_max").combine_chunks().sort())


def _places(rows: pa.Table, of: pa.Table, key: list[str]) -> pa.Array:
    """The places of rows whose keys are among those of another table. Joins take no nested columns: only keys go in."""
    numbered = rows.select(key).append_column(_ROW, _numbers(rows))
    return numbered.join(of.select(key), key, join_type="left semi").column(_ROW).combine_chunks()


def _with_keys(rows: pa.Table, of: pa.Table, key: list[str]) -> pa.Table:
    return rows.take(_places(rows, of, key).sort())


def _without_keys(rows: pa.Table, of: pa.Table, key: list[str]) -> pa.Table:
    if not of.num_rows:
        return rows
    return rows.filter(pc.invert(pc.is_in(_numbers(rows), value_set=_places(rows, of, key))))
