"""Datasets that are written without Spark, by the same code that its tasks run."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import schema_text
from airflow_logio.systems.payloads import EpochPayloads, task_files
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, in_order


def dataset_of(
    epoch: EpochPayloads, *tables: pa.Table, purpose: str = "d/1", partition_by: tuple[str, ...] = ()
) -> Dataset:
    """A dataset of some tables, each written by a task of its own."""
    folder = epoch.new_folder(purpose)
    lines = [
        line
        for table in tables
        for batch in task_files.written(epoch.root, folder, partition_by, table.to_batches())
        for line in batch.to_pylist()
    ]
    files = [
        DataFile(
            line["path"],
            line["size"],
            line["records"],
            line["footer"],
            tuple(filter(None, line["partition"].split("/"))),
        )
        for line in lines
    ]
    kept = tables[0].drop_columns(list(partition_by))
    return epoch.put("event 1 of s.out", purpose, Manifest("{}", schema_text(kept.schema), in_order(files)))
