"""Roots of payload stores in buckets: what they may say, and what each client of theirs is told by them.

Drivers reach one by fsspec, tasks by Arrow (S3) or fsspec, Spark's reader by Hadoop. The root is all that they have in
common, and nothing in it is secret: executors get it as part of their jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from airflow_logio.dataflow.writers.bucket_clients import s3a_settings, s3fs_options
from airflow_logio.errors import ConfigurationError

_CREDENTIALS = (
    "Drivers and executors take credentials from their environment, from a profile, or from the role of the machine"
)
_SEEN = "Spark's executors get it, and what is secret would be seen in plans and logs"
_UNCLEAR = frozenset("*?[]{}\\%#") | frozenset(map(chr, range(32)))
"""Spark takes some of them for patterns, and clients do not agree on what others stand for in a URL."""
_ENDPOINT = ("endpoint_override", "scheme")
_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"s3": ("region", *_ENDPOINT), "gs": _ENDPOINT, "abfss": ()}
)
"""Scheme → what may stand behind a question mark, of which all clients can be told."""
_EXAMPLES = {
    "s3": "s3://bucket/path",
    "gs": "gs://bucket/path",
    "abfss": "abfss://container@account.dfs.core.windows.net/path",
}
_OTHER_NAMES = {
    **dict.fromkeys(("s3a", "s3n"), "write s3://bucket/path: Spark's reader gets s3a:// of it"),
    **dict.fromkeys(
        ("wasb", "wasbs", "abfs"),
        "write abfss://container@account.dfs.core.windows.net/path, of an account with hierarchies",
    ),
    "gcs": "write gs://bucket/path",
    "swift": "Hadoop has no client for it any more: take a store that speaks the protocol of S3, and write s3://bucket/path",
}
"""Scheme → why it is refused."""


_LIBRARIES = {
    "s3": ("s3fs", "s3fs"),
    "gs": ("gcsfs", "'airflow-logio[gcs]'"),
    "abfss": ("adlfs", "'airflow-logio[azure]'"),
}
"""Scheme → what drivers import, and what brings it."""


def check_library(root: str) -> None:
    """Raises `ConfigurationError` if the library is not installed here that opens such a root; nothing is imported."""
    library, bringing = _LIBRARIES.get(root.partition("://")[0], (None, ""))
    if library is not None and find_spec(library) is None:
        scheme = root.partition("://")[0]
        raise ConfigurationError(
            f"the payload store {scheme}://... needs {library}, which is not installed: pip install {bringing}, wherever it "
            "is opened: where drivers run, where they are launched, and where `logio` is used"
        )


@dataclass(frozen=True, slots=True)
class BucketRoot:
    """A root that was checked."""

    scheme: str
    authority: str
    """The bucket; of Azure, ``container@account.dfs.core.windows.net``."""
    path: str = ""
    """What the names of all objects begin with; no slash around it."""
    parameters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, root: str) -> BucketRoot:
        """Raises `ConfigurationError` for a root that not all clients would understand, or with a secret in it."""
        try:
            parts = urlsplit(root)
        except ValueError:
            parts = urlsplit("")
        what = f"the payload store {parts.scheme}://..."
        if (better := _OTHER_NAMES.get(parts.scheme)) is not None:
            raise ConfigurationError(f"{what} is refused: {better}")
        if parts.scheme not in _PARAMETERS:
            raise ConfigurationError(
                f"{what} is no place for datasets: give a folder that driver and executors share, or one of "
                f"{', '.join(_EXAMPLES.values())}"
            )
        _check_authority(what, parts.scheme, parts.netloc)
        path = parts.path.strip("/")
        if (
            parts.fragment
            or "#" in root
            or _UNCLEAR & set(path)
            or {"", ".", ".."} & set(path.split("/") if path else ())
        ):
            raise ConfigurationError(
                f"{what} has an empty name, or one of *?[]{{}}\\%#, in its path: Spark would take it for a pattern, or other "
                "clients for another name. Choose a path of letters, digits, - and _"
            )
        return cls(parts.scheme, parts.netloc, path, _parameters(what, parts.scheme, parts.query))

    @property
    def endpoint(self) -> str | None:
        """The URL of a store that is not the provider's own."""
        host = self.parameters.get("endpoint_override")
        return None if host is None else f"{self.parameters.get('scheme', 'https')}://{host}"

    def url(self, path: str = "") -> str:
        """The URL of a path below the bucket, with the parameters."""
        query = f"?{urlencode(self.parameters, safe=':/')}" if self.parameters else ""
        return f"{self.scheme}://{self.authority}{f'/{path}' if path else ''}{query}"

    def below(self, path: str) -> str:
        """The path below the bucket of a path below the root."""
        return "/".join(filter(None, (self.path, path)))

    # --- what each client is told -------------------------------------------------------------------------------------

    def arrow_url(self) -> str:
        """Of the bucket, for `pyarrow.fs.FileSystem.from_uri`."""
        return self.url()

    def fsspec_options(self) -> dict[str, Any]:
        """For the file system of fsspec."""
        if self.scheme == "s3":
            return s3fs_options(self.url())
        return {"endpoint_url": self.endpoint} if self.endpoint else {}

    def hadoop_options(self) -> dict[str, str]:
        """For Spark's reader: settings of Hadoop, of this bucket alone where it knows such."""
        if self.scheme == "s3":
            return s3a_settings(self.url())
        return {"fs.gs.storage.root.url": f"{self.endpoint}/"} if self.endpoint else {}

    def hadoop_url(self, path: str, scheme: str | None = None) -> str:
        """What Spark opens a path below the root by; `scheme` is another name for S3 than ``s3a``."""
        named = (scheme or "s3a") if self.scheme == "s3" else self.scheme
        return f"{named}://{self.authority}/{self.below(path)}"


def parted(location: str) -> tuple[str, str]:
    """The bucket of a file's location, as a root, and the path in it."""
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc}{f'?{parts.query}' if parts.query else ''}", parts.path.strip("/")


def _check_authority(what: str, scheme: str, authority: str) -> None:
    """Raises `ConfigurationError`."""
    if scheme == "abfss":
        container, at, account = authority.partition("@")
        is_plain = bool(container and at and account) and not {"@", ":"} & set(container + account)
    else:
        is_plain = bool(authority) and not {"@", ":"} & set(authority)
    if not is_plain:
        raise ConfigurationError(
            f"{what} has no bucket, or a user, a password or a port, before its path. {_SEEN}: give {_EXAMPLES[scheme]}. "
            f"{_CREDENTIALS}; a port goes into endpoint_override"
        )


def _parameters(what: str, scheme: str, query: str) -> dict[str, str]:
    """Raises `ConfigurationError`."""
    found = parse_qsl(query, keep_blank_values=True)
    known = _PARAMETERS[scheme]
    if {name for name, _ in found} - set(known) or any("@" in value or not value for _, value in found):
        named = f"takes {', '.join(known)} behind a question mark, and nothing else" if known else "takes no parameters"
        raise ConfigurationError(
            f"{what} {named}. {_SEEN}, and not every client could be told of others. {_CREDENTIALS}"
        )
    parameters = dict(found)
    if parameters.get("scheme", "https") not in ("http", "https") or "/" in parameters.get("endpoint_override", ""):
        raise ConfigurationError(f"{what}: give endpoint_override=HOST:PORT, and scheme=http or https")
    return parameters
