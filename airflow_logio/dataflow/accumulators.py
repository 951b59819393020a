"""Event states that stay small: incremental sums (the paper's OP2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.names import check_columns
from airflow_logio.errors import PipelineDefinitionError

_FEW_ROWS = 16_384
"""Below this many rows, summing up costs more than it saves."""


@dataclass(slots=True)
class PartialSums:
    """Tables with the same columns whose sum is wanted; `rows` in all, `settled` of them in already summed tables."""

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
        # One thread: with more, Arrow returns the groups in another order each time.
        groups = pa.concat_tables(held.tables).group_by(list(self.by), use_threads=False)
        summed = groups.aggregate([(name, "sum") for name in self.of]).select(
            [*self.by, *(f"{n}_sum" for n in self.of)]
        )
        held.tables = [summed.rename_columns([*self.by, *self.of])]
        held.rows = held.settled = summed.num_rows
