"""Addresses on HDFS, such as roots of payload stores: what they may say. Nothing in them is secret."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow_logio.errors import ConfigurationError

SCHEME = "hdfs://"
STORE = "the payload store"
"""What is at an address, if nothing else is said."""
_UNCLEAR = frozenset("*?[]{}\\%#:") | frozenset(map(chr, range(32)))
"""Spark takes some for patterns, and HDFS has no colon in names."""


def is_hdfs(root: str) -> bool:
    """Whether a root, or a location, is one of HDFS, by its scheme."""
    return root.startswith(SCHEME)


def parsed(root: str, what: str = STORE) -> tuple[str, str]:
    """Authority and path, which is empty or begins with a slash. Raises `ConfigurationError`, which says `what` is there."""
    try:
        parts = urlsplit(root)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{what} hdfs://... has no valid address: give hdfs://host:port/path") from None
    if not parts.netloc or "@" in parts.netloc:
        raise ConfigurationError(
            f"{what} hdfs://... names no NameNode, or a user before it: give hdfs://host:port/path, or "
            "hdfs://nameservice/path with HADOOP_CONF_DIR. The user is that of the process, or HADOOP_USER_NAME"
        )
    path = parts.path.strip("/")
    names = path.split("/") if path else []
    if parts.query or "#" in root or "?" in root or _UNCLEAR & set(path) or {"", ".", ".."} & set(names):
        raise ConfigurationError(
            f"{what} {SCHEME}{parts.netloc}/... has an empty name, parameters, or one of *?[]{{}}\\%#: in its "
            "path. Choose a path of letters, digits, - and _; settings of Hadoop's client belong into HADOOP_CONF_DIR"
        )
    return parts.netloc, f"/{path}" if path else ""
