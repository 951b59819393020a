"""What a dataset costs log, driver and sweep: small constants, from which docs/performance.md computes a large run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TypeVar

import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.payloads import Payloads, sweep_group
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, manifest_of
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.support.logs import Driver, open_sql_store, spec, start_driver

EVENTS = 5_000
PER_COMMIT = 50
COMMITS = 200
FILES = 20_000
SCHEMA = '{"fields":[' + ",".join(f'{{"name":"column_{n}","type":"long"}}' for n in range(10)) + '],"type":"struct"}'
T = TypeVar("T")
OUT, IN = Port("named", "out"), Port("hourly", "in")


def measure(databases: Databases) -> Iterator[Figure]:
    """Of a log in this database, and of payloads in a folder of this machine."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, _ = databases.fresh(folder)
        store = open_sql_store(log_url)
        try:
            yield from _rows(databases.name, store)
            yield _commits(databases.name, store)
            if databases.name == "sqlite":
                yield from _manifests(databases.name, Payloads(str(folder / "manifests")))
                yield _sweep(databases.name, store, folder / "payloads")
        finally:
            store.dispose()


def _reference(uid: str, number: int) -> str:
    """As that of an event whose body is a dataset."""
    return f"{uid}/sales/1/1/datasets/{OUT}/{number}/{number:032x}.manifest#9f2c1a77:{40_000 + number}"


def _rows(database: str, store: SqlLogStore) -> Iterator[Figure]:
    """The log grows by what events with datasets have in it, with indexes."""
    driver = _driver(store, "rows")
    kinds: dict[str, Callable[[int], fx.Effects]] = {
        "an event on its way to one receiver": lambda n: [_sent(driver, n)],
        "lineage of an event": lambda n: [fx.RecordLineage(OUT, n, str(n))],
    }
    for what, effects in kinds.items():
        before = _bytes(store)
        for begin in range(1, EVENTS, PER_COMMIT):
            driver.session.commit([one for n in range(begin, begin + PER_COMMIT) for one in effects(n)])
        grown = (_bytes(store) - before) / EVENTS
        yield Figure(database, f"log: {what}", grown, "bytes", "none", f"rows and indexes, of {EVENTS:,}")


def _commits(database: str, store: SqlLogStore) -> Figure:
    """One event in each commit, durable."""
    driver = _driver(store, "commits")
    took, _ = _timed(lambda number: driver.session.commit([_sent(driver, number + 1)]))
    return Figure(database, "log: a commit", took, "ms", "none", f"of {COMMITS} with one event, no other writer")


def _sent(driver: Driver, number: int) -> fx.LogEvent:
    event = Event(OUT, number, Kind.DATA, 2_000_000, None, None, ref=_reference(driver.run.uid, number))
    return fx.LogEvent(event, (fx.Delivery(IN),))


def _driver(store: SqlLogStore, name: str) -> Driver:
    return start_driver(store, run=store.start_run(spec("sales", dag_run=name)), group="sales")


def _bytes(store: SqlLogStore) -> int:
    """Of all tables and indexes."""
    with store.engine.connect() as connection:
        if store.engine.dialect.name == "sqlite":
            query = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        else:
            query = (
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'logio%'"
            )
        return int(connection.execute(sa.text(query)).scalar_one())


def _manifest(uid: str, files: int) -> Manifest:
    folder = f"{uid}/sales/1/1/datasets/{OUT}/1/{0:032x}"
    lines = (DataFile(f"{folder}/{n:032x}.parquet", 120_000_000 + n, 4_000_000 + n, 2**31 + n) for n in range(files))
    return Manifest(SCHEMA, "schema", tuple(lines))


def _manifests(database: str, payloads: Payloads) -> Iterator[Figure]:
    uid = f"{1:032x}"
    epoch, small = payloads.epoch(uid, "sales", 1, 1), _manifest(uid, 2)
    written, references = _timed(lambda n: str(epoch.put("a dataset", f"datasets/{OUT}/{n}", small).reference))
    read, _ = _timed(lambda n: payloads.dataset("a dataset", references[n]))
    yield Figure(database, "manifest: one is written, durable", written, "ms", "none", f"of 2 files, {COMMITS} times")
    yield Figure(database, "manifest: one is read", read, "ms", "none", "of 2 files, still in memory")
    manifest = _manifest(uid, FILES)
    encoded = manifest.encoded()
    per_line = (len(encoded) - len(_manifest(uid, 0).encoded())) / FILES
    yield Figure(database, "manifest: a file", per_line, "bytes", "1024", "what the driver keeps of it")
    began = time.perf_counter()
    manifest_of("a dataset", encoded)
    took = (time.perf_counter() - began) / FILES * 1e6
    yield Figure(database, "manifest: a file is read", took, "microseconds", "none", f"of {FILES:,} in one manifest")


def _timed(call: Callable[[int], T]) -> tuple[float, list[T]]:
    """Milliseconds of the median call, and what each has returned."""
    seconds, results = [], []
    for number in range(COMMITS):
        began = time.perf_counter()
        results.append(call(number))
        seconds.append(time.perf_counter() - began)
    return median(seconds) * 1e3, results


def _sweep(database: str, store: SqlLogStore, root: Path) -> Figure:
    """Files that nothing names, of an incarnation that was replaced, on a local disk."""
    driver = _driver(store, "sweep")
    payloads = Payloads(str(root))
    folder = root / driver.run.uid / "sales" / "1" / "1" / "datasets" / "named.out" / "1"
    folder.mkdir(parents=True)
    for number in range(FILES):
        os.close(os.open(folder / f"{number:032x}.parquet", os.O_CREAT | os.O_WRONLY, 0o600))
    began = time.perf_counter()
    removed = sweep_group(payloads, store, driver.run, "sales", below=2)
    took = (time.perf_counter() - began) / FILES * 1e6
    return Figure(
        database, "sweep: a file is found and removed", took, "microseconds", "none", f"{removed:,} empty files"
    )
