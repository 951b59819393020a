"""A day that is replaced as a whole, in an author's own database: write actions wait in the log for the closing one.

Events cannot be used while the file of parameter `fault` is there: they are set aside.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow import (
    ConditionalWriter,
    External,
    InputEvent,
    Marker,
    ParquetSource,
    Pipeline,
    PortTable,
    StatelessOperator,
    WriteAction,
)
from airflow_logio.protocol.writes import HeldGroup

RECORDS_PER_EVENT = 250


class Day(ConditionalWriter[sqlite3.Connection]):
    """The old day stays until all of the new one is there."""

    closes = True
    outputs = ()

    @contextmanager
    def connect(self, url: str) -> Iterator[sqlite3.Connection]:
        client = sqlite3.connect(url, isolation_level=None, timeout=30)
        try:
            client.execute("CREATE TABLE IF NOT EXISTS markers (key TEXT PRIMARY KEY, number INTEGER, token INTEGER)")
            client.execute("CREATE TABLE IF NOT EXISTS day (store_id INTEGER, quantity INTEGER)")
            yield client
        finally:
            client.close()

    def opening(self) -> dict[str, str]:
        return {"day": "2026-03-01"}

    def apply(self, client: sqlite3.Connection, marker: Marker, actions: Sequence[WriteAction]) -> None:
        """The opening action: it changes nothing but the marker."""
        with self._transaction(client, marker, actions[-1].number) as row:
            assert all(action.is_opening for action in marker.unapplied(actions, *row))

    def apply_held(
        self,
        client: sqlite3.Connection,
        marker: Marker,
        held: HeldGroup,
        closing: WriteAction,
        pages: Iterable[Sequence[WriteAction]],
    ) -> None:
        with self._transaction(client, marker, closing.number) as row:
            if not marker.applies(held, *row):
                return
            client.execute("DELETE FROM day")
            for page in pages:
                for action in page:
                    rows = [tuple(record.values()) for record in action.records.to_pylist()]
                    client.executemany("INSERT INTO day VALUES (?, ?)", rows)
            crash_here(CrashPoint.IN_WAREHOUSE_TRANSACTION)

    @contextmanager
    def _transaction(self, client: sqlite3.Connection, marker: Marker, number: int) -> Iterator[tuple[int, int]]:
        client.execute("BEGIN IMMEDIATE")
        try:
            row = client.execute("SELECT number, token FROM markers WHERE key = ?", [marker.key]).fetchone()
            yield row or (0, 0)
            client.execute("INSERT OR REPLACE INTO markers VALUES (?, ?, ?)", [marker.key, number, marker.token])
            client.execute("COMMIT")
        except BaseException:
            client.execute("ROLLBACK")
            raise


class Clean(StatelessOperator):
    """What raises is set aside."""

    on_error = "quarantine"

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        if event.event_id % 3 == 0 and os.path.exists(external.params["fault"]):
            raise ValueError("this event cannot be used today")
        yield "out", event.table


pipeline = Pipeline("held_day", params={"transactions": str, "fault": str}, connections=["warehouse"])
ingest = pipeline.source(
    "ingest",
    ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT, columns=("store_id", "quantity")),
)
clean = pipeline.operator("clean", Clean(), ingest)
day = pipeline.writer("day", Day("warehouse"), clean)

pipeline.group("reading", ingest, clean)
pipeline.group("replacing", day)
