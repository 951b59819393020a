"""Runs as rows, and what every part of the adapter is made of: its engines, and the runs that it has read."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from types import SimpleNamespace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.database_errors import is_no_text
from airflow_logio.errors import LogInconsistent, UnknownRun
from airflow_logio.protocol.effects import LATE
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import PortProgress, UnderWay
from airflow_logio.store.rules.described_runs import check_whole, described
from airflow_logio.store.sql import backends, schema
from airflow_logio.store.sql.bulk import bytes_of, text_of
from airflow_logio.store.sql.engines import LockTimeout, TransactionConflict, writing

log = logging.getLogger(__name__)

MOST_RUNS = 256
"""Runs that are kept: a process that reads a log for weeks meets many."""

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")

_ROWS_AT_ONCE = 500
_port = lru_cache(maxsize=20_000)(Port)
"""The same ports are read at each look."""


def known(states: type[S], stored: str, what: str) -> S:
    """A stored state as a value; raises `LogInconsistent` for one that this code does not know."""
    try:
        return states(stored)
    except ValueError:
        raise LogInconsistent(
            f"{what} is {stored!r} in the log, which this version of airflow_logio does not know"
        ) from None


def described_runs(connection: Connection, query: sa.Select[Any]) -> list[Run]:
    """The runs that a query of whole rows of `logio_run` finds, also those that are damaged (`Run.damage`)."""
    try:
        rows: Sequence[Any] = connection.execute(query).all()
    except (UnicodeDecodeError, sa.exc.OperationalError) as error:
        if not is_no_text(error):
            raise
        rows = _rows_of_bytes(connection, query)
    return [described(row) for row in rows]


def _rows_of_bytes(connection: Connection, query: sa.Select[Any]) -> list[SimpleNamespace]:
    """Where a text is no text any more, texts are read as bytes; those that are no text become lone surrogates."""
    texts = {column.name for column in schema.run.columns if isinstance(column.type, sa.String)}

    def chosen(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        return bytes_of(connection, column).label(column.name) if column.name in texts else column

    def read(name: str, value: Any) -> Any:
        return text_of(connection, value) if name in texts and value is not None else value

    rows = connection.execute(query.with_only_columns(*map(chosen, schema.run.columns))).mappings()
    return [SimpleNamespace(**{name: read(name, value) for name, value in row.items()}) for row in rows]


def described_run(connection: Connection, run_id: int) -> Run:
    """The run of that number, as it is now, also if it is damaged. Raises `UnknownRun`."""
    for run in described_runs(connection, sa.select(schema.run).where(schema.run.c.run_id == run_id)):
        return run
    raise UnknownRun(f"no run {run_id} is in the log")


def stored_run(connection: Connection, run_id: int) -> Run:
    """The run of that number, as it is now. Raises `UnknownRun`, `LogInconsistent` if it is damaged."""
    return check_whole(described_run(connection, run_id))


def counters(connection: Connection, run_ids: Collection[int]) -> dict[int, tuple[Sequence[PortProgress], UnderWay]]:
    """Run id → the counters of its ports, and what is under way, from one statement.

    What is under way is never below zero: what a driver of an earlier version has logged was not counted when it was.
    """
    table = schema.port_counter
    query = sa.select(table).where(table.c.run_id.in_(run_ids), table.c.direction != LATE)
    query = query.order_by(table.c.op, table.c.port, table.c.direction)
    ports: dict[int, list[PortProgress]] = {run_id: [] for run_id in run_ids}
    under_way = {run_id: UnderWay({}, {}) for run_id in run_ids}
    # Thousands of rows in a run with many slots: taken apart at once, in the order of the table's columns. None are kept,
    # nor made again: what stays of them for a while costs the garbage collector more than all of this.
    rows = chain.from_iterable(connection.execute(query).partitions(_ROWS_AT_ONCE))
    for run_id, op, name, direction, events, *counts in rows:
        port = _port(op, name)
        if direction not in (schema.OPEN, schema.PENDING):
            ports[run_id].append(PortProgress(port, direction, events, *counts))
        elif events > 0:
            found = under_way[run_id]
            (found.open if direction == schema.OPEN else found.pending)[port] = events
    return {run_id: (ports[run_id], under_way[run_id]) for run_id in run_ids}


class KeptRuns:
    """Run id → run, for those that were used last: a description never changes, and is read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, Run] = OrderedDict()

    def get(self, run_id: int) -> Run | None:
        return self.of([run_id]).get(run_id)

    def of(self, run_ids: Iterable[int]) -> dict[int, Run]:
        """Those of them that are kept."""
        found = {}
        with self._lock:
            for run_id in run_ids:
                if run_id in self._runs:
                    found[run_id] = self._runs[run_id]
                    self._runs.move_to_end(run_id)
        return found

    def keep(self, *runs: Run) -> None:
        """At least these stay until others are kept, however many they are."""
        with self._lock:
            for run in runs:
                self._runs[run.run_id] = run
                self._runs.move_to_end(run.run_id)
            while len(self._runs) > max(MOST_RUNS, len(runs)):
                self._runs.popitem(last=False)

    def drop(self, run_id: int) -> None:
        with self._lock:
            self._runs.pop(run_id, None)


class SqlPart:
    """What the parts of `SqlLogStore` share. On PostgreSQL, `engine` and `beats` are the same."""

    engine: Engine
    """The log."""
    beats: Engine
    """Where heartbeats go, and everything else that is not fenced."""
    _runs: KeptRuns

    def _run(self, connection: Connection, run_id: int) -> Run:
        """The run as it began. Raises `UnknownRun`, `LogInconsistent` if its row was damaged when it was read."""
        run = self._runs.get(run_id)
        if run is None:
            run = stored_run(connection, run_id)
            self._runs.keep(run)
        return run

    def _as_seen(self, connection: Connection, run_id: int) -> Run:
        """As `_run`, also if the row is damaged: for what ends a run."""
        return self._runs.get(run_id) or described_run(connection, run_id)

    def _past_stopped_driver(self, ref: GroupRef, attempt: Callable[[], T]) -> T:
        """A driver that holds the fence row's lock for longer than a transaction takes was stopped inside one."""
        try:
            return attempt()
        except LockTimeout:
            self.end_backends(ref.run_id, ref.group, ref.incarnation)
        except TransactionConflict as error:
            log.info("retrying: %s", error)
        return attempt()

    def end_backends(self, run_id: int, group: str, incarnation: int) -> int:
        """End the database sessions of a driver (none on SQLite) and return how many there were."""
        if self.engine.dialect.name != "postgresql":
            return 0
        with writing(self.engine) as connection:
            return backends.end_sessions(connection, run_id, group, incarnation)
