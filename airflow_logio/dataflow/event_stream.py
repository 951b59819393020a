"""A stream of tables cut into events: order checked, times made uniform, sizes exact.

Nothing here depends on how the reader happens to cut its batches: the same rows give the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.errors import OperatorFailed, SourceNotOrdered


def regroup(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `size` rows, the last may be shorter; one chunk each, mostly zero-copy."""
    rest: pa.Table | None = None
    for table in tables:
        begin = 0
        if rest is not None:
            begin = min(size - rest.num_rows, table.num_rows)
            rest = pa.concat_tables([rest, table.slice(0, begin)])
            if rest.num_rows < size:
                continue
            yield rest.combine_chunks()
            rest = None
        full = begin + (table.num_rows - begin) // size * size
        for start in range(begin, full, size):
            yield table.slice(start, size)
        if full < table.num_rows:
            rest = table.slice(full)
    if rest is not None:
        yield rest.combine_chunks()


def uniform(table: pa.Table) -> pa.Table:
    """Timestamps as timestamp[us] in UTC without zone, dictionaries as their values; names and types alone.

    Metadata and "not null" of a file, or of a Spark plan, would make equal records look different.

    Raises OperatorFailed where a value does not fit into microseconds.
    """
    fields = [pa.field(f.name, _uniform_type(f.type)) for f in table.schema]
    try:
        return table.cast(pa.schema(fields))
    except pa.ArrowInvalid as error:
        times = [f.name for f in table.schema if pa.types.is_timestamp(f.type)]
        if not times:
            raise OperatorFailed(f"records cannot be brought into a uniform shape: {error}") from error
        raise OperatorFailed(
            f"a timestamp in column(s) {', '.join(times)} does not fit into microseconds ({error}); nothing is "
            "rounded in silence: rewrite the file with timestamp[us], or leave the column out (columns=...)"
        ) from error


def _uniform_type(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):  # each event would have a dictionary of its own, and no two could be summed up
        return _uniform_type(kind.value_type)
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


class OrderCheck:
    """Refuses rows out of the ascending order of a column; ties are allowed, nulls and NaN are not.

    `row` is the number, from 0, of the first row it will see. Remembers the last value, so that batches may be cut
    anywhere.
    """

    def __init__(self, file: str, column: str, row: int) -> None:
        self._file = file
        self._column = column
        self._row = row
        self._last: Any = None

    def see(self, table: pa.Table) -> None:
        """Check the next rows; raises SourceNotOrdered with the number of the row and both values."""
        values = table.column(self._column).combine_chunks()
        if not len(values):
            return
        self._refuse_nulls(values)
        if self._last is not None and pc.less(values[0], self._last).as_py():
            self._refuse(0, values[0], self._last)
        place = pc.index(pc.less(values[1:], values[:-1]), True).as_py()
        if place >= 0:
            self._refuse(place + 1, values[place + 1], values[place])
        self._last = values[-1]
        self._row += len(values)

    def _refuse_nulls(self, values: Any) -> None:
        place = pc.index(pc.is_null(values, nan_is_null=True), True).as_py()
        if place >= 0:
            raise SourceNotOrdered(
                f"{self._file}: row {self._row + place:,} (counted from 0) has no {self._column!r} "
                f"({values[place].as_py()}), so it has no place in the order; filter or fill such rows in the file"
            )

    def _refuse(self, place: int, value: Any, before: Any) -> None:
        raise SourceNotOrdered(
            f"{self._file}: row {self._row + place:,} (counted from 0) has {self._column} = {value.as_py()} after "
            f"{before.as_py()}; sort the file by {self._column!r}, or drop ordered_by if nothing relies on the order"
        )
