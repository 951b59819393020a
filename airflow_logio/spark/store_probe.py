"""How Spark names the payload store, and whether all share it: an epoch has each client read what another one wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_logio import errors
from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.spark.engine import task_slots
from airflow_logio.systems.hdfs_roots import is_hdfs
from airflow_logio.systems.payload_roots import is_local
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.data_files import DataFiles
from airflow_logio.systems.payloads.file_roots import data_files
from airflow_logio.systems.payloads.task_files import OWNER_ONLY

SCHEME_PROPERTY = "spark.logio.payloads.scheme"
"""The property that says what Spark's reader calls a bucket of S3, if not ``s3a``: ``s3`` on EMR."""
_GREETING = b"can you read this?"
_RETURNS = "found boolean, path string, error string, said string"
_NO_CLIENT = re.compile(
    r"No FileSystem for scheme|ClassNotFoundException: \S*[Ff]ile[Ss]ystem|Class \S+FileSystem not found"
)
_OF_STORE = re.compile(
    r"hdfs://|\bhdfs\b|s3a?://|\bs3a\b|S3A|gs://|abfss?://|software\.amazon\.awssdk|org\.apache\.hadoop\.fs|AccessDenied"
)
"""What Spark says of a store that its reader cannot read."""
_PASSES = re.compile(
    r"SlowDown|\b50[0234]\b|Service ?Unavailable|[Tt]imed? ?out|Connection (?:refused|reset)"
    r"|ConnectException|NoRouteToHost|SafeModeException|StandbyException|RetriableException|ExpiredToken|RequestTimeTooSkewed"
)
"""What Spark says of one that is unavailable for a while."""
# Of Hadoop, and of Amazon's accelerator, by which Spark reads since Hadoop 3.5 (ADR-217).
BUSY_BUCKET = re.compile(
    r"\b(AWSServiceThrottledException|AWSServiceIOException|AWSStatus500Exception|AWSApiCallTimeoutException"
    r"|AWSClientIOException|SlowDown|ExpiredToken|ExpiredTokenException|RequestTimeTooSkewed)\b"
    r"|Service: S3, Status Code: 5\d\d|Unable to execute HTTP request"
    r"|org\.apache\.http\.\w*(?:NoHttpResponse|ConnectionClosed|TruncatedChunk)\w*Exception"
)
"""What Hadoop's clients of S3 say of a store that is unavailable for a while, or of credentials that have to be renewed: its
own stream, and Amazon's accelerator (the default since Hadoop 3.5), which does not ask again for an answer that was cut."""
CLOSED_BUCKET = re.compile(r"Service: S3, Status Code: 40[13]\b")
"""What they say of credentials that are none, or may not."""
_MOST_CHARACTERS = 600


def spark_scheme(session: Any, files: DataFiles) -> str | None:
    """What Spark is to call the store, if the cluster's settings say it."""
    return None if files.by_spark else session.conf.get(SCHEME_PROPERTY, None)


def spark_root(session: Any, files: DataFiles) -> str:
    """What the paths begin with by which Spark reads datasets."""
    return files.spark_path("", spark_scheme(session, files))


def probe(session: Any, payloads: EpochPayloads) -> None:
    """As many tasks ask as run at a time: of what the driver has written, and the driver of what they write. Where Spark
    reads by a client of its own, it is asked as well.

    Raises `ConfigurationError`, with the clients and the direction, and `LogUnavailable`.
    """
    files, folder = payloads.files, payloads.new_folder("probe")
    said = str(payloads.store(f"{folder.rpartition('/')[2]}/driver", _GREETING))
    path = said.partition("#")[0]
    rows = _asked(session, files.root, folder, path)
    _check(files, rows)
    for row in rows:
        if payloads.content(row["path"]) != _GREETING:
            raise ConfigurationError(_apart(files, "the driver does not see what executors write"))
    if not is_local(files.root):
        _check_spark(session, payloads, path, said)
        if files.by_spark:
            _check_writer(session, payloads, f"{folder}/spark")
    payloads.discard([path, *(row["path"] for row in rows)], folder)


def _asked(session: Any, root: str, folder: str, said: str) -> Sequence[Mapping[str, Any]]:
    tasks = task_slots(session)
    job = session.range(0, tasks, 1, tasks).mapInArrow(partial(probed, root, folder, said), _RETURNS)
    rows: Sequence[Mapping[str, Any]] = job.toArrow().to_pylist()
    return rows


def _check(files: DataFiles, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises what tasks have met; what waiting does not mend comes first."""
    failed = sorted((row for row in rows if row["error"]), key=lambda row: row["error"] == LogUnavailable.__name__)
    if failed:
        kind: type[LogioError] = getattr(errors, failed[0]["error"])
        raise kind(f"executors cannot work with the payload store, and the driver can: {failed[0]['said']}")
    if not all(row["found"] for row in rows):
        raise ConfigurationError(_apart(files, "executors do not see what the driver writes"))


def _check_spark(session: Any, payloads: EpochPayloads, path: str, said: str) -> None:
    """Raises as `probe`, and what Spark raises of itself."""
    files = payloads.files
    named = files.spark_path(path, spark_scheme(session, files))
    try:
        lines = session.read.options(**files.spark_options()).text(named).toArrow().column(0).to_pylist()
    except Exception as error:
        text = _without_frames(error)
        if _NO_CLIENT.search(text):
            raise ConfigurationError(
                f"Spark has no client for {named}: add it to spark.jars.packages, for S3 org.apache.hadoop:hadoop-aws of "
                "Spark's version of Hadoop, for Google com.google.cloud.bigdataoss:gcs-connector (docs/how-to/buckets.md): "
                f"{text[:_MOST_CHARACTERS]}"
            ) from error
        if not _OF_STORE.search(text):
            raise
        payloads.load("the probe", said)  # if it is the store, the driver cannot read either
        kind = LogUnavailable if _PASSES.search(text) or BUSY_BUCKET.search(text) else ConfigurationError
        raise kind(
            _apart(files, f"Spark's reader cannot read what the driver has written, and tasks can, by the name {named}")
            + ". A JVM that has opened the bucket before keeps its settings of then: give them at launch "
            f"({text[:_MOST_CHARACTERS]})"
        ) from error
    if lines != [_GREETING.decode()]:
        raise ConfigurationError(_apart(files, f"Spark's reader does not see what the driver writes, as {named}"))


def _without_frames(error: Exception) -> str:
    """What it says, without the lines of the JVM's code: their numbers are no status codes."""
    return "\n".join(line for line in str(error).splitlines() if not line.startswith(("\tat ", "\t...")))


def _check_writer(session: Any, payloads: EpochPayloads, folder: str) -> None:
    """Whether the driver sees what Spark's own writer has written, which is Hadoop's client. Raises as `_check_spark`."""
    files = payloads.files
    named = files.spark_path(folder)
    try:
        session.range(0, 1, 1, 1).selectExpr(f"'{_GREETING.decode()}' AS said").write.text(named, compression="none")
    except Exception as error:
        text = _without_frames(error)
        if not _OF_STORE.search(text):
            raise
        kind = LogUnavailable if _PASSES.search(text) else ConfigurationError
        raise kind(
            _apart(files, f"Spark's writer cannot write where the driver and tasks do, by the name {named}")
            + f" ({text[:_MOST_CHARACTERS]})"
        ) from error
    found = [path for path in payloads.find(folder) if path.endswith(".txt")]
    if [payloads.content(path) for path in found] != [_GREETING + b"\n"]:
        raise ConfigurationError(_apart(files, f"the driver does not see what Spark's writer has written, as {named}"))
    payloads.drop_folder(folder)


def probed(root: str, folder: str, said: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: whether it reads what the driver has written, and the path of what it has written itself."""
    for _ in batches:
        line: dict[str, Any] = {"found": False, "path": "", "error": "", "said": ""}
        try:
            files = data_files(root)
            line["found"] = _greeted(files, said)
            line["path"] = f"{folder}/{_written(files, folder)}"
        except LogioError as error:
            line |= {"error": type(error).__name__, "said": str(error)}
        yield pa.RecordBatch.from_pylist([line], _LINE)


_LINE = pa.schema([("found", pa.bool_()), ("path", pa.string()), ("error", pa.string()), ("said", pa.string())])


def _greeted(files: DataFiles, path: str) -> bool:
    """Raises what `DataFiles.told` makes of a store that does not answer: that says nothing of what it has."""
    try:
        with files.open(path) as file:
            return bool(file.read() == _GREETING)
    except OSError as error:
        if is_local(files.root) or isinstance(error, (FileNotFoundError, PermissionError)):
            return False
        raise files.told(error) from error


def _written(files: DataFiles, folder: str) -> str:
    name, file = files.create(folder, OWNER_ONLY)
    file.stream.write(_GREETING)
    file.finished()
    return name


def _apart(files: DataFiles, how: str) -> str:
    return f"the payload store {files.root} is not shared: {how}. {one_place(files)}"


def one_place(files: DataFiles) -> str:
    """What is needed where two processes see different things."""
    if is_hdfs(files.root):
        return (
            "Drivers, executors and Spark need one HDFS behind its URL, by one HADOOP_CONF_DIR, as one user "
            "(HADOOP_USER_NAME, or that of the process; docs/how-to/buckets.md)"
        )
    if files.by_spark:
        return "Mode 'dataframe' needs a folder that driver and all executors have mounted under one path, as one user"
    return (
        "Drivers, executors and Spark's reader need one bucket behind its URL: the same endpoint and region, which it may "
        "say (?region=R&endpoint_override=HOST:PORT&scheme=http), and credentials of one account (docs/how-to/buckets.md)"
    )
