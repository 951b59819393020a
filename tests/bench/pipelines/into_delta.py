"""Orders, cleansed, into a Delta table: without Spark, and by DataFrames. An event is a file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import DeltaWriter, FolderSource, ParquetSource, Pipeline, stateless
from tests.bench.pipelines.orders import cleanse

COLUMNS = {
    "id": "bigint",
    "day": "date",
    "ordered_at": "timestamp",
    "store_id": "int",
    "product_id": "bigint",
    "cents": "bigint",
    "note": "text",
}
WHOLE_FILE = 1_000_000_000
"""Records per event: more than any file has."""


def cleansed(orders: pa.Table) -> pa.Table:
    """As `cleanse` has them of DataFrames."""
    kept = orders.filter(pc.greater(orders.column("quantity"), 0))
    price = pc.cast(pc.round(pc.multiply(kept.column("price"), 100.0)), pa.int64())
    cents = pc.multiply(price, pc.cast(kept.column("quantity"), pa.int64()))
    day = pc.cast(kept.column("ordered_at"), pa.date32())
    return kept.append_column("day", day).append_column("cents", cents).select(list(COLUMNS))


def _into_delta(*, frames: bool, at_once: bool) -> Pipeline:
    """`at_once`: a commit has as many write actions as there are, else one, as a micro-batch."""
    pipeline = Pipeline("bench_delta", params={"orders": str, "products": str}, connections=["lake"])
    source = FolderSource("{orders}") if frames else ParquetSource("{orders}/*.parquet", records_per_event=WHOLE_FILE)
    read = pipeline.source("raw", source)
    clean = pipeline.operator("clean", stateless(mode="dataframe")(cleanse) if frames else stateless(cleansed), read)
    writer = DeltaWriter("lake", "orders", COLUMNS, on_new_run="append")
    if not at_once:
        writer.actions_at_once = 1
    save = pipeline.writer("save", writer, clean)
    pipeline.group("delta", read, clean, save)
    return pipeline


driver = _into_delta(frames=False, at_once=False)
driver_at_once = _into_delta(frames=False, at_once=True)
frames = _into_delta(frames=True, at_once=False)
