"""Whether `StatefulOperator.part` returns what `assign` has returned (Algorithm 9 Step 2.b): looked at now and then.

Where it does not, an event state that is rebuilt is another one than the state that was lost, and a record may count
twice, or not at all. Recovery would be too late to notice: what `assign` returned is not in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time, timedelta
from numbers import Number
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

PLAIN = (str, bytes, bytearray, date, time, timedelta, UUID, type(None))
"""Besides numbers: what is equal if ``==`` says so. Other objects may hold what is never equal to itself."""


def is_due(events: int) -> bool:
    """Whether to look at the event of this number, counted from 1 in each epoch: at the first, and ever more rarely."""
    return events > 0 and events & (events - 1) == 0


def may_be_equal(one: Any, other: Any) -> bool:
    """False only for what is certainly different: what cannot be compared may be equal. NaN equals NaN."""
    if isinstance(one, Number) and isinstance(other, Number):
        return _values(one, other)
    if type(one) is not type(other):
        return False
    match one:
        case pa.Table():
            return _tables(one, other)
        case tuple() | list():
            return len(one) == len(other) and all(map(may_be_equal, one, other))
        case Mapping():
            return one.keys() == other.keys() and all(may_be_equal(one[key], other[key]) for key in one)
    return not isinstance(one, PLAIN) or _values(one, other)


def _values(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124  # that is what NaN is
    except Exception:  # arrays and frames have no truth
        return True


def _tables(one: pa.Table, other: pa.Table) -> bool:
    if one.num_rows != other.num_rows or one.schema.names != other.schema.names:
        return False
    if one.equals(other):
        return True
    return all(map(_columns, one.columns, other.columns))


def _columns(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if one.type != other.type:
        return False
    if one.equals(other) or not pa.types.is_floating(one.type):
        holds_others = pa.types.is_nested(one.type) or pa.types.is_dictionary(one.type)  # perhaps NaN
        return bool(one.equals(other)) or holds_others
    return bool(_without_nan(one).equals(_without_nan(other)) and pc.is_nan(one).equals(pc.is_nan(other)))


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_nan(column), pa.scalar(0, column.type), column)
