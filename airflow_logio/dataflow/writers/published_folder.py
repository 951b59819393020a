"""Reading what a `DatasetWriter` has published: the files that count, and the records and receipts that say so (ADR-91)."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from airflow_logio.dataflow.writers.bucket_urls import SCHEME
from airflow_logio.dataflow.writers.folder_days import RECEIPTS, SIGN, DayReceipt, FolderDay, day_of, days_of, scopes_of
from airflow_logio.dataflow.writers.folder_files import FolderFiles, LocalFiles, ObjectFiles
from airflow_logio.protocol.folder_rules import FolderRuns, NamedFile, Receipt, record_of
from airflow_logio.protocol.scope_rules import DayAsRead

RUNS = f"{RECEIPTS}/runs"
"""The folder of the records of runs."""
LOST_AND_FOUND = "lost+found"
"""What a file system keeps at its root, for its own user only."""
_OURS = re.compile(r"([^.]+)\.([^.]+)\.(\d{12})\.\d{5,}\.parquet")
"""The names of published files, by run, operator and write action."""


class PublishedFile(NamedTuple):
    """A file that a `DatasetWriter` has published, and the write action that it came with.

    :param path: path of the file; in a bucket ``s3://bucket/key``, in which nothing is quoted.
    :param bytes: its size.
    :param records: how many records it has.
    :param run_uid: the run that has published it.
    :param operator: name of the writer in its pipeline.
    :param number: number of the write action.
    """

    path: str
    bytes: int
    records: int
    run_uid: str
    operator: str
    number: int


def published_files(folder: str | os.PathLike[str]) -> list[PublishedFile]:
    """The files that count in a folder of a `DatasetWriter`, at one instant: of each write action all of them or none.

    :param folder: a path, or a URL ``s3://bucket/path`` without credentials, which the process has as for Arrow.
        Nothing in it is quoted. A partition of a published folder, as ``orders/day=2026-03-01``, gives the files in it.

    Those of older runs come first. Columns of `partition_by` are in the names of their folders. A file may be removed
    after it was listed, when a newer run replaces it: list again then. Raises OSError if the folder cannot be read, or
    is not shown as a whole yet, `ConfigurationError`, `ExternalUnavailable`.
    """
    files, below = published_in(os.fspath(folder))
    found = counted_in(files, below)
    if not found and below and not files.is_there(below) and _live_in(files, below) is None:
        raise FileNotFoundError(errno.ENOENT, "no run has published such a partition", files.name(below))
    return found


def is_published(folder: str) -> bool:
    """Whether a run has published into a folder, or into that partition of it, what counts; a closed day may have no files,
    while one that is filled at once has some.

    Raises as `published_files`.
    """
    files, below = published_in(folder)
    if counted_in(files, below):
        return True
    live = _live_in(files, below) if below else None
    return live is not None and not live.fills


def _live_in(files: FolderFiles, below: str) -> DayReceipt | None:
    return day_of(files, below.partition("/")[0]).live()


def day_as_left(folder: str) -> DayAsRead | None:
    """The day that a partition of a folder is of, and the run whose files count there, or else the one that has claimed it
    first; None if no run owns it by its value.

    Raises as `published_files`.
    """
    files, below = published_in(folder)
    if not below:
        return None
    place = files.where if files.where.startswith(SCHEME) else os.path.abspath(files.where)
    day = day_of(files, below.partition("/")[0])
    if (live := day.live()) is not None:
        return DayAsRead(place, live.scope, live.run.run_uid, is_whole=not live.fills)
    return DayAsRead(place, day.scope, min(day.runs).run_uid, is_whole=False) if day.runs else None


def counted_in(files: FolderFiles, below: str = "") -> list[PublishedFile]:
    """The files that count in a folder, or in a partition of it; as `published_files`."""
    names = _without_gaps(_receipt_names(files), _receipt_names(files))
    receipts = list(_receipts(files, names))  # before the records, as `FolderRuns.counted` needs it
    runs = runs_of(files)
    for receipt in receipts:
        if receipt.begins == "replace" and receipt.run_uid not in runs.ages:
            # Some file systems show names late, NFS by a minute. What it has replaced may be gone, and it does not count yet.
            raise OSError(
                f"{files.where}: run {receipt.run_uid} replaces what is there, and its record is not shown in {RUNS} yet; "
                "list again in a minute"
            )
    # Days come last: what is in a day that was closed by then never counts again, and what was not closed is as it was.
    scope = below.partition("/")[0]
    closed = _closed(_days_in(files, scope) if scope else days_of(files).values())
    counted = [
        PublishedFile(
            files.name(file.path), file.bytes, file.records, receipt.run_uid, receipt.operator, receipt.number
        )
        for receipt, file in runs.counted(receipts)
        if file.path.partition("/")[0] not in closed and _is_below(file.path, below)
    ]
    own = (file for receipt in closed.values() for file in receipt.files if _is_below(file.path, below))
    return [*counted, *(_named(files, file) for file in own)]


def _days_in(files: FolderFiles, folder: str) -> Iterator[FolderDay]:
    """Those whose files may lie in a folder."""
    yield from (day_of(files, scope) for scope in (folder, *scopes_of(files, of_runs=True)))


def published_in(given: str) -> tuple[FolderFiles, str]:
    """The published folder that a path names, and the partition of it, empty for all of it.

    Raises FileNotFoundError if there is no such folder, and none that it is a partition of.
    """
    is_url = given.startswith(SCHEME)
    found: FolderFiles = (
        ObjectFiles.of("the folder", given, is_quoted=False) if is_url else LocalFiles(given.rstrip("/") or "/")
    )
    files, parts = found, list[str]()
    while not files.is_there(RECEIPTS) and "=" in (name := os.path.basename(files.where)):
        files, parts = files.above(), [name, *parts]
    if parts and files.is_there(RECEIPTS):
        return files, "/".join(parts)
    found.check()
    return found, ""


def _closed(days: Iterable[FolderDay]) -> dict[str, DayReceipt]:
    """Day → the receipt whose files count."""
    found = ((day.scope, day.live()) for day in days)
    return {scope: receipt for scope, receipt in found if receipt is not None}


def _is_below(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")


def _named(files: FolderFiles, file: NamedFile) -> PublishedFile:
    """A file of a closed day. Its name says which write action it is of: the receipt is that of the last one."""
    ours = _OURS.fullmatch(os.path.basename(file.path))
    if ours is None:
        raise ValueError(f"{files.where}: a closing receipt names {file.path}, which is no file of a DatasetWriter")
    return PublishedFile(files.name(file.path), file.bytes, file.records, ours[1], ours[2], int(ours[3]))


def runs_of(files: FolderFiles) -> FolderRuns:
    """The runs that have published into a folder, or are about to. Raises OSError."""
    return FolderRuns(frozenset(filter(None, map(record_of, files.names(RUNS)))))


def receipts_of(files: FolderFiles, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Receipt]:
    """The receipts of a folder, or those whose names are `wanted`. Raises OSError, and ValueError for one that is damaged."""
    yield from _receipts(files, filter(wanted, _receipt_names(files)))


def _receipts(files: FolderFiles, names: Iterable[str]) -> Iterator[Receipt]:
    # One that has been removed meanwhile belongs to a run that was replaced.
    for path, text in files.read_each(f"{RECEIPTS}/{name}" for name in names):
        yield _receipt(files, path, text)


def _receipt_names(files: FolderFiles) -> list[str]:
    names = (name for name in files.names(RECEIPTS) if name.endswith(".json") and not name.startswith("."))
    return [name for name in names if name != SIGN]


def _without_gaps(names: Iterable[str], later: Iterable[str]) -> Iterator[str]:
    """The receipts of an instant, from two listings, one after the other.

    A long listing comes in pages, so that one may show a receipt and not the one before it, which was put meanwhile. A
    writer puts them one after the other: those before the last one that the first listing shows are all in the second one.
    All receipts are taken of a writer that only the second one shows: it may have replaced the others.
    """
    last: dict[str, str] = {}
    for name in names:
        writer, number = _writer_and_number(name)
        last[writer] = max(number, last.get(writer, number))
    for name in later:
        writer, number = _writer_and_number(name)
        if number <= last.get(writer, number):
            yield name


def _writer_and_number(name: str) -> tuple[str, str]:
    """Writer and number in the name of a receipt; numbers have the same length."""
    writer, _, number = name.removesuffix(".json").rpartition(".")
    return writer, number


def _receipt(files: FolderFiles, path: str, text: bytes) -> Receipt:
    try:
        read = json.loads(text)
        named = tuple(NamedFile(one["path"], one["bytes"], one["records"]) for one in read["files"])
        return Receipt(read["run"], read["operator"], read["number"], named, read.get("begins", ""))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{files.name(path)} is no receipt of a DatasetWriter ({type(error).__name__}: {error}); restore it from a "
            "copy: without it, the files that it names do not count"
        ) from error


def visible_files(files: FolderFiles, partition: str = "") -> Iterator[tuple[str, str | None]]:
    """What readers that list a folder, or a partition of it, may take for data: path below the folder, and the run that has
    published it.

    None: no run has, or it lies in a folder with receipts of its own, or behind a link, which then stands for all in it.
    Raises OSError.
    """
    for below, folders, names in files.walk(partition):
        if below and RECEIPTS in folders:
            folders.clear()
            yield below, None
            continue
        folders[:] = [name for name in folders if is_visible(name) and name != LOST_AND_FOUND]
        for name in files.links(below, folders):
            yield os.path.join(below, name), None
        for name in filter(is_visible, names):
            yield os.path.join(below, name), run_of(name)


def run_of(name: str) -> str | None:
    """The run that has published a file of that name; None if none has."""
    ours = _OURS.fullmatch(name)
    return None if ours is None else ours[1]


def is_visible(name: str) -> bool:
    """Whether readers that list a folder look at a name. A partition by a column ``_region`` is none that they pass over."""
    return not (name.startswith(".") or (name.startswith("_") and "=" not in name))
