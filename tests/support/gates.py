"""A payload store that holds up who reads it, until a test lets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.payloads import Payloads
from tests.support.stored_bodies import store_body

PATIENCE_SECONDS = 60.0


class Gate:
    """The records of `payloads`, once the gate is open."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._open = threading.Event()
        self._waiting = threading.Semaphore(0)
        self.read: list[str] = []
        """What was asked for, in order."""

    @classmethod
    def before(cls, store: LogStore, run: Run, port: str, events: Mapping[int, pa.Table], payloads: Payloads) -> Gate:
        """The records of these events are taken out of the log, into `payloads`."""
        assert isinstance(store, SqlLogStore)
        for event, table in events.items():
            store_body(store, run, port, event, table, payloads)
        return cls(payloads)

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def await_reader(self) -> None:
        """One more stands before the gate."""
        assert self._waiting.acquire(timeout=PATIENCE_SECONDS)

    def table(self, where: str, ref: str) -> pa.Table:
        self._pass(where)
        return self._payloads.table(where, ref)

    def pieces(self, where: str, ref: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        self._pass(where)
        yield from self._payloads.pieces(where, ref, columns)

    def _pass(self, where: str) -> None:
        self.read.append(where)
        self._waiting.release()
        assert self._open.wait(PATIENCE_SECONDS), "the test has not opened the gate"
