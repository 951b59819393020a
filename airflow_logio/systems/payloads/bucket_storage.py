"""Payloads in a bucket, as drivers reach them: by fsspec, with what only the store's own protocol says of S3.

Nothing is asked for that costs a request and proves nothing: names are those of one attempt of one epoch, so that nothing
else has them, and what a log that was restored gives out again no row names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import fsspec

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payload_roots import redacted, shown
from airflow_logio.systems.payloads.storage import Storage

AT_ONCE = 16
"""Copies and removals under way."""
_REMOVED_AT_ONCE = 1000
"""Objects that S3 removes by one request."""
_LISTED_AT_ONCE = 1000
"""Names in one answer."""
_BLOCK = 8 * 2**20
_EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "ExpiredTokenException"})
_NOT_SAID = "400"
"""What an answer without a body tells of credentials that have expired: S3 refuses a HEAD so."""
_NO_BUCKET = "NoSuchBucket"


class BucketStorage(Storage):
    """Objects below a root: each is there as a whole, and durable, when it is closed, or not at all.

    Raises `ConfigurationError` for a root that `BucketRoot` refuses, or if the library that reaches it is not installed.
    """

    def __init__(self, root: str) -> None:
        self._at = BucketRoot.of(root)
        self._named = f"the payload store {shown(root)}"
        try:
            self._files, base = self._opened()
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"{self._named} cannot be opened: {redacted(str(error), root)}") from None
        self._base = str(base).rstrip("/")
        self._is_s3 = self._at.scheme == "s3"

    def _opened(self, **how: Any) -> tuple[Any, str]:
        """A client, and the path that names begin with."""
        at = f"{self._at.scheme}://{self._at.authority}/{self._at.path}"
        # What is listed is not kept: other processes write and remove.
        found: tuple[Any, str] = fsspec.core.url_to_fs(at, use_listings_cache=False, **self._at.fsspec_options(), **how)
        return found

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        """It is not asked whether there is such an object: see above."""
        with self._told(path, is_write=True):
            handle = self._files.open(self._key(path), "wb")
        try:
            yield handle
            with self._told(path, is_write=True):
                handle.close()
        except BaseException:
            _abandon(handle)
            raise

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with self._told(path), self._files.open(self._key(path), "rb") as handle:
            yield handle

    def read(self, path: str) -> bytes:
        with self._told(path):  # parts of a large one come side by side
            return bytes(self._files.cat_file(self._key(path)))

    def remove(self, paths: Iterable[str]) -> None:
        if self._is_s3:
            given = iter(paths)
            while some := list(islice(given, _REMOVED_AT_ONCE)):
                self._remove_of_s3(some)
            return

        def removed(path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._key(path))

        self._each(removed, paths)

    def _remove_of_s3(self, paths: Sequence[str]) -> None:
        """By one request, whose answer says what was not removed: s3fs passes over that."""
        bucket = self._at.authority
        named = [{"Key": self._at.below(path)} for path in paths]
        with self._told(paths[0], is_write=True):
            answer = self._files.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": named, "Quiet": True})
        for error in answer.get("Errors", ()):
            said = f"{self._named}: {error.get('Key')} cannot be removed: {error.get('Code')}, {error.get('Message')}"
            raise (ConfigurationError if error.get("Code") == "AccessDenied" else LogUnavailable)(said)

    def find(self, folder: str) -> list[str]:
        """Also the empty objects that other programs take for folders: they are removed with what lies there."""
        with self._told(folder, is_write=True):
            if not self._is_s3:
                return [str(path)[len(self._base) + 1 :] for path in self._files.find(self._key(folder))]
            pages = self._pages(f"{folder}/")
            return [name for page in pages for name in self._names(page.get("Contents", ()), "Key")]

    def runs(self) -> list[str]:
        with self._told("", is_write=True):
            if not self._is_s3:
                return [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(self._base, detail=False)]
            pages = self._pages("", Delimiter="/")
            named = (name for page in pages for name in self._names(page.get("CommonPrefixes", ()), "Prefix"))
            return [name.rstrip("/") for name in named]

    def _pages(self, beginning: str, **how: Any) -> Iterator[Any]:
        """What S3 lists of names below the root that begin so."""
        how |= {
            "MaxKeys": _LISTED_AT_ONCE,
            "Bucket": self._at.authority,
            "Prefix": self._at.below(f"{beginning}x").removesuffix("x"),
        }
        while True:
            page = self._files.call_s3("list_objects_v2", **how)
            yield page
            if not page.get("IsTruncated"):
                return
            how["ContinuationToken"] = page["NextContinuationToken"]

    def _names(self, items: Iterable[Mapping[str, str]], field: str) -> Iterator[str]:
        """Their paths below the root."""
        skipped = len(self._at.below("x")) - 1
        return (item[field][skipped:] for item in items)

    def prune(self, folder: str) -> None:
        """There are no folders."""

    def link(self, paths: Iterable[str], folder: str) -> None:
        """Copies that the store makes: a second name is not to be had."""
        self._copy((path, f"{folder}/{path.rpartition('/')[2]}") for path in paths)

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        self._copy((source, target) for source, target, _ in copies)

    def _copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        """In S3 in parts above 5 GB. Azure's may still be under way when it answers, so there bytes come through here."""

        def copied(pair: tuple[str, str]) -> None:
            with self._told(pair[0]):
                self._files.cp_file(self._key(pair[0]), self._key(pair[1]))

        def streamed(pair: tuple[str, str]) -> None:
            with self.open(pair[0]) as source, self.create(pair[1]) as target:
                while block := source.read(_BLOCK):
                    target.write(block)

        self._each(streamed if self._at.scheme == "abfss" else copied, pairs)

    def _each(self, do: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Raises what the first one of them raises."""
        pool = ThreadPoolExecutor(AT_ONCE, "logio-objects")
        try:
            for _ in pool.map(do, items):
                pass
        finally:
            pool.shutdown(cancel_futures=True)

    def _key(self, path: str) -> str:
        return f"{self._base}/{path}"

    @contextmanager
    def _told(self, path: str, *, is_write: bool = False) -> Iterator[None]:
        """What is wrong with bucket or credentials, with the next step; other errors as they are."""
        try:
            yield
        except OSError as error:
            code = _code(error)
            if code in _EXPIRED or code == _NOT_SAID:
                self._files = self._opened(skip_instance_cache=True)[0]  # one keeps what it has once read of a profile
                perhaps = "If they have expired, renew" if code == _NOT_SAID else "Renew"
                raise LogUnavailable(
                    f"{self._named}: {error} ({code}). {perhaps} the credentials of drivers and executors: it is tried again"
                ) from error
            # Where nothing is asked for, only the bucket can be missing.
            if code == _NO_BUCKET or (is_write and isinstance(error, FileNotFoundError)):
                raise ConfigurationError(
                    f"{self._named}: {error}. Make the bucket, or correct `payloads` of the log's connection"
                ) from error
            if isinstance(error, PermissionError):
                raise ConfigurationError(
                    f"{self._named}: {path}: {error}{f' ({code})' if code else ''}. Give drivers and executors credentials "
                    "that may list the bucket, and read, write and delete objects there: in their environment, in a "
                    "profile, or as the role of the machine"
                ) from error
            raise


def _abandon(handle: Any) -> None:
    """Closed or collected, a handle of fsspec would complete the object with what it has got."""
    with contextlib.suppress(Exception):
        handle.discard()
    handle.closed = True


def _code(error: BaseException) -> str:
    """How S3 names an error; empty for one of another store."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
