"""Writers and reads of an author's own: a ledger that can be asked, a journal with a marker, files, and a lookup.

A system is unavailable while a file named ``<its file>.away`` stands beside its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    CheckableWriter,
    ConditionalWriter,
    External,
    FunctionRead,
    InputEvent,
    Marker,
    ParquetSource,
    ParquetWriter,
    Pipeline,
    PortTable,
    StatelessOperator,
    WriteAction,
)
from airflow_logio.errors import ExternalUnavailable

RECORDS_PER_EVENT = 250


def check_there(path: str) -> None:
    if os.path.exists(f"{path}.away"):
        raise ConnectionError(f"{path} is unavailable")


@contextmanager
def opened(path: str, *statements: str) -> Iterator[sqlite3.Connection]:
    check_there(path)
    client = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        for statement in statements:
            client.execute(statement)
        yield client
    finally:
        client.close()


class Ledger(CheckableWriter[sqlite3.Connection]):
    """Takes everything, twice if it is sent twice; but every posting carries the key of its write action."""

    actions_at_once = 8

    @contextmanager
    def connect(self, url: str) -> Iterator[sqlite3.Connection]:
        self._path = url
        with opened(url, "CREATE TABLE IF NOT EXISTS postings (key TEXT, number INTEGER, quantity INTEGER)") as client:
            yield client

    def is_applied(self, client: sqlite3.Connection, action: WriteAction) -> bool:
        check_there(self._path)
        return client.execute("SELECT 1 FROM postings WHERE key = ? LIMIT 1", [action.key]).fetchone() is not None

    def write(self, client: sqlite3.Connection, action: WriteAction) -> None:
        check_there(self._path)
        quantity = pc.sum(action.records.column("quantity")).as_py()
        client.execute("INSERT INTO postings VALUES (?, ?, ?)", [action.key, action.number, quantity])


# [START journal]
class Journal(ConditionalWriter[sqlite3.Connection]):
    """Applies a group of actions and their marker in one transaction."""

    @contextmanager
    def connect(self, url: str) -> Iterator[sqlite3.Connection]:
        tables = (
            "CREATE TABLE IF NOT EXISTS markers (key TEXT PRIMARY KEY, number INTEGER, token INTEGER)",
            "CREATE TABLE IF NOT EXISTS entries (number INTEGER, quantity INTEGER)",
        )
        with opened(url, *tables) as client:
            yield client

    def apply(self, client: sqlite3.Connection, marker: Marker, actions: Sequence[WriteAction]) -> None:
        client.execute("BEGIN IMMEDIATE")
        try:
            row = client.execute("SELECT number, token FROM markers WHERE key = ?", [marker.key]).fetchone()
            for action in marker.unapplied(actions, *row or (0, 0)):
                quantity = pc.sum(action.records.column("quantity")).as_py()
                client.execute("INSERT INTO entries VALUES (?, ?)", [action.number, quantity])
            new = [marker.key, actions[-1].number, marker.token]
            client.execute("INSERT OR REPLACE INTO markers VALUES (?, ?, ?)", new)
            client.execute("COMMIT")
        except BaseException:
            client.execute("ROLLBACK")
            raise


# [END journal]


# [START lookup]
def regions(url: str, keys: pa.Array | None) -> pa.Table:
    """The regions of some stores, from a JSON file."""
    if os.path.exists(f"{url}.away"):
        raise ExternalUnavailable("the atlas is unreachable")
    assert keys is not None
    with open(url) as file:
        known = json.load(file)
    return pa.table({"store_id": keys, "region": [known[str(key)] for key in keys.to_pylist()]})


class Regions(StatelessOperator):
    """Adds the region of each store, looked up once per event."""

    def connections(self) -> tuple[str, ...]:
        return ("atlas",)

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        read = FunctionRead("atlas", regions, {"file": "regions"}, key="store_id")
        found = external.read(read, pc.unique(event.table.column("store_id")))
        yield "out", event.table.join(found, "store_id", use_threads=False)


# [END lookup]

pipeline = Pipeline("own_systems", params={"transactions": str}, connections=["ledger", "journal", "lake", "atlas"])
ingest = pipeline.source(
    "ingest",
    ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT, columns=("store_id", "quantity")),
)
ledger = pipeline.writer("ledger", Ledger("ledger"), ingest)
journal = pipeline.writer("journal", Journal("journal"), ingest)
looked_up = pipeline.operator("regions", Regions(), ingest)
lake = pipeline.writer("lake", ParquetWriter("lake", "sales"), looked_up)

pipeline.group("ingest", ingest)
pipeline.group("books", ledger, journal)
pipeline.group("lake", looked_up, lake)
pipeline.lineage("ingest.out", "regions.out")  # read actions outside a scope are collected as garbage
