"""Stored effects of read actions (Algorithm 1 Step 2): an Arrow IPC stream, one record batch per output event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SourceBatch
from airflow_logio.errors import LogInconsistent, OperatorFailed
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads.payload_store import EpochPayloads, PayloadFile

_ABOUT = b"about"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def store_effect(payloads: EpochPayloads, purpose: str, batches: Iterable[SourceBatch]) -> tuple[Reference, int]:
    """Step 2.a: the reference of the whole effect, durable, and the number of its records; holds one batch in memory.

    An error on the way discards what was stored. Raises what `batches` raises, `LogUnavailable`, and `OperatorFailed` for
    batches that are not of one schema.
    """
    crash_here(CrashPoint.BEFORE_STORE)
    with payloads.created(purpose) as file:
        records = _write(file, batches)
    crash_here(CrashPoint.AFTER_STORE)
    return file.reference, records


def _write(file: PayloadFile, batches: Iterable[SourceBatch]) -> int:
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    schema: pa.Schema | None = None
    records = 0
    for batch in batches:
        table = batch.table.replace_schema_metadata(None)
        if not table.num_rows:
            continue
        if writer is None:
            schema = table.schema
            writer = pa.ipc.new_stream(file, schema, options=_OPTIONS)
        elif table.schema != schema:
            raise OperatorFailed(
                f"the batch behind record {records:,} has the columns {_columns(table.schema)}, those before it had "
                f"{_columns(schema)}; a read action returns records of one schema"
            )
        writer.write_batch(_as_one(table), custom_metadata={_ABOUT: json.dumps(dict(batch.about))})
        records += table.num_rows
        crash_here(CrashPoint.IN_STORE)
    if writer is not None:
        writer.close()
    return records


def _as_one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) != 1:
        raise OperatorFailed(f"an event of {table.num_rows:,} records is too large for one batch; make smaller events")
    return batches[0]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class _Stored(SourceBatch):
    """Its values were looked at before it was stored. What an earlier version has stored becomes an event all the same, which
    a person can mend (`logio mend`); the effect cannot be read again."""

    __slots__ = ()

    def __post_init__(self) -> None: ...


def stored_batches(payloads: EpochPayloads, where: str, ref: str, offset: int) -> Iterator[SourceBatch]:
    """Step 2.c: the batches of a stored effect behind its first `offset` records.

    Raises `LogInconsistent`, naming `where`, if the effect is missing or damaged, `LogUnavailable`.
    """
    reference = Reference.parse(where, ref)
    with payloads.opened(where, ref) as file:
        if not reference.size:
            return
        passed = 0
        for batch, about in _batches(where, file):
            passed += batch.num_rows
            if passed > offset:
                if passed - batch.num_rows < offset:
                    raise LogInconsistent(
                        f"no batch of {where} ends at record {offset:,}, where the log says that one does"
                    )
                rows = {"first": passed - batch.num_rows, "last": passed - 1}
                yield _Stored(pa.Table.from_batches([batch]), passed, rows | about)


def _batches(where: str, file: Any) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    try:
        for batch, metadata in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
            yield batch, json.loads(metadata[_ABOUT])
    except (pa.ArrowInvalid, EOFError, KeyError, TypeError, ValueError) as error:
        raise LogInconsistent(f"{where} is no stored effect: {type(error).__name__}: {error}") from error
