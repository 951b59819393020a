"""Sources that take their time: none of them ends before the storm is over, or has ended for it.

The run's parameter `over` is a file. While it is not there, a source reads slowly, and keeps its last event back.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import ParquetSource, QuerySource, SourceBatch, SourceConnection
from airflow_logio.dataflow.operators import SourceOperator
from tests.support.storm.shape import COLUMNS, FIRST_IDS, KEYS, MODULUS, Chain

QUICK_SECONDS = 0.01
"""From event to event in the first third."""
SLOW_SECONDS = 9.0
"""From event to event behind it, divided by the number of those that are left: something is under way until the storm is
over, however long that takes."""
PAUSE_SECONDS = 0.1
"""After so long a source says that it is there, though it has nothing."""


def held_back(
    batches: Iterator[SourceBatch], params: Mapping[str, Any], offset: int, events: int, size: int
) -> Iterator[SourceBatch]:
    """The batches, one every now and then; `events` are all of the source, `size` the records of each."""
    over = Path(params["over"])
    for batch in batches:
        left = events - -(-batch.next_offset // size)
        until = time.monotonic() + (SLOW_SECONDS / left if left else math.inf)
        while left < events * 2 // 3 and time.monotonic() < until and not over.exists():
            yield SourceBatch(batch.table.slice(0, 0), offset)
            time.sleep(PAUSE_SECONDS)
        time.sleep(QUICK_SECONDS)
        offset = batch.next_offset
        yield batch


class HeldFile(ParquetSource):
    def __init__(self, chain: Chain) -> None:
        super().__init__(f"{{{chain.source}}}", records_per_event=chain.records_per_event)
        self.events = chain.events

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        batches = super().read(params, action, offset)
        return held_back(batches, params, offset, self.events, self.records_per_event)


class HeldTable(QuerySource):
    def __init__(self, chain: Chain) -> None:
        super().__init__(
            "warehouse",
            table=f"orders_{chain.source}",
            columns=COLUMNS,
            records_per_event=chain.records_per_event,
            replayable=True,
            order_by="id",
            append_only=True,
        )
        self.events = chain.events

    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        batches = super().read_from(connection, params, action, offset)
        return held_back(batches, params, offset, self.events, self.records_per_event)


class Polls(SourceOperator):
    """Each poll has another answer when it is asked again: all of its amounts are shifted by what one look says."""

    replayable = False

    def __init__(self, chain: Chain, seed: int) -> None:
        self.name = chain.source
        self.seed = seed
        self.events = chain.events
        self.size = chain.records_per_event
        self.gap = chain.gap
        self.at_once = chain.events_per_poll

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"first": 0}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        first = previous["first"] + self.at_once
        return {"first": first} if first < self.events else None

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        look, skipped = random.SystemRandom().randrange(MODULUS), action["first"] * self.size
        batches = self._batches(action["first"], look)
        for batch in held_back(batches, params, skipped, self.events, self.size):
            yield SourceBatch(batch.table, batch.next_offset - skipped)

    def _batches(self, first: int, look: int) -> Iterator[SourceBatch]:
        dice = random.Random(f"records {self.seed} {self.name}")
        every = [(dice.randrange(KEYS), dice.randrange(MODULUS)) for _ in range(self.events * self.size)]
        for number in range(first, min(first + self.at_once, self.events)):
            places = range(number * self.size, (number + 1) * self.size)
            columns = (
                [FIRST_IDS[self.name] + place for place in places],
                [every[place][0] for place in places],
                [(every[place][1] + look) % MODULUS for place in places],
                [place * self.gap for place in places],
            )
            arrays = (pa.array(one, pa.int64()) for one in columns)
            yield SourceBatch(pa.table(dict(zip(COLUMNS, arrays, strict=True))), (number + 1) * self.size)
