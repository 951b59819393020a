"""The effect of a read action that Spark executes: stored whole before its first event leaves (ADR-85)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import Port
from airflow_logio.spark.dataset_jobs import arrow_schema_of, check_columns, schema_of, written_files
from airflow_logio.spark.footer_order import check_order_column, in_proven_order
from airflow_logio.store.rules.payload_references import Reference
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import (
    EFFECT_SUFFIX,
    DataFile,
    FramePart,
    Manifest,
    StoredFrame,
    in_order,
    stored_frame_of,
)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event of a stored effect."""

    number: int
    """From 1."""
    dataset: Dataset
    is_named: bool
    """Whether it has a manifest of its own, so that a row of the log may name it."""
    first: int
    """Records of the effect before it."""
    next_offset: int

    @property
    def about(self) -> Mapping[str, Any]:
        """Which records of the effect it has."""
        return {"first": self.first, "last": self.next_offset - 1}


def store_frame(
    payloads: EpochPayloads,
    port: Port,
    action_id: int,
    frame: SparkFrame,
    *,
    ordered_by: str | None,
    bytes_per_event: int | None,
    named: bool,
) -> tuple[str, int]:
    """Step 2.a: the reference of the whole effect, durable, and the number of its records; one job of Spark.

    Without `bytes_per_event` all of it is one event. `named` gives each event a manifest of its own, for the rows that `port`
    has in the log. Raises what the job raises, `LogUnavailable`, and `OperatorFailed` for columns that cannot be written or
    ordered.
    """
    crash_here(CrashPoint.BEFORE_STORE)
    purpose = f"datasets/{port}/{action_id}"
    check_columns(frame)
    if ordered_by is not None:
        check_order_column(frame, ordered_by)
        frame = frame.sort(f"`{ordered_by}`")
    written = written_files(payloads, purpose, frame, most_bytes=bytes_per_event)
    files = in_order(written) if ordered_by is None else in_proven_order(payloads.root, written, ordered_by)
    putting = put_effect(
        payloads, port, action_id, files, schema_of(frame), arrow_schema_of(frame), bytes_per_event, named=named
    )
    try:
        while True:
            next(putting)
            crash_here(CrashPoint.IN_STORE)
    except StopIteration as ended:
        crash_here(CrashPoint.AFTER_STORE)
        found: tuple[str, int] = ended.value
        return found


def put_effect(
    payloads: EpochPayloads,
    port: Port,
    action_id: int,
    files: Sequence[DataFile],
    schema: str,
    arrow: str,
    bytes_per_event: int | None,
    *,
    named: bool,
) -> Generator[None, None, tuple[str, int]]:
    """Cut durable files into events, and write their manifests, then the stored effect; a step ends with each event.

    Returns as `store_frame`.
    """
    parts = []
    for number, cut in enumerate(_cut(files, bytes_per_event), start=1):
        where = f"event {number} of read action {action_id} on port {port}"
        purpose = f"datasets/{port}/{action_id}-{number}"
        own = str(payloads.put(where, purpose, Manifest(schema, arrow, cut)).reference) if named else ""
        parts.append(FramePart(cut, own))
        yield
    stored = StoredFrame(schema, arrow, tuple(parts))
    reference = payloads.store(f"effects/{port.operator}/{action_id}", stored.encoded(), suffix=EFFECT_SUFFIX)
    return str(reference), stored.records


def store_nothing(payloads: EpochPayloads, source: str, action_id: int) -> str:
    """The reference of the effect of a read action that has no records: no events."""
    return str(payloads.store(f"effects/{source}/{action_id}", StoredFrame("", "", ()).encoded(), suffix=EFFECT_SUFFIX))


def _cut(files: Sequence[DataFile], most_bytes: int | None) -> Iterator[tuple[DataFile, ...]]:
    """Files in sequence, of together at most so many bytes, or one; all of them where there is no bound."""
    taken: list[DataFile] = []
    size = 0
    for file in files:
        if taken and most_bytes is not None and size + file.size > most_bytes:
            yield tuple(taken)
            taken, size = [], 0
        taken.append(file)
        size += file.size
    if taken:
        yield tuple(taken)


def stored_events(payloads: EpochPayloads, where: str, ref: str, offset: int) -> Iterator[StoredEvent]:
    """Step 2.c: the events of a stored effect behind its first `offset` records.

    Raises `LogInconsistent`, naming `where`, if the effect is missing or damaged, `LogUnavailable`.
    """
    stored = stored_frame_of(where, payloads.load(where, ref))
    passed = 0
    for number, part in enumerate(stored.parts, start=1):
        first, passed = passed, passed + part.records
        if passed <= offset:
            continue
        if first < offset:
            raise LogInconsistent(f"no event of {where} ends at record {offset:,}, where the log says that one does")
        said = f"event {number} of {where}"
        manifest = Manifest(stored.schema, stored.arrow, part.files)
        reference = Reference.parse(said, part.manifest or ref)
        yield StoredEvent(number, Dataset(said, payloads.root, reference, manifest), bool(part.manifest), first, passed)
