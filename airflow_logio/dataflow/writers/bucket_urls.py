"""URLs of buckets: what they may say, and which stores can be published into (ADR-124)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlsplit

from airflow_logio.errors import ConfigurationError

SCHEME = "s3://"
DELAYED_OPEN = "allow_delayed_open"
CONSISTENT = "consistent"
"""Parameter with which its owner vouches for the listings of a store: no client is told."""
ENDPOINT = "endpoint_override"
PARAMETERS = (
    "region",
    "scheme",
    ENDPOINT,
    CONSISTENT,
    DELAYED_OPEN,
    "tls_ca_file_path",
    "tls_ca_dir_path",
    "tls_verify_certificates",
)
"""What the URL may say, behind a question mark: nothing that is secret."""
OF_ENVIRONMENT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_AMAZONS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".api.amazonwebservices.com.cn")
_CACHES = (".cloudfront.net",)
_S3_INSTEAD = "write s3://bucket/path"
_SEEN_HALF = "its readers see a file while it is written"
_REFUSED = {
    **dict.fromkeys(("s3a", "s3n"), f"{_S3_INSTEAD}, whatever Spark calls it"),
    **dict.fromkeys(
        ("gs", "gcs"), f"{_S3_INSTEAD}?{ENDPOINT}=storage.googleapis.com: Google's store speaks S3, with HMAC keys"
    ),
    **dict.fromkeys(
        ("abfs", "abfss"),
        f"{_SEEN_HALF}, since Arrow has no whole put for it; mount it as a folder, or take a bucket of S3",
    ),
    **dict.fromkeys(("wasb", "wasbs"), "Azure has retired it; mount the container as a folder, or take a bucket of S3"),
    "hdfs": f"{_SEEN_HALF}; mount it as a folder, or take a bucket of S3",
    "swift": "what its listings show may be old; take a bucket of S3",
}
"""Scheme → why nothing is published there, and what to do."""


def check_url(named: str, url: str) -> None:
    """Executors get the URL as part of their jobs, so there must be no secret in it. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if not parts.netloc:
        raise ConfigurationError(f"{named} is no URL of a bucket: give s3://bucket/path")
    if "#" in url or "//" in parts.path:
        raise ConfigurationError(
            f"{named} has # or an empty name in its URL: give s3://bucket/path, with one / between names"
        )
    if {"@", ":"} & set(parts.netloc):
        raise ConfigurationError(
            f"{named} has a user, a password or a port in its URL. Spark's executors get the URL, and what is secret would "
            "be seen in plans and logs. Give s3://bucket/path alone: drivers and executors take credentials from their "
            "environment (AWS_ACCESS_KEY_ID, ...), from ~/.aws, or from the role of the machine; a port goes into "
            "endpoint_override"
        )
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    if any("@" in value for _, value in parameters):
        raise ConfigurationError(
            f"{named} has @ in a parameter of its URL, where a password may be. Spark's executors get the URL, and what is "
            "secret would be seen in plans and logs: give host:port alone, and credentials to the environment"
        )
    if {name for name, _ in parameters} - set(PARAMETERS):
        raise ConfigurationError(
            f"{named} has other parameters in its URL than {', '.join(PARAMETERS)}. Spark's executors get the URL, and what "
            "is secret would be seen in plans and logs: leave the others out, and credentials to the environment"
        )
    if dict(parameters).get(CONSISTENT, "yes") != "yes":
        raise ConfigurationError(f"{named} has {CONSISTENT}= in its URL, which says yes or nothing: correct it")


def for_clients(url: str) -> str:
    """The URL without what is for us alone."""
    base, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] != CONSISTENT]
    return f"{base}?{'&'.join(kept)}" if kept else base


def endpoint_of(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """``host:port`` of a store that its clients go to by the URL, or else by the environment; None for Amazon's own."""
    said = [_parameters(url).get(ENDPOINT, ""), *(environment.get(name, "") for name in OF_ENVIRONMENT)]
    host = next(filter(None, said), "").rpartition("://")[2].strip("/")
    return None if not host or is_amazons(host) else host


def is_amazons(host: str) -> bool:
    """Whether ``host:port`` is one of Amazon's own."""
    return _host(host).endswith(_AMAZONS)


def check_place(named: str, url: str, environment: Mapping[str, str] = os.environ) -> None:
    """Whether what counts can follow from the listings of a place to publish into: a folder of this machine, or a bucket.
    No place is asked, and no probe could prove it. Raises `ConfigurationError`."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _REFUSED:
        raise ConfigurationError(f"{named} is no place to publish into by {scheme}://: {_REFUSED[scheme]}")
    if url.startswith(SCHEME):
        check_url(named, url)
        check_listings(named, url, environment)


def check_listings(named: str, url: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raises `ConfigurationError` for a store of which nothing says that its listings are up to date."""
    host = endpoint_of(url, environment)
    if host is None:
        return
    if _host(host).endswith(_CACHES):
        raise ConfigurationError(
            f"{named} goes to {host}, a cache, which shows what was: give the endpoint of the store itself"
        )
    if _parameters(url).get(CONSISTENT) != "yes":
        raise ConfigurationError(
            f"{named} goes to {host}, which is not Amazon's. What counts in a bucket follows from its listings, and no look "
            "can prove that a store shows at once what was put or removed. If its makers promise that, and no cache is in "
            f"between, say so in the URL: {CONSISTENT}=yes"
        )


def _parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))


def _host(endpoint: str) -> str:
    """``.`` before it, so that an ending is one of whole names."""
    return f".{endpoint.rpartition(':')[0] or endpoint}".lower()


_OF_PATHS = "/:@!$&'()*+,;="
"""What a URL's path may have as it is, beside letters and digits."""


def quoted(base: str, *, is_quoted: bool) -> str:
    """What stands before the question mark, with ``%XX`` for spaces and for letters beyond ASCII, which Arrow takes no other
    way. `is_quoted`: it may have ``%XX`` already."""
    return quote(base, safe=f"{_OF_PATHS}%" if is_quoted else _OF_PATHS)
