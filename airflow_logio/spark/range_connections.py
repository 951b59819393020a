"""The connections of a `RangeSource` while a range of it is read: what they give lasts as long as the jobs of the range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.spark.row_readers import TableRows, rows_frame
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.source_queries import DeclaredConnection


@dataclass(frozen=True)
class ReadConnection(DeclaredConnection):
    """A connection of the pipeline, as `frame` of a source sees it."""

    session: Any = None
    payloads: EpochPayloads | None = None
    lasting: ExitStack = field(default_factory=ExitStack)

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
        """As `RangeConnection.rows`."""
        assert self.payloads is not None

        def between(described: sa.Table) -> sa.ColumnElement[bool]:
            column = described.columns[by]
            return column <= until if after is None else sa.and_(column > after, column <= until)

        said = f"{by} <= {until}" if after is None else f"{after} < {by} <= {until}"
        wanted = TableRows(table, tuple(columns), between, by=by, said=said, expected=expected)
        return self.lasting.enter_context(rows_frame(self.session, self.payloads, self.warehouse(), self.url, wanted))


@contextmanager
def range_connections(
    session: Any, payloads: EpochPayloads, connections: Connections
) -> Iterator[Callable[[str], ReadConnection]]:
    """Connections by name, for `frame` of a source. The jobs of what it returns must end within the block.

    Errors of tasks come out as from `rows_frame`.
    """
    with ExitStack() as lasting:

        def named(name: str) -> ReadConnection:
            return ReadConnection(
                connections.url(name), lambda: connections.warehouse(name), session, payloads, lasting
            )

        yield named
