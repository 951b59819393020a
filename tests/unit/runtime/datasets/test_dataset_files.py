"""The files of datasets as Spark writes and reads them in a session that an author has set up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import FolderSource
from airflow_logio.runtime.datasets import dataset_jobs
from airflow_logio.runtime.payloads import EpochPayloads

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.fixture
def ignoring(spark: Any) -> Iterator[Any]:
    """A session whose author lets Spark pass over files that it cannot find or read."""
    names = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in names:
        spark.conf.set(name, "true")
    yield spark
    for name in names:
        spark.conf.unset(name)


def of_dataset(spark: Any, epoch: EpochPayloads, folder: Path) -> tuple[Any, list[str]]:
    made = dataset_jobs.materialized(epoch, "event 1", "d/1", spark.range(0, 20, 1, 2))
    return dataset_jobs.frame_of(spark, made), list(made.paths())


def of_folder(spark: Any, epoch: EpochPayloads, folder: Path) -> tuple[Any, list[str]]:
    for number in range(2):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), folder / f"{number}.parquet")
    source, params = FolderSource("{folder}", files_per_event=2), {"folder": str(folder)}
    start = source.first(params)
    frame = source.frame(spark, params, start, source.latest(params, start, None))
    return frame, [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("damage", ["deleted", "damaged"])
@pytest.mark.parametrize("read", [of_dataset, of_folder])
def test_a_file_that_is_lost_behind_the_drivers_look_is_an_error_whatever_the_session_ignores(
    ignoring: Any,
    epoch: EpochPayloads,
    tmp_path: Path,
    read: Callable[[Any, EpochPayloads, Path], tuple[Any, list[str]]],
    damage: str,
) -> None:
    """Of a dataset, or in the folder of a source. Read by the author, it is no records: the session does ignore it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    frame, paths = read(ignoring, epoch, folder)
    authors = ignoring.read.schema(frame.schema).parquet(*(f"file://{path}" for path in paths))
    assert len(paths) == 2
    if damage == "deleted":
        os.unlink(paths[1])
    else:
        Path(paths[1]).write_bytes(b"x" * os.path.getsize(paths[1]))
    assert authors.count() == 10
    with pytest.raises(Exception, match=rf"(?s){os.path.basename(paths[1])}"):
        frame.toArrow()
