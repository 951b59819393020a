"""What grows with the log and must not: a question about lineage, in a log of up to millions of events.

The rows are those of a small run, as the protocol has logged them, copied under further numbers: three operators, windows of
two and of three events, read actions. Each question is about one event somewhere in the middle.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.sql.store import SqlLogStore
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.support.logs import open_sql_store
from tests.unit.lineage.flows import Flow, Op

CHAIN = {
    "a": Op(events=6),
    "b": Op(("a.out",), window="count", size=2, emits={"out": 1}, reads=1),
    "c": Op(("b.out",), window="count", size=3, emits={"out": 1}),
    "d": Op(("c.out",), emits={"out": 1}),
}
SOURCE_EVENTS = 6
"""Of the run that is copied: it has one event of `c`, which is made of all of them."""
SIZES = (1_000, 100_000, 1_000_000, 10_000_000)
ASKED = 20
TARGET_MS = 100.0
COPIED = {
    "logio_event_log": ("event_id",),
    "logio_event_data": ("event_id",),
    "logio_event_lineage": ("event_id",),
    "logio_read_action": ("action_id",),
}


def measure(databases: Databases, most_rows: int) -> Iterator[Figure]:
    """One hop and all the way, in both directions, up to so many events of the source in the log."""
    with small_run(databases, CHAIN, ("a.out", "c.out"), SOURCE_EVENTS) as (store, flow):
        there = 1
        for events in (size for size in SIZES if size <= most_rows):
            copies = events // SOURCE_EVENTS
            copy(store, flow.run.run_id, SOURCE_EVENTS, there, copies)
            there = copies
            yield from _asked(databases.name, store, flow, events, copies)


@contextmanager
def small_run(
    databases: Databases, chain: Mapping[str, Op], scope: tuple[str, str], size: int
) -> Iterator[tuple[SqlLogStore, Flow]]:
    """A run of `chain` in a new log, whose source has sent `size` events: what `copy` copies."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        log_url, _ = databases.fresh(Path(name))
        store = open_sql_store(log_url)
        try:
            flow = Flow(store, dict(chain), [scope]).to_the_end()
            _drop_ends(store, size)
            yield store, flow
        finally:
            store.dispose()


def _drop_ends(store: SqlLogStore, size: int) -> None:
    """The end of the source's stream has the number that the next event is to have: the source has sent `size` events."""
    with store.engine.begin() as connection:
        for table in ("logio_event_log", "logio_event_data"):
            connection.execute(sa.text(f"DELETE FROM {table} WHERE send_op = 'a' AND event_id > {size}"))


def copy(store: SqlLogStore, run_id: int, size: int, there: int, copies: int) -> None:
    """Have the rows of the first `size` events of each port `copies` times, of which so many are there."""
    copied = f"SELECT {there} UNION ALL SELECT k + 1 FROM copy WHERE k + 1 < {copies}"
    with store.engine.begin() as connection:
        columns = sa.inspect(connection)
        for table, (number,) in COPIED.items():
            names = [one["name"] for one in columns.get_columns(table) if one["name"] != "row_id"]
            into = f"INSERT INTO {table} ({', '.join(names)}) WITH RECURSIVE copy(k) AS ({copied})"
            rows = f"SELECT {', '.join(_value(name, number, size) for name in names)} FROM {table} CROSS JOIN copy"
            where = f"WHERE run_id = {run_id} AND {number} <= {size} AND k < {copies}"
            connection.execute(sa.text(f"{into} {rows} {where}"))
        counted = f"UPDATE logio_port_counter SET events = events / {max(1, there)} * {copies} WHERE run_id = {run_id}"
        connection.execute(sa.text(counted))
        connection.execute(sa.text("ANALYZE"))


def _value(name: str, number: str, size: int) -> str:
    if name == number:
        return f"{name} + k * {size}"
    return "inset_id || '-' || k" if name == "inset_id" else name


def _asked(database: str, store: SqlLogStore, flow: Flow, events: int, copies: int) -> Iterator[Figure]:
    middle = copies // 2 * SOURCE_EVENTS + 1

    def made(number: int, end: str | None = None) -> int:
        return len(backward(store, flow.run, "c.out", middle + number * SOURCE_EVENTS, end).events())

    def used(number: int) -> int:
        return len(forward(store, flow.run, "a.out", middle + number * SOURCE_EVENTS).events())

    asked: dict[str, Callable[[int], int]] = {
        "backward, one hop": lambda number: made(number, "b.out"),
        "backward, to the source": made,
        "forward, to the end": used,
    }
    expected = {"backward, one hop": 1 + 3, "backward, to the source": 1 + 3 + 6, "forward, to the end": 1 + 1 + 1}
    for what, question in asked.items():
        took = []
        for number in range(min(ASKED, copies // 2)):
            began = time.perf_counter()
            found = question(number)
            took.append(time.perf_counter() - began)
            if found != expected[what]:
                raise RuntimeError(f"{what} has found {found} events, not {expected[what]}")
        details = f"one event of {events:,}; {len(took)} questions, the slowest {1_000 * max(took):.1f} ms"
        target = f"{TARGET_MS:g}" if "hop" in what else "none"
        yield Figure(database, f"lineage {what}", 1_000 * median(took), "ms", target, details)
