"""What is in a bucket, with what tells an object from the one that it has replaced: listed in pages, in the order of names.

Arrow lists no ETags, so this is s3fs, in the driver alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from airflow_logio.dataflow.writers.bucket_clients import s3fs_options
from airflow_logio.dataflow.writers.bucket_urls import SCHEME, check_listings, check_url
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError

PAGE = 1000
"""What S3 lists at once, at most."""
_LAST = "\U0010ffff"
"""Comes behind all names: a page begins behind the names of the one before. S3Proxy's tokens, of names that are quoted, would
pass over objects without a word."""
_RIGHTS = (
    "Give drivers credentials that may list the bucket and read objects there: in their environment "
    "(AWS_ACCESS_KEY_ID, ...), in ~/.aws, or as the role of the machine"
)


class ListedObject(NamedTuple):
    """`path` is below the folder that was listed."""

    path: str
    bytes: int
    tag: str
    """ETag: another one for other bytes."""


class BucketListing:
    """Of the folder that a URL names, in which nothing is quoted. Raises `ConfigurationError` for a URL with a secret, or of
    a store that is not vouched for."""

    def __init__(self, url: str) -> None:
        self.named = f"the folder {url.partition('?')[0]}"
        check_url(self.named, url)
        check_listings(self.named, url)
        base, _, self._query = url.partition("?")
        self.bucket, _, path = base.removeprefix(SCHEME).partition("/")
        self._prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        self._url = url

    def objects(self, below: str = "", after: str = "", *, inner: bool = False) -> Iterator[ListedObject | str]:
        """Objects below a folder of this one whose names come behind `after`, and as texts the names of the folders in it;
        with `inner`, all objects below, and no texts. Raises `ConfigurationError`, `ExternalUnavailable`."""
        prefix = f"{self._prefix}{below}"
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix, "MaxKeys": PAGE}
        asked |= {} if inner else {"Delimiter": "/"}
        begin = f"{prefix}{after}" if after else ""
        while True:
            page = self._asked({**asked, "StartAfter": begin} if begin else asked)
            for one in page.get("Contents", ()):
                begin = max(begin, one["Key"])
                if one["Key"] != prefix:  # what stands for an empty folder
                    yield ListedObject(one["Key"].removeprefix(self._prefix), one["Size"], one["ETag"].strip('"'))
            for folder in page.get("CommonPrefixes", ()):
                begin = max(begin, f"{folder['Prefix']}{_LAST}")
                yield folder["Prefix"].removeprefix(prefix).rstrip("/")
            if not page.get("IsTruncated"):
                return

    def _asked(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client.call_s3("list_objects_v2", **asked)
        except Exception as error:
            raise self._told(error) from error
        return found

    def _told(self, error: Exception) -> LogioError:
        """s3fs has numbers for some errors of S3; those of the way to it are botocore's."""
        said = f"{self.named} cannot be listed: {error}"
        if "expired" in str(error).lower():
            return ExternalUnavailable(f"{said}. Renew the credentials of drivers: it is tried again")
        if isinstance(error, FileNotFoundError):
            return ConfigurationError(f"{said}. Make the bucket, or correct the path")
        if isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError":
            return ConfigurationError(f"{said}. {_RIGHTS}")
        return ExternalUnavailable(said)

    @cached_property
    def _client(self) -> Any:
        return s3_client(self.named, self._url)


def s3_client(named: str, url: str, **more: Any) -> Any:
    """The file system of s3fs for the bucket of a URL; `more` are other arguments of it. Raises `ConfigurationError`."""
    try:
        import s3fs
    except ImportError:
        raise ConfigurationError(f"{named} needs s3fs, by which drivers look into buckets: install s3fs") from None
    options = s3fs_options(url)
    config = {**options.pop("config_kwargs", {}), **more.pop("config_kwargs", {})}
    return s3fs.S3FileSystem(**options, config_kwargs=config, **more)
