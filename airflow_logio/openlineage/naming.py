"""Names of datasets by the rules of the OpenLineage standard. No name has credentials in it.

These differ from the URIs of assets (`operators/_task/written_assets.py`): an asset is named by its Airflow connection, a
dataset by where it is, so that it is the same dataset to Spark, dbt, or any other producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from sqlalchemy.engine import URL

from airflow_logio.databases import read_url
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.values import Port

_SCHEMES = {"postgresql": "postgres", "mssql": "sqlserver", "mariadb": "mysql"}
"""Kind of database for SQLAlchemy → for the standard."""
_PORTS = {"postgres": 5432, "mysql": 3306, "sqlserver": 1433, "oracle": 1521, "redshift": 5439}
_SCHEMAS = {"postgres": "public", "sqlserver": "dbo"}
"""Where a table is whose author names no schema."""
_FILES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_OBJECTS = ("s3", "gs")
"""A name in an object store has no slash in front."""


@dataclass(frozen=True, slots=True, order=True)
class DatasetName:
    """`namespace` says where a dataset is, `name` which one it is there."""

    namespace: str
    name: str


def port_name(log_url: str, pipeline: str, port: Port) -> DatasetName:
    """The events of an output port, which are in the log: ``logio://<server>/<database>``, ``<pipeline>.<operator>.<port>``.

    It is the same in each run of the pipeline. Raises `ConfigurationError`.
    """
    url = read_url(log_url)
    place = url.database or ""
    if url.get_backend_name() != "sqlite":
        place = f"{_server(url, _scheme(url))}/{place}"
    return DatasetName(f"logio://{place}", f"{pipeline}.{port}")


def table_name(url: str, table: str) -> DatasetName:
    """A ``table`` or ``schema.table`` of the database behind a connection's URL.

    The standard has no rule for SQLite: its namespace is the file, ``sqlite:///path``. Raises `ConfigurationError`.
    """
    parsed = read_url(url)
    schema, name = schema_and_table(table)
    scheme = _scheme(parsed)
    if scheme == "sqlite":
        return DatasetName(f"sqlite://{parsed.database}", name)
    parts = (parsed.database, schema or _SCHEMAS.get(scheme), name)
    return DatasetName(f"{scheme}://{_server(parsed, scheme)}", ".".join(part for part in parts if part))


def file_name(path: str) -> DatasetName:
    """A file or folder: an absolute path of this machine or of a shared file system, or a URI."""
    if "://" not in path:
        return DatasetName("file", path.rstrip("/") or "/")
    try:
        parts = urlsplit(path)
        host, port, user = parts.hostname or "", parts.port, parts.username
    except ValueError:  # its text repeats the URL
        raise ConfigurationError("the URL of a folder cannot be parsed") from None
    scheme = _FILES.get(parts.scheme, parts.scheme)
    if scheme == "file":
        return DatasetName(f"file://{host}" if host else "file", parts.path.rstrip("/") or "/")
    if scheme.startswith(("abfs", "wasb")) and user:  # the container, which is no credential
        host = f"{user}@{host}"
    name = parts.path.strip("/") if scheme in _OBJECTS else parts.path.rstrip("/")
    return DatasetName(f"{scheme}://{host}" + (f":{port}" if port else ""), name or "/")


def _scheme(url: URL) -> str:
    backend = url.get_backend_name()
    return _SCHEMES.get(backend, backend)


def _server(url: URL, scheme: str) -> str:
    host = (url.host or "localhost").rpartition("@")[2]  # what an @ of a password would make of it
    port = url.port or _PORTS.get(scheme)
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"
