"""Putting files of the payload store into a published folder by hard links, where these look like new files (ADR-91)."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.systems.payloads import task_files
from airflow_logio.systems.payloads.storage import NO_LINKS


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

COPYING = CopyTask(task_files.copied, task_files.COPIED)
"""From one folder that executors share to another one."""


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
    """That of a file which this process makes in the folder: by umask, group and access lists there. Raises OSError."""
    probe = hidden_path(folder, beginning)
    with open(probe, "xb"):
        pass
    try:
        return appearance_of(probe)
    finally:
        with suppress(FileNotFoundError):  # a successor removes what we leave
            os.unlink(probe)


def hidden_path(folder: str, beginning: str) -> str:
    """A name in the folder that no one else uses."""
    return os.path.join(folder, f"{beginning}{uuid.uuid4().hex}")


def without_links(copies: Copies, wanted: Callable[[str], Appearance]) -> Copies:
    """Give files their published names, and return those that have to be copied; durable when their folders are synced.

    `wanted` says how a file looks that is made in a folder. Doing it again changes nothing, whoever does it, and at the same
    time. Raises OSError.
    """
    missing = [copy for copy in copies if not _is_there(copy)]
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
        if os.path.samestat(found, os.stat(copy.source)):
            return True
        return found.st_size == copy.size and task_files.footer_checksum(copy.target, copy.size) == copy.footer
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


def copied_by_spark(session: Any, description: str, copies: Copies, task: CopyTask) -> Lines:
    """Copy files on executors, a task for each; what they say. Raises what the job raises."""
    import pyarrow as pa

    table = pa.Table.from_pylist([copy._asdict() for copy in copies])
    frame = session.createDataFrame(table).repartition(len(copies))
    done: Lines = frame.mapInArrow(task.run, task.returns).toArrow().to_pylist()
    if len(done) != len(copies):
        raise OSError(f"{description}: {len(done):,} of {len(copies):,} files were copied")
    return done
