"""`QuerySource`: the rows of a SQL query or table, read in one snapshot."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_logio.dataflow.arrow import pa, pc
from airflow_logio.dataflow.arrow_tables import regroup, uniform
from airflow_logio.dataflow.column_types import column_type
from airflow_logio.dataflow.names import check_count, check_sql_columns, check_table, quoted, schema_and_table
from airflow_logio.dataflow.operators import SourceBatch
from airflow_logio.dataflow.query_text import bare, check_select, query_parameters
from airflow_logio.dataflow.sources.connected import ConnectedSource, SourceConnection
from airflow_logio.errors import PipelineDefinitionError, SourceChanged, SourceNotOrdered

ROWS = "rows_of_query"
"""What the rows are called in the statement."""
QUOTED = "quoted"
"""Says of a read action that its statement has names in quotes: the log has standard ones, the database gets its own."""
INSTANTS = "instants"
"""Which parameters of a read action are instants, if any: the log has texts, the database gets times with a zone."""
_EVERY = 2**63 - 1
"""A LIMIT that limits nothing: some databases take no OFFSET without one."""


class QuerySource(ConnectedSource):
    """The rows of a SQL query or table, read in one snapshot.

    :param connection: name of the connection, a SQL database.
    :param query: one SELECT, which may refer to run parameters as ``:name``. Give this or `table`.
    :param table: ``table`` or ``schema.table``; a part with a dot of its own in double quotes.
    :param columns: column → type, as in `TableWriter`. Must be given for a `query`; for a `table`, names alone will do,
        or nothing, which means all columns as the database describes them.
    :param records_per_event: rows in each event, 1,000 by default; the last one has the rest.
    :param replayable: read the result again after a failure instead of storing it first. It needs `append_only` and
        `order_by`. By default False: the whole result is stored in the payload store before its first row is used.
    :param order_by: columns that together are unique, and never null. Rows that are equal in them are refused when they
        are met.
    :param append_only: your word that rows are neither changed nor deleted, and that new ones sort behind all that were
        ever visible.

    In a pipeline with a partition ``:day_start`` and ``:day_end`` are instants (docs/parameters.md).
    The query has the time zone that any client of the database gets, so ``sold_at::date`` is the day that it has there.
    What comes back as a time is in UTC, and every value is as it is: a column whose type in the database does not hold
    what is declared is refused by the name of that type, before there is a row; 1.5 as ``bigint``, a time as ``date``
    or ``infinity`` is refused by source, column and row. Raises PipelineDefinitionError; in a run ConfigurationError
    for what cannot be read so, and SourceNotOrdered and SourceChanged, if a replayable query does not keep its word.
    """

    def __init__(
        self,
        connection: str,
        query: str | None = None,
        *,
        table: str | None = None,
        columns: Mapping[str, str] | Iterable[str] = (),
        records_per_event: int = 1000,
        replayable: bool = False,
        order_by: str | Iterable[str] | None = None,
        append_only: bool = False,
    ) -> None:
        super().__init__(connection)
        if (query is None) == (table is None):
            raise PipelineDefinitionError("a QuerySource reads either a query or a table: give one of them")
        if query is not None:
            check_select(query)
        self.query = query
        self.table = None if table is None else check_table(table)
        self.columns = _typed(columns)
        self.records_per_event = check_count("records_per_event", records_per_event)
        self.order_by = check_sql_columns((order_by,) if isinstance(order_by, str) else order_by)
        self.append_only = append_only
        self.replayable = replayable
        self._instants: frozenset[str] = frozenset()
        if query is not None and (not self.columns or None in self.columns.values()):
            raise PipelineDefinitionError(
                "the columns of a query need types, because not every database tells them: columns={'id': 'bigint', ...}"
            )
        missing = [name for name in self.order_by if self.columns and name not in self.columns]
        if missing:
            raise PipelineDefinitionError(
                f"order_by names {missing[0]!r}, which is not among columns {list(self.columns)}"
            )
        if replayable and not (self.order_by and append_only):
            raise PipelineDefinitionError(
                "replayable=True needs order_by=... over columns that together are unique, and append_only=True: your word "
                "that rows are only added, behind all others in that order. Else leave replayable=False: the result is stored"
            )

    def sql_connections(self) -> frozenset[str]:
        return frozenset({self.connection})

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"replayable": self.replayable}

    def placeholders(self) -> frozenset[str]:
        return query_parameters(self.query or "")

    def with_instants(self, names: Collection[str]) -> QuerySource:
        """The source in a pipeline whose parameters of these names are instants, as texts with an offset."""
        own = copy.copy(self)
        own._instants = self.placeholders().intersection(names)
        return own

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """statement, values of its parameters, connection: the text of the read action. Asks no database."""
        values = {name: params[name] for name in sorted(self.placeholders())}
        instants = {INSTANTS: sorted(self._instants)} if self._instants else {}
        return {
            "connection": self.connection,
            "statement": self._statement(_as_standard, lambda name: f"{ROWS}.{_as_standard(name)}"),
            "values": values,
            QUOTED: True,
            **instants,
        }

    @staticmethod
    def values_of(action: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a read action's parameters as a connection gets them: of an instant, a time with a zone."""
        return QuerySource.bound(action["values"], action.get(INSTANTS, ()))

    @staticmethod
    def bound(values: Mapping[str, Any], instants: Collection[str]) -> dict[str, Any]:
        """The values of parameters as a connection gets them; `instants` names those that are instants."""
        return {name: datetime.fromisoformat(value) if name in instants else value for name, value in values.items()}

    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        """Raises SourceNotOrdered for rows that are equal in `order_by`, and SourceChanged if some have gone."""
        statement = self.statement_of(connection, action)
        skipped = max(offset - 1, 0)
        if skipped:  # the last row of the event before shows that the next one is another one
            statement = f"{statement} LIMIT {_EVERY} OFFSET {skipped}"
        pieces = connection.query(statement, self.values_of(action), self.columns, self.table, self.order_by)
        ties = _Ties(self.order_by, skipped) if self.replayable else None
        first = offset - skipped
        for table in regroup(self._behind(pieces, ties, first, offset), self.records_per_event):
            start, offset = offset, offset + table.num_rows
            yield SourceBatch(table, offset, {"first": start, "last": offset - 1})

    def statement_of(self, connection: SourceConnection, action: Mapping[str, Any]) -> str:
        """The text of a read action with names quoted as that database does it. What an earlier version has logged is as it
        was logged: events were made of it."""
        if not action.get(QUOTED):
            return str(action["statement"])
        return self._statement(connection.quoted, lambda name: connection.column(ROWS, name))

    def _behind(self, pieces: Iterator[pa.Table], ties: _Ties | None, unwanted: int, offset: int) -> Iterator[pa.Table]:
        seen = 0
        for piece in pieces:
            table = uniform(piece)
            if ties is not None:
                ties.see(table)
            yield table.slice(max(0, unwanted - seen))
            seen += table.num_rows
        if seen < unwanted:
            raise SourceChanged(
                f"connection {self.connection!r}: the query returned {offset:,} rows before, and now it returns fewer; its "
                "rows are not append-only. Declare the source with replayable=False and start a new run"
            )

    def _statement(self, quoted: Callable[[str], str], column: Callable[[str], str]) -> str:
        """`quoted` quotes a name as the database does, `column` names a column of the rows and nothing else."""
        names = ", ".join(f"{column(name)} AS {quoted(name)}" for name in self.columns) or "*"
        if self.query is not None:
            rows = f"({bare(self.query)}) AS {ROWS}"
        else:
            rows = (
                ".".join(quoted(part) for part in schema_and_table(str(self.table)) if part is not None) + f" AS {ROWS}"
            )
        order = ", ".join(map(column, self.order_by))
        return f"SELECT {names} FROM {rows}" + (f" ORDER BY {order}" if order else "")


def _as_standard(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Ties:
    """Refuses neighbours that are equal in all columns of the order: two executions may return them either way round."""

    def __init__(self, columns: tuple[str, ...], row: int) -> None:
        self._columns = columns
        self._row = row
        self._last: pa.Table | None = None

    def see(self, table: pa.Table) -> None:
        keys = table.select(list(self._columns))
        if self._last is not None:
            keys = pa.concat_tables([self._last, keys])
        if not keys.num_rows:
            return
        self._compare(keys.combine_chunks(), self._row - (self._last is not None))
        self._last = keys.slice(keys.num_rows - 1)
        self._row += table.num_rows

    def _compare(self, keys: pa.Table, row: int) -> None:
        equal: Any = None
        for name in self._columns:
            values = keys.column(name)
            if values.null_count:
                raise SourceNotOrdered(
                    f"row {row + pc.index(pc.is_null(values), True).as_py():,} (counted from 0) has no {name!r}, by which "
                    "the rows are ordered; order by columns that are never null"
                )
            same = pc.equal(values.slice(1), values.slice(0, len(values) - 1))
            equal = same if equal is None else pc.and_(equal, same)
        place = pc.index(equal, True).as_py()
        if place >= 0:
            raise SourceNotOrdered(
                f"rows {row + place:,} and {row + place + 1:,} (counted from 0) are equal in {quoted(self._columns)}, so "
                "that their order is not the same every time; order by columns that together are unique, or declare the "
                "source with replayable=False"
            )


def _typed(columns: Mapping[str, str] | Iterable[str]) -> dict[str, str | None]:
    if not isinstance(columns, Mapping):
        return dict.fromkeys(check_sql_columns(columns))
    return {name: str(column_type(f"column {name!r}", columns[name])) for name in check_sql_columns(columns)}
