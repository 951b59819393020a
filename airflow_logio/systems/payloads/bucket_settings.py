"""What the owner of a bucket of S3 has set there: whether uploads end that were never completed, versions, and locks.

Looked at once, and never needed: what cannot be read is said, and nothing else.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from airflow_logio.dataflow.sources.bucket_listing import s3_client
from airflow_logio.errors import ConfigurationError

_RULE = {
    "ID": "logio-incomplete-uploads",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
}
_QUICKLY = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 1}}}
_MOST_PAGES = 100
"""Of a thousand versions each, are counted at most."""


class KeptVersions(NamedTuple):
    """What a bucket with versions keeps of objects that were removed or replaced."""

    versions: int
    markers: int
    """Of removals."""
    bytes: int
    is_all: bool
    """False: there are more."""


def warnings_of(url: str) -> Iterator[str]:
    """What its owner should know of a bucket that drivers write to, in words. Raises nothing; a store that does not answer is
    asked once."""
    bucket = urlsplit(url).netloc
    try:
        client = _client(url)
    except ConfigurationError as error:
        yield f"whether the bucket {bucket} ends incomplete uploads is not known: {error}"
        return
    found = _asked(client, "get_bucket_lifecycle_configuration", bucket)
    if isinstance(found, str) and found != "NoSuchLifecycleConfiguration":
        yield (
            f"whether a lifecycle rule of the bucket {bucket} ends incomplete uploads cannot be read ({found}). "
            f"{_how_to(bucket)}"
        )
    elif isinstance(found, str) or not _ends_uploads(found.get("Rules", ()), urlsplit(url).path.lstrip("/")):
        yield f"no lifecycle rule of the bucket {bucket} ends incomplete uploads, which cost storage. {_how_to(bucket)}"
    locks = _asked(client, "get_object_lock_configuration", bucket)
    if not isinstance(locks, str) and (kept := _retention(locks)):
        yield f"the bucket {bucket} locks objects for {kept}: what is removed or replaced stays that long, as a version"


def kept_versions(url: str) -> KeptVersions | None:
    """What is kept below the path of a URL; None if the bucket has no versions, or they cannot be listed. Raises nothing but
    `ConfigurationError`."""
    bucket, path = urlsplit(url).netloc, urlsplit(url).path.strip("/")
    client = _client(url)
    said = _asked(client, "get_bucket_versioning", bucket)
    if isinstance(said, str) or "Status" not in said:
        return None
    versions = markers = size = 0
    place: Mapping[str, str] = {}
    for _ in range(_MOST_PAGES):
        page = _asked(client, "list_object_versions", bucket, Prefix=f"{path}/" if path else "", **place)
        if isinstance(page, str):
            return None
        old = [one for one in page.get("Versions", ()) if not one["IsLatest"]]
        versions += len(old)
        size += sum(one["Size"] for one in old)
        markers += len(page.get("DeleteMarkers", ()))
        if not page.get("IsTruncated"):
            return KeptVersions(versions, markers, size, is_all=True)
        place = {name: page[f"Next{name}"] for name in ("KeyMarker", "VersionIdMarker") if page.get(f"Next{name}")}
    return KeptVersions(versions, markers, size, is_all=False)


def _client(url: str) -> Any:
    client = s3_client(f"the bucket {urlsplit(url).netloc}", url, skip_instance_cache=True, **_QUICKLY)
    client.retries = 1  # s3fs asks again by itself
    return client


def _asked(client: Any, what: str, bucket: str, **more: str) -> Mapping[str, Any] | str:
    """What S3 answers; the name of its error."""
    try:
        found: Mapping[str, Any] = client.call_s3(what, Bucket=bucket, **more)
    except Exception as error:
        response = getattr(error.__cause__ or error, "response", {})
        return str(response.get("Error", {}).get("Code") or type(error).__name__)
    return found


def _ends_uploads(rules: Sequence[Mapping[str, Any]], path: str) -> bool:
    return any(
        rule.get("Status") == "Enabled" and "AbortIncompleteMultipartUpload" in rule and path.startswith(_prefix(rule))
        for rule in rules
    )


def _prefix(rule: Mapping[str, Any]) -> str:
    """Rules of an older form have it beside their filter."""
    found = rule.get("Filter", {})
    return str(found.get("Prefix") or found.get("And", {}).get("Prefix") or rule.get("Prefix") or "")


def _retention(locks: Mapping[str, Any]) -> str | None:
    kept = locks.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
    return next((f"{kept[unit]} {unit.lower()}" for unit in ("Days", "Years") if unit in kept), None)


def _how_to(bucket: str) -> str:
    """The command replaces what rules there are."""
    rules = shlex.quote(json.dumps({"Rules": [_RULE]}))
    return (
        "Add one to its rules; if it has none: `aws s3api put-bucket-lifecycle-configuration "
        f"--bucket {bucket} --lifecycle-configuration {rules}`"
    )
