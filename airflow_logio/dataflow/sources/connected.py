"""Sources that read an external system which the pipeline names as a connection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.names import check_name
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator, SparkFrame
from airflow_logio.errors import OperatorFailed


class SourceConnection(Protocol):
    """A connection of the pipeline, as a driver gives it to a source."""

    @property
    def url(self) -> str:
        """The URL, credentials included. It is known during the run, not when the pipeline is defined."""
        ...

    def query(
        self,
        statement: str,
        values: Mapping[str, Any],
        columns: Mapping[str, str | None],
        table: str | None = None,
        key: Sequence[str] = (),
    ) -> Iterator[pa.Table]:
        """The rows of a SQL query, in pieces and in one snapshot.

        :param statement: the SELECT, with parameters written ``:name``.
        :param values: the values of these.
        :param columns: column → type, as in `TableWriter`. Where it says None, or nothing at all, the type is that of
            the column of `table`.
        :param table: the table that is read, if it is one.
        :param key: the columns that tell one row from another; a row whose value is refused is named by them.

        Every value comes as it is. Raises ExternalUnavailable; ConfigurationError for a statement that the database
        refuses, for a column whose type in the database does not hold what is declared, and for a value that is no such
        value: it names table, column, row and key.
        """
        ...

    def quoted(self, name: str) -> str:
        """A name of a column, table or schema in the quotes of the database, for the text of a query.

        :param name: the name as it is.
        """
        ...

    def column(self, rows: str, name: str) -> str:
        """A column of rows, for the text of a query that reads only these, so that it is an error if there is none.

        PostgreSQL takes ``t.count`` for ``count(t)`` if `t` has no such column, and SQLite ``"count"`` for a text.

        :param rows: what the query calls the rows.
        :param name: the name of the column as it is.
        """
        ...


@dataclass(frozen=True, slots=True)
class Settled:
    """How far the rows of a table are known to be all that there will ever be."""

    number: int | None
    """None: there are none."""


class RisingColumn(Protocol):
    """A column of whole numbers that rise from row to row (`rising_columns`)."""

    def settled(self, after: int | None) -> Settled | None:
        """The largest number at or below which no row will appear any more; None if that is not known yet.

        `after` is how far the table was read. Raises ConfigurationError, ExternalUnavailable, SourceChanged.
        """
        ...

    def behind(self, after: int | None, until: int, rows: int) -> tuple[int, int] | None:
        """The last number of the next `rows` rows behind `after`, up to `until`, and how many rows there are up to it."""
        ...


class RangeConnection(SourceConnection, Protocol):
    """A connection of the pipeline, as a driver gives it to a `RangeSource`."""

    def rising(self, table: str, by: str, *, append_only: bool) -> RisingColumn:
        """A column of whole numbers by which a table is read.

        :param table: ``table`` or ``schema.table``.
        :param by: the column.
        :param append_only: no row that was read is ever changed or deleted.
        """
        ...

    def rows(
        self,
        table: str,
        columns: Iterable[str] = (),
        *,
        by: str,
        after: int | None,
        until: int,
        expected: int | None = None,
    ) -> SparkFrame:
        """The rows of a table with ``after < by <= until``, as a lazy DataFrame of one snapshot. Executors read it in
        parallel from a PostgreSQL.

        :param table: ``table`` or ``schema.table``.
        :param columns: the columns to read; by default all.
        :param by: the column of whole numbers.
        :param after: read rows behind this number; None: from the first one.
        :param until: read rows up to and including this number.
        :param expected: how many rows there must be; None: any number.

        To be called by `RangeSource.frame` only: it ends with the jobs of the range. Raises SourceChanged if the rows
        are not as many as `expected`, ConfigurationError, ExternalUnavailable.
        """
        ...


class ConnectedSource(SourceOperator):
    """A source of your own that reads one connection of the pipeline. Implement `action` and `read_from`.

    :param connection: name of the connection.

    While the external system is unavailable the read action is replayed with back-off; any other error fails the group.
    Unavailable is what `unavailability.is_outage` says: ExternalUnavailable, ConnectionError, TimeoutError and their
    like in urllib, requests and httpx; and what the class attribute `unavailable` names.
    """

    def __init__(self, connection: str) -> None:
        self.connection = check_name("connection", connection)

    def connections(self) -> tuple[str, ...]:
        return (self.connection,)

    @abstractmethod
    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        """Execute a logged read action, as `SourceOperator.read`, with the connection.

        :param connection: the connection: its URL, and queries if it is a SQL database.
        :param params: the run's parameters.
        :param action: what `action` or `next_action` has returned, as the log gives it back.
        :param offset: how many records to pass over, because their events are in the log.
        """

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        raise OperatorFailed(f"this source reads connection {self.connection!r}: call read_from with it")
