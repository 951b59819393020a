"""Whether records of an event have given values: only the columns that the values name are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.errors import ConfigurationError, LineageUnknown
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.arrow import decode


@dataclass(frozen=True, slots=True)
class Stretch:
    """Times from `begin` on and before `end`, both in UTC and without a zone."""

    begin: datetime
    end: datetime

    def __str__(self) -> str:
        return f"{self.begin.isoformat(timespec='minutes')} to {self.end.isoformat(timespec='minutes')}"


Condition = str | Stretch
"""A value as text, or when it must be."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several conditions on one column."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions))


Sought = Mapping[str, Condition | AllOf]
"""Column → what a record must have in it."""


class Looked(NamedTuple):
    """A part of an event's records; one part at a time is in memory."""

    matching: int
    """Records with all the values."""
    size: int
    """Bytes that were read for it."""
    has_columns: bool


def looked_at(where: str, stored: StoredBody, values: Sought, load: Elsewhere | None) -> Iterator[Looked]:
    """The records of an event, part by part; `where` names it. `values`: column → the value as text, read as the type of the
    column.

    Raises `LineageUnknown` for a value that its type cannot have, and as `lineage_records.records`.
    """
    names = tuple(values)
    if stored.ref is None or stored.body:
        yield _looked(decode(where, stored.body, names), values, len(stored.body))
        return
    file = Reference.own(stored.ref)
    size = 0 if file is None else file.size  # a body is read as a whole; of a dataset, this is the manifest
    for piece in _elsewhere(where, load).pieces(where, stored.ref, names):
        yield _looked(piece, values, size + piece.nbytes)
        size = 0


def column_names(where: str, stored: StoredBody, load: Elsewhere | None) -> Sequence[str]:
    """The columns of an event's records, to say what there is instead of the one that was asked for."""
    if stored.ref is None or stored.body:
        names: Sequence[str] = decode(where, stored.body).column_names
        return names
    first: Sequence[str] = next(iter(_elsewhere(where, load).pieces(where, stored.ref))).column_names
    return first


def _elsewhere(where: str, load: Elsewhere | None) -> Elsewhere:
    if load is None:
        raise ConfigurationError(
            f"the records of {where} are in the payload store; name it where the log is configured"
        )
    return load


def _looked(table: pa.Table, values: Sought, size: int) -> Looked:
    if not set(values) <= set(table.column_names):
        return Looked(0, size, False)
    return Looked(int(pc.sum(holding(table, values)).as_py() or 0), size, True)


def holding(table: pa.Table, values: Sought) -> pa.ChunkedArray:
    """For each record, whether it has all the values; there is at least one. Raises `LineageUnknown` for a value that its
    type cannot have."""
    wanted = None
    for name, value in values.items():
        if table.column_names.count(name) > 1:
            raise LineageUnknown(f"the records have several columns {name!r}: it is not known which one is meant")
        column = table.column(name)
        for condition in value.conditions if isinstance(value, AllOf) else (value,):
            if isinstance(condition, Stretch):
                has = _within(column, condition, name)
            else:
                has = _equal(column, condition, name)
            has = pc.fill_null(has, False)
            wanted = has if wanted is None else pc.and_(wanted, has)
    return wanted


def _equal(column: pa.ChunkedArray, text: str, name: str) -> pa.ChunkedArray:
    wanted = _as(text, column.type, name)
    try:
        return pc.equal(column, wanted)
    except pa.ArrowException as error:
        raise LineageUnknown(
            f"{text!r} cannot be looked for in column {name!r} of type {column.type}: {error}"
        ) from error


def _within(column: pa.ChunkedArray, stretch: Stretch, name: str) -> pa.ChunkedArray:
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise LineageUnknown(f"column {name!r} has type {column.type}, which is no time")
    times = column.cast(pa.timestamp("us"), safe=False)
    begin, end = (pa.scalar(one, pa.timestamp("us")) for one in (stretch.begin, stretch.end))
    return pc.and_(pc.greater_equal(times, begin), pc.less(times, end))


def _as(text: str, kind: pa.DataType, name: str) -> pa.Scalar:
    try:
        return _in_utc(text, kind) if pa.types.is_timestamp(kind) and kind.tz else pa.scalar(text).cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise LineageUnknown(
            f"column {name!r} has type {kind}, in which no value can be looked for by its text"
        ) from error
    except pa.ArrowException as error:
        raise LineageUnknown(f"column {name!r} has type {kind}, and {text!r} is no value of it") from error


def _in_utc(text: str, kind: pa.TimestampType) -> pa.Scalar:
    """Times are UTC here unless they say otherwise, as everywhere."""
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:  # Arrow wants a zone in the text of a time with one
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(kind)
