"""The partition of a run in what OpenLineage is told: which part of a table or folder it writes, and replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio import DatasetWriter, Days, ParquetSource, Pipeline, TableWriter
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.openlineage.external_datasets import ExternalDatasets
from airflow_logio.openlineage.group_datasets import GroupDatasets
from airflow_logio.openlineage.run_facet import run_facet
from airflow_logio.testing.memory_log.store import MemoryLogStore
from tests.support.logs import spec

LOG = "postgresql://log/logio"
URLS = {"shop": "postgresql://db/shop", "lake": "file:///lake"}
DAY = {
    "day": "2026-03-01",
    "day_start": "2026-03-01T00:00:00+00:00",
    "day_end": "2026-03-02T00:00:00+00:00",
}
COLUMNS = {"day": "date", "page": "text"}
OWNS = TableWriter("shop", "top", COLUMNS, ("day", "page"), on_new_run="overwrite", by=("day",))
APPENDS = TableWriter("shop", "top", COLUMNS)
LAKE = DatasetWriter("lake", "clicks", partition_by=("day",), on_new_run="overwrite", by=("day",))

LATE = DatasetWriter("lake", "late", on_new_run="supersede")


def subsets(params: Mapping[str, Any], *writers: ActionWriter) -> list[Any]:
    """The facet `subset` of each dataset that a run with these parameters writes, as plain data."""
    one = Pipeline("p", partition=Days("day"), connections=["shop", "lake"])
    read = one.source("read", ParquetSource("/data/{day}.parquet"))
    for number, writer in enumerate(writers):
        one.writer(f"save_{number}", writer, read)
    external = ExternalDatasets(params, URLS.__getitem__)
    found = GroupDatasets(one.unreplicated(), None, LOG, lambda _: external, None).outputs()
    return [(dataset.outputFacets or {}).get("subset") for dataset in found]


@pytest.mark.parametrize("writer", [OWNS, LAKE], ids=["table", "lake"])
def test_a_writer_that_owns_a_day_says_which_part_it_replaces(writer: ActionWriter) -> None:
    (subset,) = subsets(DAY, writer)
    (partition,) = subset.outputCondition.partitions
    assert (subset.outputCondition.type, partition.identifier) == ("partition", "day=2026-03-01")
    assert partition.dimensions == {"day": "2026-03-01"}
    assert subset._schemaURL.endswith("/BaseSubsetDatasetFacet.json#/$defs/OutputSubsetOutputDatasetFacet")


def test_a_writer_that_owns_none_may_write_anywhere() -> None:
    assert subsets(DAY, APPENDS) == [None]


@pytest.mark.parametrize("writer", [OWNS, LAKE, LATE], ids=["table", "lake", "supersede"])
def test_before_there_is_a_run_no_part_is_named(writer: ActionWriter) -> None:
    assert subsets({}, writer) == [None]


def test_a_run_of_a_day_says_which_one_and_that_it_was_computed_again() -> None:
    store = MemoryLogStore()
    for generation in (1, 2):
        run = store.start_run(replace(spec("g"), partition="2026-03-01"))
        facet = run_facet(run, None, store.groups(run.run_id), store.figures([run.run_id])[run.run_id])
        assert (facet.partition, facet.generation, facet.run) == ("2026-03-01", generation, run.uid)
        store.supersede(run.run_id)
