"""How many Output Sets per second the log takes, beside SQL written by hand for the same rows, and as the log grows.

An Output Set here uses one event up and adds one: two rows change, two are added; each commit also passes the fence,
stores a state and raises two counters. The hand-written way is psycopg2 alone, with COPY in binary for what it adds: the
least that a program can do which knows each column by heart.
"""

from __future__ import annotations

import io
import multiprocessing
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import psycopg2
import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Port, Status
from airflow_logio.store.sql.store import SqlLogStore
from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.support.logs import IN, OUT, Driver, open_sql_store, spec, start_driver

SETS_PER_COMMIT = {100: 50, 10_000: 20, 1_000_000: 1}
"""Bytes of a body → Output Sets in one commit."""
GROUPS = (1, 8)
SECONDS = 6.0
WAITING = 60_000
"""Events that wait for each group: more than it uses up."""
GROWTH = (1_000, 100_000, 1_000_000)
COMMITS = 300
NEXT = Port("receiver", "out")
AFTER = Port("after", "in")

Commit = Callable[[list[int], bytes], None]


def measure(databases: Postgres, runs: int, most_rows: int) -> Iterator[Figure]:
    """Against hand-written SQL, and up to so many rows in the log. Raises `RuntimeError` if a process fails."""
    for groups in GROUPS:
        for size, sets in SETS_PER_COMMIT.items():
            rates: dict[str, list[float]] = {"ours": [], "by hand": []}
            for _ in range(runs):
                for way, found in rates.items():
                    found.append(_rate(databases, way, groups, size, sets))
            ours, hand = (median(found) for found in rates.values())
            yield Figure(
                databases.name,
                f"log: {groups} group(s), bodies of {size:,} B",
                ours / hand,
                "of by hand",
                "0.8",
                f"{ours:,.0f} Output Sets/s, by hand {hand:,.0f}; {sets} in a commit, medians of {runs}",
            )
    yield from _growth(databases, most_rows)


def _rate(databases: Postgres, way: str, groups: int, size: int, sets: int) -> float:
    """Output Sets per second of all groups together, each of which is a process."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
        log_url, _ = databases.fresh(Path(folder))
        store = open_sql_store(log_url)
        names = [f"g{number}" for number in range(groups)]
        for name in names:
            _prepare(store, start_driver(store, run=store.start_run(spec(name, dag_run=name)), group=name), size)
        store.dispose()
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(groups), context.Queue()
        processes = [
            context.Process(target=_commits, args=(log_url, way, name, size, sets, barrier, results)) for name in names
        ]
        for process in processes:
            process.start()
        try:
            return sum(_result(results, processes) for _ in processes)
        finally:
            for process in processes:
                process.join(30)


def _result(results: Any, processes: list[Any]) -> float:
    while True:
        if not results.empty():
            return float(results.get())
        if failed := [one.exitcode for one in processes if one.exitcode]:
            raise RuntimeError(f"a process of the benchmark has failed: {failed}")
        time.sleep(0.05)


def _prepare(store: SqlLogStore, driver: Driver, size: int) -> None:
    """Events that wait for the group, whose bodies are not read here."""
    waiting = min(WAITING, 40 * 10_000_000 // (size + 10_000))
    fill(store, driver.run.run_id, 1, waiting, Status.UNDONE, "NULL", kept=False)
    store.declare_dead(driver.ref, "the benchmark's process takes over")


def fill(store: SqlLogStore, run_id: int, first: int, last: int, status: Status, inset: str, *, kept: bool) -> None:
    """Rows of events `first` to `last`, on their way from `OUT` to `IN`, with bodies of 100 bytes."""
    with store.engine.begin() as connection:
        add_rows(connection, run_id, first, last, status, inset, kept=kept)
        connection.execute(sa.text("ANALYZE logio_event_log, logio_event_data"))


def add_rows(
    connection: sa.Connection, run_id: int, first: int, last: int, status: Status, inset: str, *, kept: bool
) -> None:
    """As `fill`, without new statistics of the tables."""
    numbers = f"generate_series({first}, {last}) AS n"
    log = (
        "INSERT INTO logio_event_log (run_id, event_id, status, send_op, send_port, channel, rec_op, rec_port, inset_id, "
        f"size, kept) SELECT {run_id}, n, '{status.value}', '{OUT.operator}', '{OUT.name}', '{OUT.name}', "
        f"'{IN.operator}', '{IN.name}', {inset}, 100, {kept} FROM {numbers}"
    )
    data = (
        "INSERT INTO logio_event_data (run_id, send_op, send_port, channel, event_id, header, body, kept) SELECT "
        f"{run_id}, '{OUT.operator}', '{OUT.name}', '{OUT.name}', n, '\\x00'::bytea, "
        f"decode(repeat('ab', 100), 'hex'), {kept} FROM {numbers}"
    )
    for statement in (log, data):
        connection.execute(sa.text(statement))


def _commits(log_url: str, way: str, name: str, size: int, sets: int, barrier: Barrier, results: Any) -> None:
    """One group's process: commits for some seconds, and says how many Output Sets per second these were."""
    store = open_sql_store(log_url)
    run = next(run for run in store.list_runs() if run.spec.key.dag_run_id == name)
    driver = start_driver(store, run=run, group=name, expected=1)
    commit = ours(driver) if way == "ours" else _by_hand(log_url, driver, name)
    body = bytes(index * 7 % 256 for index in range(1000)) * (size // 1000) or b"x" * size
    number = 1
    commit(list(range(number, number + sets)), body)  # what is done once is not measured
    barrier.wait(120)
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        number += sets
        commit(list(range(number, number + sets)), body)
    results.put(number / (time.perf_counter() - began))
    store.dispose()


def ours(driver: Driver) -> Commit:
    """Commits Output Sets of the events with these ids, which wait at `IN`, each with one event of this body."""

    def commit(event_ids: list[int], body: bytes) -> None:
        effects: list[fx.Effect] = []
        for number in event_ids:
            effects.append(fx.Acknowledge(OUT, IN, number, ((str(number), Status.UNDONE),)))
            effects.append(fx.LogEvent(Event(NEXT, number, records=1, body=body), (fx.Delivery(AFTER),)))
            effects.append(fx.MarkDone("receiver", str(number), 1))
        many = len(event_ids)
        effects.append(fx.StoreState("receiver", b"state"))
        effects.append(fx.CountEvents(IN, "in", many, many, many * 100))
        effects.append(fx.CountEvents(NEXT, "out", many, many, many * len(body)))
        driver.session.commit(effects)

    return commit


_FENCE = (
    "UPDATE logio_fence SET commit_no = commit_no + 1 WHERE run_id = %s AND group_name = %s AND incarnation = 2 "
    "AND epoch = %s AND commit_no = %s"
)
_LOG = (
    "COPY logio_event_log (run_id, event_id, status, send_op, send_port, channel, rec_op, rec_port, size) "
    "FROM STDIN (FORMAT binary)"
)
_DATA = "COPY logio_event_data (run_id, send_op, send_port, channel, event_id, header, body) FROM STDIN (FORMAT binary)"
_ASSIGN = (
    "UPDATE logio_event_log l SET inset_id = v.inset FROM unnest(%s::bigint[], %s::text[]) AS v(id, inset) WHERE run_id = %s "
    "AND rec_op = 'receiver' AND rec_port = 'in' AND event_id = v.id AND inset_id IS NULL AND status = 'undone' "
    "AND send_port IS NOT NULL"
)
_DONE = (
    "UPDATE logio_event_log SET status = 'done' WHERE run_id = %s AND rec_op = 'receiver' AND status = 'undone' "
    "AND inset_id = ANY(%s)"
)
_STATE = (
    "INSERT INTO logio_state (run_id, op, state_id, sealed) VALUES (%s, 'receiver', 0, %s) "
    "ON CONFLICT (run_id, op, state_id) DO UPDATE SET sealed = excluded.sealed"
)
_COUNT = (
    "INSERT INTO logio_port_counter AS c (run_id, op, port, direction, events, records, bytes, first_at, last_at) VALUES "
    + ", ".join(
        [
            "(%s, 'receiver', %s, %s, %s, %s, %s, extract(epoch FROM clock_timestamp()), "
            "extract(epoch FROM clock_timestamp()))"
        ]
        * 4
    )
    + " ON CONFLICT (run_id, op, port, direction) DO UPDATE SET events = c.events + excluded.events, records = "
    "c.records + excluded.records, bytes = c.bytes + excluded.bytes, last_at = excluded.last_at"
)


def _by_hand(log_url: str, driver: Driver, group: str) -> Commit:
    connection = psycopg2.connect(log_url)
    cursor = connection.cursor()
    run_id, epoch = driver.run.run_id, 0
    cursor.execute("SELECT epoch, commit_no FROM logio_fence WHERE run_id = %s AND group_name = %s", (run_id, group))
    epoch, commit_no = cursor.fetchone()
    connection.commit()

    def text(value: str) -> bytes:
        return struct.pack("!i", len(value)) + value.encode()

    run = struct.pack("!iq", 8, run_id)
    log_before, log_after = struct.pack("!h", 9) + run, text("undone") + text("receiver") + text("out") * 2
    log_after += text("after") + text("in")
    data_before = struct.pack("!h", 7) + run + text("receiver") + text("out") * 2
    header = b"h" * 40
    data_after = struct.pack("!i", len(header)) + header
    begin, end = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"

    def commit(event_ids: list[int], body: bytes) -> None:
        nonlocal commit_no
        many, insets = len(event_ids), [str(number) for number in event_ids]
        ids = [struct.pack("!iq", 8, number) for number in event_ids]
        size, sized = struct.pack("!iq", 8, len(body)), struct.pack("!i", len(body))
        cursor.execute(_FENCE, (run_id, group, epoch, commit_no))
        assert cursor.rowcount == 1
        log = b"".join(part for one in ids for part in (log_before, one, log_after, size))
        data = b"".join(part for one in ids for part in (data_before, one, data_after, sized, body))
        cursor.copy_expert(_LOG, io.BytesIO(begin + log + end), 1 << 16)
        cursor.copy_expert(_DATA, io.BytesIO(begin + data + end), 1 << 16)
        cursor.execute(_ASSIGN, (event_ids, insets, run_id))
        assert cursor.rowcount == many
        cursor.execute(_DONE, (run_id, insets))
        assert cursor.rowcount == many
        cursor.execute(_STATE, (run_id, b"0000state"))
        counts = (("in", "in", many, many, many * 100), ("out", "out", many, many, many * len(body)))
        under_way = (("in", "open", 0, 0, 0), ("out", "pending", many, 0, 0))
        cursor.execute(_COUNT, [value for row in (*counts, *under_way) for value in (run_id, *row)])
        connection.commit()
        commit_no += 1

    return commit


def _growth(databases: Postgres, most_rows: int) -> Iterator[Figure]:
    """What a commit with one Output Set costs, in a log with more and more rows of the same operators."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
        log_url, _ = databases.fresh(Path(folder))
        store = open_sql_store(log_url)
        driver = start_driver(store, run=store.start_run(spec("g")))
        commit, body, there, next_id = ours(driver), b"x" * 100, 0, 10**9
        cost: dict[int, float] = {}
        for rows in sorted({*(rows for rows in GROWTH if rows < most_rows), most_rows}):
            fill(store, driver.run.run_id, there + 1, rows, Status.DONE, "n::text", kept=True)
            fill(store, driver.run.run_id, next_id, next_id + COMMITS, Status.UNDONE, "NULL", kept=False)
            seconds = []
            for number in range(next_id, next_id + COMMITS):
                began = time.perf_counter()
                commit([number], body)
                seconds.append(time.perf_counter() - began)
            there, next_id = rows, next_id + COMMITS + 1
            cost[rows] = median(seconds)
            yield Figure(
                databases.name,
                f"log: a commit with {rows:,} rows there",
                cost[rows] / cost[min(cost)],
                "of the first",
                "1.2",
                f"{cost[rows] * 1000:.2f} ms, median of {COMMITS}",
            )
        store.dispose()
