"""Where results go beside the warehouse: external systems of an author's own, and how a test reads what is in them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio.dataflow import IdempotentWriter, InputEvent, ParquetWriter, WriteAction
from airflow_logio.dataflow.operators import WriterOperator
from tests.support.bundle.own_systems import Journal, Ledger, check_there, opened
from tests.support.storm.shape import Outlet

Answer = list[tuple[int, Any]]
"""(number of the event, what the outlet holds of it), in the order of the outlet."""


class AmountLedger(Ledger):
    def records(self, event: InputEvent) -> pa.Table:
        return _quantities(event)


class AmountJournal(Journal):
    def records(self, event: InputEvent) -> pa.Table:
        return _quantities(event)


class Shelf(IdempotentWriter[sqlite3.Connection]):
    """One place per event: what is put there again replaces itself."""

    @contextmanager
    def connect(self, url: str) -> Iterator[sqlite3.Connection]:
        self._path = url
        with opened(url, "CREATE TABLE IF NOT EXISTS shelf (number INTEGER PRIMARY KEY, quantity INTEGER)") as client:
            yield client

    def write(self, client: sqlite3.Connection, action: WriteAction) -> None:
        check_there(self._path)
        quantity = pc.sum(action.records["amount"]).as_py()
        client.execute("INSERT OR REPLACE INTO shelf VALUES (?, ?)", [action.number, quantity])


def _quantities(event: InputEvent) -> pa.Table:
    return pa.table({"quantity": event.table["amount"]})


def writer_to(outlet: Outlet) -> WriterOperator:
    match outlet:
        case Outlet.FILES:
            return ParquetWriter("outlet", "results")
        case Outlet.LEDGER:
            return AmountLedger("outlet")
        case Outlet.JOURNAL:
            return AmountJournal("outlet")
        case Outlet.SHELF:
            return Shelf("outlet")


def make(outlet: Outlet, place: Path) -> None:
    """What must be there before a run."""
    if outlet is Outlet.FILES:
        place.mkdir()


def answer(outlet: Outlet, place: Path) -> Answer:
    """All that is there; sums of amounts, but of files the records."""
    if outlet is Outlet.FILES:
        files = sorted(place.rglob("*.parquet"))
        return [(int(re.sub(r"\D", "", file.stem)), _records(file)) for file in files]
    table = {Outlet.LEDGER: "postings", Outlet.JOURNAL: "entries", Outlet.SHELF: "shelf"}[outlet]
    with contextlib.closing(sqlite3.connect(place)) as client:
        return client.execute(f"SELECT number, quantity FROM {table} ORDER BY rowid").fetchall()


def _records(file: Path) -> tuple[tuple[int, ...], ...]:
    return tuple(zip(*(column.to_pylist() for column in pq.read_table(file).columns), strict=True))
