"""The files of datasets as Spark writes and reads them in a session that an author has set up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import DatasetWriter, FolderSource
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, OperatorFailed
from airflow_logio.spark import dataset_jobs, spark_files, store_probe
from airflow_logio.systems.payloads import EpochPayloads, task_files
from tests.support.waiting import eventually
from tests.unit.spark.test_chains import Work, unchanged

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

PATIENCE_SECONDS = 30


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


# --- how they are committed -------------------------------------------------------------------------------------------

_COMMITTER = "mapreduce.fileoutputcommitter.algorithm.version"


@pytest.fixture
def second_committer(spark: Any) -> Iterator[None]:
    """What ``spark.hadoop.`` and this name in an author's conf makes of a session."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(_COMMITTER, "2")
    spark.conf.set(_COMMITTER, "2")
    yield
    hadoop.unset(_COMMITTER)
    spark.conf.unset(_COMMITTER)


@pytest.mark.usefixtures("second_committer")
def test_no_file_of_a_job_is_in_its_folder_before_all_tasks_are_done_whatever_committer(
    spark: Any, epoch: EpochPayloads, tmp_path: Path
) -> None:
    """Hadoop's second one moves files task by task: those of a job that fails would stay. A task looks for another's file."""
    root, seen = Path(epoch.root), tmp_path / "seen"

    def looking(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def moved() -> list[Path]:
            return [path for path in root.rglob("*.parquet") if "attempt_" not in path.parent.name]

        for batch in batches:
            if batch.column("id")[0].as_py() == 10:
                found = eventually(moved, what="the other task's file is moved", timeout=PATIENCE_SECONDS)
                seen.write_text(str(found[0].parent.relative_to(root)))
            yield batch

    frame = spark.range(0, 20, 1, 2).mapInArrow(looking, "id long")
    files = spark_files.written(epoch, "d/1", frame, task_files.OWNER_ONLY)
    assert files is not None and [file.records for file in files] == [10, 10]
    assert "/d/1.1/_temporary/0/task_" in seen.read_text()


# --- a store that is not shared ---------------------------------------------------------------------------------------

_probed = store_probe.probed


def elsewhere(root: str, folder: str, said: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task on a machine that has another folder under the path of the payload store."""
    return _probed(f"{root}-elsewhere", folder, said, batches)


def copied(root: str, folder: str, said: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One that has a copy of what the driver has written, as where a site replicates one way."""
    there, here = os.path.join(root, said), os.path.join(f"{root}-elsewhere", said)
    os.makedirs(os.path.dirname(here), exist_ok=True)
    with open(there, "rb") as source, open(here, "wb") as target:
        target.write(source.read())
    return _probed(f"{root}-elsewhere", folder, said, batches)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (elsewhere, "executors do not see what the driver writes"),
        (copied, "the driver does not see what executors write"),
    ],
)
def test_a_payload_store_that_driver_and_executors_do_not_share_is_refused_before_anything_is_read(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch, task: Callable[..., Any], says: str
) -> None:
    monkeypatch.setattr(store_probe, "probed", task)
    work = Work(tmp_path, sessions)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), work.raw)
    with pytest.raises(
        ConfigurationError,
        match=rf"^the payload store {work.payloads} is not shared: {says}\. .* mounted under one path",
    ):
        work.run("save")
    assert not list(work.payloads.rglob("*.parquet"))
    assert work.published("out") == []


# --- huge values ------------------------------------------------------------------------------------------------------


def test_a_huge_value_goes_through_a_chain_as_it_is(tmp_path: Path, sessions: SparkSessions) -> None:
    """One cell of 20 MB of noise: Spark writes a dataset, which has two receivers, reads it, and writes another one."""
    noise = os.urandom(20 * 10**6)
    work = Work(tmp_path, sessions)
    for path in work.orders.iterdir():
        path.unlink()
    pq.write_table(pa.table({"noise": [noise]}), work.orders / "0.parquet")
    copy = work.pipeline.operator("copy", unchanged, work.raw)
    work.pipeline.writer("left", DatasetWriter("lake", "left"), copy)
    work.pipeline.writer("right", DatasetWriter("lake", "right"), work.pipeline.operator("same", unchanged, copy))
    assert work.run("copy", "left", "same", "right")
    for folder in ("left", "right"):
        (found,) = work.published(folder)
        is_same = found["noise"] == noise
        assert is_same, "and it is not printed"


# --- text that is none ------------------------------------------------------------------------------------------------

LATIN = "CAST(X'61E9' AS STRING)"
"""``a``, and a byte of Latin-1: Spark takes it for text."""


MADE = {
    "text": LATIN,
    "odd name": f"IF(id = 7, {LATIN}, 'é€')",
    "list": f"IF(id = 7, array('a', NULL, {LATIN}), array('é'))",
    "struct": f"named_struct('n', id, 's', IF(id = 7, {LATIN}, NULL))",
    "keys": f"map(IF(id = 7, {LATIN}, 'k'), 1)",
    "values": f"map(1, array(IF(id = 7, {LATIN}, 'v')))",
}


@pytest.mark.parametrize(
    ("way", "column"), [*(("whole", name) for name in MADE), ("in tasks", "list"), ("Input Sets", "odd name")]
)
def test_text_that_is_not_utf8_is_refused_by_column_before_it_is_stored(
    spark: Any, epoch: EpochPayloads, way: str, column: str
) -> None:
    """Arrow would refuse the event where it is read: then the log would be called damaged."""
    frame = spark.range(0, 20, 1, 2).selectExpr("id", f"{MADE[column]} AS `{column}`")
    with pytest.raises(Exception, match=f"(?s)column '{column}' has a value that is not UTF-8. Decode") as caught:
        if way == "whole":
            dataset_jobs.materialized(epoch, "event 1", "d/1", frame)
        elif way == "in tasks":
            dataset_jobs.written_files(epoch, "d/1", frame)
        else:
            dataset_jobs.materialized_apart(epoch, ["one", "two"], "d/1", [frame, frame])
    assert isinstance(caught.value, OperatorFailed) is (way == "whole")
    assert [path for path in Path(epoch.root).rglob("*.parquet")] == []


def test_bytes_and_all_other_text_are_stored_as_they_are(spark: Any, epoch: EpochPayloads) -> None:
    texts = ["", "é€😀", "\x00", "\ufffd", None, "\U0010ffff"]
    table = pa.table({"t": texts, "l": [[one] for one in texts], "b": [b"a\xe9"] * len(texts)})
    stored = dataset_jobs.materialized(epoch, "event 1", "d/1", spark.createDataFrame(table).coalesce(1))
    assert dataset_jobs.frame_of(spark, stored).toArrow().to_pylist() == table.to_pylist()
