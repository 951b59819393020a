"""From key values to slots: a hash that every process, run and version computes alike, on whole columns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.errors import OperatorFailed

_Hashes = npt.NDArray[np.uint64]


def by_slot(table: pa.Table, columns: Sequence[str], slots: int) -> list[tuple[int, pa.Table]]:
    """(slot, its records in their order), in the order of slots. Raises OperatorFailed for a column that is no key."""
    if not table.num_rows:
        return []
    numbers = slots_of(table, columns, slots)
    order = np.argsort(numbers, kind="stable")
    found, begins = np.unique(numbers[order], return_index=True)
    if len(found) == 1:
        return [(int(found[0]), table)]
    grouped = table.take(pa.array(order))
    bounds = [*begins.tolist(), table.num_rows]
    return [
        (int(slot), grouped.slice(begin, end - begin))
        for slot, begin, end in zip(found, bounds[:-1], bounds[1:], strict=True)
    ]


def slots_of(table: pa.Table, columns: Sequence[str], slots: int) -> npt.NDArray[np.int64]:
    """The slot of each record. Raises OperatorFailed."""
    mixed: _Hashes = np.zeros(table.num_rows, np.uint64)
    names = table.schema.names
    for name in columns:
        if names.count(name) != 1:
            hint = did_you_mean(name, names)
            raise OperatorFailed(f"the events are parted by key column {name!r}; the records have {names}.{hint}")
        mixed = _mix(mixed * np.uint64(31) + _hashes(name, table.column(name)))
    return (mixed % np.uint64(slots)).astype(np.int64)


def _hashes(name: str, column: pa.ChunkedArray) -> _Hashes:
    """Hashes of a column. Each distinct value is hashed once, because keys repeat."""
    plain, unit = _plain(name, column)
    encoded = plain.dictionary_encode(null_encoding="encode")
    values = [value if value is None or unit == 1 else value * unit for value in encoded.dictionary.to_pylist()]
    hashed: _Hashes = np.fromiter(map(_hash, values), np.uint64, len(values))
    hashes: _Hashes = np.take(hashed, encoded.indices.to_numpy(zero_copy_only=False))
    return hashes


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9


def _plain(name: str, column: pa.ChunkedArray) -> tuple[pa.Array, int]:
    """The values as text, bytes, numbers or booleans, and what a number of them is in nanoseconds if they are times.

    A key keeps its slot if its column changes to a wider type of the same kind, or a finer unit.
    """
    kind, unit = column.type, 1
    if pa.types.is_dictionary(kind):
        return _plain(name, column.cast(kind.value_type))
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        unit = _DAY if pa.types.is_date32(kind) else _NANOSECONDS["ms" if pa.types.is_date64(kind) else kind.unit]
        small = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        column = column.cast(pa.int32() if small else pa.int64())
    elif pa.types.is_decimal(kind):
        column = pc.cast(column, pa.string())
    elif pa.types.is_floating(kind):
        wide = column.cast(pa.float64())
        column = pc.if_else(pc.equal(wide, 0), pa.scalar(0.0), wide)  # -0.0 equals 0.0
    elif pa.types.is_null(kind):
        column = pc.cast(column, pa.string())
    elif pa.types.is_nested(kind) or pa.types.is_temporal(kind) or isinstance(kind, pa.BaseExtensionType):
        raise OperatorFailed(
            f"the events are parted by key column {name!r}, whose type {kind} is no key; use text or numbers"
        )
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type), unit


def _hash(value: Any) -> int:
    match value:
        case None:
            return 1
        case bytes():
            return zlib.crc32(value, 2)
        case str():
            return zlib.crc32(value.encode(), 3)
        case _:
            return zlib.crc32(repr(value).encode(), 4)


def _mix(hashes: _Hashes) -> _Hashes:
    """The finalizer of SplitMix64: neighbouring hashes do not end in neighbouring slots."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
