"""The aggregation with Structured Streaming, as people write it for exactly once into PostgreSQL.

Sums of a window are state of the query, which has its checkpoint on the local disk. `foreachBatch` collects the rows that a
micro-batch has changed, a few hundred, and writes them in one transaction with the number of the batch: a batch that is
repeated after a failure is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extras import execute_values
from pyspark.sql import DataFrame, SparkSession

UPSERT = """
INSERT INTO {table} AS there (minute, key, records, cents) VALUES %s
ON CONFLICT (minute, key) DO UPDATE SET records = excluded.records, cents = excluded.cents
"""


class Upserts:
    """What `foreachBatch` calls."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._upsert = UPSERT.format(table=wanted["table"])
        self._warehouse = psycopg2.connect(wanted["warehouse"])
        with self._warehouse, self._warehouse.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS peer_batches (batch bigint PRIMARY KEY)")

    def __call__(self, changed: DataFrame, batch: int) -> None:
        rows = [tuple(row) for row in changed.collect()]
        with self._warehouse, self._warehouse.cursor() as cursor:
            cursor.execute("INSERT INTO peer_batches VALUES (%s) ON CONFLICT DO NOTHING", (batch,))
            if cursor.rowcount and rows:
                execute_values(cursor, self._upsert, rows, page_size=1_000)


def summed(session: Any, folder: str) -> DataFrame:
    """A row of each minute and key that a micro-batch, one file of `folder`, has changed."""
    from pyspark.sql import functions as F

    files = session.readStream.schema("key BIGINT, at TIMESTAMP_NTZ, cents BIGINT").option("maxFilesPerTrigger", 1)
    records = files.parquet(folder).where("cents > 0")
    converted = records.selectExpr("key", "CAST(at AS TIMESTAMP) AS at", "cents + cents * 19 div 100 AS cents")
    windows = converted.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"), "key")
    sums = windows.agg(F.count("*").alias("records"), F.sum("cents").alias("cents"))
    return sums.selectExpr("CAST(window.start AS TIMESTAMP_NTZ) AS minute", "key", "records", "cents")


def run(sums: DataFrame, write: Callable[[DataFrame, int], Any], checkpoint: str) -> Any:
    """The query, when it has processed all files."""
    written = sums.writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
    query = written.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    return query


def main(config: str) -> None:
    wanted = json.loads(Path(config).read_text())
    builder = SparkSession.builder.appName("peer").master("local[2]")
    for name, value in wanted["conf"].items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    run(summed(session, wanted["warm"]), lambda changed, _: changed.collect(), wanted["checkpoint"] + ".warm")
    query = run(summed(session, wanted["records"]), Upserts(wanted), wanted["checkpoint"])
    triggers = [json.loads(progress.json) for progress in query.recentProgress]
    began = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in triggers if one["numInputRows"]]
    reads = [(0, began[0]), *((number * wanted["size"], at) for number, at in enumerate(began, start=1))]
    Path(wanted["reads"]).write_text("".join(f"{count} {at}\n" for count, at in reads))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
