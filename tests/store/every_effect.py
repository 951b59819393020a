"""A commit with an effect of every kind, a log in which it can be applied, and all that it leaves there."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import reading
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import DONE, IN, OUT, Driver, assigned, sent, spec, start_driver

SWAPPED = Port("swapped", "out")
"""An output port whose events wait for write actions."""
LATER = Port("receiver", "later")


def _held(event_id: int) -> fx.LogEvent:
    return fx.LogEvent(Event(SWAPPED, event_id, records=1, body=b"held"), (fx.Delivery(LATER),), held=True)


BEFORE: fx.Effects = [
    *(sent(n) for n in (1, 2, 3, 4)),
    _held(1),
    _held(2),
    fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"w1"),
    fx.StartReadAction("drain", "queue", 1, {"queue": "q"}),
    fx.CompleteReadAction("drain", "queue", 1, ref="effects/1", records=3),
    fx.StoreState("receiver", b"before"),
    fx.CountEvents(OUT, "out", 4, 12, 16),
]

EVERY_KIND: fx.Effects = [
    sent(5),
    _held(3),
    assigned(1, "A", "B"),
    assigned(2, "A"),
    assigned(3),
    assigned(4, "Q"),
    fx.MarkDone("receiver", "A", 2),
    fx.LogWrite("receiver", "wh", 2, {}, 1, None, b"w2"),
    fx.WritesDone("receiver", "wh", 1, 1),
    fx.MarkCompared("receiver", "wh"),
    fx.Release(SWAPPED, 1, 2, 2),
    fx.SetAside("receiver", "Q", 1, "ValueError: no"),
    fx.StoreState("receiver", b"after"),
    fx.LogStateEvent("receiver", 1, "B", b"at B"),
    fx.LogStateEvent("receiver", 2, "A", b"at A", DONE),
    fx.RecordLineage(OUT, 5, "A"),
    fx.StartReadAction("source", "source", 1, {}),
    fx.CompleteReadAction("source", "source", 1),
    fx.ReadDone("drain", "queue", 1),
    fx.DropRead("drain", "queue", 1),
    fx.MayForget("source", 1, {"end": 1}),
    fx.LogRead("receiver", "wh", 1, {}, ("A",), 1, None, b"r"),
    fx.Collect(("nobody",), 10),
    fx.SweepShared(Port("nobody", "out"), 0, 10),
    *(fx.ExpireLineage("nobody", kept, 1.0, 0, 10, "out", ("out",)) for kept in fx.Kept),
    fx.CountEvents(OUT, "out", 1, 3, 4),
    fx.DrainGroup(),
    fx.FinishGroup(),
]


def prepared(store: LogStore, dag_run: str) -> Driver:
    """A driver of a run of its own, with one commit."""
    driver = start_driver(store, run=store.start_run(spec(dag_run=dag_run)))
    driver.session.commit(BEFORE)
    return driver


_OF_ITS_OWN = {
    "row_id", "run_id", "ordinal", "drained_at", "uid", "dag_run_id", "spec", "nonce", "backend_pid", "since",
    "created_at", "ended_at", "claimed_at", "submitted_at", "registered_at", "first_commit_at", "first_at", "last_at",
    "logged_at",
}  # fmt: skip


def picture(store: SqlLogStore, run_id: int, *, without: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """Every row that a run has in the log, without what differs from run to run: ids and times."""
    with reading(store.engine) as connection:
        return {
            table.name: sorted(
                (
                    tuple(sorted((name, value) for name, value in row.items() if name not in _OF_ITS_OWN))
                    for row in connection.execute(sa.select(table).where(table.c.run_id == run_id)).mappings()
                ),
                key=repr,
            )
            for table in schema.metadata.sorted_tables
            if "run_id" in table.c and table.name not in without
        }


def undone(store: LogStore, driver: Driver) -> list[int]:
    """Event ids that wait at `IN`."""
    session = store.session(driver.ref)
    return [row.event.event_id for row in session.fetch(IN, 0, max_events=100, max_bytes=1 << 30)]
