"""Names of datasets by the rules of the OpenLineage standard. No name has credentials in it.

These differ from the URIs of assets (`operators/_task/written_assets.py`): an asset is named by its Airflow connection, a
dataset by where it is, so that it is the same dataset to Spark, dbt, or any other producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import URL

from airflow_logio.databases import read_url
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.values import Port
from airflow_logio.systems.payloads.roots import is_local, local_path

_SCHEMES = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "mssql": "sqlserver", "sqlite": "sqlite"}
"""Kind of database for SQLAlchemy → for the standard. The standard names the tables of others in ways of their own."""
_PORTS = {"postgres": 5432, "mysql": 3306, "sqlserver": 1433}
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
    if (scheme := _scheme(url)) != "sqlite":
        place = f"{_server(url, scheme)}/{place}"
    return DatasetName(f"logio://{place}", f"{pipeline}.{port}")


def table_name(url: str, table: str) -> DatasetName:
    """A ``table`` or ``schema.table`` of the database behind a connection's URL. Raises as `relation_name` does."""
    schema, name = schema_and_table(table)
    return relation_name(url, None, schema, name)


def relation_name(url: str, database: str | None, schema: str | None, name: str) -> DatasetName:
    """A table or view of the database behind a connection's URL, or of another `database` of its server.

    The standard has no rule for SQLite: its namespace is the file, ``sqlite:///path``. Raises `ConfigurationError`, also
    for a kind of database that has no rule here.
    """
    parsed = read_url(url)
    scheme = _scheme(parsed)
    if scheme == "sqlite":
        return DatasetName(f"sqlite://{parsed.database}", name)
    server = _server(parsed, scheme)
    database = database or parsed.database
    if scheme == "mysql":  # its schemas are databases
        database, schema = schema or database, None
    if not database:
        raise ConfigurationError(f"the URL of a {scheme} database names no database, so its tables have no whole names")
    parts = (database, schema or _SCHEMAS.get(scheme), name)
    return DatasetName(f"{scheme}://{server}", ".".join(part for part in parts if part))


def file_name(path: str) -> DatasetName:
    """A file or folder: an absolute path of this machine or of a shared file system, or a URI.

    What a URI writes as ``%XX`` is decoded, as writers do it. Raises `ConfigurationError`.
    """
    if is_local(path):
        found = local_path(path)
        if not found.is_absolute():
            raise ConfigurationError("the URL of a folder has no path, e.g. file:///data")
        return DatasetName("file", str(found))
    try:
        parts = urlsplit(path)
        _ = parts.port  # its error is that of a password which is written as it is
    except ValueError:  # its text repeats the URL
        raise ConfigurationError("the URL of a folder cannot be parsed") from None
    credentials, at, authority = parts.netloc.rpartition("@")
    if not at and ":" in authority and "@" in parts.path:
        raise ConfigurationError("the URL of a folder has a / before its @: write a / of the password as %2F")
    scheme = _FILES.get(parts.scheme, parts.scheme)
    if scheme.startswith(("abfs", "wasb")) and credentials:  # the container, which is no credential
        authority = f"{credentials.partition(':')[0]}@{authority}"
    where = unquote(parts.path)
    name = where.strip("/") if scheme in _OBJECTS else where.rstrip("/")
    return DatasetName(f"{scheme}://{authority}", name or "/")


def _scheme(url: URL) -> str:
    backend = url.get_backend_name()
    if backend not in _SCHEMES:
        raise ConfigurationError(f"databases of kind {backend!r} have no rule for the names of their tables here")
    return _SCHEMES[backend]


def _server(url: URL, scheme: str) -> str:
    """Host and port. libpq reads both from the query, too; a folder there is that of a socket of this machine."""
    if "@" in f"{url.host}{url.database}":  # what an @ of a password would make of them
        raise ConfigurationError("the database URL has two @: write an @ of the password as %40")
    host, port = url.host, url.port
    if scheme == "postgres" and not host:
        host, _, given = _first(url, "host").partition(":")
        given = given or _first(url, "port")
        port = int(given) if given.isdecimal() else port
        host = "" if host.startswith("/") else host
    if not host and scheme == "sqlserver":
        raise ConfigurationError("the URL of an SQL Server names no host, so its tables have no whole names")
    host = host or "localhost"
    return f"[{host}]:{port or _PORTS[scheme]}" if ":" in host else f"{host}:{port or _PORTS[scheme]}"


def _first(url: URL, option: str) -> str:
    """Of several hosts, the first one stands for all: any of them is the same database."""
    found = url.query.get(option, "")
    return (found if isinstance(found, str) else found[0]).partition(",")[0]
