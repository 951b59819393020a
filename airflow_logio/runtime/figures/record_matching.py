"""Which records of tables have the values of others: attribute dependencies applied to whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Places = npt.NDArray[np.int64]
"""Places of records in a table, from 0, ascending."""


class ComparedAs(NamedTuple):
    """As what type values of several columns are compared."""

    kind: pa.DataType
    is_exact: bool
    """Values that differ stay different."""


def comparable(kinds: Sequence[pa.DataType]) -> ComparedAs | None:
    """How columns of these types are compared; None if they cannot be.

    Where `double` has become `float` on the way, both are compared as `float`: equal values are found, and perhaps more. So
    with all floating point numbers: whether an operator tells 0.0 from -0.0, nobody knows here. Times of different units or
    zones are not compared, for the like reason.
    """
    every = {_plain(kind) for kind in kinds}
    if all(map(pa.types.is_floating, every)):
        return ComparedAs(pa.float64() if every == {pa.float64()} else pa.float32(), is_exact=False)
    if all(map(_is_text, every)):
        return ComparedAs(pa.large_string(), is_exact=True)
    if all(map(_is_binary, every)):
        return ComparedAs(pa.large_binary(), is_exact=True)
    if len(every) > 1:
        is_small = all(map(pa.types.is_integer, every)) and pa.uint64() not in every
        return ComparedAs(pa.int64(), is_exact=True) if is_small else None
    (kind,) = every
    is_plain = not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType)
    return ComparedAs(kind, is_exact=True) if is_plain and not pa.types.is_run_end_encoded(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


class Values:
    """Combinations of values, each with a number that is the same in all tables. Nulls are equal, as in a grouping; so are
    nan and nan, and 0.0 and -0.0.

    `kinds`: the compared columns, each as what type. Without any, all records have one combination.
    """

    def __init__(self, kinds: Mapping[str, pa.DataType]) -> None:
        self._kinds = kinds
        self._known: dict[str, pa.Array] = {name: pa.array([], kind) for name, kind in kinds.items()}
        self._numbers: dict[bytes, int] = {}

    def numbers(self, columns: Mapping[str, pa.ChunkedArray], many: int) -> Places:
        """The number of the combination of each of `many` records; `columns` has one for each name."""
        if not self._kinds or not many:
            return np.zeros(many, dtype=np.int64)
        codes = np.stack([self._codes(name, columns[name]) for name in self._kinds], axis=1)
        rows, inverse = np.unique(codes, axis=0, return_inverse=True)
        numbers = [self._numbers.setdefault(row.tobytes(), len(self._numbers)) for row in rows]
        found: Places = np.asarray(numbers, dtype=np.int64)[inverse.reshape(-1)]
        return found

    def _codes(self, name: str, column: pa.ChunkedArray) -> Places:
        """For each value, its place among those that were met."""
        kind = self._kinds[name]
        plain = column.cast(_plain(column.type)).cast(kind, safe=False)
        if pa.types.is_floating(kind):
            plain = pc.add(plain, pa.scalar(0.0, kind))
        found = pc.unique(plain)
        new = found.filter(pc.invert(pc.is_in(found, self._known[name])))
        self._known[name] = pa.concat_arrays([self._known[name], new])
        codes: Places = pc.index_in(plain, self._known[name]).to_numpy().astype(np.int64)
        return codes


def counts(numbers: Sequence[Places]) -> dict[int, int]:
    """Number of a combination → how many records have it."""
    if not numbers:
        return {}
    values, many = np.unique(np.concatenate(numbers), return_counts=True)
    return dict(zip(values.tolist(), many.tolist(), strict=True))
