"""Pipelines of one plain Python group: of a file, a folder and a file that only its driver looks for; and of one file that is
waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_logio.dataflow import FolderSource, ParquetSource, Pipeline, TableWriter
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator

FILE, FOLDER, OWN = "file.parquet", "folder", "own.parquet"


class Unseen(SourceOperator):
    """Does not look for its file when the run is started, as a source cannot that needs Spark for it."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"path": f"{params['folder']}/{OWN}"}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        if not Path(action["path"]).exists():
            raise FileNotFoundError(2, "No such file or directory", action["path"])
        if offset == 0:
            yield SourceBatch(pq.read_table(action["path"]), 1)


late = Pipeline("late", params={"folder": str}, connections=["warehouse"])
SOURCES = {
    "file": ParquetSource(f"{{folder}}/{FILE}"),
    "folder": FolderSource(f"{{folder}}/{FOLDER}"),
    "own": Unseen(),
}
inside = []
for name, source in SOURCES.items():
    read = late.source(name, source)
    table = TableWriter("warehouse", f"late_{name}", columns={"n": "bigint"}, primary_key=("n",), on_new_run="replace")
    inside += [read, late.writer(f"save_{name}", table, read)]
late.group("all", *inside)


def waiting(name: str, wait: str) -> Pipeline:
    pipeline = Pipeline(name, params={"folder": str}, connections=["warehouse"])
    read = pipeline.source("file", ParquetSource(f"{{folder}}/{FILE}"), wait=wait)
    table = TableWriter("warehouse", name, columns={"n": "bigint"}, primary_key=("n",), on_new_run="replace")
    pipeline.group("all", read, pipeline.writer("save", table, read))
    return pipeline


waits, hurries = waiting("waits", "6h"), waiting("hurries", "1s")
