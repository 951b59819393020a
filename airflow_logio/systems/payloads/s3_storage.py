"""Payloads in a bucket of S3, as drivers reach them: by s3fs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.systems.payloads.bucket_storage import BucketStorage

_REMOVED_AT_ONCE = 1000
"""Objects that S3 removes by one request."""
_LISTED_AT_ONCE = 1000
"""Names in one answer."""
_EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "ExpiredTokenException"})
_NOT_SAID = "400"
"""What an answer without a body tells of credentials that have expired: S3 refuses a HEAD so."""
_NO_BUCKET = "NoSuchBucket"


class S3Storage(BucketStorage):
    """As `BucketStorage`."""

    def _opened(self, *, anew: bool = False) -> Any:
        import s3fs

        how = self._at.fsspec_options()
        return s3fs.S3FileSystem(use_listings_cache=False, **how, **({"skip_instance_cache": True} if anew else {}))

    def remove(self, paths: Iterable[str]) -> None:
        given = iter(paths)
        while some := list(islice(given, _REMOVED_AT_ONCE)):
            self._remove_some(some)

    def _remove_some(self, paths: Sequence[str]) -> None:
        """By one request, whose answer says what was not removed: s3fs passes over that."""
        bucket = self._at.authority
        named = [{"Key": self._at.below(path)} for path in paths]
        with self.telling(paths[0], is_write=True):
            answer = self.client.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": named, "Quiet": True})
        for error in answer.get("Errors", ()):
            said = f"{self._named}: {error.get('Key')} cannot be removed: {error.get('Code')}, {error.get('Message')}"
            raise (ConfigurationError if error.get("Code") == "AccessDenied" else LogUnavailable)(said)

    def _listed(self, beginning: str, *, is_deep: bool) -> Iterator[str]:
        how: dict[str, Any] = {
            "MaxKeys": _LISTED_AT_ONCE,
            "Bucket": self._at.authority,
            "Prefix": self._prefix(beginning),
            **({} if is_deep else {"Delimiter": "/"}),
        }
        items, field = ("Contents", "Key") if is_deep else ("CommonPrefixes", "Prefix")
        while True:
            page = self.client.call_s3("list_objects_v2", **how)
            yield from self._below_root(item[field] for item in page.get(items, ()))
            if not page.get("IsTruncated"):
                return
            how["ContinuationToken"] = page["NextContinuationToken"]

    def _meaning(self, error: Exception, path: str, *, is_write: bool) -> LogioError | None:
        if not isinstance(error, OSError):
            return None
        code = _code(error)
        if code in _EXPIRED or code == _NOT_SAID:
            return self._expired(f"{error} ({code})", is_sure=code != _NOT_SAID)
        # Where nothing is asked for, only the bucket can be missing.
        if code == _NO_BUCKET or (is_write and isinstance(error, FileNotFoundError)):
            return self._no_bucket(error)
        if isinstance(error, PermissionError):
            return self._denied(path, f"{error}{f' ({code})' if code else ''}")
        return None


def _code(error: BaseException) -> str:
    """How S3 names an error; empty for one of another store."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
