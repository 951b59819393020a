"""Port: where a `DatasetWriter` publishes, as its drivers and their executors reach it (ADR-124)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from airflow_logio.dataflow.folder_files import FolderFiles
from airflow_logio.spark.placing import CopyJob
from airflow_logio.spark.publications import ActionNames, Publication


class PublishedPlace(ABC):
    """Of one writer. What is put is durable. Paths are below the folder. Methods raise OSError."""

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
    def put_records(self, names: Iterable[str]) -> None:
        """Empty files in the folder of records, unless they are there."""

    @abstractmethod
    def put_receipt(self, names: ActionNames, receipt: bytes) -> None:
        """A whole file, or none."""

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
        """Those that are there."""

    @abstractmethod
    def close(self) -> None:
        """Remove what tasks of this driver that were killed have left half-written, as far as it can be. Raises nothing."""
