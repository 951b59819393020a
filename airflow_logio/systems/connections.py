"""The external systems of a run, by the names that its pipeline gives them: read actions, and the queries of sources."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.database_errors import is_lasting
from airflow_logio.databases import cause_of, idle_for, with_driver
from airflow_logio.dataflow.arrow_tables import needed_table
from airflow_logio.dataflow.column_types import ColumnType, column_type
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.parameters import for_function
from airflow_logio.dataflow.query_text import bare, for_sqlalchemy
from airflow_logio.dataflow.reads import DeclaredRead, FunctionRead, TableRead
from airflow_logio.dataflow.unavailability import advice, is_outage
from airflow_logio.errors import ConfigurationError, LogioError, OperatorFailed
from airflow_logio.systems.calls import CallWatch, replay
from airflow_logio.systems.databases.read_values import Place, bound
from airflow_logio.systems.databases.table_names import in_text
from airflow_logio.systems.databases.table_reads import described_table, pieces, told_and_kinds
from airflow_logio.systems.rising_columns import FollowedColumn, rising_column
from airflow_logio.systems.warehouse import PAUSE_SECONDS, Warehouse

T = TypeVar("T")

MOVE_BITS = 32
"""Incarnations count recoveries: they stay far below this many bits."""


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """The identity of a writer: part of the marker of every write action of a group (docs/design.md, "What is promised")."""

    run_uid: str
    token: int
    """Fencing token: the incarnation. A lower one is refused."""
    started_at: float
    """When the run was started."""
    given_up: tuple[str, ...] = ()
    """The uids of runs that were given up, in whose place this one has begun."""
    pipeline: str = ""
    log_uid: str = ""
    """What tells the log of the run from others."""
    ordinal: int = 0
    """The place of the run among those of its pipeline, as its log has given it out."""
    takes_over: bool = False
    """A person has said that the run replaces what another pipeline, or one of another log, owns by value."""
    may_be_empty: bool = False
    """A person has said that the days of the run may become empty."""

    @property
    def line(self) -> tuple[str, str, int] | None:
        """Where the run stands among those of its pipeline in its log (`Marker.line`)."""
        return (self.log_uid, self.pipeline, self.ordinal) if self.log_uid else None

    def token_after(self, moves: int) -> int:
        """The token for a slot that has changed owners so often: higher than that of any earlier owner."""
        return (moves << MOVE_BITS) + self.token


class Connections:
    """The external systems of a run, by the names that its pipeline gives them; opened when first used."""

    def __init__(
        self,
        pipeline: str,
        urls: Mapping[str, str],
        identity: WriterIdentity,
        replay_seconds: float,
        calls: CallWatch | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.calls = calls or CallWatch()
        """The calls of author's code that may ask an external system."""
        self.params: Mapping[str, Any] = MappingProxyType(dict(params or {}))
        """The run's parameters, for operators that ask for them."""
        self.identity = identity
        self.replay_seconds = replay_seconds
        self._urls = urls
        self._open: dict[str, Warehouse] = {}
        self._opening = threading.Lock()
        self._one_at_a_time: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def url(self, name: str) -> str:
        """Raises `ConfigurationError` if the run was started without the connection."""
        if name not in self._urls:
            raise ConfigurationError(
                f"connection {name!r} is used by the pipeline, but the run was started without it "
                f"(it has: {', '.join(sorted(self._urls)) or 'none'})"
            )
        return with_driver(self._urls[name])

    def warehouse(self, name: str) -> Warehouse:
        """The SQL database that a connection names."""
        with self._opening:
            if name not in self._open:
                self._open[name] = Warehouse(name, self.url(name))
            return self._open[name]

    def source(self, name: str, reader: str = "") -> DeclaredConnection:
        """The connection of a source, which is called `reader`."""
        said = f"source {reader!r}" if reader else "a source"
        return DeclaredConnection(self.url(name), lambda: self.warehouse(name), said)

    def lock(self, name: str) -> threading.Lock:
        """Held while write actions are executed on a connection: they run one at a time."""
        with self._opening:
            return self._one_at_a_time[name]

    def read(self, read: DeclaredRead, keys: pa.Array | None) -> pa.Table:
        """The effect of a side-effect read action (Algorithm 4); replayed with back-off while the system is unavailable."""
        if isinstance(read, TableRead):
            warehouse = self.warehouse(read.connection)
            return self.replayed(read, lambda: warehouse.read(read, keys))
        return self.replayed(read, self._function_read(read, keys))

    def pieces(self, read: TableRead, keys: pa.Array | None, take: Callable[[Iterator[pa.Table]], T]) -> T:
        """As `Warehouse.pieces`, replayed as a whole while the system is unavailable."""
        warehouse = self.warehouse(read.connection)
        return self.replayed(read, lambda: warehouse.pieces(read, keys, take))

    def replayed(self, read: DeclaredRead, attempt: Callable[[], T]) -> T:
        """What `attempt` obtains of an external system, which is asked with back-off while it is unavailable."""
        crash_here(CrashPoint.BEFORE_READ)
        what = f"reading {read} of connection {read.connection!r}"
        more = read.unavailable if isinstance(read, FunctionRead) else ()

        def once() -> T:
            with self.calls.inner("fetch"):
                return attempt()

        with self.calls.inner("read", limited=False):
            effect = replay(what, once, self.replay_seconds, threading.Event(), more, self.calls)
        crash_here(CrashPoint.AFTER_READ)
        return effect

    def _function_read(self, read: FunctionRead, keys: pa.Array | None) -> Callable[[], pa.Table]:
        url = self.url(read.connection)
        asked = for_function(read.fetch, self.params)

        def fetch() -> pa.Table:
            try:
                table = read.fetch(url, keys, **asked)
            except Exception as error:
                if isinstance(error, LogioError) or is_outage(error, read.unavailable):
                    raise
                cause = f"{type(error).__name__}: {error}{advice(error, 'FunctionRead')}"
                raise OperatorFailed(f"the read by {read} of connection {read.connection!r}: {cause}") from error
            return needed_table(table, f"the read by {read}")

        return fetch

    def close(self) -> None:
        for warehouse in self._open.values():
            warehouse.close()


def describe_read(read: DeclaredRead, keys: int | None) -> dict[str, Any]:
    """The textual description of a read action, for READ_ACTION; `keys` is the number of those it was restricted to."""
    described = {name: value for name, value in read.describe().items() if name != "connection"}
    if keys is not None:
        described["keys"] = keys
    return described


def number_of(keys: pa.Array | None) -> int | None:
    """How many keys a read is restricted to; None if it has no key."""
    return None if keys is None else len(keys)


# --- queries of sources -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeclaredConnection:
    """A connection of the pipeline, as a source sees it (`SourceConnection`, `RangeConnection`)."""

    url: str
    warehouse: Callable[[], Warehouse]
    reader: str = "a source"
    """In words."""

    def query(
        self,
        statement: str,
        values: Mapping[str, Any],
        columns: Mapping[str, str | None],
        table: str | None = None,
        key: Sequence[str] = (),
    ) -> Iterator[pa.Table]:
        """Rows of a SELECT, a server-side cursor behind them. Types that `columns` leaves open are those of `table`.

        Raises ExternalUnavailable, and ConfigurationError for a statement that the database refuses, for a type that does
        not hold what is declared, and for a value that is no such value, of a row that is named by its `key`.
        """
        with self.warehouse().snapshot(**idle_for(PAUSE_SECONDS)) as connection:
            types = {name: column_type(name, kind) if kind else None for name, kind in columns.items()}
            place = Place(f"the query of {self.reader}{f' of table {table!r}' if table else ''}", tuple(key))
            if table is not None and not (types and all(types.values())):
                place, types = _described(connection, place, table, types)
            values = {name: bound(connection.dialect.name, value) for name, value in values.items()}
            known = {name: kind for name, kind in types.items() if kind}
            yield from _pieces(connection, place, statement, values, known)

    def has_rows(self, statement: str, values: Mapping[str, Any]) -> bool:
        """Whether a SELECT returns a row. Raises as `query`."""
        one = f"SELECT 1 FROM ({bare(statement)}) AS rows_of_query LIMIT 1"
        with self.warehouse().snapshot() as connection:
            values = {name: bound(connection.dialect.name, value) for name, value in values.items()}
            with _judged(f"the query of {self.reader}", statement):
                return connection.execute(sa.text(for_sqlalchemy(one)), values).first() is not None

    def quoted(self, name: str) -> str:
        """A name in the quotes of the database, for the text of a query."""
        return in_text(self.warehouse().engine.dialect, name)

    def column(self, rows: str, name: str) -> str:
        """As `SourceConnection` has it."""
        is_sqlite = self.warehouse().engine.dialect.name == "sqlite"
        return f"{rows}.{self.quoted(name)}" if is_sqlite else self.quoted(name)

    def rising(self, table: str, by: str, *, append_only: bool) -> FollowedColumn:
        """A column by which a table is read, as a driver follows it."""
        return rising_column(self.warehouse(), table, by, append_only=append_only)

    def rows(self, *_: Any, **__: Any) -> SparkFrame:
        """Raises `OperatorFailed`: nothing is read while a source is asked how far it goes."""
        raise OperatorFailed("rows() of a connection is for frame(), whose jobs it lasts for")


def _pieces(
    connection: Connection, place: Place, statement: str, values: Mapping[str, Any], types: dict[str, ColumnType]
) -> Iterator[pa.Table]:
    selected = sa.text(for_sqlalchemy(statement)).columns(**dict.fromkeys(types, sa.types.NullType()))
    with _judged(place.where, statement):
        yield from pieces(connection, place, selected, types, values)


@contextmanager
def _judged(where: str, statement: str) -> Iterator[None]:
    """Raises ConfigurationError for a statement that the database refuses."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if not is_lasting(error):
            raise
        raise ConfigurationError(f"the database refused {where}: {cause_of(error)}. It was: {statement}") from error


def _described(
    connection: Connection, place: Place, table: str, types: Mapping[str, ColumnType | None]
) -> tuple[Place, dict[str, ColumnType | None]]:
    """The columns of a table with their types, those that are given as they are given; and by what its rows are told."""
    found = described_table(connection, table, "that a source reads does not exist")
    missing = [column for column in types if column not in found.columns]
    if missing:
        raise ConfigurationError(f"the table {table!r} that a source reads has no column {missing[0]!r}")
    wanted = types or dict.fromkeys(column.name for column in found.columns)
    _, told = told_and_kinds(connection, place, found, [name for name, kind in wanted.items() if kind is None])
    keys = place.key or tuple(column.name for column in found.primary_key.columns)
    return replace(place, key=keys), {name: kind or told[name] for name, kind in wanted.items()}
