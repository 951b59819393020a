"""The file of a user who simulates a pipeline: a pipeline, a scenario, a collection, and what is none of them."""

from __future__ import annotations

OWN_PIPELINE = """
import pyarrow as pa
from airflow_logio.dataflow import Pipeline, TableWriter, EveryEvents, generate
from airflow_logio.testing import ScriptedSource, pipeline_scenario


@generate(mode="driver")
def total(part: pa.Table, inset_id: str) -> pa.Table:
    return pa.table({"batch": [int(inset_id)], "total": [sum(part.column("value").to_pylist())]})


numbers = pa.table({"value": list(range(240))})
mine = Pipeline("mine", connections=["warehouse"])
read = mine.source("read", ScriptedSource(numbers, 4))
sums = mine.operator("sums", total, read, window=EveryEvents(5))
save = mine.writer("save", TableWriter("warehouse", "sums", {"batch": "bigint", "total": "bigint"}), sums)
mine.group("ingest", read)
mine.group("compute", sums)
mine.group("store", save)
scenario = pipeline_scenario(mine)
both = {"small": mine, "made": lambda: scenario}
number = 7
"""
