"""Sources that read an external system which the pipeline names as a connection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from airflow_logio.dataflow.names import check_name
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator
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
