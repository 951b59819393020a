"""Publishing into a folder that driver and executors share: by links, by copies, by rename (ADR-83, ADR-91)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.folder_files import LocalFiles
from airflow_logio.dataflow.published_folder import RECEIPTS, RUNS
from airflow_logio.errors import ConfigurationError
from airflow_logio.spark.placing import (
    COPYING,
    Appearance,
    Copies,
    Copy,
    CopyJob,
    appearance_of_new,
    hidden_path,
    without_links,
)
from airflow_logio.spark.publications import ActionNames, Publication
from airflow_logio.spark.published_places import PublishedPlace
from airflow_logio.systems.payloads import task_files
from airflow_logio.systems.payloads.roots import is_local, local_path
from airflow_logio.systems.payloads.storage import make_durable


class LocalPlace(PublishedPlace):
    """`folder` below the folder that the connection names, which must be there. Raises `ConfigurationError`."""

    def __init__(self, connection: str, url: str, folder: str) -> None:
        self._named = f"connection {connection!r}"
        self._folder = os.path.join(_base(self._named, url), folder)
        self.files = LocalFiles(self._folder)
        self._prepared: set[str] = set()
        self._new_files: dict[str, Appearance] = {}
        """Folder → how files look that this driver makes there."""
        self._copied_to: dict[str, ActionNames] = {}
        """Folder → an action whose files tasks of this driver have copied there."""

    def check(self) -> None:
        there = self._folder
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if not os.path.isdir(there):
            raise ConfigurationError(f"{there} is no folder; move it elsewhere")
        if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigurationError(f"{there} cannot be written by this user; allow it, or mount it for writing")

    def prepare(self, folders: Iterable[str], names: ActionNames) -> None:
        for folder in folders:
            path = os.path.join(self._folder, folder)
            if path in self._prepared:
                continue
            make_durable(Path(path), mode=0o777)
            for name in filter(names.is_left_over, os.listdir(path)):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, name))
            self._prepared.add(path)

    def put_records(self, names: Iterable[str]) -> None:
        runs = os.path.join(self._folder, RUNS)
        make_durable(Path(runs), mode=0o777)
        for name in names:
            with suppress(FileExistsError), open(os.path.join(runs, name), "xb"):
                pass
        task_files.sync(runs)

    def put_receipt(self, names: ActionNames, receipt: bytes) -> None:
        folder, name = os.path.join(self._folder, RECEIPTS), names.receipt_name
        path, hidden = os.path.join(folder, name), hidden_path(folder, names.hidden(name))
        with open(hidden, "xb") as file:
            file.write(receipt)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
        task_files.sync(folder)

    def put_files(self, where: str, plan: Publication, sources: Sequence[str], job: CopyJob) -> None:
        """By links, and by a job of copies where there are none."""
        copies = [
            Copy(source, self.files.name(path), file.size, file.footer, plan.hidden(os.path.basename(path)))
            for source, path, file in zip(sources, plan.names(), plan.manifest.files, strict=True)
        ]
        unlinked = without_links(copies, lambda folder: self._new_file(folder, plan))
        if unlinked:
            self._copied_to.update((os.path.dirname(copy.target), plan) for copy in unlinked)
            job(where, unlinked, COPYING)
            crash_here(CrashPoint.IN_PLACING)
            self._check(unlinked)
        for folder in {os.path.dirname(copy.target) for copy in copies}:
            task_files.sync(folder)

    def may_remove(self, folder: str) -> bool:
        return os.access(os.path.join(self._folder, folder), os.W_OK | os.X_OK)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):  # another driver has
                os.unlink(os.path.join(self._folder, path))

    def close(self) -> None:
        """A task that still copies then fails; another one has copied its file, or the action is executed again."""
        for folder, names in self._copied_to.items():
            with suppress(OSError):  # what is left is hidden, and what the action has raised must be seen
                for name in filter(names.is_half, os.listdir(folder)):
                    os.unlink(os.path.join(folder, name))

    def _new_file(self, folder: str, plan: ActionNames) -> Appearance:
        if folder not in self._new_files:
            self._new_files[folder] = appearance_of_new(folder, plan.hidden(plan.stem))
        return self._new_files[folder]

    def _check(self, copies: Copies) -> None:
        """Raises `ConfigurationError` for a file that an executor has copied to where the driver does not see it."""
        for copy in copies:
            if not os.path.isfile(copy.target) or os.path.getsize(copy.target) != copy.size:
                raise ConfigurationError(
                    f"{self._named}: an executor has copied {copy.size:,} bytes to {copy.target}, and the driver does not "
                    "see them; driver and all executors need the folder under one path"
                )


def _base(named: str, url: str) -> str:
    """The folder that a connection names. Raises `ConfigurationError`."""
    if not is_local(url) or not local_path(url).is_absolute():
        raise ConfigurationError(
            f"{named} is no folder: a DatasetWriter needs one that driver and executors share, as an absolute path or "
            "file:///..., or a bucket, as s3://bucket/path"
        )
    base = str(local_path(url))
    if not os.path.isdir(base):  # to make it would hide a disk that is not mounted
        raise ConfigurationError(f"{named}: there is no folder {base}; make or mount it")
    return base
