"""`TableSource`: a table that grows, by a column of rising numbers, as a `RangeSource` (ADR-93)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_logio.dataflow.names import check_count, check_name, check_sql_columns, check_sql_name, check_table
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.sources.connected import RangeConnection, Settled
from airflow_logio.dataflow.sources.ranges import END, LIMIT, START, UNASKED, RangeSource, is_unasked
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError, SourceChanged

AFTER, ROWS = "after", "rows"
"""An offset: the number of the last row, null before the first one; and how many rows the range that ends there has."""


class TableSource(RangeSource):
    """The rows of a table that grows, in the order of a column of whole numbers. Spark reads them (ADR-93).

    :param connection: name of the connection: PostgreSQL, or an SQLite file.
    :param table: ``table`` or ``schema.table``; a part with a dot of its own in double quotes.
    :param by: the column, ``id`` by default: filled by one sequence of a PostgreSQL (an identity column, or ``nextval``
        as its default; without CACHE), by the insert itself; or the INTEGER PRIMARY KEY of an SQLite file.
    :param columns: the columns to read; by default all, as the table has them when a run begins to read.
    :param rows_per_event: rows in each event, 1,000,000 by default.
    :param append_only: your word that no row is changed or deleted: rows are read again after a failure. Say this or
        `store`.
    :param store: store the rows of each event before it leaves, and do not read them again.
    :param unbounded: wait for more rows until the run is drained. By default False: a run reads what is there when its
        driver first asks.

    No row is lost: an event has rows up to a number only when every transaction that may still insert a smaller one has
    ended, which the source waits for. Those who write the table do not wait for the source. Every value comes as it is,
    as in `TableRead`. Raises PipelineDefinitionError; in a run SourceChanged, and ConfigurationError for a type or a
    value that cannot be read.
    """

    def __init__(
        self,
        connection: str,
        table: str,
        by: str = "id",
        *,
        columns: Iterable[str] | None = None,
        rows_per_event: int = 1_000_000,
        append_only: bool = False,
        store: bool = False,
        unbounded: bool = False,
    ) -> None:
        self.connection = check_name("connection", connection)
        self.table = check_table(table)
        self.by = check_sql_name("column name", by)
        self.columns = check_sql_columns(columns)
        self.rows_per_event = check_count("rows_per_event", rows_per_event)
        self.append_only = bool(append_only)
        self.unbounded = bool(unbounded)
        self.replayable = not store
        if not (append_only or store):
            raise PipelineDefinitionError(
                "a TableSource needs append_only=True, your word that no row of the table is changed or deleted, so that an "
                "event can be read again; or store=True: then its rows are stored before it leaves"
            )

    def connections(self) -> tuple[str, ...]:
        return (self.connection,)

    def sql_connections(self) -> frozenset[str]:
        return frozenset({self.connection})

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"replayable": self.replayable}

    def connected(self, connections: Callable[[str], RangeConnection]) -> RangeSource:
        return _Connected(self, connections(self.connection))

    def first(self, params: Mapping[str, Any]) -> Any:
        raise OperatorFailed(f"this source reads connection {self.connection!r}: ask what connected() returns")

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any | None) -> Any:
        return self.first(params)

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> SparkFrame:
        return self.first(params)


class _Connected(RangeSource):
    """A `TableSource` as its driver asks it. The limit of a run that ends is a number."""

    def __init__(self, source: TableSource, connection: RangeConnection) -> None:
        self._source = source
        self._connection = connection
        self._column = connection.rising(source.table, source.by, append_only=source.append_only)
        self._settled: Settled | None = None

    def connections(self) -> tuple[str, ...]:
        return self._source.connections()

    def first(self, params: Mapping[str, Any]) -> dict[str, int | None]:
        return {AFTER: None, ROWS: 0}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        """The next range, which is empty if nothing has come, or if it is not known yet where a run ends."""
        start, limit = previous[END], previous.get(LIMIT)
        if is_unasked(previous):
            start = self.first(params)
            if not self._source.unbounded:
                settled = self._column.settled(None)
                if settled is None:
                    return dict(UNASKED)
                limit = settled.number
        if not self._source.unbounded and start[AFTER] == limit:
            return None
        end = self.latest(params, start, limit)
        if self._source.unbounded:
            return {START: start, END: end}
        return None if end == start else {START: start, END: end, LIMIT: limit}

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any | None) -> Any:
        after = start[AFTER]
        until = self._known_end(after) if limit is None else limit
        found = (
            None if until is None or until == after else self._column.behind(after, until, self._source.rows_per_event)
        )
        if found is not None:
            last, rows = found
            return {AFTER: last, ROWS: rows}
        self._settled = None
        if limit is not None and self._source.append_only:
            raise SourceChanged(
                f"table {self._source.table!r} of connection {self._source.connection!r} ends at {self._source.by} = "
                f"{after}, and it had {limit} when the run began: rows were deleted, although append_only=True says that "
                "none are. Put them back, or start a fresh run"
            )
        return start

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> SparkFrame:
        source = self._source
        return self._connection.rows(
            source.table,
            source.columns,
            by=source.by,
            after=start[AFTER],
            until=end[AFTER],
            expected=end[ROWS] if source.replayable else None,
        )

    def _known_end(self, after: int | None) -> int | None:
        """Up to where rows may be read; asked again when they were read up to there."""
        known = None if self._settled is None else self._settled.number
        if known is None or (after is not None and known <= after):
            self._settled = self._column.settled(after)
            known = None if self._settled is None else self._settled.number
        return known
