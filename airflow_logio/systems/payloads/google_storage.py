"""Payloads in a bucket of Google Cloud Storage, as drivers reach them: by gcsfs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_logio.errors import LogUnavailable
from airflow_logio.systems.payloads.bucket_storage import BucketStorage
from airflow_logio.systems.payloads.google_client import GoogleClient, ObjectReading

_LISTED_AT_ONCE = 1000
"""Names in one answer."""


class GoogleStorage(GoogleClient, BucketStorage):
    """As `BucketStorage`.

    A small object is put by one request; a larger one by an upload in parts, which appears when its last part has come. One
    that is broken off is cancelled, or ends by itself within a week.
    """

    def remove(self, paths: Iterable[str]) -> None:
        """Google says of an object in a bucket that is not there what it says of one that is not: a list tells them apart."""
        given, missing = list(paths), list[str]()

        def removed(path: str) -> None:
            try:
                with self.telling(path):
                    self.client.rm_file(self.key(path))
            except FileNotFoundError:
                missing.append(path)

        self._each(removed, given)
        if missing and len(missing) == len(given):
            with self.telling(given[0], is_write=True):
                next(self._listed(given[0], is_deep=True), None)

    def _listed(self, beginning: str, *, is_deep: bool) -> Iterator[str]:
        how: dict[str, Any] = {"prefix": self._prefix(beginning), "maxResults": _LISTED_AT_ONCE}
        how |= {} if is_deep else {"delimiter": "/"}
        while True:
            page = self.client.call(
                "GET", "b/{}/o", self._at.authority, fields="nextPageToken,items(name),prefixes", json_out=True, **how
            )
            found = (item["name"] for item in page.get("items", ())) if is_deep else page.get("prefixes", ())
            yield from self._below_root(found)
            if not page.get("nextPageToken"):
                return
            how["pageToken"] = page["nextPageToken"]

    def _check(self, path: str, size: int) -> None:
        """A part that is sent again after a lost answer must not be there twice."""
        if size > self.client.default_block_size and (found := self.size(path)) != size:
            raise LogUnavailable(f"{self._named}: {path} has {found:,} bytes, and not the {size:,} written to it")

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        """gcsfs would ask for more than is read."""
        with ObjectReading(self, path) as file:
            yield file
