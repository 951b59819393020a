"""Publishing a dataset into a folder: the write actions of a `DatasetWriter` (ADR-83, ADR-91)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.published_folder import RECEIPTS
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogInconsistent, LogUnavailable
from airflow_logio.protocol.warehouse_rules import Owner
from airflow_logio.runtime.datasets.folder_claims import FolderClaim
from airflow_logio.runtime.datasets.placing import (
    Appearance,
    Copies,
    Copy,
    appearance_of_new,
    hidden_path,
    without_links,
)
from airflow_logio.runtime.datasets.publications import ActionNames, Publication
from airflow_logio.runtime.payloads import task_files
from airflow_logio.runtime.payloads.dataset import Dataset
from airflow_logio.runtime.payloads.local import make_durable
from airflow_logio.runtime.payloads.roots import is_local, local_path

WRONG = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EROFS,
    }
)
"""Errors of a file system that waiting does not fix."""


@dataclass(slots=True)
class Place:
    """The folder that a connection names, and what this driver has prepared in it."""

    base: str
    claim: FolderClaim
    prepared: set[str] = field(default_factory=set)
    new_files: dict[str, Appearance] = field(default_factory=dict)
    """Folder → how files look that this driver makes there."""


class DatasetTarget:
    """Executes the write actions of one writer of `run`. `dataset` finds the dataset of a reference, `copy` is
    `copied_by_spark`; `is_fresh`: the run replaces one that was given up."""

    unavailable: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        writer: DatasetWriter,
        run: Owner,
        dataset: Callable[[str, str], Dataset],
        copy: Callable[[str, Copies], None],
        *,
        is_fresh: bool = False,
    ) -> None:
        self._writer = writer
        self._run = run
        self._dataset = dataset
        self._copy = copy
        self._is_fresh = is_fresh

    @contextmanager
    def connect(self, url: str) -> Iterator[Place]:
        """The folder of the connection. Raises `ConfigurationError`."""
        base = folder_of(self._writer, url)
        folder = os.path.join(base, self._writer.folder)
        yield Place(base, FolderClaim(folder, self._writer, self._run, is_fresh=self._is_fresh))

    def write_group(self, client: Place, actions: Sequence[WriteAction]) -> None:
        """Publish the actions, in order. Doing it again makes the same files. Raises `WriteRefused`, `ConfigurationError`,
        `ExternalUnavailable`, `LogInconsistent`."""
        for action in actions:
            try:
                self._execute(client, action)
            except (OSError, LogUnavailable) as error:
                if isinstance(error, OSError) and error.errno in WRONG:
                    raise ConfigurationError(
                        f"connection {self._writer.connection!r}: write action {action.number} of {action.operator!r} cannot "
                        f"be written: {error}"
                    ) from error
                raise ExternalUnavailable(f"connection {self._writer.connection!r}: {error}") from error
            except ValueError as error:
                raise ConfigurationError(
                    f"connection {self._writer.connection!r}: {error}; move it elsewhere, or restore it"
                ) from error

    def _execute(self, place: Place, action: WriteAction) -> None:
        where = f"write action {action.number} of {action.operator!r}"
        folder = os.path.join(place.base, self._writer.folder)
        if action.is_opening:
            self._begin(place, folder, ActionNames(action.run_uid, action.operator, action.number, action.token))
        elif action.dataset is None:
            raise LogInconsistent(f"{where} has no dataset in the log")
        else:
            self._publish(place, folder, action, where, self._dataset(where, action.dataset))

    def _begin(self, place: Place, folder: str, plan: ActionNames) -> None:
        """The write action that a run begins with. Its receipt says that it was done: what has come since is no matter."""
        if not os.path.exists(os.path.join(folder, RECEIPTS, f"{plan.stem}.json")):
            place.claim.begin()
        self._prepare(place, os.path.join(folder, RECEIPTS), plan)
        place.claim.put()
        self._put_receipt(folder, plan, plan.receipt_of({"begins": self._writer.on_new_run, "files": []}))
        place.claim.clear()

    def _publish(self, place: Place, folder: str, action: WriteAction, where: str, dataset: Dataset) -> None:
        plan = Publication(action.run_uid, action.operator, action.number, action.token, dataset.manifest)
        partitions = plan.partitions()
        place.claim.check_partitions(set(partitions.values()))
        for needed in (RECEIPTS, *sorted(set(partitions.values()))):
            self._prepare(place, os.path.join(folder, needed), plan)
        place.claim.put()
        copies = [
            Copy(source, os.path.join(folder, path), file.size, file.footer, plan.hidden(os.path.basename(path)))
            for source, path, file in zip(dataset.paths(), plan.names(), dataset.manifest.files, strict=True)
        ]
        self._place(place, where, copies, plan)
        crash_here(CrashPoint.IN_PUBLICATION)
        place.claim.confirm(partitions)
        self._put_receipt(folder, plan, plan.receipt())
        place.claim.clear(partitions.values())

    def _place(self, place: Place, where: str, copies: Copies, plan: ActionNames) -> None:
        """All files under their names, durable: by links, and by a job of copies where there are none."""
        unlinked = without_links(copies, lambda folder: self._new_file(place, folder, plan))
        if unlinked:
            self._copy(where, unlinked)
            crash_here(CrashPoint.IN_PLACING)
            self._check(unlinked)
        for folder in {os.path.dirname(copy.target) for copy in copies}:
            task_files.sync(folder)

    @staticmethod
    def _new_file(place: Place, folder: str, plan: ActionNames) -> Appearance:
        if folder not in place.new_files:
            place.new_files[folder] = appearance_of_new(folder, plan.hidden(plan.stem))
        return place.new_files[folder]

    @staticmethod
    def _put_receipt(folder: str, plan: ActionNames, receipt: bytes) -> None:
        name = f"{plan.stem}.json"
        _put(os.path.join(folder, RECEIPTS), name, plan.hidden(name), receipt)

    def _check(self, copies: Copies) -> None:
        """Raises `ConfigurationError` for a file that an executor has copied to where the driver does not see it."""
        for copy in copies:
            if not os.path.isfile(copy.target) or os.path.getsize(copy.target) != copy.size:
                raise ConfigurationError(
                    f"connection {self._writer.connection!r}: an executor has copied {copy.size:,} bytes to {copy.target}, "
                    "and the driver does not see them; driver and all executors need the folder under one path"
                )

    @staticmethod
    def _prepare(place: Place, folder: str, plan: ActionNames) -> None:
        """A folder that is there, and free of what drivers that were replaced have left half-written."""
        if folder in place.prepared:
            return
        make_durable(Path(folder), mode=0o777)
        for name in filter(plan.is_left_over, os.listdir(folder)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        place.prepared.add(folder)


def folder_of(writer: DatasetWriter, url: str) -> str:
    """The folder that the connection of a writer names. Raises `ConfigurationError`."""
    named = f"connection {writer.connection!r}"
    if not is_local(url) or not local_path(url).is_absolute():
        raise ConfigurationError(
            f"{named} is no folder: a DatasetWriter needs one that driver and executors share, as an absolute path or "
            "file:///..."
        )
    base = str(local_path(url))
    if not os.path.isdir(base):  # to make it would hide a disk that is not mounted
        raise ConfigurationError(f"{named}: there is no folder {base}; make or mount it")
    return base


def _put(folder: str, name: str, beginning: str, data: bytes) -> None:
    """A whole file or none, durable."""
    path, hidden = os.path.join(folder, name), hidden_path(folder, beginning)
    with open(hidden, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)
    task_files.sync(folder)
