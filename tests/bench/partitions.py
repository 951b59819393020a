"""What it would gain and cost to have the log's tables partitioned by run: two logs of many runs, side by side.

One has its tables as they are. The other has those of Section 3.2, which hold nearly all rows, partitioned BY LIST
(run_id), with a partition of each table per run. What both can do is done in turn, run by run and commit by commit.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import psycopg2
import sqlalchemy as sa

from airflow_logio.protocol.values import Status
from airflow_logio.store.records.run_records import ConcurrentRuns
from airflow_logio.store.sql import migrate, run_log, schema, upkeep_log
from airflow_logio.store.sql.engines import writing
from airflow_logio.supervision.tidying import BATCH_ROWS
from tests.bench.cpu import cpu_seconds
from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.bench.log_commits import add_rows, ours
from tests.support.logs import open_sql_store, spec, start_driver

TABLES = [
    table.name
    for table in (schema.event_log, schema.event_data, schema.event_lineage, schema.state, schema.read_action)
]
COMMITS, CONNECTIONS, DROPPED, LARGER, WAIT_SECONDS = 500, 20, 20, 100, 2
"""Of each log; `LARGER` is how much larger than others one run is, `WAIT_SECONDS` how long a lock is waited for."""
FIRST = (
    "SELECT event_id, size FROM logio_event_log WHERE run_id = {run} AND rec_op = 'receiver' AND rec_port = 'in' "
    "AND event_id > 0 AND inset_id IS NULL AND status = 'undone' ORDER BY event_id LIMIT 100"
)
OVER_ALL = {
    "undone rows per run": "SELECT run_id, count(*) FROM logio_event_log WHERE status = 'undone' GROUP BY run_id",
    "garbage per run": f"SELECT run_id, count(*) FROM logio_event_log WHERE {schema.GARBAGE} GROUP BY run_id",
}
MEMORY = "SELECT sum(total_bytes) / 1048576.0 FROM pg_backend_memory_contexts"
LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname LIKE 'logio%'"
SIZE = "SELECT pg_database_size(current_database()) / 1048576.0"

Pairs = list[tuple[float, float]]
"""Seconds in the log as it is, and in the one with partitions."""


class _Log:
    def __init__(self, url: str, *, partitioned: bool) -> None:
        self.url, self.partitioned, self._numbers = url, partitioned, itertools.count()
        self.store, self.runs, self.backends = open_sql_store(url), list[int](), set[int]()
        if partitioned:
            with self.store.engine.begin() as connection:
                for name in TABLES:
                    _partition(connection, name)
        self.store.engine.dispose()

        @sa.event.listens_for(self.store.engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            self.backends.add(connection.info.backend_pid)

    def create(self) -> None:
        with writing(self.store.engine) as connection:
            named = f"run {next(self._numbers)}"
            run = run_log.start(connection, spec(dag_run=named), concurrent=ConcurrentRuns.ISOLATED, code=None, above=0)
            for statement in _new_partitions(run.run_id) if self.partitioned else ():
                connection.execute(sa.text(statement))
        self.runs.append(run.run_id)

    def fill(self, run_id: int, events: int) -> None:
        with self.store.engine.begin() as connection:
            add_rows(connection, run_id, 1, events, Status.UNDONE, "NULL", kept=False)

    def add(self, events: int) -> None:
        self.create()
        self.fill(self.runs[-1], events)

    def drop_rows(self, run_id: int) -> None:
        """In one transaction: what is quickest."""
        detach = [f"ALTER TABLE {name} DETACH PARTITION {name}_{run_id}" for name in TABLES]
        drop = [f"DROP TABLE {name}_{run_id}" for name in TABLES]
        delete = [f"DELETE FROM {name} WHERE run_id = {run_id}" for name in TABLES]
        with self.store.engine.begin() as connection:
            for statement in (*detach, *drop) if self.partitioned else delete:
                connection.execute(sa.text(statement))

    def remove(self, run_id: int) -> None:
        """As `logio gc` does, batch by batch; where there are partitions, its statements would lock all of them."""
        if not self.partitioned:
            while self.store.remove_run(run_id, BATCH_ROWS, unfinished=True).more:
                pass
            return
        self.drop_rows(run_id)
        others = [one for one in (schema.group, schema.fence, *upkeep_log.ROWS) if one.name not in TABLES]
        with self.store.engine.begin() as connection:
            for table in (*others, schema.run):
                connection.execute(sa.delete(table).where(table.c.run_id == run_id))

    def asked(self, *statements: str) -> list[tuple[float, Any]]:
        """Seconds and first value of each of these, in one transaction of a new connection."""
        with closing(psycopg2.connect(self.url)) as connection, connection.cursor() as cursor:
            found = []
            for statement in statements:
                began = time.perf_counter()
                cursor.execute(statement)
                rows = cursor.fetchall()
                found.append((time.perf_counter() - began, rows[0][0] if rows else None))
        return found

    def one(self, statement: str) -> float:
        return float(self.asked(statement)[0][1])

    def alone(self, *statements: str) -> float:
        """Seconds of these, each a transaction by itself."""
        with closing(psycopg2.connect(self.url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            began = time.perf_counter()
            for statement in statements:
                cursor.execute(statement)
            return time.perf_counter() - began


def measure(databases: Postgres, runs: int, events: int) -> Iterator[Figure]:
    """So many runs with so many events each, an event being a row in EVENT_LOG and one in EVENT_DATA."""
    databases.configure(autovacuum="off")  # what it would have to do is measured
    try:
        with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
            log_url, other_url = databases.fresh(Path(folder))
            migrate.upgrade(other_url)
            logs = (_Log(log_url, partitioned=False), _Log(other_url, partitioned=True))
            for what, unit, (plain, partitioned), details in _measured(logs, runs, events):
                yield Figure(databases.name, f"{what}, as it is", plain, unit, "none", details)
                yield Figure(databases.name, f"{what}, partitions", partitioned, unit, "none", details)
            for log in logs:
                log.store.dispose()
    finally:
        databases.configure(autovacuum="on")


Measured = Iterator[tuple[str, str, Sequence[float], str]]


def _measured(logs: Sequence[_Log], runs: int, events: int) -> Measured:
    created = _in_turn(logs, runs, lambda log, _: log.create())
    last = _shown(_medians(created[-runs // 10 :]))
    yield "a run begins", "ms", _medians(created), f"median of {runs}; of the last tenth {last}"
    filled = _in_turn(logs, runs, lambda log, number: log.fill(log.runs[number], events))
    details = f"{runs:,} runs with {2 * events:,} rows each"
    yield "all rows are added", "s", [sum(one) for one in zip(*filled, strict=True)], details
    yield "ANALYZE", "s", [log.alone(f"ANALYZE {', '.join(TABLES)}") for log in logs], "of the tables in question"
    yield "the log", "MiB", [log.one(SIZE) for log in logs], "with its indexes"
    yield from _questions(logs)
    yield from _commits(logs)
    yield from _beside_a_reader(logs)
    yield from _given_up(logs, events)


def _questions(logs: Sequence[_Log]) -> Measured:
    first = [(_first(log, 1), _first(log, 2)) for _ in range(CONNECTIONS) for log in logs]
    for index, which in enumerate(("first", "second")):
        seconds = [[pair[index] for pair in first[number :: len(logs)]] for number in range(len(logs))]
        details = f"what waits for a receiver of one run; median of {CONNECTIONS} connections"
        yield f"the {which} question of a connection", "ms", [1_000 * median(of_log) for of_log in seconds], details
    for what, statement in OVER_ALL.items():
        found = [log.asked(statement, statement, LOCKS, MEMORY) for log in logs]
        again = [1_000 * one[1][0] for one in found]
        details = f"in the same connection before, as its first: {_shown([1_000 * one[0][0] for one in found])}"
        yield f"{what}, over all runs", "ms", again, details
        yield f"{what}, locks", "locks", [one[2][1] for one in found], "that the transaction holds then"
        yield f"{what}, memory", "MiB", [float(one[3][1]) for one in found], "of the backend then"


def _first(log: _Log, number: int) -> float:
    question = FIRST.format(run=log.runs[len(log.runs) // 2])
    return log.asked(*[question] * number)[-1][0]


def _commits(logs: Sequence[_Log]) -> Measured:
    commits = []
    for log in logs:
        run = next(run for run in log.store.list_runs(limit=len(log.runs)) if run.run_id == log.runs[-2])
        commits.append(ours(start_driver(log.store, run=run)))
    before = [_cpu(log) for log in logs]
    took = _in_turn(logs, COMMITS, lambda log, number: commits[logs.index(log)]([number + 1], b"x" * 100))
    cpu = [1_000 * (_cpu(log) - cpu) / COMMITS for log, cpu in zip(logs, before, strict=True)]
    yield "a commit", "ms", _medians(took), f"one Output Set; median of {COMMITS}; CPU of the backends {_shown(cpu)} ms"


def _beside_a_reader(logs: Sequence[_Log]) -> Measured:
    """A transaction that has read rows of another run is open; another process comes to read while the statement waits."""
    name, other = TABLES[0], logs[1]
    run_id = other.runs[0]
    detach = f"ALTER TABLE {name} DETACH PARTITION {name}_{run_id}"
    values = f"FOR VALUES IN ({run_id})"
    asked = {
        "DETACH": detach,
        "DETACH CONCURRENTLY": f"{detach} CONCURRENTLY",
        "a new partition": f"CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES IN (0)",
        "ATTACH": f"ALTER TABLE {name} ATTACH PARTITION {name}_{run_id} {values}",
    }
    for what, statement in asked.items():
        if what == "ATTACH":
            other.alone(f"{detach} FINALIZE")  # what CONCURRENTLY has begun and left
        does = (f"DELETE FROM {name} WHERE run_id = {logs[0].runs[3]}", statement)
        found = [_beside(*one) for one in zip(logs, does, strict=True)]
        said, later = found[1][1], [one[2] for one in found]
        details = f"as it is: DELETE; partitions: {said}; a reader who came later waited {_shown(later)} ms"
        yield f"{what} beside a reader", "s", [one[0] for one in found], details


def _beside(log: _Log, statement: str) -> tuple[float, str, float]:
    """Seconds of the statement, what became of it, and the milliseconds of a question that came later."""
    question = FIRST.format(run=log.runs[1])
    with ThreadPoolExecutor(1) as pool, closing(psycopg2.connect(log.url)) as reader, reader.cursor() as cursor:
        cursor.execute(question)
        began = time.perf_counter()
        waiting = pool.submit(log.alone, f"SET lock_timeout = '{WAIT_SECONDS}s'", statement)
        time.sleep(0.3)
        later, _ = log.asked(question)[0]
        try:
            return waiting.result(), "done", 1_000 * later
        except psycopg2.Error as error:
            return time.perf_counter() - began, str(error).splitlines()[0], 1_000 * later


def _given_up(logs: Sequence[_Log], events: int) -> Measured:
    half = len(logs[0].runs) // 2
    removed = _in_turn(logs, half, lambda log, _: log.remove(log.runs.pop(0)))
    yield "a run is removed", "ms", _medians(removed), f"as `logio gc` does, median of {half}"
    yield "dead rows", "rows", [log.one(DEAD) for log in logs], "that VACUUM has to remove"
    yield "the log, half of it removed", "MiB", [log.one(SIZE) for log in logs], "before VACUUM"
    yield "VACUUM", "s", [log.alone("VACUUM") for log in logs], "of all tables, with one process"
    yield "the log, after VACUUM", "MiB", [log.one(SIZE) for log in logs], "of its files"
    _in_turn(logs, half, lambda log, _: log.add(events))
    yield "the log, as many runs as before", "MiB", [log.one(SIZE) for log in logs], "room that was free is used again"
    many = min(DROPPED, half)
    dropped = _in_turn(logs, many, lambda log, _: log.drop_rows(log.runs.pop()))
    details = f"a transaction with a DELETE per table, or with DETACH and DROP; median of {many}"
    yield "rows of a run are dropped", "ms", _medians(dropped), details
    for log in logs:
        log.add(LARGER * events)
    larger = _in_turn(logs, 1, lambda log, _: log.remove(log.runs.pop()))
    yield "a large run is removed", "s", larger[0], f"{2 * LARGER * events:,} rows, as `logio gc` removes them"


def _in_turn(logs: Sequence[_Log], times: int, do: Callable[[_Log, int], None]) -> Pairs:
    pairs: Pairs = []
    for number in range(times):
        seconds = {}
        for log in logs if number % 2 else logs[::-1]:
            began = time.perf_counter()
            do(log, number)
            seconds[log.partitioned] = time.perf_counter() - began
        pairs.append((seconds[False], seconds[True]))
    return pairs


def _medians(pairs: Pairs) -> list[float]:
    """Milliseconds."""
    return [1_000 * median(one) for one in zip(*pairs, strict=True)]


def _shown(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.2f}" for value in values)


def _cpu(log: _Log) -> float:
    return sum(cpu_seconds(psutil.Process(pid)) for pid in log.backends if psutil.pid_exists(pid))


# --- partitions -------------------------------------------------------------------------------------------------------


def _partition(connection: sa.Connection, name: str) -> None:
    """Put a partitioned table in place of an empty one. Its unique indexes have to contain the run."""
    listed = sa.text("SELECT indexdef FROM pg_indexes WHERE tablename = :name")
    indexes = connection.execute(listed, {"name": name}).scalars().all()
    if name == schema.event_log.name:
        connection.execute(sa.text(f"ALTER SEQUENCE {name}_row_id_seq OWNED BY NONE"))
    like = f"CREATE TABLE parts (LIKE {name} INCLUDING DEFAULTS INCLUDING STORAGE) PARTITION BY LIST (run_id)"
    for statement in (like, f"DROP TABLE {name}", f"ALTER TABLE parts RENAME TO {name}"):
        connection.execute(sa.text(statement))
    for index in indexes:
        connection.execute(sa.text(index.replace("(row_id)", "(run_id, row_id)").replace("::", r"\:\:")))


def _new_partitions(run_id: int) -> list[str]:
    return [f"CREATE TABLE {name}_{run_id} PARTITION OF {name} FOR VALUES IN ({run_id})" for name in TABLES]
