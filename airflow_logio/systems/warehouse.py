"""A SQL warehouse as an external system: reads, and atomically conditional write actions.

One transaction applies a group of write actions and advances the marker of (run, operator, connection, slot). It is
refused if the marker has passed these numbers (they were applied by an earlier incarnation), if a higher fencing token
wrote, or if another run owns the table. A stopped process cannot hold the marker's row for long: its session is ended by
`idle_in_transaction_session_timeout` (PostgreSQL), or the process itself is ended before it is replaced (SQLite).
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.database_errors import Fault, fault_of, is_held, is_lasting
from airflow_logio.databases import (
    IN_UTC,
    SETTINGS,
    cause_of,
    idle_for,
    parse_url,
    plain_engine,
    postgres_engine,
    read_url,
    snapshot_options,
    sqlite_engine,
)
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LockHeld,
    LogioError,
    ProtocolViolation,
    RowsDropped,
    StatementCutOff,
    WriteRefused,
)
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, shuts_out
from airflow_logio.protocol.scope_rules import DayRun, ScopeContender
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems import day_audits, table_days, table_runs, warehouse_rows
from airflow_logio.systems.calls import COUNTED, Locks
from airflow_logio.systems.closing_transaction import ClosingTransaction
from airflow_logio.systems.databases import (
    column_indexes,
    kept_rows,
    table_inserts,
    table_reads,
    table_upserts,
    upsert_keys,
)
from airflow_logio.systems.databases.encodings import read_unknown_texts
from airflow_logio.systems.databases.postgres_reads import read_times_as_text
from airflow_logio.systems.databases.sql_types import know_exact_decimals
from airflow_logio.systems.databases.sqlite import know_keys
from airflow_logio.systems.databases.table_names import TableName, table_name
from airflow_logio.systems.stored_records import NO_HELD_FILES, HeldFiles, RecordsInFiles, parts
from airflow_logio.systems.table_transaction import NOTHING_STORED, TableTransaction

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_SECONDS = 3600.0
"""How long a read waits in its snapshot while its group is held up, or while what it has read is being stored: a bucket may
be busy. After that the rest is read in another snapshot, or all of it is read again."""
LOCK_TIMEOUT_SECONDS = 20.0
"""Longer than PostgreSQL needs to end an idle session in a transaction, so that one wait is enough."""
CONDITIONAL = ("postgresql", "sqlite")
"""Kinds of databases that keep what conditional writes rest on: locks of rows, and transactions that nothing commits
half-way. (In MariaDB, a statement that makes a table commits what came before it.)"""


class Warehouse:
    """One external SQL database, under the name the pipeline gives it. Used by one thread at a time per operation."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.engine = _engine(name, url)
        self._prepared: dict[Hashable, TableName] = {}

    # --- reads --------------------------------------------------------------------------------------------------------

    def read(self, read: TableRead, keys: pa.Array | None = None) -> pa.Table:
        """The effect of a read action, obtained in one snapshot.

        With `keys`, only the rows whose `read.key` is among them. Raises `ExternalUnavailable`, `ConfigurationError`.
        """
        with self.snapshot() as connection:
            return table_reads.fetch(connection, read, keys)

    def pieces(self, read: TableRead, keys: pa.Array | None, take: Callable[[Iterator[pa.Table]], T]) -> T:
        """What `take` makes of the effect of a read action, which it gets in pieces of one snapshot, the first one without
        rows. Raises as `read`, and what `take` raises."""
        with (
            self.snapshot(**idle_for(PAUSE_SECONDS)) as connection,
            closing(table_reads.fetched(connection, read, keys)) as tables,
        ):
            return take(tables)

    @contextmanager
    def snapshot(self, **options: Any) -> Iterator[Connection]:
        """A connection for reads of one snapshot; driver errors come out as from `read`.

        `options` are further execution options.
        """
        options = {**snapshot_options(self.engine), **options}
        with (
            self.translated(refused=ConfigurationError),
            self.engine.connect().execution_options(**options) as connection,
        ):
            yield connection

    # --- writes -------------------------------------------------------------------------------------------------------

    def for_writes(self, settings: Mapping[str, str] = IN_UTC) -> Connection:
        """A connection in whose transactions the zone is UTC, as records have their times: the database casts them to the
        types of columns. Driver errors come out as they are."""
        return self.engine.connect().execution_options(**{SETTINGS: {**IN_UTC, **settings}})

    def apply(
        self,
        marker: Marker,
        writer: TableWriter,
        actions: Sequence[WriteAction],
        *,
        given_up: tuple[str, ...] = (),
        stored: Mapping[int, RecordsInFiles] = NOTHING_STORED,
        scope: ScopeContender | None = None,
    ) -> None:
        """Apply a gapless group of write actions and advance the marker, in one transaction.

        `given_up` are the uids of runs in whose place this one has begun, `scope` is what it owns by value. `stored` has, by
        the number of the action, the records that are in files. Raises `WriteRefused` (a newer run owns the table, or the
        database refuses a row), `Fenced` (a higher token wrote), `LogInconsistent` (the external system is behind the log),
        `ExternalUnavailable` (try again).
        """
        name = self._prepare(writer)
        contender = self._contender(name, writer, marker, given_up)
        attempt = TableTransaction(name, marker, writer, actions, stored, contender, scope)
        try:
            with (
                self.translated(lambda error: self._refused_row(attempt, error)),
                self.for_writes() as connection,
                connection.begin(),
            ):
                attempt.apply(connection)
        except RowsDropped as error:
            raise WriteRefused(f"connection {self.name!r}: {self._row_of(attempt)}{error}") from error

    def close_day(
        self,
        marker: Marker,
        writer: TableWriter,
        group: HeldGroup,
        pages: Iterable[Sequence[WriteAction]],
        scope: ScopeContender,
        *,
        given_up: tuple[str, ...] = (),
        files: HeldFiles = NO_HELD_FILES,
    ) -> None:
        """Put the rows of a run, all of them, in the place of those that have its day, in one transaction.

        `pages` have the write actions `group` but for the closing one, `files` the records of these that are in files. Raises
        as `apply`, and what reading them raises.
        """
        name = self._prepare(writer)
        contender = self._contender(name, writer, marker, given_up)
        attempt = ClosingTransaction(name, marker, writer, group, pages, contender, scope, files)
        try:
            with self.translated(attempt.refused), self.for_writes() as connection, connection.begin():
                attempt.apply(connection)
        except RowsDropped as error:
            raise WriteRefused(f"connection {self.name!r}: {error}") from error

    def removed_up_to(self, log_uid: str, pipeline: str) -> int | None:
        """As `warehouse_rows.read_removed`; None if no run has ever written here. Raises `ExternalUnavailable`,
        `ConfigurationError`."""
        with self.snapshot() as connection:
            if not sa.inspect(connection).has_table(warehouse_rows.marker_table.name):
                return None
            return warehouse_rows.read_removed(connection, log_uid, pipeline)

    def remove_markers(self, log_uid: str, pipeline: str, up_to: int, run_uids: Sequence[str]) -> int:
        """As `warehouse_rows.remove_markers`, in one transaction. Raises `ExternalUnavailable`, `WriteRefused`."""
        with self.translated(), self.engine.begin() as connection:
            return warehouse_rows.remove_markers(connection, log_uid, pipeline, up_to, run_uids)

    def adopt(self, writer: TableWriter, run: DayRun, condition: str, *, expected: int | None = None) -> int:
        """Let rows of no run that fulfil a person's condition be those of a partition: how many they are. Only if they are
        as many as `expected`; without it, nothing is changed.

        `writer` supersedes, and knows its partition; `run` is one that is older than all. Raises `WriteRefused`,
        `ExternalUnavailable`.
        """
        with self.translated(), self.for_writes() as connection, connection.begin() as transaction:
            name = table_name(connection, writer.table)
            _make_tables(connection, name, writer)
            owner_row = warehouse_rows.release_of(self.engine.dialect, name)
            contender = _contender(writer, self.name, "adopt", Owner(run.run_uid, time.time()), owner_row=owner_row)
            scope = ScopeContender(writer.table, self.name, writer.scope, run, of_runs=True)
            found = table_days.adopt(connection, name, writer, contender, scope, condition, expected)
            if expected is None:
                transaction.rollback()
        return found

    def shut_out(self, marker: Marker) -> MarkerRow:
        """Drivers with lower tokens are refused from now on; the row that they would find. Raises `Fenced`,
        `ExternalUnavailable`."""
        with self.translated(), self.engine.begin() as connection:
            before = warehouse_rows.lock_marker(connection, marker)
            if shuts_out(marker.operator, marker.connection, marker.token, before):
                warehouse_rows.advance_marker(connection, marker, before, before.number)
            return before

    def _contender(self, name: TableName, writer: TableWriter, marker: Marker, given_up: tuple[str, ...]) -> Contender:
        mine = Owner(marker.run_uid, marker.started_at)
        owner_row = warehouse_rows.release_of(self.engine.dialect, name)
        return _contender(writer, self.name, marker.operator, mine, given_up=given_up, owner_row=owner_row)

    def check_not_replaced(self, writer: TableWriter, run: Owner, scope: ScopeContender | None = None) -> None:
        """Raises `WriteRefused` if a newer run owns the writer's table, or has claimed `scope` of it, so that this run could
        write there no more."""
        name = self._prepare(writer)
        contender = self._contender(name, writer, Marker(run.run_uid, "", self.name, 0, 0, run.started_at), ())
        with self.translated(), self.snapshot() as connection:
            contender.check_not_replaced(warehouse_rows.read_owner(connection, name))
            contender.check_not_given_up(warehouse_rows.read_given_up(connection, name, run.run_uid))
            if scope is not None:
                scope.check_retry(warehouse_rows.read_scope(connection, name, scope.key))

    def written(self) -> object:
        """What of a SQLite file changes while any session writes to it, also before it commits: a long transaction does not
        fit into its memory. The file itself is not asked, as it may be locked."""
        path = Path(f"{self.engine.url.database}-wal")
        with suppress(OSError):
            found = path.stat()
            return found.st_size, found.st_mtime_ns
        return None

    def rehearse(self, writer: TableWriter, actions: Sequence[WriteAction] = ()) -> None:
        """Do what the writer would do, in a transaction that is rolled back: advance its marker, become the owner of its
        table, make it, empty it, insert records.

        Nothing is emptied: the statement that would do so finds no row. Raises as `apply`, and `WriteRefused` where the
        database refuses a statement: for a permission, a column, a value, or a key that is in the table already.
        """
        with self.translated(), self.for_writes() as connection, connection.begin() as transaction:
            name = table_name(connection, writer.table)
            with self.translated(lambda _: _what_is_kept(writer)):
                _make_tables(connection, name, writer)
                warehouse_rows.rehearse(connection, name, self._unlogged(writer))
            table_inserts.check_target(connection, writer, name)
            upsert_keys.check_keyed(connection, writer, name)
            if writer.owns:
                kept_rows.check_owned_by_value(connection, writer, name)
            elif writer.on_new_run == "replace":
                kept_rows.check_replaced(connection, writer, name)
            if writer.supersedes:
                table_runs.check_run_column(connection, writer, name)
                actions = table_runs.labelled(actions, table_runs.column_of(writer), -1)
            table_inserts.rehearse(connection, writer, name, () if writer.upserts else actions)
            if writer.upserts:
                table_upserts.rehearse(connection, writer, name, actions)
            if writer.scope:
                day_audits.rehearse_queries(connection, writer.audits)
            transaction.rollback()

    def missing_index(self, writer: TableWriter) -> str | None:
        """As `column_indexes.missing_index`, of the column by which the writer's runs own rows. Raises `ConfigurationError`,
        `ExternalUnavailable`."""
        with self.snapshot() as connection:
            return column_indexes.missing_index(connection, table_name(connection, writer.table), writer.by[0])

    def _unlogged(self, writer: TableWriter) -> Contender:
        """A run that no log has."""
        return _contender(writer, self.name, "rehearsal", Owner(uuid4().hex, 0.0))

    def _prepare(self, writer: TableWriter) -> TableName:
        """Once for a table and its columns as a writer declares them: which table it is, that it holds what is declared, and
        the tables that we keep ourselves.
        """
        columns = None if writer.columns is None else tuple(writer.columns.items())
        checked = (
            writer.table,
            writer.by,
            writer.run_column,
            columns,
            writer.upserts,
            writer.primary_key,
            writer.version,
        )
        if checked not in self._prepared:
            if self.engine.dialect.name not in CONDITIONAL:
                raise ConfigurationError(not_conditional(self.name, self.engine.dialect.name))
            with self.translated(lambda _: _what_is_kept(writer)), self.engine.begin() as connection:
                name = table_name(connection, writer.table)
                _make_tables(connection, name, writer)
                table_inserts.check_target(connection, writer, name)
                upsert_keys.check_keyed(connection, writer, name)
            self._prepared[checked] = name
        return self._prepared[checked]

    def _refused_row(self, attempt: TableTransaction, error: sa.exc.DBAPIError) -> str:
        """Which row it is that the database refuses, in words: found by trying, in a transaction that is rolled back."""
        return self._row_of(attempt) if is_lasting(error) else ""

    def _row_of(self, attempt: TableTransaction) -> str:
        try:
            with self.for_writes() as connection:
                return attempt.refused_row(connection)
        except (sa.exc.SQLAlchemyError, LogioError) as other:
            log.warning("connection %r: which row was refused is unknown: %s", self.name, cause_of(other))
            return ""

    @contextmanager
    def translated(
        self,
        place: Callable[[sa.exc.DBAPIError], str] = lambda _: "",
        refused: type[WriteRefused | ConfigurationError] = WriteRefused,
    ) -> Iterator[None]:
        """Errors of the database as ours, `refused` for what it does not take; `place` says where in what was written a
        refusal has its cause."""
        try:
            yield
        except (sa.exc.TimeoutError, sa.exc.PendingRollbackError, sa.exc.ResourceClosedError) as error:
            raise ExternalUnavailable(f"connection {self.name!r}: {cause_of(error)}") from error
        except sa.exc.DBAPIError as error:
            text = f"connection {self.name!r}: {cause_of(error)}"
            match fault_of(error):
                case Fault.UNAVAILABLE:
                    raise (LockHeld if is_held(error) else ExternalUnavailable)(text) from error
                case Fault.CUT_OFF:
                    raise StatementCutOff(text) from error
                case Fault.MISCONFIGURED:
                    raise ConfigurationError(text) from error
            where = place(error)
            raise refused(
                f"connection {self.name!r} refused a statement: {where}{cause_of(error)}{_about_key(error)}"
            ) from error
        except (ValueError, OverflowError, pa.ArrowException) as error:  # text with NUL, a number too long
            raise refused(f"connection {self.name!r}: a value cannot be passed on: {error}") from error

    def close(self) -> None:
        self.engine.dispose()


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A `TableWriter` as the runtime drives it: like an author's `ConditionalWriter`."""

    writer: TableWriter
    warehouse: Warehouse
    given_up: tuple[str, ...] = ()
    """The runs in whose place this one has begun."""
    run: DayRun | None = None
    """The run, for a writer that owns a day."""
    takes_over: bool = False
    """It replaces what another line owns: a person has said so."""
    may_be_empty: bool = False
    """Its day may become empty: a person has said so."""
    unavailable: tuple[type[Exception], ...] = ()

    def connect(self, _url: str) -> AbstractContextManager[Warehouse]:
        """The run's one pool of connections to the database, which reconnects by itself."""
        return nullcontext(self.warehouse)

    def apply(
        self,
        client: Warehouse,
        marker: Marker,
        actions: Sequence[WriteAction],
        stored: Mapping[int, RecordsInFiles] = NOTHING_STORED,
    ) -> None:
        """As `Warehouse.apply`."""
        client.apply(marker, self.writer, actions, given_up=self.given_up, stored=stored, scope=self._scope(client))

    def apply_held(
        self,
        client: Warehouse,
        marker: Marker,
        group: HeldGroup,
        closing: WriteAction,
        pages: Iterable[Sequence[WriteAction]],
        files: HeldFiles = NO_HELD_FILES,
    ) -> None:
        """As `Warehouse.close_day`, if no audit finds a fault. Raises `WriteRefused` if one does, and `OperatorFailed` for
        an error of its author's code."""
        scope = self._scope(client)
        if scope is None:
            raise ProtocolViolation(f"{closing.operator!r} has a closing write action, and owns nothing")
        if any(audit.function for audit in self.writer.audits):
            # What an earlier driver has done is not asked about, and none does it while the functions work.
            if not marker.applies(group, *client.shut_out(marker)):
                return
            day_audits.ask_functions(self.writer.audits, _Records(self.writer, pages, files), scope)
        client.close_day(marker, self.writer, group, pages, scope, given_up=self.given_up, files=files)

    @property
    def locks(self) -> Locks:
        """Runs that own days in one database wait for each other, for as long as it takes to write a day, and so do runs that
        update the same rows. On PostgreSQL a session that holds a lock works, or is ended; a SQLite file is locked as a whole
        by one of them at a time, for which all writers wait while it writes."""
        if self.warehouse.engine.dialect.name == "sqlite":
            return Locks(progress=self.warehouse.written)
        return Locks(count=False) if self.writer.owns or self.writer.upserts else COUNTED

    def check_not_replaced(self, run: Owner) -> None:
        """As `Warehouse.check_not_replaced`."""
        self.warehouse.check_not_replaced(self.writer, run, self._scope(self.warehouse))

    def _scope(self, client: Warehouse) -> ScopeContender | None:
        writer = self.writer
        if not writer.owns:
            return None
        if not writer.scope or self.run is None:
            raise ProtocolViolation(
                f"the writer of table {writer.table!r} owns a day, and is not of a run that has one"
            )
        is_to_replace = self.may_be_empty or writer.empty == "replace"
        said = (self.takes_over, is_to_replace, writer.fills_at_once, writer.supersedes)
        return ScopeContender(writer.table, client.name, writer.scope, self.run, *said)


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of pages of write actions, as often as they are asked for."""

    writer: TableWriter
    pages: Iterable[Sequence[WriteAction]]
    files: HeldFiles

    def __iter__(self) -> Iterator[Iterator[pa.Table]]:
        return (self._of(action) for page in self.pages for action in page)

    def _of(self, action: WriteAction) -> Iterator[pa.Table]:
        stored = self.files.records.get(action.number)
        some = [action] if stored is None else parts(self.writer, action, stored)
        return (part.records for part in some)


def _contender(writer: TableWriter, connection: str, operator: str, mine: Owner, **more: Any) -> Contender:
    owned: dict[str, Any] = {"by": "".join(writer.by), "run_column": writer.run_column or ""}
    owned["by_version"] = writer.upserts and writer.joins
    return Contender(writer.table, connection, operator, mine, writer.on_new_run, **owned, **more)


def _make_tables(connection: Connection, name: TableName, writer: TableWriter) -> None:
    warehouse_rows.make_tables(connection, name.schema, for_scopes=writer.owns, for_runs=writer.supersedes)


_DUPLICATE_KEYS = ("23505", sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)


def _about_key(error: sa.exc.DBAPIError) -> str:
    """What to do about a key that the table has already: the records are in the log, and will come again as they are."""
    code = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlite_errorcode", None)
    if code not in _DUPLICATE_KEYS:
        return ""
    return (
        ". If another program has put the row there, delete it (or drop the constraint), and `logio retry`. If the pipeline "
        "makes the key twice, a retry would bring it again: make one row of it (a window that collects all records of a key; "
        "a primary_key with the column that tells them apart), and `logio fresh`. To update rows by their key: "
        "TableWriter(..., mode='upsert')"
    )


def _what_is_kept(writer: TableWriter) -> str:
    own = "logio_owner and logio_scope" if writer.owns else "logio_owner"
    return (
        f"the writer of table {writer.table!r} keeps {own} in its schema and logio_marker in the default schema; it "
        "makes them, or someone else has and lets it select, insert and update there: "
    )


def not_conditional(connection: str, backend: str) -> str:
    """Why tables cannot be written in that kind of database, and what to do."""
    return (
        f"connection {connection!r} is a database of kind {backend!r}: TableWriter writes exactly once to PostgreSQL and "
        "SQLite only. Reading from it is fine; to write there, derive a writer of your own "
        "(docs/how-to/write-a-writer.md)"
    )


def _engine(name: str, url: str) -> Engine:
    """PostgreSQL and SQLite with all their guarantees; any other database that SQLAlchemy reaches, with its own."""
    try:
        parsed = read_url(url)
        if parsed.get_backend_name() in CONDITIONAL:
            parsed = parse_url(url)
        engine = sqlite_engine(parsed) if parsed.get_backend_name() == "sqlite" else None
    except ConfigurationError as error:
        raise ConfigurationError(f"connection {name!r}: {error}") from None
    if engine is not None:
        know_exact_decimals(engine)
        know_keys(engine)
        return engine
    if parsed.get_backend_name() not in CONDITIONAL:
        return plain_engine(parsed, f"connection {name!r}", pool_pre_ping=True, hide_parameters=True)
    engine = postgres_engine(
        parsed,
        f"logio {name}",
        lock_timeout=LOCK_TIMEOUT_SECONDS,
        ends_with_client=True,
        pool_size=2,
        pool_pre_ping=True,
        json_deserializer=str,  # JSON is read as the text that it is
    )
    read_times_as_text(engine)
    read_unknown_texts(engine)
    return engine
