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
    """The type in which values of several columns are compared."""

    kind: pa.DataType
    is_exact: bool
    """Values that differ stay different."""


def comparable(kinds: Sequence[pa.DataType]) -> ComparedAs | None:
    """How columns of these types are compared; None if they cannot be.

    Where `double` has become `float` on the way, both are compared as `float`: equal values are found, and perhaps more. So
    with all floating point numbers: the log does not say whether an operator tells 0.0 from -0.0, or nan from null. Times of
    different units or zones are not compared, for a similar reason.
    """
    every = {_plain(kind) for kind in kinds}
    if all(map(pa.types.is_floating, every)):
        return _floating(every)
    if all(map(_is_text, every)):
        return ComparedAs(pa.large_string(), is_exact=True)
    if all(map(_is_binary, every)):
        return ComparedAs(pa.large_binary(), is_exact=True)
    if len(every) > 1:
        is_small = all(map(pa.types.is_integer, every)) and pa.uint64() not in every
        return ComparedAs(pa.int64(), is_exact=True) if is_small else None
    (kind,) = every
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        kind = pa.decimal128(kind.precision, kind.scale)
    return ComparedAs(kind, is_exact=True) if _has_equality(kind) else None


def _has_equality(kind: pa.DataType) -> bool:
    """Whether Arrow can say which values of the type are equal."""
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or pa.types.is_run_end_encoded(kind):
        return False
    try:
        pc.index_in(pa.nulls(1, kind), pc.unique(pa.nulls(1, kind)))
    except pa.ArrowException:
        return False
    return True


def _floating(kinds: set[pa.DataType]) -> ComparedAs | None:
    if pa.float16() in kinds:  # Arrow computes nothing with it, and the others are not made narrower to it
        return ComparedAs(pa.float32(), is_exact=False) if len(kinds) == 1 else None
    return ComparedAs(pa.float32() if pa.float32() in kinds else pa.float64(), is_exact=False)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


class Side(NamedTuple):
    """A table among those that are compared."""

    columns: Mapping[str, pa.ChunkedArray]
    """One for each name that is compared; in each table it may have another name."""
    many: int
    """Records."""


def numbered(kinds: Mapping[str, pa.DataType], sides: Sequence[Side]) -> list[Places]:
    """The number of each record's combination of values, the same in all tables. Nulls are equal, as in a grouping; so are
    nan and null, and 0.0 and -0.0.

    `kinds`: the compared names, each as what type. Without any, all records have one combination.
    """
    many = [side.many for side in sides]
    if not kinds or not sum(many):
        return [np.zeros(one, dtype=np.int64) for one in many]
    codes = [_codes([side.columns[name] for side in sides if side.many], kind) for name, kind in kinds.items()]
    if len(codes) == 1:  # numbered as they are, which takes a tenth of the time
        (found,) = codes
    else:
        _, found = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    return np.split(found.reshape(-1).astype(np.int64), np.cumsum(many)[:-1])


def _codes(columns: Sequence[pa.ChunkedArray], kind: pa.DataType) -> Places:
    """The place of each value among the different ones, over all columns."""
    plain = pa.chunked_array([chunk for one in columns for chunk in _cast(one, kind).chunks], kind)
    if pa.types.is_floating(kind):
        plain = pc.add(pc.if_else(pc.is_nan(plain), pa.scalar(None, kind), plain), pa.scalar(0.0, kind))
    codes: Places = pc.index_in(plain, pc.unique(plain)).to_numpy().astype(np.int64)
    return codes


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column.cast(_plain(column.type)).cast(kind, safe=False)


def counts(numbers: Sequence[Places]) -> dict[int, int]:
    """Number of a combination → how many records have it."""
    if not numbers:
        return {}
    values, many = np.unique(np.concatenate(numbers), return_counts=True)
    return dict(zip(values.tolist(), many.tolist(), strict=True))
