"""The external datasets that the operators of a pipeline read and write, as far as they declare them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from airflow_logio.databases import read_url
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.dataflow.sources import FolderSource, ParquetSource, QuerySource, TableSource
from airflow_logio.dataflow.sources.files import WILD, is_pattern, resolved
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import LogioError
from airflow_logio.openlineage.naming import DatasetName, file_name, relation_name, table_name

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
        elif isinstance(source, FolderSource):
            yield file_name(resolved(source.path, source.placeholders(), self.params))
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
        elif isinstance(writer, DatasetWriter | ParquetWriter):
            root = file_name(self.url_of(writer.connection))
            yield DatasetName(root.namespace, "/".join(filter(None, (root.name.rstrip("/"), writer.folder))) or "/")

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
