"""A bucket of Google Cloud Storage, by gcsfs."""

from __future__ import annotations

import io
import os
from typing import Any

from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.systems.payloads.bucket_client import BucketClient

_OF_UPLOAD = "upload_id="
"""In the address of an upload that was begun."""


class GoogleClient(BucketClient):
    """Credentials are Google's default ones: gcsfs would turn to public buckets if it found none."""

    def _opened(self, *, anew: bool = False) -> Any:
        # Not the class that gcsfs registers: that asks by gRPC what kind each bucket is.
        from gcsfs.core import GCSFileSystem
        from google.auth.exceptions import GoogleAuthError

        how = {"skip_instance_cache": True} if anew else {}
        try:
            return GCSFileSystem(token="google_default", use_listings_cache=False, **self._at.fsspec_options(), **how)
        except GoogleAuthError as error:
            raise ConfigurationError(
                f"{self._named} cannot be opened: {error} Drivers and executors need credentials: a file that "
                "GOOGLE_APPLICATION_CREDENTIALS names, or the service account of the machine"
            ) from None

    def size(self, path: str) -> int:
        """Bytes, by one request. Raises FileNotFoundError, and as `telling`."""
        with self.telling(path):
            found = self.client.call(
                "GET", "b/{}/o/{}", self._at.authority, self._at.below(path), fields="size", json_out=True
            )
        return int(found["size"])

    def piece(self, path: str, first: int, end: int) -> bytes:
        """Bytes of an object. Raises as `size`."""
        with self.telling(path):
            return bytes(self.client.cat_file(self.key(path), start=first, end=end))

    def _meaning(self, error: Exception, path: str, *, is_write: bool) -> LogioError | None:
        """gcsfs has no classes for most errors."""
        from gcsfs.retry import HttpError

        said = f"{self._named}: {path}: {type(error).__name__}: {error}"
        if isinstance(error, FileNotFoundError):
            if _OF_UPLOAD in str(error):
                # It has ended, or is complete and its answer was lost: the next one has another name.
                return LogUnavailable(said)
            return self._no_bucket(f"{error} is not found") if is_write else None
        if isinstance(error, HttpError) and error.code == 401:
            return self._expired(error)
        if isinstance(error, OSError) and str(error).startswith("Forbidden"):
            return self._denied(path, error)
        if isinstance(error, ValueError) and str(error).startswith("Bad Request"):
            return ConfigurationError(f"{said}. Correct `payloads` of the log's connection")
        # An answer is not what gcsfs expects.
        is_odd = is_write and isinstance(error, (AssertionError, KeyError, ValueError))
        return LogUnavailable(said) if is_odd or type(error).__module__ != "builtins" else None


class ObjectReading(io.RawIOBase):
    """An object to read, by one request for each piece. Raises FileNotFoundError, and as `GoogleClient.telling`."""

    def __init__(self, client: GoogleClient, path: str) -> None:
        self._client = client
        self._path = path
        self._length = client.size(path)
        self._place = 0

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._length - self._place, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        first, self._place = self._place, self._place + wanted
        found = self._client.piece(self._path, first, self._place)
        if len(found) != wanted:
            raise LogUnavailable(f"{self._path}: {len(found):,} bytes came of {wanted:,}")
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._length}[whence] + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def size(self) -> int:
        return self._length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
