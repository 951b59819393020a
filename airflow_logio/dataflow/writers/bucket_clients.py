"""What each client is told of where a bucket of S3 is, by the URL of the bucket and the environment: nothing secret.

Arrow takes the URL as it is (`folder_files.open_bucket`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from airflow_logio.dataflow.writers.bucket_urls import ENDPOINT, OF_ENVIRONMENT, is_amazons


class Endpoint(NamedTuple):
    """Where a store is, if that is said."""

    url: str
    is_foreign: bool
    """Not Amazon's: its buckets need not be names of its network."""

    @property
    def is_safe(self) -> bool:
        """By TLS."""
        return self.url.startswith("https://")


def endpoint(url: str, environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """What the URL of a bucket says, or else the environment; None if neither does: then it is Amazon's, by the region."""
    said = _parameters(url)
    texts = [said.get(ENDPOINT, ""), *(environment.get(name, "") for name in OF_ENVIRONMENT)]
    text = next(filter(None, texts), "").rstrip("/")
    if not text:
        return None
    host = text.rpartition("://")[2]
    scheme = text.partition("://")[0] if "://" in text else said.get("scheme", "https")
    return Endpoint(f"{scheme}://{host}", not is_amazons(host))


def s3a_settings(url: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of Hadoop's client, for this bucket alone: Spark's reader gets them as options."""
    at, region = endpoint(url, environment), _parameters(url).get("region")
    settings = {} if region is None else {"endpoint.region": region}
    if at is not None:
        settings |= {"endpoint": at.url, "connection.ssl.enabled": str(at.is_safe).lower()}
    if at is not None and at.is_foreign:
        settings |= {"endpoint.region": region or "us-east-1", "path.style.access": "true"}
    return {f"fs.s3a.bucket.{urlsplit(url).netloc}.{name}": value for name, value in settings.items()}


def s3fs_options(url: str) -> dict[str, Any]:
    """Of s3fs in drivers. What the environment says, botocore finds by itself."""
    said, at, region = endpoint(url, {}), endpoint(url), _parameters(url).get("region")
    options: dict[str, Any] = {"client_kwargs": {"region_name": region} if region else {}}
    if said is not None:
        options["endpoint_url"] = said.url
    if at is not None and at.is_foreign:
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options


def delta_rs_options(url: str) -> dict[str, str]:
    """Of delta-rs. What else the environment says, it finds by itself."""
    at, region = endpoint(url), _parameters(url).get("region")
    options = {"aws_region": region} if region else {}
    if at is not None:
        options |= {"aws_endpoint_url": at.url} | ({} if at.is_safe else {"aws_allow_http": "true"})
    return options


def _parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
