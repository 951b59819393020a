"""Datasets into a Delta table, by the driver alone and by tasks of its session: seconds of one commit, in turns, in one run.

The session has two threads, as a driver on one machine. Both write the same datasets; what the tables hold is compared with
DuckDB's reading of the files of the datasets.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.systems.payloads import Payloads
from airflow_logio.systems.payloads.dataset import Dataset
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.orders import SEED
from tests.bench.throughput import WrongResult
from tests.support.datasets import dataset_of
from tests.support.delta_files import ByExecutors
from tests.support.delta_tables import files_of

FILES = 4
COLUMNS = {"id": "bigint", "store": "int", "cents": "bigint", "day": "date", "note": "text"}
KINDS: Mapping[str, tuple[str, ...]] = {"copied": (), "decoded, by day": ("day",)}
"""What tasks do with the files → columns by which the table is partitioned."""


def measure(databases: Databases, runs: int, records: int) -> Iterator[Figure]:
    """Tables of so many records. Raises `WrongResult`."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = SparkSettings(master="local[2]", driver_memory="1g")
    builder = SparkSession.builder.master("local[2]").appName("bench").config("spark.ui.enabled", "false")
    for name, value in settings.effective_conf({}, frames=True).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
            made = _dataset(Path(folder), records)
            session.range(2).mapInArrow(_passed_on, "id long").count()  # workers are up
            for kind, partition_by in KINDS.items():
                yield _figure(databases.name, kind, partition_by, session, Path(folder), made, runs)
    finally:
        session.stop()


def _passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _figure(
    database: str, kind: str, partition_by: tuple[str, ...], session: Any, folder: Path, made: Dataset, runs: int
) -> Figure:
    took: dict[str, list[float]] = {"driver": [], "tasks": []}
    for number in range(runs):
        for way, seconds in took.items():
            lake = folder / f"{kind}-{way}-{number}"
            lake.mkdir()
            writer = DeltaWriter("lake", "table", COLUMNS, partition_by=partition_by, on_new_run="append")
            run = ByExecutors(writer, str(lake)).ready(session, made.root, way)
            run.open()
            began = time.perf_counter()
            run.apply(run.of(2, made))
            seconds.append(time.perf_counter() - began)
            _check(lake / "table", made, len(run.jobs) == (way == "tasks"))
    by_driver, by_tasks = (median(took[way]) for way in ("driver", "tasks"))
    more = f"{made.num_rows:,} records, {made.nbytes / 1e6:,.0f} MB of files; {made.num_rows / by_tasks:,.0f} records/s"
    listed = "; ".join(f"{way} {', '.join(f'{one:.1f} s' for one in seconds)}" for way, seconds in took.items())
    return Figure(
        database,
        f"Delta table by executors ({kind}), against its driver",
        by_tasks / by_driver,
        "x",
        "none",
        f"{more}; {listed}",
    )


def _check(table: Path, made: Dataset, is_so: bool) -> None:
    query = (
        "SELECT count(*), sum(hash(id, store, cents, note)::HUGEINT) FROM read_parquet(?, hive_partitioning = false)"
    )
    found = duckdb.execute(query, [[str(table / path) for path in files_of(table)]]).fetchone()
    if not is_so or found != duckdb.execute(query, [list(made.file_paths())]).fetchone():
        raise WrongResult(f"{table} has not the records of its dataset, or was written in another way: {found}")


def _dataset(folder: Path, records: int) -> Dataset:
    tables, each = [], records // FILES
    for number in range(FILES):
        draw = np.random.default_rng([SEED, number])
        ids = np.arange(number * each, (number + 1) * each, dtype="int64")
        notes = np.frombuffer(draw.bytes(each * 16).hex().encode(), dtype="S32")
        tables.append(
            pa.table(
                {
                    "id": ids,
                    "store": (ids % 400).astype("int32"),
                    "cents": draw.integers(0, 100_000, each),
                    "day": pa.array(20_000 + (ids % 7).astype("int32"), pa.int32()).cast(pa.date32()),
                    "note": pa.array(notes).cast(pa.string()),
                }
            )
        )
    return dataset_of(Payloads(str(folder / "payloads")).epoch("bench", "g", 1, 0), *tables)
