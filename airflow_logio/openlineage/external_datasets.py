"""The external datasets that operators read and write, as far as they declare them, and names by the OpenLineage standard.

No name has credentials in it. Names differ from the URIs of assets (`operators/assets.py`): an asset is named by its Airflow
connection, a dataset by where it is, so that it is the same dataset to Spark, dbt, or any other producer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import URL

from airflow_logio.databases import read_url
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.placeholders import folder_of_run, in_folder_of_run, placeholders_of, resolved
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.dataflow.sources import DeltaSource, FolderSource, ParquetSource, QuerySource, TableSource
from airflow_logio.dataflow.sources.files import WILD, is_pattern
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, LogioError
from airflow_logio.protocol.values import Port
from airflow_logio.systems.payload_roots import is_local, local_path

log = logging.getLogger(__name__)
_DIALECTS = {"postgresql": "postgres", "mariadb": "mysql"}
"""Kind of database → dialect of the parser of OpenLineage's client."""


@dataclass(frozen=True, slots=True)
class ExternalDatasets:
    """`url_of` gives the URL of one of the pipeline's connections; credentials in it go no further."""

    params: Mapping[str, Any]
    url_of: Callable[[str], str]

    def read_by(self, operator: Operator) -> list[DatasetName]:
        """What a source reads: files, a folder, tables. Nothing for one that an author has written."""
        return self._found("what a source reads", lambda: list(self._sources(operator)))

    def looked_up_by(self, operator: Operator) -> dict[str, DatasetName]:
        """Name of a declared read → the table that it reads."""
        reads: Mapping[str, DeclaredRead] = getattr(operator, "reads", {})
        tables = {name: self._table(name, read) for name, read in reads.items() if isinstance(read, TableRead)}
        return {name: found[0] for name, found in tables.items() if found}

    def written_by(self, operator: Operator) -> list[DatasetName]:
        """What a ready-made writer writes."""
        return self._found("what a writer writes", lambda: list(self._destinations(operator)))

    def _sources(self, source: Operator) -> Iterator[DatasetName]:
        if isinstance(source, ParquetSource):
            for path in source.paths:
                found = resolved(path, source.placeholders(), self.params)
                yield file_name(_folder_of(found) if is_pattern(found) else found)
        elif isinstance(source, FolderSource | DeltaSource):
            yield file_name(resolved(source.path, placeholders_of(source.path), self.params))
        elif isinstance(source, TableSource):
            yield table_name(self.url_of(source.connection), source.table)
        elif isinstance(source, QuerySource):
            url = self.url_of(source.connection)
            if source.table is not None:
                yield table_name(url, source.table)
            elif source.query is not None:
                yield from tables_of(source.query, url)

    def _destinations(self, writer: Operator) -> Iterator[DatasetName]:
        if isinstance(writer, TableWriter):
            yield table_name(self.url_of(writer.connection), writer.table)
        elif isinstance(writer, DeltaWriter):
            yield self._below(writer.connection, folder_of_run(writer.table, self.params))
        elif isinstance(writer, DatasetWriter | ParquetWriter):
            # Nothing else that depends on parameters: one that owns its day is known before there is a day.
            yield self._below(writer.connection, in_folder_of_run(writer, self.params).folder)

    def _below(self, connection: str, folder: str) -> DatasetName:
        root = file_name(self.url_of(connection))
        return DatasetName(root.namespace, "/".join(filter(None, (root.name.rstrip("/"), folder))) or "/")

    def _table(self, name: str, read: TableRead) -> list[DatasetName]:
        find = lambda: [table_name(self.url_of(read.connection), read.table)]  # noqa: E731
        return self._found(f"the table of read {name!r}", find)

    @staticmethod
    def _found(what: str, find: Callable[[], list[DatasetName]]) -> list[DatasetName]:
        """A dataset without a name is left out; the event has the others."""
        try:
            return list(dict.fromkeys(find()))
        except LogioError as error:
            log.warning("OpenLineage is not told %s: %s", what, error)
        except Exception as error:  # of a connection: its text may repeat the URL
            log.warning("OpenLineage is not told %s: %s", what, type(error).__name__)
        return []


def tables_of(query: str, url: str) -> list[DatasetName]:
    """The tables that a query reads, as the parser of OpenLineage's client finds them; none if it cannot parse the query.

    It takes a function that returns rows for a table. Raises `ConfigurationError`.
    """
    from openlineage.common.sql import parse

    backend = read_url(url).get_backend_name()
    found = parse(query, dialect=_DIALECTS.get(backend, backend))
    if found is None or found.errors:
        return []
    tables = [table for table in found.in_tables if not _is_called(table.name, query)]
    return [relation_name(url, table.database, table.schema, table.name) for table in tables]


def _is_called(name: str, query: str) -> bool:
    """Whether a query reads from a function of that name: ``FROM generate_series(1, 9)``."""
    before = r"(?:\bfrom|\bjoin|\blateral|,)\s*(?:[\w$\"]+\s*\.\s*)*\"?"
    return re.search(rf"{before}{re.escape(name)}\"?\s*\(", query, re.IGNORECASE) is not None


def _folder_of(pattern: str) -> str:
    """The folder below which all files are that match a pattern."""
    parts = pattern.split("/")
    whole = takewhile(lambda part: not WILD & set(part), parts[:-1])
    return "/".join(whole) or "/"


# --- names ------------------------------------------------------------------------------------------------------------

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
    """The first of several hosts stands for all: any of them is the same database."""
    found = url.query.get(option, "")
    return (found if isinstance(found, str) else found[0]).partition(",")[0]
