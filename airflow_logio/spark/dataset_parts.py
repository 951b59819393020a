"""Input Sets of mode ``dataframe``: parts of datasets, and one DataFrame for many of them (ADR-84)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_logio.dataflow import batches
from airflow_logio.dataflow.batches import INSET_ID
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.timeline import Grid
from airflow_logio.dataflow.windows import WINDOW_START, Window
from airflow_logio.spark.dataset_jobs import frame_of_all, frame_of_table
from airflow_logio.spark.frame_windows import key_from, key_of, kind_of, start_of, within
from airflow_logio.systems.payloads.dataset import Dataset


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """What of an event is in an Input Set: all its records, or those in the window of time that the Input Set is."""

    dataset: Dataset
    nbytes: int = field(default=0, compare=False)
    """Its share of the bytes of the files, about; 0 where nobody has counted, which is after a recovery."""


Part: TypeAlias = DatasetPart | pa.Table
"""An event that came as a table is held as one."""


def frame_of_sets(
    session: Any,
    window: Window,
    names: Sequence[str],
    held: Sequence[Sequence[Part]],
    columns: Sequence[str],
    schema: str,
) -> SparkFrame:
    """The records of Input Sets on one port, with column ``inset_id``, the place of an Input Set in `names`, from 0, and
    for windows of time ``window_start``.

    `held` has the parts of each. The result has `columns` only, or all; `schema` is that of the records, as Spark has it.
    Raises OperatorFailed for records that have a column of such a name, and as `frame_of_all`.
    """
    tables = [[part for part in parts if isinstance(part, pa.Table)] for parts in held]
    datasets = [[part.dataset for part in parts if isinstance(part, DatasetPart)] for parts in held]
    if not any(tables):
        return _of_datasets(session, window, names, datasets, columns, schema)
    tagged = frame_of_table(session, batches.tagged(tables, window.tags(names)))
    if not any(datasets):
        return tagged
    return tagged.unionByName(_of_datasets(session, window, names, datasets, columns, schema))


def _of_datasets(
    session: Any,
    window: Window,
    names: Sequence[str],
    held: Sequence[Sequence[Dataset]],
    columns: Sequence[str],
    schema: str,
) -> SparkFrame:
    distinct = {dataset.reference.path: dataset for datasets in held for dataset in datasets}
    frame = frame_of_all(session, schema, list(distinct.values()))
    batches.check_free((INSET_ID, *window.tags(())), frame.columns)
    kept = list(columns) or frame.columns
    grid = window.grid()
    if grid is not None:
        return _by_window(session, frame, grid, [window.number(name) for name in names], kept)
    return _by_file(session, frame, held, kept)


def _by_window(session: Any, frame: SparkFrame, grid: Grid, numbers: Sequence[int], kept: Sequence[str]) -> SparkFrame:
    """An event that is in an Input Set is in it with all its records of that window: the number says it all."""
    from pyspark.sql import functions as F

    near = within(frame, grid, min(numbers), max(numbers))
    if len(numbers) == 1:
        tags = (F.lit(0).cast("long").alias(INSET_ID), start_of(grid, numbers[0]).alias(WINDOW_START))
        return near.select(*tags, *kept)
    key = _free("window", frame)
    number = F.col(key)
    places = _places(session, key, numbers).select(
        key_from(number, grid, kind_of(frame, grid.on)).alias(key),
        INSET_ID,
        start_of(grid, number).alias(WINDOW_START),
    )
    placed = near.withColumn(key, key_of(near, grid)).join(F.broadcast(places), key)
    return placed.select(INSET_ID, WINDOW_START, *kept)


def _by_file(session: Any, frame: SparkFrame, held: Sequence[Sequence[Dataset]], kept: Sequence[str]) -> SparkFrame:
    """Events are as a whole in one Input Set, and whose records they are, the names of files tell.

    A file may have several names in the payload store, in several folders (`EpochPayloads.own`). Where two of them meet
    here, each Input Set is read by itself.
    """
    from pyspark.sql import functions as F

    whose = {
        file.path: place
        for place, datasets in enumerate(held)
        for dataset in datasets
        for file in dataset.manifest.files
    }
    if len(held) == 1 or not whose:
        return frame.select(F.lit(0).cast("long").alias(INSET_ID), *kept)
    places = {PurePosixPath(path).name: place for path, place in whose.items()}
    if len(places) < len(whose):
        return _one_by_one(session, held, kept)
    name = _free("file", frame)
    named = frame.select("*", frame.metadataColumn("_metadata")["file_name"].alias(name))
    placed = named.join(F.broadcast(_places(session, name, list(places), list(places.values()))), name)
    return placed.select(INSET_ID, *kept)


def _one_by_one(session: Any, held: Sequence[Sequence[Dataset]], kept: Sequence[str]) -> SparkFrame:
    from pyspark.sql import functions as F

    tagged = [
        frame_of_all(session, datasets[0].manifest.schema, datasets).select(
            F.lit(place).cast("long").alias(INSET_ID), *kept
        )
        for place, datasets in enumerate(held)
        if datasets
    ]
    return reduce(lambda some, more: some.unionByName(more), tagged)


def _places(session: Any, key: str, values: Sequence[Any], places: Sequence[int] | None = None) -> SparkFrame:
    """Value → place of the Input Set."""
    table = pa.table({key: list(values), INSET_ID: pa.array(places or range(len(values)), pa.int64())})
    return session.createDataFrame(table)


def _free(name: str, frame: SparkFrame) -> str:
    """A name that no column has."""
    name = f"_{name}"
    while name.lower() in (column.lower() for column in frame.columns):
        name = f"_{name}"
    return name
