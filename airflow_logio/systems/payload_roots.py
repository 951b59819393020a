"""Where the payload store is: a setting of the deployment, beside the log and never part of a pipeline."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_logio.databases import sqlite_file
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.hdfs_roots import is_hdfs, parsed

SUFFIX = ".payloads"
"""An SQLite log has its payloads in a folder beside it, of its own name and this suffix."""

_PATTERNS = frozenset("*?[]{}\\")
HOW_TO_CONFIGURE = (
    "put `payloads`, a folder that all drivers reach or a URL that fsspec can open (s3://bucket/folder), into the extra of "
    "the log's Airflow connection; for `logio run`, set LOGIO_PAYLOADS_<ID>, or put it into section [payloads] of the "
    "connection file, under the id of the log, which is logio_default unless --log names another one"
)


def payload_root(log_url: str, configured: str | None) -> str | None:
    """The root of a deployment's payload store; None if there is none: nothing is configured, and the log is a server.

    Raises `ConfigurationError` for a folder that is not absolute: drivers work in folders of their own.
    """
    if configured:
        if is_local(configured) and not local_path(configured).is_absolute():
            raise ConfigurationError(
                f"the payload store is the folder {configured!r}; give its absolute path, or a URL"
            )
        return configured
    file = sqlite_file(log_url)
    return None if file is None else f"{file}{SUFFIX}"


def is_local(root: str) -> bool:
    """Whether the root is a folder of this machine's file systems (which may be a shared one)."""
    return "://" not in root or root.startswith(("file://", "local://"))


def local_path(root: str) -> Path:
    return Path(unquote(urlsplit(root).path) if "://" in root else root).expanduser()


def check_shared(root: str) -> None:
    """Datasets need a folder that driver and executors share, a bucket, or HDFS. Raises `ConfigurationError`."""
    if not is_local(root):
        try:
            if is_hdfs(root):
                parsed(root)
            else:
                _check_datasets(BucketRoot.of(root))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. It is where datasets (mode 'dataframe') are kept. To change it, {HOW_TO_CONFIGURE}"
            ) from None
        return
    if patterns := sorted(_PATTERNS & set(str(local_path(root)))):
        raise ConfigurationError(
            f"the payload store {root} has {' '.join(patterns)} in its path, which Spark takes for a pattern when it reads "
            "datasets (mode 'dataframe'): choose a folder without *?[]{} and \\ in its path"
        )


def _check_datasets(at: BucketRoot) -> None:
    """Raises `ConfigurationError` for a store of which nothing shows that Spark reads there what tasks write."""
    if at.scheme == "abfss":
        raise ConfigurationError(
            f"the payload store {at.url()} keeps bodies and stored effects, and no datasets: Hadoop's client of Azure has "
            "never been tried beside it. Choose a bucket of S3 or Google (s3://bucket/path, gs://bucket/path), HDFS, or a "
            "folder that driver and executors share"
        )


def shown(root: str) -> str:
    """The root for messages: no user, no password, no query."""
    if "://" not in root:
        return root
    parts = urlsplit(root)
    place = parts.netloc if _has_container(parts) else parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def _has_container(parts: SplitResult) -> bool:
    """Whether what is before @ is a container of Azure, and no user."""
    return parts.scheme == "abfss" and ":" not in parts.netloc


def redacted(text: str, root: str) -> str:
    """A message of a library about the root, without the credentials that the root may hold."""
    for secret in secrets_of(root):
        text = text.replace(secret, "***")
    return text


def secrets_of(root: str) -> list[str]:
    """The secrets in a root: password and query, in every way in which they may be written."""
    if "://" not in root:
        return []
    parts = urlsplit(root)
    user, _, password = ("" if _has_container(parts) else parts.netloc.rpartition("@")[0]).partition(":")
    alone = [] if password else [user]  # a token, or a name: there is no telling
    return [secret for secret in (password, unquote(password), *alone, parts.query, unquote(parts.query)) if secret]
