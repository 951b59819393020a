"""Mends bodies with values that their type cannot have (`logio mend`): earlier versions logged what they were given.

Such an event is whole, as its checksum says, and no receiver can use it. A person decides what becomes of these values: the
log gets a body with nulls, replaced letters, or fewer rows, and its header says who did that, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.arrow_tables import check_values, fault, first_fault
from airflow_logio.errors import ConfigurationError, ProtocolViolation
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import decode_header, encode_header
from airflow_logio.systems.arrow import decode_unchecked, encode
from airflow_logio.systems.payloads.bodies import is_dataset

Load = Callable[[str, str], bytes]
"""The bytes of a payload: what it is of, and its reference."""


class Remedy(StrEnum):
    """What becomes of a value that is none."""

    NULL = "null"
    """It becomes null."""
    REPLACE = "replace"
    """Bytes of text that are no letters become U+FFFD, the replacement character."""
    DROP = "drop"
    """Its row is left out."""


@dataclass(frozen=True)
class Broken:
    """A body with values that are none: column → the places of their rows, from 0."""

    where: str
    sender: Port
    event_id: int
    stored: StoredBody
    table: pa.Table
    rows: Mapping[str, Sequence[int]]


def broken(store: LogStore, run: Run, sender: Port, event_id: int, load: Load | None) -> Broken:
    """What there is to mend of an event, or of a write action (``operator.write:connection``).

    Raises `ConfigurationError` if nothing is, `LogInconsistent` if the bytes are not those that were logged.
    """
    where = f"event {event_id} of {sender}"
    with store.lineage(run) as log:
        found = dict(log.bodies(sender.operator, sender.name, [event_id])).get(event_id)
    if found is None:
        raise ConfigurationError(f"run {run.spec.key} has no {where} in the log")
    header = decode_header(where, found.header, found.body, found.ref)
    if header.kind is not Kind.DATA or header.made_of is not None or is_dataset(where, found.ref, found.body):
        raise ConfigurationError(
            f"{where} has no body that could be mended: it is an end, is made again by a replay operator, or is a dataset, "
            "whose records are in files"
        )
    body = found.body
    if found.ref is not None and not body:
        if load is None:
            raise ConfigurationError(
                f"the body of {where} is in the payload store; name it where the log is configured"
            )
        body = load(where, found.ref)
    table = decode_unchecked(where, body)
    rows = {
        name: places
        for name, column in zip(table.column_names, table.columns, strict=True)
        if (places := [before + place for before, chunk in _chunks(column) for place in _places(chunk)])
    }
    if not rows:
        raise ConfigurationError(f"nothing is wrong with the values of {where}")
    return Broken(where, sender, event_id, found, table, rows)


def mend(store: LogStore, run: Run, found: Broken, remedy: Remedy, by: str) -> str:
    """Put the mended body into the log, in the one transaction of `UpkeepLog.replace_body`; returns what was done.

    Raises `ProtocolViolation` if the event has changed meanwhile, or the remedy does not fit.
    """
    table = _without_rows(found) if remedy is Remedy.DROP else _with_values(found, remedy)
    check_values(table, f"the mended body of {found.where} has")
    before = decode_header(found.where, found.stored.header, found.stored.body, found.stored.ref)
    done = f"{said_of(found)}: {_DONE[remedy]} ({datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}, {by})"
    body = encode(table)
    header = encode_header(Kind.DATA, table.num_rows, body, before.about, code=before.code, mended=done)
    store.replace_body(run.run_id, found.sender, found.event_id, found.stored, header, body)
    return done


_DONE = {
    Remedy.NULL: "the values are null",
    Remedy.REPLACE: "their letters are replaced",
    Remedy.DROP: "the rows are left out",
}


def said_of(found: Broken) -> str:
    """Columns and rows, the first of each."""
    parts = []
    for name, rows in found.rows.items():
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        parts.append(f"column {name!r}, row {rows[0]:,}{more}")
    return "; ".join(parts)


def _chunks(column: pa.ChunkedArray) -> Sequence[tuple[int, pa.Array]]:
    """Each piece of a column, with the number of rows before it."""
    before = np.cumsum([0, *map(len, column.chunks)]).tolist()
    return list(zip(before, column.chunks, strict=False))


def _places(array: pa.Array) -> list[int]:
    """Where an array has values that are none."""
    if pa.types.is_dictionary(array.type):
        bad, many = set(_places(array.dictionary)), len(array.dictionary)
        numbers = array.indices.to_pylist()
        return [at for at, n in enumerate(numbers) if n is not None and (n in bad or not 0 <= n < many)]
    places, begin = [], 0
    while begin < len(array) and fault(rest := array.slice(begin)) is not None:
        places.append(begin + first_fault(rest))
        begin = places[-1] + 1
    return places


def _without_rows(found: Broken) -> pa.Table:
    whole = np.ones(found.table.num_rows, dtype=bool)
    whole[[place for rows in found.rows.values() for place in rows]] = False
    stretches = _stretches(whole)
    columns = [
        pa.concat_arrays([_plain(found, name, Remedy.NULL).slice(begin, end - begin) for begin, end in stretches])
        if stretches
        else pa.array([], found.table.schema.field(name).type)
        for name in found.table.column_names
    ]
    return pa.Table.from_arrays(columns, schema=found.table.schema)


def _with_values(found: Broken, remedy: Remedy) -> pa.Table:
    columns = [_plain(found, name, remedy) for name in found.table.column_names]
    fields = [field.with_nullable(True) for field in found.table.schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _plain(found: Broken, name: str, remedy: Remedy) -> pa.Array:
    """A column in one piece, its values that are none mended."""
    column = found.table.column(name)
    pieces = [_mended(chunk, remedy, name) for chunk in column.chunks]
    return pa.concat_arrays(pieces) if pieces else pa.array([], column.type)


def _mended(array: pa.Array, remedy: Remedy, name: str) -> pa.Array:
    places = _places(array)
    if not places and not pa.types.is_dictionary(array.type):
        return array
    if pa.types.is_dictionary(array.type):
        numbers: list[Any] = array.indices.to_pylist()
        many = len(array.dictionary)
        known = [n if n is not None and 0 <= n < many else None for n in numbers]
        words = _mended(array.dictionary, remedy, name)
        return pa.DictionaryArray.from_arrays(pa.array(known, array.indices.type), words)
    pieces, begin = [], 0
    for place in places:
        pieces += [array.slice(begin, place - begin), _instead(array.slice(place, 1), remedy, name)]
        begin = place + 1
    pieces.append(array.slice(begin))
    return pa.concat_arrays([piece for piece in pieces if len(piece)])


def _instead(value: pa.Array, remedy: Remedy, name: str) -> pa.Array:
    if remedy is not Remedy.REPLACE:
        return pa.nulls(1, value.type)
    if not (pa.types.is_string(value.type) or pa.types.is_large_string(value.type)) or "UTF8" not in str(fault(value)):
        raise ProtocolViolation(
            f"column {name!r} is {value.type}: only letters of text are replaced; nothing was changed"
        )
    raw: bytes = pc.cast(value, pa.large_binary())[0].as_py()
    return pa.array([raw.decode(errors="replace")], value.type)


def _stretches(whole: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Begin and end of each stretch of rows that stay."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], whole.astype(np.int8), [0]))))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
