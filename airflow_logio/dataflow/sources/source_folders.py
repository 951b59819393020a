"""The folder of a `FolderSource`: on a file system that driver and executors share, or in a bucket of S3 (ADR-124)."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from airflow_logio.dataflow.sources.bucket_listing import BucketListing, ListedObject
from airflow_logio.dataflow.sources.files import opened
from airflow_logio.dataflow.writers.bucket_clients import s3a_settings
from airflow_logio.dataflow.writers.bucket_urls import SCHEME
from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.dataflow.writers.folder_files import open_bucket
from airflow_logio.dataflow.writers.published_folder import published_files, published_in
from airflow_logio.errors import ConfigurationError, SourceChanged

_ON_DISK = "file://"
"""Spark takes a path without it for one of its default file system, which may be another one."""


class FoundFile(NamedTuple):
    """A file of the folder itself. Sorts by name."""

    name: str
    bytes: int
    tag: str = ""
    """In a bucket: another one for other bytes."""


class SourceFolder(ABC):
    """`where` is what an offset names it by. Methods raise OSError, ConfigurationError, ExternalUnavailable."""

    has_tags = False
    """Whether files have tags, and a range of them can be listed alone."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def listed(self) -> tuple[list[FoundFile], list[str]]:
        """The files in it, and the names of its folders; in no order."""

    def part(self, after: str, until: str | None) -> Iterator[FoundFile]:
        """The files whose names come behind `after`, up to and including `until`, by name, where files have tags."""
        raise NotImplementedError

    @abstractmethod
    def counted(self) -> list[tuple[str, int, str]]:
        """Path below it, bytes and tag of the files that count, of what runs have published there."""

    @abstractmethod
    def path(self, name: str) -> str:
        """What a person knows a file by."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[Any]:
        """The file to read, as Arrow reads one. Raises OSError."""

    @abstractmethod
    def spark_path(self, name: str, spark: Any) -> str:
        """What Spark reads it by."""

    def spark_options(self) -> Mapping[str, str]:
        """What Spark's reader is told of where it is."""
        return {}


class LocalSourceFolder(SourceFolder):
    """Of a file system that driver and executors share."""

    def listed(self) -> tuple[list[FoundFile], list[str]]:
        with os.scandir(self.where) as entries:
            there = list(entries)
            files = [FoundFile(one.name, one.stat().st_size) for one in there if one.is_file()]
        return files, [entry.name for entry in there if entry.is_dir()]

    def counted(self) -> list[tuple[str, int, str]]:
        return [(os.path.relpath(one.path, self.where), one.bytes, "") for one in published_files(self.where)]

    def path(self, name: str) -> str:
        return os.path.join(self.where, name)

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        with opened(self.path(name)) as file:
            yield file.handle

    def spark_path(self, name: str, spark: Any) -> str:
        return f"{_ON_DISK}{self.path(name)}"


class BucketSourceFolder(SourceFolder):
    """In the path of its URL nothing is quoted."""

    has_tags = True

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._listing = BucketListing(where)
        self._base, _, self._query = where.partition("?")
        self._base = self._base.rstrip("/")
        self._known: tuple[tuple[ListedObject, ...], list[tuple[str, int]]] | None = None

    def part(self, after: str, until: str | None) -> Iterator[FoundFile]:
        for one in self._listing.objects(after=after):
            if isinstance(one, ListedObject):
                if until is not None and one.path > until:
                    return  # no further page is asked for
                yield FoundFile(one.path, one.bytes, one.tag)

    def listed(self) -> tuple[list[FoundFile], list[str]]:
        found = list(self._listing.objects())
        files = [FoundFile(one.path, one.bytes, one.tag) for one in found if isinstance(one, ListedObject)]
        return files, [one for one in found if isinstance(one, str)]

    def counted(self) -> list[tuple[str, int, str]]:
        said = tuple(one for one in self._above.objects(f"{RECEIPTS}/", inner=True) if isinstance(one, ListedObject))
        if self._known is None or self._known[0] != said:  # what counts follows from these alone: each is read once
            found = published_files(self.where)
            self._known = said, [(one.path.removeprefix(f"{self._base}/"), one.bytes) for one in found]
        tags = {one.path: one.tag for one in self._listing.objects(inner=True) if isinstance(one, ListedObject)}
        if gone := sorted(name for name, _ in self._known[1] if name not in tags):
            raise SourceChanged(
                f"{self.path(gone[0])} counts, and is not there: a newer run may be replacing it. Start a fresh run, which "
                "reads what counts then"
            )
        return [(name, size, tags[name]) for name, size in self._known[1]]

    @cached_property
    def _above(self) -> BucketListing:
        """Of the published folder, which this one may be a partition of."""
        return BucketListing(f"{published_in(self.where)[0].where}{f'?{self._query}' if self._query else ''}")

    def path(self, name: str) -> str:
        return f"{self._base}/{name}"

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        with self._system.open_input_file(self.path(name).removeprefix(SCHEME)) as file:
            yield file

    @cached_property
    def _system(self) -> Any:
        return open_bucket(self._listing.named, self.where, is_quoted=False)[0]

    def spark_path(self, name: str, spark: Any) -> str:
        scheme = spark.conf.get("spark.logio.payloads.scheme", "s3a")
        return f"{scheme}://{self.path(name).removeprefix(SCHEME)}"

    def spark_options(self) -> Mapping[str, str]:
        return s3a_settings(self.where)


def source_folder(where: str) -> SourceFolder:
    """Raises ConfigurationError for a URL that is none of a bucket of S3, or with a secret."""
    if "://" not in where:
        return LocalSourceFolder(where)
    if not where.startswith(SCHEME):
        raise ConfigurationError(
            "a FolderSource reads a folder that driver and executors share, or s3://bucket/path, and not "
            f"{where.partition('://')[0]}://"
        )
    return BucketSourceFolder(where)


def chained(tag: str, files: Iterable[FoundFile]) -> str:
    """A digest of files, in their order, behind those that have given `tag`."""
    for file in files:
        said = "\0".join((tag, file.name, str(file.bytes), file.tag))
        tag = hashlib.blake2b(said.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return tag
