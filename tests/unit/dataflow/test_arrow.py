"""Arrow on first use: declaring a pipeline needs none, and what uses it has the modules themselves."""

from __future__ import annotations

import subprocess
import sys

DECLARED = """
import datetime as dt, sys
from airflow_logio import *

@stateless
def as_it_is(records): return records

@generate(reads={"prices": TableRead("shop", "prices", columns=("id", "price"), key="id")}, depends={"hour": window_start})
def of_window(records, prices, window_start: dt.datetime, inset_id: str): return records

@generate(mode="driver", accumulate=Sums(by=["id"], of=["cents"]))
def of_sums(sums): return sums

@generate(mode="executors")
def by_spark(records): return records

@stateless(mode="dataframe")
def chained(records): return records

@generate(inputs=("left", "right"))
def of_two(left, right): return left

flow = Pipeline("flow", params={"file": str}, connections=["shop", "lake"])
sources = [
    ParquetSource("{file}", ordered_by="at", records_per_event=10, columns=("id",), transform=lambda table: table),
    FolderSource("/sales", files_per_event=2),
    QuerySource("shop", "SELECT id, at FROM sales ORDER BY id", columns={"id": "bigint", "at": "timestamp"}),
    QuerySource("shop", table="sales", columns=["id"], order_by="id"),
    TableSource("shop", "sales", by="id", store=True),
    SparkSource(lambda session: session.table("sales"), bytes_per_event="1 MB"),
]
read = [flow.source(f"read{number}", source) for number, source in enumerate(sources)]
windows = [EveryEvents(3), Tumbling("1h", on="at"), Tumbling("1d", on="at", zone="Europe/Berlin")]
hourly = flow.operator("hourly", of_window, read[0], window=windows[1])
daily = flow.operator("daily", of_window, read[2], window=windows[2])
sums = flow.operator("sums", of_sums, read[3], window=windows[0])
spark = flow.operator("spark", by_spark, read[1], window=Tumbling("1h", on="at"))
both = flow.operator("both", of_two, left=hourly, right=daily, window=Synchronized(left=1, right=1))
kept = flow.operator("kept", selected(["id"]), hourly)
more = flow.operator("more", joined("prices", TableRead("shop", "prices", key="id"), on="id"), kept, window=EveryEvents(2))
chain = flow.operator("chain", chained, read[5])
plain = flow.operator("plain", as_it_is, read[4])
summing = flow.operator("summing", summed(by=["id"], of=["cents"], start="hour"), both, window=Tumbling("1d", on="at"))
flow.writer("save", TableWriter("shop", "saved", {"id": "bigint", "at": "timestamp", "price": "decimal(10,2)"}), more)
flow.writer("files", ParquetWriter("lake", "sums"), sums)
flow.writer("lake", DatasetWriter("lake", "sales"), chain)
for number, end in enumerate((spark, plain, summing)):
    flow.sink(f"done{number}", Count(), end)
flow.replicate(plain, partition=ByKey("id"), min=1, max=2)
flow.lineage("read0.out", "hourly.out")
flow.fingerprint(), flow.graph, flow.operators
print(sorted({name.partition(".")[0] for name in sys.modules} & {"numpy", "pyarrow", "pandas"}))
"""


def output_of(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_a_pipeline_declares_needs_no_arrow() -> None:
    assert output_of(DECLARED) == "[]"


USED = """
import pickle, sys, threading, types
from pyspark import cloudpickle
from airflow_logio.dataflow.arrow import np, pa, pc
assert "pyarrow" not in sys.modules
early = cloudpickle.dumps(lambda: pa.table({"a": [1]}).num_rows)
assert "pyarrow" not in sys.modules, "what is handed on is no use"
found = []
threads = [threading.Thread(target=lambda: found.append((pa.Table, pc.sum, np.int64))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
import numpy, pyarrow, pyarrow.compute
assert set(found) == {(pyarrow.Table, pyarrow.compute.sum, numpy.int64)}, found
assert {type(one) for one in (pa, pc, np)} == {types.ModuleType}, "from the first use on, they are plain modules"
import pyarrow.parquet
assert pa.parquet is pyarrow.parquet, "what is imported later is found"
for program in (early, cloudpickle.dumps(lambda: pa.table({"a": [1]}).num_rows)):
    assert pickle.loads(program)() == 1
try:
    pa.no_such_thing
except AttributeError as error:
    print(error)
"""


def test_what_uses_arrow_has_the_modules_themselves() -> None:
    assert output_of(USED) == "module 'pyarrow' has no attribute 'no_such_thing'"
