"""Three events, the second of more than a hundred megabytes: numbers are read, mapped, and written to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import ParquetWriter, Pipeline, SourceBatch, stateless
from airflow_logio.dataflow.operators import SourceOperator

RECORDS = (10, 13_000_000, 10)
"""Of each event, eight bytes each."""


def numbers(event: int) -> Any:
    """The numbers of an event: noise, which no compression makes small."""
    return np.random.default_rng(event).integers(0, 2**62, RECORDS[event])


class Numbers(SourceOperator):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        behind = 0
        for event, records in enumerate(RECORDS):
            behind += records
            if behind > offset:
                yield SourceBatch(pa.table({"number": numbers(event)}), behind)


@stateless
def inverted(table: pa.Table) -> pa.Table:
    return pa.table({"number": pc.bit_wise_not(table["number"])})


huge = Pipeline("huge", connections=["lake"])
read = huge.source("read", Numbers())
invert = huge.operator("invert", inverted, read)
write = huge.writer("write", ParquetWriter("lake", compression="none"), invert)
huge.group("read", read)
huge.group("invert", invert)
huge.group("write", write)
