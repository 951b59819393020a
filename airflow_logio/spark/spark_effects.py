"""The effect of a read action that Spark executes: stored whole before its first event leaves (ADR-85)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import LogInconsistent, OperatorFailed
from airflow_logio.protocol.values import Port
from airflow_logio.spark.dataset_jobs import written_files
from airflow_logio.spark.schemas import arrow_schema_of, check_columns, schema_of
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.data_files import DataFiles
from airflow_logio.systems.payloads.dataset import Dataset, metadata_of
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
    files = in_order(written) if ordered_by is None else in_proven_order(payloads.files, written, ordered_by)
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


# --- the order of files, as their footers say -------------------------------------------------------------------------

ORDERED_TYPES = ("timestamp", "timestamp_ntz", "date", "long", "integer", "short", "byte")
"""Types of columns, as Spark names them, that footers have as whole numbers: they are compared as these."""
_PHYSICAL = ("INT32", "INT64")
Bounds = tuple[int, int]
"""The least and the largest value."""


def check_order_column(frame: SparkFrame, column: str) -> None:
    """Raises `OperatorFailed` if a DataFrame cannot be ordered by a column, as far as its schema says."""
    types = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    if column not in types:
        raise OperatorFailed(
            f"ordered_by names {column!r}; the DataFrame has the columns {', '.join(types)}.{did_you_mean(column, types)}"
        )
    if types[column] not in ORDERED_TYPES:
        raise OperatorFailed(
            f"ordered_by names {column!r}, which is {types[column]}: make it a timestamp, a date or a whole number"
        )


def in_proven_order(store: DataFiles, files: Sequence[DataFile], column: str) -> list[DataFile]:
    """The files in the order of `column`. Raises `OperatorFailed` for nulls, and if files overlap in more than a bound.

    If there is an order in which no file begins before the one before it ends, it is that of their bounds.
    """
    bounds = store.each(lambda file: _bounds(store.location(file.path), column), files)
    found = sorted((span, file.path, file) for span, file in zip(bounds, files, strict=True))
    _check_follow([bounds for bounds, _, _ in found], column, "files")
    return [file for _, _, file in found]


def _bounds(path: str, column: str) -> Bounds:
    """The bounds of one file, whose row groups are in order."""
    metadata = metadata_of(path, "a stored DataFrame")
    (place,) = (number for number in range(metadata.num_columns) if metadata.schema.column(number).path == column)
    groups = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
    if nulls := sum(group.null_count for group in groups if group is not None and group.has_null_count):
        raise OperatorFailed(
            f"column {column!r}, by which the source is ordered, is null in {nulls:,} records of one file alone: fill it, or "
            f'leave these records out, as in .where("{column} IS NOT NULL")'
        )
    bounds = [_bounds_of(group, column) for group in groups]
    _check_follow(bounds, column, "parts of a file")
    return bounds[0][0], bounds[-1][1]


def _bounds_of(statistics: Any, column: str) -> Bounds:
    known = statistics is not None and statistics.has_null_count and statistics.has_min_max
    if not known or statistics.physical_type not in _PHYSICAL:
        raise OperatorFailed(
            f"a file does not say between which values its column {column!r} is, so that its order cannot be proved"
        )
    return statistics.min_raw, statistics.max_raw


def _check_follow(bounds: Sequence[Bounds], column: str, what: str) -> None:
    for (_, last), (first, _) in pairwise(bounds):
        if first < last:
            raise OperatorFailed(
                f"{what} are not in the order of column {column!r}, by which Spark was to sort: one ends at {last}, the next "
                f"begins at {first}. The read is repeated; if this comes again, leave out ordered_by, and sort in `read`"
            )
