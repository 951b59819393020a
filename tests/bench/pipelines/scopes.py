"""Sales between whose five ports there are ten lineage scopes, in eight slots: what lineage costs the simulator."""

from __future__ import annotations

import datetime as dt
from itertools import combinations

import pyarrow as pa

from airflow_logio.dataflow import ByKey, Count, Pipeline, TableWriter, Tumbling, generate, stateless
from airflow_logio.testing.simulator.authored_pipeline import ScriptedSource, pipeline_scenario

EVENTS, PER_EVENT = 24, 400
STORES, SLOTS = 24, 8
START = dt.datetime(2017, 1, 1)  # noqa: DTZ001  # timestamps are UTC without zone (design D14)


def sales() -> pa.Table:
    """Four events per hour; no two records are alike."""
    rows = range(EVENTS * PER_EVENT)
    return pa.table(
        {
            "store": pa.array([row % STORES for row in rows], pa.int64()),
            "cents": pa.array([99 + row for row in rows], pa.int64()),
            "at": pa.array([START + dt.timedelta(milliseconds=2_250 * row) for row in rows], pa.timestamp("us")),
        }
    )


@stateless
def passed(records: pa.Table) -> pa.Table:
    return records


@generate
def totals(part: pa.Table, inset_id: str) -> pa.Table:
    found = part.group_by("store").aggregate([("cents", "sum")]).sort_by("store").rename_columns(["store", "cents"])
    return found.append_column("hours", pa.array([inset_id] * found.num_rows, pa.string()))


def pipeline() -> Pipeline:
    made = Pipeline("scopes", connections=["warehouse"], fuse=False)
    chain = [made.source("ingest", ScriptedSource(sales(), PER_EVENT))]
    chain.append(made.operator("clean", passed, chain[-1]))
    chain.append(made.operator("checked", passed, chain[-1]))
    chain.append(made.operator("hourly", totals, chain[-1], window=Tumbling("2h", on="at")))
    chain.append(made.operator("shown", passed, chain[-1]))
    table = TableWriter("warehouse", "hourly", {"store": "bigint", "cents": "bigint", "hours": "text"})
    made.writer("publish", table, chain[-1])
    made.sink("seen", Count(), chain[2])  # so that its events leave the slots
    made.group("hours", *chain[2:4])
    made.replicate("hours", partition=ByKey("store", slots=SLOTS), max=3)
    for start, target in combinations(chain, 2):
        made.lineage(start, target)
    return made.freeze()


scopes = pipeline_scenario(pipeline())
