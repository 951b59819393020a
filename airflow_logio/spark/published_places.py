"""Port: where a `DatasetWriter` publishes, and what a write action makes there (ADR-83, ADR-124)."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from airflow_logio.dataflow.writers.folder_days import RECEIPTS, DayRun
from airflow_logio.dataflow.writers.folder_files import FolderFiles
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.errors import ExternalUnavailable, LogUnavailable
from airflow_logio.protocol.folder_rules import NamedFile
from airflow_logio.spark.database_tasks import told
from airflow_logio.systems.payloads import task_files
from airflow_logio.systems.payloads.manifests import Manifest


class PublishedPlace(ABC):
    """The folder of one writer, as its drivers and their executors reach it.

    What is put is durable. Paths are below the folder. Methods raise OSError.
    """

    files: FolderFiles
    """What is there."""

    @abstractmethod
    def check(self) -> None:
        """Whether a run that begins now could write there, as far as a look says. Nothing is changed.

        Raises `ConfigurationError`.
        """

    @abstractmethod
    def prepare(self, folders: Iterable[str], names: ActionNames) -> None:
        """Folders that are there, and free of what drivers that were replaced have left half-written."""

    @abstractmethod
    def put_records(self, names: Iterable[str], folder: str = RUNS) -> None:
        """Empty files in a folder of records, unless they are there."""

    @abstractmethod
    def put_receipt(self, names: ActionNames, receipt: bytes, folder: str = RECEIPTS) -> None:
        """A whole file, or none, in a folder that is prepared."""

    @abstractmethod
    def put_files(self, where: str, plan: Publication, sources: Sequence[str], job: CopyJob) -> None:
        """All files of a publication under their names, each whole or not at all, given their paths in the payload store.

        Doing it again changes nothing. `where` names the write action. Raises `ConfigurationError` if the driver does not see
        what executors have put.
        """

    @abstractmethod
    def may_remove(self, folder: str) -> bool:
        """Whether files of the folder can be removed, where that can be told without doing it."""

    @abstractmethod
    def remove(self, paths: Iterable[str]) -> None:
        """Remove the files that are there."""

    @abstractmethod
    def close(self) -> None:
        """Remove what tasks of this driver that were killed have left half-written, as far as it can be. Raises nothing."""


# --- names and receipts (ADR-83) --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActionNames:
    """One write action of a `DatasetWriter`, as a driver with this token executes it. Paths are relative to the folder."""

    run_uid: str
    operator: str
    number: int
    token: int

    @property
    def stem(self) -> str:
        """What the names of its files and of its receipt begin with."""
        return f"{self.run_uid}.{self.operator}.{self.number:012d}"

    @property
    def receipt_name(self) -> str:
        """In the folder of receipts."""
        return f"{self.stem}.json"

    def receipt_of(self, says: Mapping[str, Any]) -> bytes:
        """What is put into the folder of receipts when all files are there."""
        return msgspec.json.encode({"run": self.run_uid, "operator": self.operator, "number": self.number, **says})

    def hidden(self, name: str) -> str:
        """What the names begin with under which this driver writes a file."""
        return f".{name}.{self.token:x}."

    def is_left_over(self, name: str) -> bool:
        """Whether a name in the folder is a file that a driver with a lower token has left half-written.

        What a driver with a higher token is writing stays: this one is the replaced one then.
        """
        return name.startswith(f".{self.run_uid}.{self.operator}.") and _token(name) < self.token

    def is_half(self, name: str) -> bool:
        """Whether a name in the folder is a file that this driver is writing, or has left half-written."""
        return name.startswith(f".{self.run_uid}.{self.operator}.") and _token(name) == self.token


@dataclass(frozen=True, slots=True)
class ClosingNames(ActionNames):
    """One that closes a day. It has a receipt, and no file."""

    run: DayRun

    @property
    def receipt_name(self) -> str:
        """In the folder of the day's records."""
        return self.run.receipt(self.operator)

    def is_left_over(self, name: str) -> bool:
        """As of others: a receipt that a driver with a lower token has left half-written."""
        return name.startswith(f".{self.receipt_name}.") and _token(name) < self.token


@dataclass(frozen=True, slots=True)
class FillingNames(ClosingNames):
    """One of a run that fills its day at once, which has a receipt for each."""

    @property
    def receipt_name(self) -> str:
        """In the folder of the day's records."""
        return self.run.receipt(self.operator, self.number)


@dataclass(frozen=True, slots=True)
class Publication(ActionNames):
    """One that publishes a dataset."""

    manifest: Manifest

    def names(self) -> Sequence[str]:
        """The path of each file, in the order of the manifest."""
        return [
            "/".join((*file.partition, f"{self.stem}.{index:05d}.parquet"))
            for index, file in enumerate(self.manifest.files)
        ]

    def partitions(self) -> Mapping[str, str]:
        """The path of each file → the folder that it is in."""
        return {name: name.rpartition("/")[0] for name in self.names()}

    def files(self) -> list[NamedFile]:
        """As its receipt names them."""
        return [
            NamedFile(name, file.size, file.records)
            for name, file in zip(self.names(), self.manifest.files, strict=True)
        ]

    def receipt(self) -> bytes:
        """It names all files."""
        named = [file._asdict() for file in self.files()]
        return self.receipt_of({"schema": msgspec.json.decode(self.manifest.schema), "files": named})


def records_outside(scope: str, manifest: Manifest) -> Mapping[str, int]:
    """Folder → records of a dataset that are in another one than the first folder `scope`."""
    found = Counter[str]()
    for file in manifest.files:
        folder = file.partition[0] if file.partition else ""
        found[folder] += file.records if folder != scope else 0
    return +found


def said_of_others(scope: str, others: Mapping[str, int]) -> str:
    """What is wrong with records of `records_outside`, for a message."""
    named = ", ".join(f"{count:,} of {folder}" for folder, count in sorted(others.items()))
    return f"the run owns {scope} only, and there are records of other days: {named}"


def _token(hidden: str) -> int:
    """The token of the driver whose file it is; -1 if the name does not tell."""
    with contextlib.suppress(ValueError, IndexError):
        return int(hidden.rsplit(".", 2)[-2], 16)
    return -1


# --- copies by tasks --------------------------------------------------------------------------------------------------


class Copy(NamedTuple):
    """A file that is to be published."""

    source: str
    target: str
    size: int
    """Bytes."""
    footer: int
    """Checksum."""
    hidden: str = ""
    """What its name begins with until it is whole, in a file system."""


Copies = Sequence[Copy]
Lines = Sequence[Mapping[str, Any]]
"""What tasks say of each file."""


class CopyTask(NamedTuple):
    """What executors do with some of the files."""

    run: Callable[[Iterable[Any]], Iterator[Any]]
    """From batches with the columns of `Copy` to batches of lines."""
    returns: str
    """The schema of a line."""


CopyJob = Callable[[str, Copies, CopyTask], Lines]
"""Runs a Spark job: its description, the files, what is done with them. Raises `LogioError`, OSError."""


def raise_told(lines: Lines) -> None:
    """Raises what a task has said of a file; what waiting does not mend comes first."""
    failed = [line for line in lines if line["error"]]
    if failed:
        first = min(failed, key=lambda line: line["error"] in _WAITING)
        raise told(first["error"], first["said"])


_WAITING = (ExternalUnavailable.__name__, LogUnavailable.__name__)
COPYING = CopyTask(task_files.copied, task_files.COPIED)
"""From one folder that executors share to another one."""


def copied_by_spark(session: Any, description: str, copies: Copies, task: CopyTask) -> Lines:
    """Copy files on executors, a task for each; what they say. Raises what the job raises."""
    import pyarrow as pa

    table = pa.Table.from_pylist([copy._asdict() for copy in copies])
    frame = session.createDataFrame(table).repartition(len(copies))
    done: Lines = frame.mapInArrow(task.run, task.returns).toArrow().to_pylist()
    if len(done) != len(copies):
        raise OSError(f"{description}: {len(done):,} of {len(copies):,} files were copied")
    return done
