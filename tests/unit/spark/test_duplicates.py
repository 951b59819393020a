"""Datasets that are written as they are: copies of files, by the driver or by executors."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.errors import LogInconsistent, LogUnavailable
from airflow_logio.spark import dataset_jobs
from airflow_logio.spark.dataset_jobs import duplicated
from airflow_logio.systems.payloads import EpochPayloads, task_files
from airflow_logio.systems.payloads.dataset import Dataset

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

WHERE, PURPOSE = "the write action of save for 1", "datasets/save.in/1"


@pytest.fixture(params=["driver", "executors"])
def jobs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many jobs of Spark a copy takes."""
    if request.param == "driver":
        return 0
    monkeypatch.setattr(dataset_jobs, "DRIVER_BYTES", 0)
    return 1


@pytest.fixture
def original(spark: Any, epoch: EpochPayloads) -> Dataset:
    frame = spark.range(0, 1_000, 1, 3).selectExpr("id", "concat('text ', id) AS text")
    return dataset_jobs.materialized(epoch, "event 1", "d/1", frame)


def test_a_copy_has_the_same_records_in_the_same_order_and_files_of_its_own(
    spark: Any, epoch: EpochPayloads, original: Dataset, jobs: int
) -> None:
    counted = f"copies with {jobs} jobs"  # the session is shared, and remembers the jobs of other tests
    spark.sparkContext.setJobGroup(counted, counted)
    made = duplicated(spark, epoch, WHERE, PURPOSE, original)
    assert (len(spark.sparkContext.statusTracker().getJobIdsForGroup(counted)) > 0) == (jobs > 0)
    assert made.table.equals(original.table), "file by file"
    assert [file.records for file in made.manifest.files] == [file.records for file in original.manifest.files]
    assert made.manifest.schema == original.manifest.schema and made.where == WHERE

    # As new files in a published folder look, whatever a private folder has: links to them are to be read by others.
    mask = os.umask(0o022)
    os.umask(mask)
    copies = [Path(path) for path in made.paths()]
    assert {path.stat().st_mode & 0o777 for path in copies} == {0o666 & ~mask}
    assert {path.parent for path in copies} == {copies[0].parent}
    assert set(copies[0].parent.iterdir()) == set(copies), "nothing half-written is beside them"
    for path in original.paths():
        os.truncate(path, 10)  # a file is edited in place
    made.check()
    assert made.table.num_rows == 1_000


def test_no_records_are_a_dataset_too(spark: Any, epoch: EpochPayloads, jobs: int) -> None:
    empty = dataset_jobs.materialized(epoch, "event 1", "d/1", spark.range(0))
    made = duplicated(spark, epoch, WHERE, PURPOSE, empty)
    assert (made.num_rows, made.paths()) == (0, [])
    assert made.reference.path != empty.reference.path
    assert jobs in (0, 1)


def test_a_file_that_is_lost_or_damaged_is_named_and_never_copied(
    spark: Any, epoch: EpochPayloads, original: Dataset, jobs: int
) -> None:
    path = Path(original.paths()[1])
    kept = path.read_bytes()
    path.write_bytes(kept[:-1])
    with pytest.raises(LogInconsistent, match=rf"{path.name} is not the file that its manifest names"):
        duplicated(spark, epoch, WHERE, PURPOSE, original)
    path.unlink()
    with pytest.raises(LogInconsistent, match=rf"lost a file: .*{path.name} is missing"):
        duplicated(spark, epoch, WHERE, PURPOSE, original)
    path.write_bytes(kept)
    assert duplicated(spark, epoch, WHERE, PURPOSE, original).num_rows == 1_000, jobs


def test_a_store_that_is_full_for_a_while_is_waited_for(
    spark: Any, epoch: EpochPayloads, original: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, refusals = task_files.copied_file, [OSError(errno.ENOSPC, "No space left on device")] * 2

    def refused(*arguments: Any) -> str:
        if refusals:
            raise refusals.pop()
        return copied(*arguments)

    monkeypatch.setattr("airflow_logio.systems.payloads.storage.copied_file", refused)
    assert duplicated(spark, epoch, WHERE, PURPOSE, original).num_rows == 1_000
    assert not refusals

    refusals.append(OSError(errno.ENOSPC, "No space left on device"))
    epoch.stop()
    with pytest.raises(LogUnavailable, match="No space left on device"):
        duplicated(spark, epoch, WHERE, PURPOSE, original)
