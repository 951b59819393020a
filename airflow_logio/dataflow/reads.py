"""Declared side-effect reads (Section 2: a Middle operator that is a Reader)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.describing import is_plain, stable_name
from airflow_logio.dataflow.names import check_column, check_name, check_sql_columns, check_sql_name, check_table
from airflow_logio.dataflow.unavailability import check_errors
from airflow_logio.errors import PipelineDefinitionError


@dataclass(frozen=True, slots=True)
class TableRead:
    """Rows of one external table, as additional input of a generation (Algorithm 4).

    :param connection: the connection, which must be a SQL database.
    :param table: ``table`` or ``schema.table``; a part with a dot of its own in double quotes.
    :param columns: the columns to fetch; by default all.
    :param key: the column by which the rows are restricted to the keys of the records, and by which the rows that one
        Input Set used can be listed later; the records must have a column of the same name. Without a key the whole
        table is read.

    The rows are read once per generation and logged: what the table has tomorrow changes nothing. Every value comes as
    it is; in a run ConfigurationError names the column whose type has no equal here, and the row whose value has none.
    A NUMERIC without a precision is decimal(38,18), a REAL the double that it is.

    With a key, each key gets the rows that the database's own join finds, which compares by the type and collation of
    its column (CHAR without its blanks, citext without case), and the column of the key has the key as the records
    have it: a join by it loses no row. Keys that the database would have to cast are refused. Raises
    PipelineDefinitionError for a name that is not allowed and for a key outside `columns`.
    """

    connection: str
    table: str
    columns: tuple[str, ...] = ()
    key: str | None = None

    def __post_init__(self) -> None:
        check_name("connection", self.connection)
        check_table(self.table)
        object.__setattr__(self, "columns", check_sql_columns(self.columns))
        if self.key is not None:
            check_sql_name("column name", self.key)
        if self.key is not None and self.columns and self.key not in self.columns:
            raise PipelineDefinitionError(
                f"the read of table {self.table!r} has key {self.key!r}, which is not among its columns {self.columns}"
            )

    def __str__(self) -> str:
        return f"table {self.table!r}"

    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""
        return {"connection": self.connection, "table": self.table, "columns": list(self.columns), "key": self.key}


@dataclass(frozen=True, slots=True)
class FunctionRead:
    """What a function of yours reads from an external system, as additional input of a generation (Algorithm 4).

    :param connection: the connection, whose URL the function gets.
    :param fetch: ``fetch(url, keys)`` returns an Arrow table. `keys` are those to look up (an Arrow array), None
        without a `key`. If it takes ``params``, it gets the run's parameters, too.
    :param description: what is read, JSON-able, for the log; no secrets.
    :param key: the column whose values in the records are looked up, as in `TableRead`.
    :param unavailable: more classes of errors that mean that the external system is unavailable.

    It is called once per generation and its result, the effect, is logged: what it answers need not be the same
    tomorrow. While the external system is unavailable it is called again, with back-off: that is what
    ExternalUnavailable, ConnectionError, TimeoutError and their like in urllib, requests and httpx mean
    (`unavailability.is_outage`). Any other error fails the group. Raises PipelineDefinitionError.
    """

    connection: str
    fetch: Callable[..., pa.Table]
    description: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    unavailable: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        check_name("connection", self.connection)
        object.__setattr__(self, "unavailable", check_errors(f"the read of {self}", self.unavailable))
        if not callable(self.fetch):
            raise PipelineDefinitionError(f"fetch is {self.fetch!r}; give a function of URL and keys")
        if not isinstance(self.description, Mapping) or not is_plain(self.description):
            raise PipelineDefinitionError(
                f"the description of {self} is {self.description!r}; give a mapping of texts to JSON values"
            )
        if self.key is not None:
            check_column(self.key)

    def __str__(self) -> str:
        return f"function {stable_name(self.fetch)!r}"

    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""
        what = {"connection": self.connection, "function": stable_name(self.fetch), "key": self.key}
        return what | {"description": dict(self.description)}


DeclaredRead = TableRead | FunctionRead
"""A side-effect read of either kind."""
