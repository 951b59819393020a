"""Changes of customers, as the last one of each: by its version, or by the order in which they come. In replicas."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio import ByKey, ParquetSource, Pipeline, RoundRobin, TableWriter, stateless

COLUMNS = {"id": "bigint", "at": "timestamp", "who": "text"}


@stateless
def changed(records: pa.Table) -> pa.Table:
    """Each one as it is: so that events leave from an operator, and not from the source."""
    return records


def customers(name: str) -> Pipeline:
    """A pipeline of two groups: the second one writes."""
    made = Pipeline(name, params={"changes": str}, connections=["warehouse"])
    source = made.source("changes", ParquetSource("{changes}", records_per_event=40))
    passed = made.operator("changed", changed, source)
    version = "at" if name == "versions" else None
    made.writer("save", TableWriter("warehouse", name, COLUMNS, ("id",), mode="upsert", version=version), passed)
    made.group("reading", source, passed)
    made.group("writing", "save")
    made.replicate("writing", partition=RoundRobin(slots=4) if version else ByKey("id", slots=4), max=2, initial=2)
    return made


versions = customers("versions")
lasts = customers("lasts")
