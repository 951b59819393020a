"""A payload store in a bucket, by a way on which requests fail, and are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_logio.systems.payloads import EpochPayloads, Payloads
from tests.support.faulty_store import FaultyStore, faulty_store
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore


@dataclass
class FaultyPayloads:
    """A payload store by a way with faults."""

    way: FaultyStore
    root: str

    def epoch(self) -> EpochPayloads:
        return Payloads(self.root).epoch("run", "g", 1, 0)

    def cost(self) -> Counter[str]:
        """Requests since it was asked last."""
        found = self.way.counted()
        self.way.forget()
        return found


@contextmanager
def faulty_payloads(objects: ObjectStore) -> Iterator[FaultyPayloads]:
    with reached(objects), faulty_store(objects.port) as way:
        bucket = objects.new_bucket()
        yield FaultyPayloads(
            way, f"s3://{bucket}/lake?scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1"
        )
