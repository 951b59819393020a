"""Publishing into a folder that driver and executors share: by links, by copies, by rename (ADR-83, ADR-91)."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.dataflow.writers.folder_files import LocalFiles
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.errors import ConfigurationError
from airflow_logio.spark.published_places import (
    COPYING,
    ActionNames,
    Copies,
    Copy,
    CopyJob,
    Publication,
    PublishedPlace,
    raise_told,
)
from airflow_logio.systems.payload_roots import is_local, local_path
from airflow_logio.systems.payloads.data_files import footer_checksum
from airflow_logio.systems.payloads.local_files import sync
from airflow_logio.systems.payloads.storage import NO_LINKS, make_durable


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

    def put_records(self, names: Iterable[str], folder: str = RUNS) -> None:
        records = os.path.join(self._folder, folder)
        make_durable(Path(records), mode=0o777)
        for name in names:
            with suppress(FileExistsError), open(os.path.join(records, name), "xb"):
                pass
        sync(records)

    def put_receipt(self, names: ActionNames, receipt: bytes, folder: str = RECEIPTS) -> None:
        folder, name = os.path.join(self._folder, folder), names.receipt_name
        path, hidden = os.path.join(folder, name), hidden_path(folder, names.hidden(name))
        with open(hidden, "xb") as file:
            file.write(receipt)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
        sync(folder)

    def put_files(self, where: str, plan: Publication, sources: Sequence[str], job: CopyJob) -> None:
        """By links, and by a job of copies where there are none."""
        copies = [
            Copy(source, self.files.name(path), file.size, file.footer, plan.hidden(os.path.basename(path)))
            for source, path, file in zip(sources, plan.names(), plan.manifest.files, strict=True)
        ]
        unlinked = without_links(copies, lambda folder: self._new_file(folder, plan))
        if unlinked:
            self._copied_to.update((os.path.dirname(copy.target), plan) for copy in unlinked)
            raise_told(job(where, unlinked, COPYING))
            crash_here(CrashPoint.IN_PLACING)
            self._check(unlinked)
        for folder in {os.path.dirname(copy.target) for copy in copies}:
            sync(folder)

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


# --- by hard links, where these look like new files (ADR-91) ----------------------------------------------------------


class Appearance(NamedTuple):
    """What readers of a file depend on, beside its content: a link shares it with the file of the payload store."""

    owner: int
    group: int
    mode: int
    attributes: frozenset[tuple[str, bytes]]
    """Extended ones: access lists, security labels."""


def appearance_of(path: str) -> Appearance:
    """Raises OSError."""
    found = os.stat(path)
    attributes: frozenset[tuple[str, bytes]] = frozenset()
    if hasattr(os, "listxattr"):
        with suppress(OSError):  # a file system without them
            attributes = frozenset((name, os.getxattr(path, name)) for name in os.listxattr(path))
    return Appearance(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), attributes)


def appearance_of_new(folder: str, beginning: str) -> Appearance:
    """The appearance of a file that this process makes in the folder: by umask, group and access lists. Raises OSError."""
    probe = hidden_path(folder, beginning)
    with open(probe, "xb"):
        pass
    try:
        return appearance_of(probe)
    finally:
        with suppress(FileNotFoundError):  # a successor removes what we leave
            os.unlink(probe)


def hidden_path(folder: str, beginning: str) -> str:
    """A name in the folder that nothing else uses."""
    return os.path.join(folder, f"{beginning}{uuid.uuid4().hex}")


def without_links(copies: Copies, wanted: Callable[[str], Appearance]) -> Copies:
    """Give files their published names, and return those that have to be copied; durable when their folders are synced.

    `wanted` says how a file looks that is made in a folder. Several drivers may do it, also at the same time: it changes
    nothing. Raises OSError.
    """
    missing = [copy for copy in copies if not _is_there(copy)]
    if missing and not is_local(missing[0].source):
        return missing
    changed = [copy for copy in missing if _changed(copy.source, wanted(os.path.dirname(copy.target)))]
    for copy in changed:  # all are changed by then: the first one writes the journal of the file system for all
        with open(copy.source, "rb") as file:
            os.fsync(file.fileno())
    return [copy for copy in missing if not _linked(copy, wanted(os.path.dirname(copy.target)))]


def _linked(copy: Copy, wanted: Appearance) -> bool:
    if appearance_of(copy.source) != wanted:
        return False
    try:
        try:
            os.link(copy.source, copy.target)
        except FileExistsError:
            if not _is_there(copy):
                _replace(copy)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return False
    crash_here(CrashPoint.IN_PLACING)
    return True


def _is_there(copy: Copy) -> bool:
    """Whether the published name stands for the whole file: for itself, or for a copy."""
    with suppress(FileNotFoundError):
        found = os.stat(copy.target)
        if is_local(copy.source) and os.path.samestat(found, os.stat(copy.source)):
            return True
        return found.st_size == copy.size and footer_checksum(copy.target, copy.size) == copy.footer
    return False


def _changed(source: str, wanted: Appearance) -> bool:
    """Give a file the group and mode that are wanted, where it can then be linked; whether it had others."""
    found = appearance_of(source)
    if found == wanted or found.owner != wanted.owner:
        return False
    with suppress(PermissionError):  # of a group that we are not in: it is copied
        if found.group != wanted.group:
            os.chown(source, -1, wanted.group)
        os.chmod(source, wanted.mode)
    return True


def _replace(copy: Copy) -> None:
    """Something else has the published name: the file takes it over, in one step."""
    hidden = hidden_path(os.path.dirname(copy.target), copy.hidden)
    os.link(copy.source, hidden)
    os.replace(hidden, copy.target)
    with suppress(FileNotFoundError):  # a rename to a name of the same file does nothing
        os.unlink(hidden)
