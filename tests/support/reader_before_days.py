"""`published_files` as it was before a folder could have days, which its sign must keep out. Kept as it was, but for this."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from airflow_logio.dataflow.writers.bucket_urls import SCHEME
from airflow_logio.dataflow.writers.folder_files import FolderFiles, LocalFiles, ObjectFiles
from airflow_logio.protocol.folder_rules import FolderRuns, NamedFile, Receipt, record_of

RECEIPTS = "_logio"
"""The folder of receipts. Readers of Parquet folders pass over names that begin so."""
RUNS = f"{RECEIPTS}/runs"
"""The folder of the records of runs."""
LOST_AND_FOUND = "lost+found"
"""What a file system keeps at its root, for its own user only."""
_OURS = re.compile(r"([^.]+)\.([^.]+)\.\d{12}\.\d{5,}\.parquet")
"""The names of published files, by run and operator."""


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
        Nothing in it is quoted.

    Those of older runs come first. Columns of `partition_by` are in the names of their folders. A file may be removed
    after it was listed, when a newer run replaces it: list again then. Raises OSError if the folder cannot be read, or
    is not shown as a whole yet, `ConfigurationError`, `ExternalUnavailable`.
    """
    given = os.fspath(folder)
    is_url = given.startswith(SCHEME)
    files = ObjectFiles.of("the folder", given, is_quoted=False) if is_url else LocalFiles(given)
    files.check()
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
    return [
        PublishedFile(
            files.name(file.path), file.bytes, file.records, receipt.run_uid, receipt.operator, receipt.number
        )
        for receipt, file in runs.counted(receipts)
    ]


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
    return [name for name in files.names(RECEIPTS) if name.endswith(".json") and not name.startswith(".")]


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
