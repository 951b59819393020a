"""A source of one's own, whole: the first example of docs/how-to/write-a-source.md."""

from __future__ import annotations

# [START source]
import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_logio import Pipeline, SourceBatch, SourceOperator, TableWriter
from airflow_logio.errors import SourceChanged


class JsonLines(SourceOperator):
    """The records of a file of JSON lines; 100 make an event."""

    schema = pa.schema([("id", pa.int64()), ("store", pa.string()), ("cents", pa.int64())])

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"path": params["orders"], "bytes": os.path.getsize(params["orders"])}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        with open(action["path"], encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_size != action["bytes"]:
                raise SourceChanged(f"{action['path']} had {action['bytes']} bytes when the run was started")
            lines = islice(file, offset, None)
            while records := [json.loads(line) for line in islice(lines, 100)]:
                offset += len(records)
                yield SourceBatch(pa.Table.from_pylist(records, schema=self.schema), offset)


pipeline = Pipeline("orders", params={"orders": str}, connections=["warehouse"])
orders = pipeline.source("orders", JsonLines())
columns = {"id": "bigint", "store": "text", "cents": "bigint"}
pipeline.writer("saved", TableWriter("warehouse", "orders", columns=columns, primary_key=["id"]), orders)
# [END source]
