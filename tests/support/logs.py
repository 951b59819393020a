"""Runs, drivers and events for tests of the log, in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.values import Event, Kind, Port, Status
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef
from airflow_logio.store.records.run_records import Run, RunKey, RunSpec
from airflow_logio.store.records.status_records import UnderWay
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.backends import driver_application, log_identity
from airflow_logio.store.sql.engines import reading
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore

OUT = Port("sender", "out")
IN = Port("receiver", "in")
SOMEBODY = DriverIdentity("host", "boot", 4711, 12.5)
UNDONE, DONE = Status.UNDONE, Status.DONE


def open_sql_store(url: str, **options: Any) -> SqlLogStore:
    """`open_store`, for tests that look into the database behind the port."""
    store = open_store(url, **options)
    assert isinstance(store, SqlLogStore)
    return store


def spec(
    *groups: str,
    dag_run: str = "run-1",
    graph: str = "graph-1",
    budget: RecoveryBudget | None = None,
) -> RunSpec:
    return RunSpec(
        RunKey("sales", "dag", dag_run),
        "module:pipeline",
        "/bundle",
        groups or ("g",),
        {"limit": 5},
        {"warehouse": "warehouse_default"},
        graph,
        "code-1",
        budget or RecoveryBudget(recoveries=2),
    )


@dataclass(frozen=True)
class Driver:
    """A registered driver of group ``g``, with an open session."""

    store: LogStore
    run: Run
    claim: Claim
    ref: GroupRef
    session: GroupSession


def start_driver(store: LogStore, *, group: str = "g", expected: int = 0, run: Run | None = None) -> Driver:
    run = run or store.start_run(spec(group))
    claim = store.claim(run.run_id, group, expected=expected, reason="test")
    ref = store.register(claim, SOMEBODY)
    session = store.session(ref)
    session.open()
    return Driver(store, run, claim, ref, session)


def finish(log: LogStore, ref: GroupRef) -> None:
    """What a driver does last."""
    session = log.session(ref)
    session.open()
    session.commit([fx.FinishGroup()])
    session.close()


def driver_name(store: SqlLogStore, run_id: int, group: str) -> str:
    """What the sessions of the group's first driver are called, if its launcher names them."""
    with reading(store.engine) as connection:
        return driver_application(log_identity(connection), run_id, group, 1)


def replace_driver(driver: Driver) -> Driver:
    """Recovery: the old one is declared dead, and a new one registers."""
    assert driver.store.declare_dead(driver.ref, "test")
    return start_driver(driver.store, group=driver.ref.group, expected=driver.ref.incarnation, run=driver.run)


def sent(event_id: int, body: bytes = b"body", *, receiver: Port = IN, sender: Port = OUT) -> fx.LogEvent:
    """An event for a receiver in another group."""
    return fx.LogEvent(Event(sender, event_id, Kind.DATA, 3, None, body), (fx.Delivery(receiver),))


def assigned(event_id: int, *insets: str, status: Status = UNDONE, receiver: Port = IN) -> fx.Acknowledge:
    return fx.Acknowledge(OUT, receiver, event_id, tuple((inset, status) for inset in insets))


def fetched(session: GroupSession, *, after: int = 0, receiver: Port = IN, many: int = 100) -> list[int]:
    events = session.fetch(receiver, after, max_events=many, max_bytes=1 << 30)
    return [logged.event.event_id for logged in events]


def held(session: GroupSession, operator: str = "receiver") -> list[tuple[int, str | None]]:
    """(event_id, Input Set) of what recovery would reload."""
    return [(row.event.event_id, row.inset_id) for row in session.recover([operator]).acknowledged]


def contents(store: LogStore) -> dict[str, list[Any]]:
    """All rows of the log that a commit may touch, in one comparable value."""
    if isinstance(store, MemoryLogStore):
        tables = store.tables
        kept: dict[str, Any] = {
            "ordinals": tables.ordinals,
            "fences": tables.fences,
            "groups": tables.groups,
            "log": tables.events.rows,
            "data": tables.bodies,
            "reads": tables.reads,
            "states": tables.states,
            "lineage": tables.lineage,
            "counters": tables.counters,
            "quarantine": tables.quarantine,
            "slots": tables.slots,
            "scalings": tables.scalings,
            "drivers": tables.drivers,
            "code": tables.code,
            "code changes": tables.code_changes,
        }
        return {name: sorted(table.items(), key=repr) for name, table in kept.items()}
    assert isinstance(store, SqlLogStore)
    with store.engine.connect().execution_options(logio_writes=False) as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
            for table in schema.metadata.sorted_tables
        }


def assert_counted(store: SqlLogStore) -> None:
    """The counters of what is under way say what the rows of EVENT_LOG say."""
    table = schema.event_log
    is_write = table.c.send_port.is_(None)
    query = (
        sa.select(table.c.run_id, table.c.rec_op, table.c.rec_port, is_write, sa.func.count())
        .where(
            table.c.status == UNDONE.value,
            table.c.rec_port.is_not(None),
            is_write | table.c.inset_id.is_not(None),
        )
        .group_by(table.c.run_id, table.c.rec_op, table.c.rec_port, is_write)
    )
    with store.engine.connect().execution_options(logio_writes=False) as connection:
        rows = connection.execute(query).all()
    for run in store.list_runs():
        of_run = [row for row in rows if row[0] == run.run_id]
        found = UnderWay({}, {})
        for _, operator, port, writes, count in of_run:
            (found.pending if writes else found.open)[Port(operator, port)] = count
        assert store.under_way(run.run_id) == found


def log_rows(store: LogStore) -> list[tuple[str, int, str | None, str]]:
    """(receiver, event_id, Input Set, status) of every row of EVENT_LOG, sorted."""
    rows: Sequence[tuple[str, int, str | None, str]]
    if isinstance(store, MemoryLogStore):
        rows = [
            (row.receiver, row.body.event_id, row.inset_id, row.status.value)
            for row in store.tables.events.rows.values()
        ]
    else:
        assert isinstance(store, SqlLogStore)
        table = schema.event_log
        query = sa.select(table.c.rec_op, table.c.event_id, table.c.inset_id, table.c.status)
        with store.engine.connect().execution_options(logio_writes=False) as connection:
            rows = [(row.rec_op, row.event_id, row.inset_id, row.status) for row in connection.execute(query)]
    return sorted(rows, key=lambda row: (row[0], row[1], row[2] or ""))
