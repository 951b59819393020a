"""Jobs that write, copy and probe datasets, and DataFrames of what is stored (ADR-80)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import chain
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from airflow_logio import errors
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.arrow_tables import INSET_ID, check_kept
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import ConfigurationError, LogInconsistent, LogioError, LogUnavailable, OperatorFailed
from airflow_logio.spark import spark_files
from airflow_logio.spark.published_places import COPYING, Copy, copied_by_spark
from airflow_logio.spark.schemas import arrow_schema_of, check_columns, in_utc, parsed, schema_of
from airflow_logio.spark.store_probe import one_place, spark_scheme
from airflow_logio.systems.payload_roots import is_local
from airflow_logio.systems.payloads import EpochPayloads, task_files
from airflow_logio.systems.payloads.data_files import DataFiles
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, in_order
from airflow_logio.systems.payloads.storage import HIDDEN

BROADCAST_BYTES = 32 * 2**20
"""Effects of declared reads up to this size are broadcast: Spark cannot know the size of an Arrow table."""
_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})
_DAY_MICROS = 86_400_000_000
_READ_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "recursiveFileLookup": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
"""Whatever the session says: a file that is not there is an error, not an empty one; a date is the one that was written."""


def materialized(
    payloads: EpochPayloads,
    where: str,
    purpose: str,
    frame: SparkFrame,
    partition_by: Sequence[str] = (),
    mode: int = task_files.OWNER_ONLY,
) -> Dataset:
    """Run the job that writes the records of a DataFrame; files and manifest are durable when this returns.

    `where` names what it will be the body of. Raises what the job raises, `LogUnavailable`, and `OperatorFailed` for columns
    that cannot be written.
    """
    try:
        check_columns(frame, partition_by)
    except OperatorFailed as error:  # what is evaluated as one may have another name
        raise OperatorFailed(f"{where}: {error}") from error
    kept = frame.drop(*partition_by) if partition_by else frame
    files = None
    if not partition_by and payloads.files.by_spark:
        files = spark_files.written(payloads, purpose, frame, mode)
    if files is None:
        files = written_files(payloads, purpose, frame, partition_by, mode=mode)
    places = schema_of(frame.select(*partition_by)) if partition_by else ""
    dataset = payloads.put(where, purpose, Manifest(schema_of(kept), arrow_schema_of(kept), in_order(files), places))
    crash_here(CrashPoint.AFTER_MANIFEST)
    return dataset


def written_files(
    payloads: EpochPayloads,
    purpose: str,
    frame: SparkFrame,
    partition_by: Sequence[str] = (),
    most_bytes: int | None = None,
    mode: int = task_files.OWNER_ONLY,
) -> list[DataFile]:
    """Run a job whose tasks cut or divide the records of a DataFrame. Files are durable when this returns; nothing names them
    yet.

    They are in no order. `most_bytes` is the size at which a task begins another one, `mode` that of the files, less the
    umask. Raises what the job raises, and `LogUnavailable`.
    """
    task = partial(task_files.written, most_bytes=most_bytes, mode=mode)
    return _written(payloads, purpose, frame, task, tuple(partition_by))


def materialized_sets(
    payloads: EpochPayloads,
    where: Sequence[str],
    purpose: str,
    frame: SparkFrame,
    check: Callable[[str], None] = lambda _: None,
) -> Mapping[int, Dataset]:
    """Run the job that writes Output Sets, each to files of its own. Place of an Input Set → its dataset. `check` gets their
    schema before, and may raise.

    Column ``inset_id`` of `frame` is a place in `where`, which names the Output Sets; it is not in the files. An Output Set
    without records has no dataset. Raises as `materialized`, and `OperatorFailed` if the column is missing or no number.
    """
    check_columns(frame)
    kept = _without_places(frame)
    schema = schema_of(kept)
    check(schema)
    return _sets_written(payloads, where, purpose, frame, INSET_ID, Manifest(schema, arrow_schema_of(kept), ()))


def materialized_apart(
    payloads: EpochPayloads,
    where: Sequence[str],
    purpose: str,
    frames: Sequence[SparkFrame],
    check: Callable[[str], None] = lambda _: None,
) -> Mapping[int, Dataset]:
    """As `materialized_sets`, of a DataFrame for each Output Set: one job writes the union of their plans.

    `check` gets the schema of each. They must be deterministic: a task would number, or draw, by its place in the job.
    """
    schemas = []
    for frame in frames:
        check_columns(frame)
        schemas.append(schema_of(frame))
        check(schemas[-1])
    tag = free_name(INSET_ID, frames[0])
    manifest = Manifest(schemas[0], arrow_schema_of(frames[0]), ())
    return _sets_written(payloads, where, purpose, union_of_sets(frames, tag), tag, manifest)


def union_of_sets(frames: Sequence[SparkFrame], tag: str) -> SparkFrame:
    """The records of DataFrames of the same columns, with column `tag`: the place of theirs, from 0."""
    from pyspark.sql import functions as F

    tagged = [frame.select(F.lit(place).cast("long").alias(tag), "*") for place, frame in enumerate(frames)]
    return reduce(lambda some, more: some.union(more), tagged)


def free_name(name: str, frame: SparkFrame) -> str:
    """`name`, or one like it that no column has."""
    taken = {column.lower() for column in frame.columns}
    while name.lower() in taken:
        name = f"_{name}"
    return name


def _sets_written(
    payloads: EpochPayloads, where: Sequence[str], purpose: str, frame: SparkFrame, tag: str, empty: Manifest
) -> Mapping[int, Dataset]:
    """Place → its dataset, of the records with that place in column `tag`; `empty` is a manifest without files."""
    brought_together = frame.hint("rebalance", tag) if len(where) > 1 else frame
    files = in_order(_written(payloads, purpose, brought_together, task_files.written_sets, tag, len(where)))
    by_place: dict[int, list[DataFile]] = {}
    for file in files:
        by_place.setdefault(int(file.partition[0].partition("=")[2]), []).append(replace(file, partition=()))
    datasets = {
        place: payloads.put(where[place], purpose, Manifest(empty.schema, empty.arrow, tuple(own)))
        for place, own in sorted(by_place.items())
    }
    crash_here(CrashPoint.AFTER_MANIFEST)
    return datasets


def _written(
    payloads: EpochPayloads, purpose: str, frame: SparkFrame, task: Callable[..., Iterator[pa.RecordBatch]], *how: Any
) -> list[DataFile]:
    """The files that the tasks of a job have written into a new folder, in no order: durable, and seen by the driver.

    A task calls `task` with root and folder, `how`, and its batches.
    """
    folder = payloads.new_folder(purpose)
    write = partial(task, payloads.root, folder, *how)
    crash_here(CrashPoint.BEFORE_DATASET_JOB)
    try:
        lines = frame.mapInArrow(write, task_files.RESULT).toArrow().to_pylist()
        _check_written(lines)
    except Exception:
        payloads.drop_folder(folder)  # each attempt has its own, and the store may be full
        raise
    crash_here(CrashPoint.AFTER_DATASET_JOB)
    files = [data_file(line) for line in lines]
    check_seen(payloads.files, files)
    return files


def _check_written(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raises what a task says that could not write; what waiting does not mend comes first."""
    failed = [line for line in lines if line["error"]]
    if failed:
        first = min(failed, key=lambda line: line["error"] == LogUnavailable.__name__)
        kind: type[LogioError] = getattr(errors, first["error"])
        raise kind(first["said"])


def _without_places(frame: SparkFrame) -> SparkFrame:
    check_kept(frame.columns)
    kind = frame.schema[INSET_ID].dataType.typeName()
    if kind not in ("long", "integer"):
        raise OperatorFailed(
            f"column {INSET_ID!r} of the Spark function's result is {kind}; it must be passed on unchanged"
        )
    if len(frame.columns) == 1:
        raise OperatorFailed(
            f"the result of the Spark function has no column beside {INSET_ID!r}: select what is to be sent"
        )
    return frame.drop(INSET_ID)


def data_file(line: dict[str, Any]) -> DataFile:
    """The file of a line that a writing task returns."""
    partition = tuple(filter(None, line["partition"].split("/")))
    return DataFile(line["path"], line["size"], line["records"], line["footer"], partition)


# --- by the driver: records that it has, or that executors cannot reach -----------------------------------------------

BYTES_PER_FILE = 64 * 2**20
"""Files are that large: each may be read by a task."""


def written_by_driver(
    session: Any, payloads: EpochPayloads, where: str, purpose: str, tables: Iterable[pa.Table]
) -> Dataset:
    """The records of one table or more, of one schema; files and manifest are durable when this returns. Holds one of them.

    A time without a zone becomes an instant, in UTC. Raises what `tables` raises, `LogUnavailable`, and `OperatorFailed` for
    columns that cannot be written.
    """
    given = iter(tables)
    first = next(given)
    empty = frame_of_table(session, first.schema.empty_table())
    check_columns(empty)
    folder = payloads.new_folder(purpose)
    batches = _batches(in_utc(first.schema), chain([first], given))
    try:
        lines = task_files.new_files(payloads.files, folder, (), batches, BYTES_PER_FILE)
    except (ConnectionError, TimeoutError):  # of where the records come from
        raise
    except OSError as error:
        raise LogUnavailable(f"{payloads}: {type(error).__name__}: {error}") from error
    files = in_order([data_file(line) for line in task_files.lines_of(lines).to_pylist()] if lines else [])
    return payloads.put(where, purpose, Manifest(schema_of(empty), arrow_schema_of(empty), files))


def _batches(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        if table.schema.names != schema.names:
            raise OperatorFailed(
                f"records with the columns {schema.names} are followed by some with {table.schema.names}"
            )
        yield from table.cast(schema).to_batches()
        crash_here(CrashPoint.IN_STORE)


# --- copies: records that are never decoded (ADR-96) ------------------------------------------------------------------

DRIVER_BYTES = 16 * 2**20
"""Datasets up to this size are copied by the driver: a job of Spark would take longer. Executors copy larger ones."""


def duplicated(session: Any, payloads: EpochPayloads, where: str, purpose: str, dataset: Dataset) -> Dataset:
    """The same records as a dataset of its own, of files that new files in a folder look like; durable when this returns.

    Raises as `Dataset.check`, and what the job raises.
    """
    dataset.check()
    folder = payloads.new_folder(purpose)
    crash_here(CrashPoint.BEFORE_DATASET_JOB)
    sources = dataset.manifest.files
    files = [
        replace(file, path=f"{folder}/{place:05d}-{uuid.uuid4().hex}.parquet") for place, file in enumerate(sources)
    ]  # in the same order
    if dataset.nbytes <= DRIVER_BYTES or not is_local(payloads.root):
        payloads.copy(sources, files)
    else:
        try:
            copied_by_spark(session, purpose, _copies(payloads.files, sources, files), COPYING)
        except OSError as error:
            raise LogUnavailable(f"{payloads}: {error}") from error
        check_seen(payloads.files, files)
    payloads.settle(folder)
    crash_here(CrashPoint.AFTER_DATASET_JOB)
    made = payloads.put(where, purpose, replace(dataset.manifest, files=in_order(files)))
    crash_here(CrashPoint.AFTER_MANIFEST)
    return made


def _copies(files: DataFiles, sources: Sequence[DataFile], targets: Sequence[DataFile]) -> list[Copy]:
    return [
        Copy(files.location(source.path), files.location(target.path), source.size, source.footer, HIDDEN)
        for source, target in zip(sources, targets, strict=True)
    ]


# --- DataFrames of what is stored -------------------------------------------------------------------------------------


def frame_of(session: Any, dataset: Dataset) -> SparkFrame:
    """The records of a dataset as a lazy DataFrame, its files compared with the manifest. Raises as `Dataset.check`."""
    return frame_of_all(session, dataset.manifest.schema, [dataset])


def frame_of_all(
    session: Any, schema_json: str, datasets: Sequence[Dataset], wanted: Callable[[str, str], bool] | None = None
) -> SparkFrame:
    """As `frame_of`, of several datasets of one schema, as Spark has it. Raises also `LogInconsistent` for another schema.

    `wanted` says of a path, and what its dataset is the body of, whether its records are needed.
    """
    from pyspark.sql.types import StructType

    for dataset in datasets:
        if dataset.manifest.schema != schema_json:
            raise LogInconsistent(f"the dataset of {dataset.where} has other columns than those before it")
    schema = StructType.fromJson(parsed(schema_json))
    paths, options = [], dict(_READ_OPTIONS)
    for dataset in datasets:
        dataset.check()
        files = dataset.files
        options |= files.spark_options()
        scheme = spark_scheme(session, files)
        paths += [
            files.spark_path(file.path, scheme)
            for file, path in zip(dataset.manifest.files, dataset.file_paths(), strict=True)
            if wanted is None or wanted(path, dataset.where)
        ]
    if not paths:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).options(**options).parquet(*paths)


def frame_of_table(session: Any, table: pa.Table) -> SparkFrame:
    """Records that came as an Arrow table, as a DataFrame. Times without a zone are UTC, whatever the session's zone is."""
    return session.createDataFrame(table.cast(in_utc(table.schema)))


def lookup(session: Any, effect: pa.Table) -> SparkFrame:
    """The effect of a declared read as a DataFrame, broadcast if it is small."""
    from pyspark.sql import functions as F

    frame = frame_of_table(session, effect)
    return F.broadcast(frame) if effect.nbytes <= BROADCAST_BYTES else frame


def keyed_as(rows: SparkFrame, key: str, records: SparkFrame) -> SparkFrame:
    """The rows of a read by key, with keys of the type that they have in the records; as they are, if there are none.

    The database has found each row by a key that is equal to its own, so none of them changes: a decimal becomes the whole
    number that it is, midnight UTC the day. Spark would compare a day with midnight in the zone of its session.
    """
    from pyspark.sql import functions as F

    has, asked = _type_of(rows, key), _type_of(records, key)
    if has is None or asked is None or has == asked:
        return rows
    quoted = "`{}`".format(key.replace("`", "``"))
    column, kinds = rows[quoted], (has.typeName(), asked.typeName())
    if kinds == ("date", "timestamp"):
        made = F.timestamp_micros(F.unix_date(column).cast("long") * _DAY_MICROS)
    elif kinds == ("timestamp", "date"):
        made = F.date_from_unix_date(F.expr(f"CAST(unix_micros({quoted}) DIV {_DAY_MICROS} AS INT)"))
    elif kinds == ("timestamp", "timestamp_ntz"):
        seconds = f"CAST(unix_micros({quoted}) AS DECIMAL(18, 0)) * 0.000001BD"
        made = F.expr(f"TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})")
    elif kinds == ("date", "timestamp_ntz") or _NUMBERS.issuperset(kinds):
        made = column.cast(asked)
    else:
        return rows
    return rows.withColumn(key, made)


def _type_of(frame: SparkFrame, name: str) -> Any:
    return next((field.dataType for field in frame.schema.fields if field.name.lower() == name.lower()), None)


# --- whether the driver sees what executors have written -------------------------------------------------------------


def check_seen(files: DataFiles, written: Sequence[DataFile]) -> None:
    """Raises `ConfigurationError` for a file that an executor has written where the driver does not see it."""

    def seen(file: DataFile) -> int:
        with suppress(FileNotFoundError, NotADirectoryError):
            return files.size(file.path)
        return -1

    for file, size in zip(written, files.each(seen, written), strict=True):
        if size != file.size:
            raise ConfigurationError(
                f"an executor has written {files.location(file.path)} ({file.size:,} bytes), and the driver does not see it "
                f"so. {one_place(files)}"
            )
