"""Sales into Delta tables: all lines of them, and of each store what the last event has said."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.dataflow import DeltaWriter, ParquetSource, Pipeline, stateless

RECORDS_PER_EVENT = 1_000


@stateless
def by_store(table: pa.Table) -> pa.Table:
    """Store → the quantity of the event."""
    sums = table.group_by("store_id").aggregate([("quantity", "sum")])
    return pa.table({"store_id": sums.column("store_id"), "quantity": sums.column("quantity_sum")})


# [START sales]
pipeline = Pipeline("delta_lake", params={"transactions": str}, connections=["lake"])
ingest = pipeline.source(
    "ingest",
    ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT, columns=("store_id", "quantity")),
)
columns = {"store_id": "bigint", "quantity": "double"}
lines = pipeline.writer("lines", DeltaWriter("lake", "lines", columns, on_new_run="append"), ingest)
sums = pipeline.operator("sums", by_store, ingest)
stores = pipeline.writer(
    "stores", DeltaWriter("lake", "stores", columns, mode="upsert", primary_key=["store_id"]), sums
)
# [END sales]

pipeline.group("ingest", ingest)
pipeline.group("lake", lines, sums, stores)

for name in ("lines", "stores"):  # so that there are commits enough to die at, however fast the machine is
    vars(pipeline.operators[name])["actions_at_once"] = 2
