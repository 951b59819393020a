"""Publishing into an object store: whole objects under final names (ADR-124)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from airflow_logio.arrow_files import whole_object
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.object_files import ObjectFiles
from airflow_logio.dataflow.published_folder import RECEIPTS, RUNS
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.spark.database_tasks import told
from airflow_logio.spark.placing import Copies, Copy, CopyJob, CopyTask
from airflow_logio.spark.publications import ActionNames, Publication
from airflow_logio.spark.published_places import PublishedPlace
from airflow_logio.systems.payloads import task_objects

_MOST_BYTES_OF_A_KEY = 1024
_MOST_BYTES_OF_AN_OBJECT = 10_000 * 10 * 2**20
"""S3 takes so many parts, and Arrow makes each so large."""


class ObjectPlace(PublishedPlace):
    """`folder` below what the connection names. Raises `ConfigurationError`, `ExternalUnavailable`."""

    def __init__(self, connection: str, url: str, folder: str) -> None:
        self._named = f"connection {connection!r}"
        self._task = CopyTask(partial(task_objects.put, connection, url), task_objects.PUT)
        self.files: ObjectFiles = ObjectFiles.of(self._named, url, folder)

    def check(self) -> None:
        """That the bucket is there, and may be listed, is what the first question says."""

    def prepare(self, folders: Iterable[str], names: ActionNames) -> None:
        """There are no folders, and no files that are half-written."""

    def put_records(self, names: Iterable[str]) -> None:
        for name in names:
            self._put(f"{RUNS}/{name}", b"")

    def put_receipt(self, names: ActionNames, receipt: bytes) -> None:
        self._put(f"{RECEIPTS}/{names.receipt_name}", receipt)

    def put_files(self, where: str, plan: Publication, sources: Sequence[str], job: CopyJob) -> None:
        """By a job: what is there is left alone, and a name that is put twice has the same bytes."""
        copies = [
            Copy(source, self.files.key(path), file.size, file.footer)
            for source, path, file in zip(sources, plan.names(), plan.manifest.files, strict=True)
        ]
        if not copies:
            return
        self._check_keys(copies)
        failed = [line for line in job(where, copies, self._task) if line["error"]]
        if failed:  # what waiting does not mend comes first
            first = min(failed, key=lambda line: line["error"] == ExternalUnavailable.__name__)
            raise told(first["error"], first["said"])
        crash_here(CrashPoint.IN_PLACING)
        self._check(copies)

    def may_remove(self, folder: str) -> bool:
        """Only a removal would tell."""
        return True

    def remove(self, paths: Iterable[str]) -> None:
        for _ in self.files.each(self._remove, paths):  # three requests
            pass

    def close(self) -> None:
        """There is nothing half-written."""

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):  # another driver has
            self.files.system.delete_file(self.files.key(path))

    def _put(self, path: str, data: bytes) -> None:
        with whole_object(self.files.system, self.files.key(path)) as stream:
            stream.write(data)

    def _check_keys(self, copies: Copies) -> None:
        """S3 says it of each object, and Arrow not by a name that it knows. Raises `ConfigurationError`."""
        for copy in copies:
            if copy.size > _MOST_BYTES_OF_AN_OBJECT:
                raise ConfigurationError(
                    f"{self._named}: {copy.source} has {copy.size:,} bytes, and an object has at most "
                    f"{_MOST_BYTES_OF_AN_OBJECT:,}, 10,000 parts as Arrow puts them: let the function before the writer "
                    "repartition its DataFrame"
                )
            key = copy.target.partition("/")[2]
            size = len(key.encode())
            if size > _MOST_BYTES_OF_A_KEY:
                raise ConfigurationError(
                    f"{self._named}: an object would have a name of {size:,} bytes ({key[:80]}...), and S3 takes "
                    f"{_MOST_BYTES_OF_A_KEY:,}: choose a shorter path or folder, or partition by fewer columns"
                )

    def _check(self, copies: Copies) -> None:
        """Raises `ConfigurationError` for an object that an executor has put where the driver does not see it."""
        found = list(self.files.each(self.files.system.get_file_info, [copy.target for copy in copies]))
        for copy, info in zip(copies, found, strict=True):
            if not info.is_file or info.size != copy.size:
                raise ConfigurationError(
                    f"{self._named}: an executor has put {copy.size:,} bytes under {copy.target}, and the driver does not "
                    "see them; driver and all executors need the same store behind the URL (region, endpoint)"
                )
