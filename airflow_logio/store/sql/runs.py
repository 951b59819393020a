"""Runs as rows, and what every part of the adapter is made of: its engines, and the runs that it has read."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import LogInconsistent, UnknownRun
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.status_records import PortProgress, UnderWay
from airflow_logio.store.sql import backends, schema
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


def to_run(row: sa.Row[Any]) -> Run:
    try:
        spec = msgspec.json.decode(row.spec, type=RunSpec)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LogInconsistent(f"the description of run {row.uid} cannot be read: {error}") from error
    return Run(
        row.run_id,
        row.uid,
        spec,
        known(RunState, row.state, f"the state of run {row.uid}"),
        row.created_at,
        row.ordinal,
        row.ended_at,
        row.superseded_by,
        row.because,
    )


def stored_run(connection: Connection, run_id: int) -> Run:
    """The run of that number, as it is now. Raises `UnknownRun`."""
    row = connection.execute(sa.select(schema.run).where(schema.run.c.run_id == run_id)).one_or_none()
    if row is None:
        raise UnknownRun(f"no run {run_id} is in the log")
    return to_run(row)


def counters(connection: Connection, run_ids: Collection[int]) -> dict[int, tuple[Sequence[PortProgress], UnderWay]]:
    """Run id → the counters of its ports, and what is under way, from one statement.

    What is under way is never below zero: what a driver of an earlier version has logged was not counted when it was.
    """
    table = schema.port_counter
    query = sa.select(table).where(table.c.run_id.in_(run_ids)).order_by(table.c.op, table.c.port, table.c.direction)
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
        """The run as it began. Raises `UnknownRun`."""
        run = self._runs.get(run_id)
        if run is None:
            run = stored_run(connection, run_id)
            self._runs.keep(run)
        return run

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
