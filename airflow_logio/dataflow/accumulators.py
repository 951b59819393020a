"""Event states that stay small: incremental sums (the paper's OP2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.names import check_columns
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

_FEW_ROWS = 16_384
"""Below this many rows, summing up costs more than it saves."""


@dataclass(slots=True)
class PartialSums:
    """Tables of the same columns that are to be summed: `rows` in all, `settled` of them in tables that are already sums."""

    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True)
class Sums:
    """``@generate(accumulate=Sums(by=..., of=...))``: the function gets the sums of columns `of` per value of `by`.

    The event state holds at most about twice as many rows as there are groups: when the unsummed records outnumber the
    sums, they are merged, so that each record is summed a few times at most. The result has the columns `by` then `of`,
    ordered by `by`. Sum integers: sums of floating point numbers depend on the order of addition.
    """

    by: tuple[str, ...]
    of: tuple[str, ...]

    def __init__(self, by: Iterable[str], of: Iterable[str]) -> None:
        object.__setattr__(self, "by", check_columns(by))
        object.__setattr__(self, "of", check_columns(of))
        if not self.by or not self.of or set(self.by) & set(self.of):
            raise PipelineDefinitionError(f"Sums(by={self.by}, of={self.of}): name columns in both, and none in both")

    def __call__(self, held: PartialSums | None, part: pa.Table) -> PartialSums:
        """`held` with the records of `part` added; changes and returns it."""
        names = part.schema.names
        if wrong := [name for name in (*self.by, *self.of) if names.count(name) != 1]:
            raise OperatorFailed(f"the sums need column {wrong[0]!r}, once; the records have {names}")
        held = held or PartialSums()
        held.tables.append(part.select([*self.by, *self.of]))
        held.rows += part.num_rows
        if held.rows - held.settled > max(held.settled, _FEW_ROWS):
            self._settle(held)
        return held

    def finish(self, held: PartialSums) -> pa.Table:
        """One row per group, ordered by `by`."""
        self._settle(held)
        return held.tables[0].sort_by([(name, "ascending") for name in self.by])

    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""
        return {"sums": {"by": list(self.by), "of": list(self.of)}}

    def _settle(self, held: PartialSums) -> None:
        try:
            summed = self._summed(pa.concat_tables(held.tables))
        except pa.ArrowException as error:
            raise OperatorFailed(f"the sums of {list(self.of)} by {list(self.by)} cannot be made: {error}") from error
        held.tables = [summed]
        held.rows = held.settled = summed.num_rows

    def _summed(self, records: pa.Table) -> pa.Table:
        wide = self._wide(records)
        # One thread: with more, Arrow returns the groups in another order each time.
        groups = _cast(records, wide).group_by(list(self.by), use_threads=False)
        summed = groups.aggregate([(name, "sum") for name in self.of]).select(
            [*self.by, *(f"{n}_sum" for n in self.of)]
        )
        summed = summed.rename_columns([*self.by, *self.of])
        # An integer out of bounds is refused here.
        return _cast(summed, {name: _sum_type(records.schema.field(name).type) for name in wide})

    def _wide(self, records: pa.Table) -> dict[str, pa.DataType]:
        """Columns whose sums might not fit are summed as decimals: Arrow's sums of integers start again at the other end."""
        columns = {name: records.column(name) for name in self.of}
        return {name: _WIDE for name, column in columns.items() if _might_overflow(column)}


_WIDE = pa.decimal128(38, 0)


def _might_overflow(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_integer(column.type):
        return False
    low, high = pc.min_max(column).as_py().values()
    return low is not None and max(abs(low), abs(high)) * len(column) >= 2**63


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow makes of the sum of a column of integers."""
    return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()


def _cast(records: pa.Table, kinds: dict[str, pa.DataType]) -> pa.Table:
    for name, kind in kinds.items():
        place = records.schema.get_field_index(name)
        records = records.set_column(place, name, records.column(place).cast(kind))
    return records
