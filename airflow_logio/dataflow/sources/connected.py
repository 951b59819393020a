"""Sources that read an external system which the pipeline names as a connection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from airflow_logio.dataflow.names import check_name
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator, SparkFrame
from airflow_logio.errors import OperatorFailed


class SourceConnection(Protocol):
    """A declared connection, as the runtime gives it to a source."""

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
    ) -> Iterator[pa.Table]:
        """The rows of a SQL query, in pieces and in one snapshot; `values` are its ``:name`` parameters.

        `columns` maps the columns to their types as in `TableWriter`; where it says None, or nothing at all, the type is
        that of the column of `table`. Raises ExternalUnavailable and ConfigurationError.
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
    """A declared connection, as the runtime gives it to a `RangeSource`."""

    def rising(self, table: str, by: str, *, append_only: bool) -> RisingColumn:
        """A column by which a table is read. `append_only`: no row that was read is ever changed or deleted."""
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
        """The rows of a table with ``after < by <= until`` as a lazy DataFrame of one snapshot, which executors read in
        parallel from a PostgreSQL. To be called by `frame` only: it ends with the jobs of the range.

        Raises SourceChanged if they are not as many as `expected`, ConfigurationError, ExternalUnavailable.
        """
        ...


class ConnectedSource(SourceOperator):
    """A source whose read actions go to one connection of the pipeline: implement `action` and `read_from`.

    While the external system is unavailable the read action is replayed with back-off; any other error fails the group.
    Unavailable is what `unavailability.is_outage` says: ExternalUnavailable, ConnectionError, TimeoutError and their like in
    urllib, requests and httpx; and what the class attribute `unavailable` names.
    """

    def __init__(self, connection: str) -> None:
        self.connection = check_name("connection", connection)

    def connections(self) -> tuple[str, ...]:
        return (self.connection,)

    @abstractmethod
    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        """As `read`, with the connection."""

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        raise OperatorFailed(f"this source reads connection {self.connection!r}: call read_from with it")
