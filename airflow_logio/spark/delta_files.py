"""Data files of a Delta table that executors write, from the datasets of write actions; the driver commits them.

A task reads some files of datasets, compares each with its manifest, and writes records by the code that the driver has for
those of small events; a large file that is already what the table would get is copied. Each file has a name that is used
once, so what an attempt has left that failed, was killed, or is a second copy, no commit ever names (ADR-215).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio import errors
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, LogUnavailable
from airflow_logio.spark.database_tasks import told
from airflow_logio.spark.object_place import MOST_BYTES_OF_A_COPY, key_of, same_store
from airflow_logio.systems.delta.action_records import ActionRecords, where_of
from airflow_logio.systems.delta.table_columns import RecordColumns
from airflow_logio.systems.delta.table_place import LOG, BucketTable, LocalTable, TablePlace, files_place
from airflow_logio.systems.delta.whole_files import statistics_as_it_is
from airflow_logio.systems.delta.written_files import FileWriter, WrittenFile, new_path
from airflow_logio.systems.payloads.dataset import Dataset, dataset_at
from airflow_logio.systems.payloads.task_files import blocks

TASK_BYTES = 32 * 2**20
"""Bytes of files of datasets, at least, for which there is a task: with fewer in all, the driver is faster than a job. A file
is read by one task."""
COPIED_BYTES = 16 * 2**20
"""Files of datasets from which a table gets a copy, where that is the same: smaller ones would be many small files."""
FILE_BYTES, HELD_BYTES = 64 * 2**20, 128 * 2**20
"""Of a task, in place of those of the driver: an executor has several, and little memory outside of its JVM."""

Job = Callable[[str, Callable[[Any], pa.Table]], pa.Table]
"""Runs a Spark job: its description, and what starts it, given the session. Raises `SparkLost`, `ExternalUnavailable`,
`ConfigurationError`, `OperatorFailed`."""


class TableFiles:
    """Has executors write the datasets of a `DeltaWriter` of one epoch: a `delta_target.ByTasks`.

    `dataset` finds the dataset of a reference, `root` is that of the payload store, `url` names what the table is below; a
    `job` runs only if `has_spark`: a driver that has no session makes none for this.
    """

    def __init__(
        self,
        writer: DeltaWriter,
        url: str,
        dataset: Callable[[str, str], Dataset],
        root: str,
        job: Job,
        has_spark: Callable[[], bool],
    ) -> None:
        self._writer = writer
        self._url = url
        self._dataset = dataset
        self._root = root
        self._job = job
        self._has_spark = has_spark

    def __call__(
        self, place: TablePlace, columns: RecordColumns, prefix: str, actions: Sequence[WriteAction]
    ) -> Sequence[WrittenFile] | None:
        """As `ByTasks`."""
        if not self._has_spark():
            return None
        try:
            datasets = [self._dataset(where_of(action), str(action.dataset)) for action in actions]
        except LogUnavailable as error:
            raise ExternalUnavailable(str(error)) from error
        if sum(dataset.nbytes for dataset in datasets) < TASK_BYTES:
            return None
        records = ActionRecords(columns.named, self._writer.without_audits())
        for action, dataset in zip(actions, datasets, strict=True):
            _check_columns(records, columns, action, dataset)
        files = [file for dataset in datasets for file in dataset.manifest.files]
        firsts = tuple(accumulate((len(dataset.manifest.files) for dataset in datasets[:-1]), initial=0))
        tasks = _tasks([file.size for file in files])
        writing = Writing(
            *(self._root, place.named, self._url, columns, records, prefix, tuple(actions), firsts, COPIED_BYTES),
            (*tasks, len(files)),
        )

        def job(session: Any) -> pa.Table:
            numbers = session.range(0, len(tasks), 1, len(tasks))
            return numbers.mapInArrow(partial(written, writing), RESULT).toArrow()

        where = _where_of_all(actions)
        lines = self._job(f"{where}: files of {columns.named}", job).to_pylist()
        found = _named(where, lines, [file.records for file in files], partial(_copy, place, self._url))
        _check_seen(place, found)
        return found


def _check_columns(records: ActionRecords, columns: RecordColumns, action: WriteAction, dataset: Dataset) -> None:
    """What columns and types alone tell is refused before a job."""
    for empty in records.in_files(action, _Nothing(dataset)):
        if dataset.num_rows:
            columns.fitted(empty, where_of(action))


@dataclass(frozen=True)
class _Nothing:
    """The columns of a dataset."""

    dataset: Dataset

    def empty(self) -> pa.Table:
        return self.dataset.empty()

    def batches(self, number: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        return iter(())


def _tasks(sizes: Sequence[int]) -> Sequence[int]:
    """The first file of each task, which has those behind it up to `TASK_BYTES`."""
    firsts, held = list[int](), TASK_BYTES
    for number, size in enumerate(sizes):
        if held >= TASK_BYTES:
            firsts.append(number)
            held = 0
        held += size
    return firsts


def _where_of_all(actions: Sequence[WriteAction]) -> str:
    first, last = actions[0], actions[-1]
    if first.number == last.number:
        return where_of(first)
    return f"write actions {first.number} to {last.number} of {first.operator!r}"


def _named(
    where: str, lines: Sequence[Mapping[str, Any]], counts: Sequence[int], copy: Callable[[str, int, str], None]
) -> Sequence[WrittenFile]:
    """The files of the attempts that the job has taken; `copy` is what copies one once more.

    Raises what a task has found, and `ExternalUnavailable` if they do not have each record of each file of the datasets, by
    their manifests.
    """
    failed = [line for line in lines if line["error"]]
    if failed:
        first = min(failed, key=_urgency)
        raise told(first["error"], first["said"])
    read = [(line["source"], line["records"]) for line in lines if not line["path"]]
    files = [_file(line, copy) for line in lines if line["path"]]
    if sorted(read) != list(enumerate(counts)) or sum(file.records for file in files) != sum(counts):
        raise ExternalUnavailable(
            f"{where}: tasks have read {sum(count for _, count in read):,} records of {len(read):,} files, and written "
            f"{sum(file.records for file in files):,}; the datasets have {sum(counts):,} in {len(counts):,}. They are "
            "written again"
        )
    return files


def _file(line: Mapping[str, Any], copy: Callable[[str, int, str], None]) -> WrittenFile:
    path, size, source = line["path"], line["size"], line["copied"]
    made = WrittenFile(path, size, json.loads(line["partition"]), line["stats"], line["records"])
    return replace(made, again=partial(copy, source, size, path)) if source else made


def _urgency(line: Mapping[str, Any]) -> tuple[bool, int]:
    """What waiting does not mend comes first, then the first file."""
    kind = getattr(errors, line["error"])
    return issubclass(kind, ExternalUnavailable | LogUnavailable), line["source"]


def _check_seen(place: TablePlace, files: Sequence[WrittenFile]) -> None:
    """Raises `ConfigurationError` if the driver sees none of what executors have put, `ExternalUnavailable` if not all."""
    missing = [
        file for file, size in zip(files, place.sizes([file.path for file in files]), strict=True) if size != file.size
    ]
    if missing:
        kind = ConfigurationError if len(missing) == len(files) else ExternalUnavailable
        raise kind(
            f"{place.named}: executors have put {len(files):,} files, and the driver does not see {len(missing):,} of them, "
            f"as {missing[0].path}; {_ONE_PLACE}"
        )


_ONE_PLACE = (
    "driver and all executors need the folder of the connection under one path, or the same store behind its URL"
)


# --- what tasks do, on executors: they need this package, no delta-rs, and reach payload store and table --------------

_RESULT = pa.schema(
    [
        ("source", pa.int64()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("records", pa.int64()),
        ("partition", pa.string()),
        ("stats", pa.string()),
        ("copied", pa.string()),
        ("error", pa.string()),
        ("said", pa.string()),
    ]
)
"""What a task returns: a line for each file that it has read to its end, without a path; one for each that it has written, or
copied from `copied`; or one with the name of an error, and what it says. `source` is the file that it has read last."""
RESULT = ", ".join(f"{field.name} {'long' if field.type == pa.int64() else 'string'}" for field in _RESULT)
"""The same as Spark has it."""


@dataclass(frozen=True)
class Writing:
    """What is written, and where to: part of the job, so there is no secret in it."""

    root: str
    """Of the payload store."""
    named: str
    """The connection, in words."""
    url: str
    """What the table lies below, without credentials."""
    columns: RecordColumns
    records: ActionRecords
    prefix: str
    """What the names of files begin with."""
    actions: tuple[WriteAction, ...]
    """With the references of their datasets."""
    firsts: tuple[int, ...]
    """For each, the number of its first file: those of all are counted through."""
    copied_bytes: int
    """`COPIED_BYTES`."""
    tasks: tuple[int, ...]
    """The number of the first file of each task, and the number of files."""


def written(writing: Writing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the files of the tasks whose numbers come: the lines.

    What is wrong is in a line, as Spark would try a task that raises again; all it has written is garbage then.
    """
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        task = _Task(writing)
        try:
            lines = task.lines(range(*writing.tasks[number : number + 2]))
        except LogioError as error:
            lines = [_line(task.source, error=type(error).__name__, said=str(error))]
        yield pa.RecordBatch.from_pylist(lines, _RESULT)


class _Task:
    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._datasets = dict[int, Dataset]()
        self.source = 0
        """The file that is read."""

    def lines(self, files: Iterable[int]) -> list[dict[str, Any]]:
        writing, lines = self._writing, list[dict[str, Any]]()
        place = files_place(writing.named, writing.url, writing.records.writer.table)
        _check_table(place, writing)
        writer = FileWriter(
            place, writing.columns, writing.prefix, file_bytes=FILE_BYTES, held_bytes=HELD_BYTES, kept_bytes=0
        )
        for self.source in files:
            copied = self._copied(place)
            lines += copied or [_line(self.source, records=self._take(writer))]
        lines += (
            _line(self.source, file.path, file.size, file.records, json.dumps(dict(file.partition)), file.stats)
            for file in writer.end()
        )
        return lines

    def _copied(self, place: TablePlace) -> list[dict[str, Any]]:
        """The lines of a file that is large, and is copied as it is. None if its records are to be decoded."""
        which, number = self._place()
        dataset = self._dataset(which)
        file = dataset.manifest.files[number]
        if file.size < self._writing.copied_bytes or self._writing.columns.partition_by:
            return []
        dataset.check_file(number)
        with dataset.reading(file), dataset.files.open(file.path) as opened, pq.ParquetFile(opened) as parquet:
            stats = statistics_as_it_is(self._writing.columns, parquet)
            count = parquet.metadata.num_rows
        if stats is None or count != file.records:  # the records are counted where they are decoded
            return []
        path, source = new_path(self._writing.prefix, self.source, {}), dataset.files.location(file.path)
        _copy(place, self._writing.url, source, file.size, path)
        return [
            _line(self.source, records=count),
            _line(self.source, path, file.size, count, "{}", stats, source),
        ]

    def _place(self) -> tuple[int, int]:
        """Of the file that is read: the number of its dataset, and its own there."""
        which = bisect_right(self._writing.firsts, self.source) - 1
        return which, self.source - self._writing.firsts[which]

    def _take(self, writer: FileWriter) -> int:
        """The records of one file."""
        writing, found = self._writing, 0
        which, number = self._place()
        action = writing.actions[which]
        for records in writing.records.in_files(action, self._dataset(which), number):
            if records.num_rows:
                writer.take(records, where_of(action))
                found += records.num_rows
        return found

    def _dataset(self, which: int) -> Dataset:
        if which not in self._datasets:
            action = self._writing.actions[which]
            self._datasets = {which: dataset_at(self._writing.root, where_of(action), str(action.dataset))}
        return self._datasets[which]


def _copy(place: TablePlace, url: str, source: str, size: int, path: str) -> None:
    """Copy a file of the payload store into the folder of a table: by the store itself, if it is the same one. No link: what
    one of the two removes would not be gone, and what is changed would be changed in both."""
    if isinstance(place, BucketTable) and size <= MOST_BYTES_OF_A_COPY and same_store(source, url):
        place.copy(key_of(source), path)
    else:
        place.put_blocks(path, blocks(source, size))


def _check_table(place: TablePlace, writing: Writing) -> None:
    """A folder that is not mounted here would be made, and hold what no reader sees."""
    if isinstance(place, LocalTable) and place.size(LOG) is None:
        raise ConfigurationError(f"{writing.columns.named}: an executor does not see the table; {_ONE_PLACE}")


def _line(
    source: int,
    path: str = "",
    size: int = 0,
    records: int = 0,
    partition: str = "",
    stats: str = "",
    copied: str = "",
    error: str = "",
    said: str = "",
) -> dict[str, Any]:
    what = (source, path, size, records, partition, stats, copied, error, said)
    return dict(zip(_RESULT.names, what, strict=True))
