"""A source that cannot be replayed: an exchange whose quotes change at every look, and which notes every look.

Four read actions follow each other, the second finds nothing. Each read is one transaction on the exchange: quotes change,
the reader gets them, and the journal keeps what it got. `complete` is noted when the reader has taken the last batch.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import ConnectedSource, Count, Pipeline, SourceBatch, TableWriter
from airflow_logio.dataflow.sources import SourceConnection

EMPTY_PART = 1
PARTS = 4


class Exchange(ConnectedSource):
    replayable = False

    def __init__(self, connection: str, records_per_event: int) -> None:
        super().__init__(connection)
        self.records_per_event = records_per_event

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"part": 0}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        part = previous["part"] + 1
        return {"part": part} if part < PARTS else None

    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        assert offset == 0, "what cannot be replayed is always read from the beginning"
        with closing(sqlite3.connect(connection.url.removeprefix("sqlite:///"), timeout=60)) as database:
            read, rows = _look(database, action["part"], params["padding"])
            for start in range(0, len(rows), self.records_per_event):
                part = rows[start : start + self.records_per_event]
                columns = dict(zip(("part", "id", "read_id", "price", "padding"), zip(*part, strict=True), strict=True))
                yield SourceBatch(pa.table(columns), start + len(part))
            with database:
                database.execute("UPDATE look SET complete = 1 WHERE read_id = ?", (read,))


def _look(database: sqlite3.Connection, part: int, padding: int) -> tuple[int, list[tuple[Any, ...]]]:
    with database:
        database.execute("BEGIN IMMEDIATE")
        read = database.execute(
            "INSERT INTO look (part, complete) VALUES (?, 0) RETURNING read_id", (part,)
        ).fetchone()[0]
        database.execute("UPDATE quote SET price = price + 1")
        database.execute("INSERT INTO quote (price) VALUES (0)")
        quotes = database.execute("SELECT id, price FROM quote ORDER BY id").fetchall() if part != EMPTY_PART else []
        noise = random.Random(read)
        rows = [(part, key, read, price, noise.randbytes(padding // 2).hex()) for key, price in quotes]
        database.executemany("INSERT INTO seen VALUES (?, ?, ?, ?, ?)", rows)
    return read, rows


def open_exchange(path: Path, quotes: int) -> str:
    """The URL of a new exchange with so many quotes."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE quote (id INTEGER PRIMARY KEY, price INTEGER NOT NULL);"
            "CREATE TABLE look (read_id INTEGER PRIMARY KEY, part INTEGER NOT NULL, complete INTEGER NOT NULL);"
            "CREATE TABLE seen (part INTEGER, id INTEGER, read_id INTEGER, price INTEGER, padding TEXT);"
        )
        database.executemany("INSERT INTO quote (price) VALUES (?)", [(price,) for price in range(quotes)])
        database.commit()
    return f"sqlite:///{path}"


exchange = Pipeline("exchange", params={"padding": int}, connections=["exchange", "warehouse"])
feed = exchange.source("feed", Exchange("exchange", records_per_event=20))
save = exchange.writer(
    "save",
    TableWriter(
        "warehouse",
        "quotes",
        columns={"part": "bigint", "id": "bigint", "read_id": "bigint", "price": "bigint", "padding": "text"},
        primary_key=("part", "id"),
        on_new_run="replace",
    ),
    feed,
)
done = exchange.sink("done", Count(), save)

exchange.group("feed", feed)
exchange.group("save", save)
exchange.group("done", done)
