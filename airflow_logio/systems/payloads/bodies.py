"""Bodies of events and actions: in the log up to a size, in the payload store beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.arrow import decode
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import is_manifest
from airflow_logio.systems.payloads.payload_store import INLINE_BYTES, EpochPayloads


class Bodies:
    """`payloads` is None where the deployment has no payload store: then every body is in the log."""

    def __init__(self, payloads: EpochPayloads | None, inline_bytes: int = INLINE_BYTES) -> None:
        self._payloads = payloads
        self._inline_bytes = inline_bytes

    def outside(self, purpose: str, body: bytes) -> str | None:
        """Write a large body into the payload store, durable when this returns; None if its place is in the log."""
        if self._payloads is None or len(body) <= self._inline_bytes:
            return None
        crash_here(CrashPoint.BEFORE_BODY)
        reference = self._payloads.store(purpose, body)
        crash_here(CrashPoint.AFTER_BODY)
        return str(reference)

    def unpacked(self, event: Event) -> Event:
        """The event with its records: an Arrow table, or a `Dataset`. Raises `LogInconsistent` if its body is damaged or
        missing."""
        if event.kind is not Kind.DATA:
            return event
        where = f"event {event.event_id} of {event.sender}"
        if self._payloads is not None and is_dataset(where, event.ref, event.body):
            return replace(event, payload=self._payloads.dataset(where, str(event.ref)))
        return replace(event, payload=decode(where, self._body(where, event.body, event.ref)))

    def loaded(self, write: PendingWrite) -> PendingWrite:
        """The write action with its body. One of a dataset stays as it is: its writer reads the manifest."""
        where = f"write action {write.number} of {write.operator} on {write.connection}"
        if write.ref is None or write.body or is_dataset(where, write.ref, write.body):
            return write
        return replace(write, body=self._body(where, write.body, write.ref))

    def dataset(self, where: str, ref: str) -> Dataset:
        """The dataset of a write action. Raises as `Payloads.dataset`."""
        if self._payloads is None:
            raise ConfigurationError(_no_store(where, ref))
        return self._payloads.dataset(where, ref)

    def own(self, where: str, purpose: str, dataset: Dataset) -> Dataset:
        """As `EpochPayloads.own`."""
        if self._payloads is None:
            raise ConfigurationError(_no_store(where, str(dataset.reference)))
        return self._payloads.own(where, purpose, dataset)

    def remove(self, refs: Iterable[str]) -> None:
        """Remove the bodies that garbage collection has taken out of the log."""
        if self._payloads is not None:
            crash_here(CrashPoint.BEFORE_REMOVAL)
            self._payloads.remove(refs)
            crash_here(CrashPoint.AFTER_REMOVAL)

    def _body(self, where: str, body: bytes | None, ref: str | None) -> bytes:
        if ref is None or body:
            return body or b""
        if self._payloads is None:
            raise ConfigurationError(_no_store(where, ref))
        return self._payloads.load(where, ref)


def _no_store(where: str, ref: str) -> str:
    return (
        f"the body of {where} is in a payload store ({Reference.parse(where, ref).path}), and this deployment names none: it "
        "was removed from the connection of the log"
    )


def is_dataset(where: str, ref: str | None, body: bytes | None) -> bool:
    """Whether the body of `where` is a dataset."""
    return ref is not None and not body and is_manifest(Reference.parse(where, ref).path)


def dataset_of(payload: Any) -> Dataset | None:
    """The dataset of an event's payload; None if it is a table."""
    found = payload if isinstance(payload, Dataset) else getattr(payload, "dataset", None)
    return found if isinstance(found, Dataset) else None


def table_of(payload: Any) -> pa.Table:
    """The payload of an event as a table: as it is, or of its dataset. Raises as `Dataset.table`."""
    return getattr(payload, "table", payload)


def size_of(event: Event) -> int:
    """Bytes of an event's body, wherever it is."""
    if event.made_of is not None:
        return event.made_of.size
    if event.ref is not None and not event.body:
        return Reference.parse(f"event {event.event_id} of {event.sender}", event.ref).size
    return len(event.body or b"")
