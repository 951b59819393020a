"""How far a table can be read by a column of rising numbers, so that no row appears later below that (ADR-93)."""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.sources.connected import Settled
from airflow_logio.errors import ConfigurationError, SourceChanged
from airflow_logio.systems.databases.table_names import TableName, in_double_quotes, quoted, table_name
from airflow_logio.systems.databases.table_reads import column_kind, described_table
from airflow_logio.systems.warehouse import Warehouse

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""How long one question waits for writers at most."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 0.3
"""Between two looks at who holds locks, for which the server stops all who want one: short pauses at first."""
TOLD_AFTER_SECONDS, TOLD_EVERY_SECONDS = 10.0, 300.0
"""Who is waited for is logged then, and so often."""

_MADE = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(:name)")
_NO_ROWID = re.compile(r"without\s+rowid|primary\s+key\s+desc", re.IGNORECASE)


def rising_column(warehouse: Warehouse, table: str, by: str, *, append_only: bool) -> FollowedColumn:
    """Raises `ConfigurationError` for a kind of database that does not tell which numbers are still to come."""
    kinds: dict[str, type[FollowedColumn]] = {"postgresql": _PostgresColumn, "sqlite": _SqliteColumn}
    backend = warehouse.engine.dialect.name
    if backend not in kinds:
        raise ConfigurationError(not_followed(warehouse.name, backend))
    return kinds[backend](warehouse, table, by, append_only=append_only)


def not_followed(connection: str, backend: str) -> str:
    """Why a source cannot follow a table of that kind of database."""
    return (
        f"connection {connection!r} is a database of kind {backend!r}: a TableSource reads PostgreSQL and SQLite, which tell "
        "which transactions may still bring smaller numbers. Read the table by a QuerySource, or a SparkSource"
    )


class FollowedColumn(ABC):
    """A column of whole numbers that rise from row to row, as a source reads its table by. Used by one thread."""

    def __init__(self, warehouse: Warehouse, table: str, by: str, *, append_only: bool) -> None:
        self._warehouse = warehouse
        self._written = table
        self._by = by
        self._append_only = append_only
        self._place = f"table {table!r} of connection {warehouse.name!r}"
        self._table: sa.Table | None = None
        """As described, when everything that can be looked at was found right."""

    def check(self) -> str | None:
        """What makes reading slow, in words: there is no index on the column.

        Raises `ConfigurationError`, naming what is not as it must be; `ExternalUnavailable`.
        """
        with self._warehouse.snapshot() as connection:
            table = self._known(connection)
            if self._is_indexed(connection, table):
                return None
        return f"{self._place} has no index that begins with {self._by!r}: each range is found by a look at all rows"

    @abstractmethod
    def settled(self, after: int | None) -> Settled | None:
        """The largest number at or below which no row will appear for sure; None if that is not known yet.

        `after` is how far the table was read. Raises `ConfigurationError`, `ExternalUnavailable`, and `SourceChanged` if the
        numbers begin anew.
        """

    def behind(self, after: int | None, until: int, rows: int) -> tuple[int, int] | None:
        """The last number of the next `rows` rows behind `after`, up to `until`, and how many rows there are up to it.

        None if there are none. Raises `ExternalUnavailable`, `ConfigurationError`.
        """
        with self._warehouse.snapshot() as connection:
            table = self._known(connection)
            column = table.columns[self._by]
            wanted = column <= until if after is None else sa.and_(column > after, column <= until)
            first = sa.select(column).where(wanted).order_by(column).limit(rows).subquery()
            last = connection.execute(sa.select(sa.func.max(first.columns[self._by]))).scalar()
            if last is None:
                return None
            counted = sa.select(sa.func.count()).select_from(table).where(wanted, column <= last)
            return int(last), int(connection.execute(counted).scalar_one())

    def _known(self, connection: Connection) -> sa.Table:
        if self._table is None:
            table = described_table(connection, self._written, f"is not in connection {self._warehouse.name!r}")
            column = table.columns.get(self._by)
            if column is None:
                raise ConfigurationError(f"{self._place} has no column {self._by!r}, by which it is read")
            if (kind := column_kind(column)).name != "bigint":
                raise ConfigurationError(
                    f"{self._place} is read by column {self._by!r}, which is {kind}: it must be a column of whole numbers"
                )
            self._check(connection)
            self._table = table
        return self._table

    @abstractmethod
    def _check(self, connection: Connection) -> None:
        """Raises `ConfigurationError` unless numbers rise as writers get them."""

    @abstractmethod
    def _is_indexed(self, connection: Connection, table: sa.Table) -> bool: ...

    def _check_end(self, most: int | None, after: int | None) -> None:
        if self._append_only and after is not None and (most is None or most < after):
            raise SourceChanged(
                f"{self._place} was read up to {self._by} = {after}, and its largest {self._by} is {most} now: rows were "
                "deleted, although append_only=True says that none are. Put them back, or start a fresh run"
            )


class _PostgresColumn(FollowedColumn):
    """An insert locks the table before it takes its number. So every transaction that may still bring a number up to the
    largest one that was seen holds a lock that was taken before, and all of them are waited for."""

    def __init__(self, warehouse: Warehouse, table: str, by: str, *, append_only: bool) -> None:
        super().__init__(warehouse, table, by, append_only=append_only)
        self._oid = 0
        self._sequence = 0
        self._pending: tuple[int | None, frozenset[Holder]] | None = None
        """The number that is to be settled, and who is waited for."""
        self._since = self._told = 0.0

    def settled(self, after: int | None) -> Settled | None:
        deadline, pause = time.monotonic() + WAIT_SECONDS, FIRST_PAUSE_SECONDS
        if self._pending is None:
            self._begin(after)
        while self._pending is not None:
            number, waited_for = self._pending
            if number is None or not waited_for:
                self._pending = None
                return Settled(number)
            self._say(waited_for)
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            with self._now() as connection:
                now = writers_of(connection, self._oid)
            self._pending = number, still_waited_for(waited_for, now)
        return None

    def _begin(self, after: int | None) -> None:
        """The largest number first; then, by another statement, the transactions that may still bring one up to it."""
        with self._now() as connection:
            column = self._known(connection).columns[self._by]
            self._check(connection)  # each time: the sequence may have been altered, or a partition attached
            found = largest(connection, column, self._sequence)
            holders = writers_of(connection, self._oid)
        if found.is_standby:
            raise ConfigurationError(
                f"connection {self._warehouse.name!r} is a standby, which does not know whose transactions are under way on "
                f"its primary, so it is not known which rows of {self._written!r} are still to come: connect to the primary"
            )
        known = max((number for number in (found.number, after) if number is not None), default=None)
        if found.is_told and known is not None and (found.drawn is None or found.drawn < known):
            raise SourceChanged(
                f"{self._place} has {self._by} = {known}, or had it when it was read, and the last number of its sequence is "
                f"{'none' if found.drawn is None else found.drawn}: rows to come would have smaller numbers, and never be "
                "read. Set the sequence behind all rows (setval), insert no numbers of your own, and start a fresh run if "
                "this one has read further"
            )
        self._check_end(found.number, after)
        self._since = time.monotonic()
        self._told = self._since + TOLD_AFTER_SECONDS - TOLD_EVERY_SECONDS
        self._pending = found.number, holders

    def _now(self) -> AbstractContextManager[Connection]:
        """Each of its statements sees what is committed when it begins."""
        return self._warehouse.snapshot(isolation_level="READ COMMITTED")

    def _say(self, waited_for: frozenset[Holder]) -> None:
        now = time.monotonic()
        if now - self._told < TOLD_EVERY_SECONDS:
            return
        self._told = now
        log.warning(
            "%s: what was inserted is read when transactions that may still bring smaller numbers have ended; waiting "
            "for %.0f s for %s",
            self._place,
            now - self._since,
            "; ".join(sorted(map(str, waited_for))),
        )

    def _check(self, connection: Connection) -> None:
        found = table_name(connection, self._written)
        self._oid, self._sequence = check_numbers(connection, found, self._by, self._place)

    def _is_indexed(self, connection: Connection, table: sa.Table) -> bool:
        return is_indexed(connection, self._oid, self._by)


class _SqliteColumn(FollowedColumn):
    """One transaction writes at a time, and draws its numbers within it: what is committed is all up to its end."""

    def settled(self, after: int | None) -> Settled | None:
        with self._warehouse.snapshot() as connection:
            table = self._known(connection)
            number = connection.execute(sa.select(sa.func.max(table.columns[self._by]))).scalar()
        self._check_end(number, after)
        return Settled(number)

    def _check(self, connection: Connection) -> None:
        table = described_table(connection, self._written, f"is not in connection {self._warehouse.name!r}")
        [made] = connection.execute(_MADE, {"name": table.name}).scalars().all() or [""]
        keys = [key.name for key in table.primary_key.columns]
        kinds = {
            row.name: row.type.upper()
            for row in connection.exec_driver_sql(f"PRAGMA table_info({quoted(connection, table.name)})")
        }
        if keys != [self._by] or kinds[self._by] != "INTEGER" or not made or _NO_ROWID.search(made):
            raise ConfigurationError(
                f"{self._place} is read by column {self._by!r}, which is not its INTEGER PRIMARY KEY: only that one "
                "rises from row to row by itself in SQLite"
            )
        if not self._append_only and "autoincrement" not in made.lower():
            raise ConfigurationError(
                f"{self._place} is read by column {self._by!r}, and SQLite gives the number of a deleted last row to the "
                "next one, which would never be read: make it INTEGER PRIMARY KEY AUTOINCREMENT, or say append_only=True if "
                "no row is deleted"
            )

    def _is_indexed(self, connection: Connection, table: sa.Table) -> bool:
        return True


# --- PostgreSQL: which transactions may still bring a number ----------------------------------------------------------

_FAMILY = """
    WITH RECURSIVE above(oid) AS (
        SELECT CAST(:oid AS oid) UNION SELECT i.inhparent FROM pg_inherits AS i JOIN above ON i.inhrelid = above.oid
    ), below(oid) AS (
        SELECT CAST(:oid AS oid) UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN below ON i.inhparent = below.oid
    ), family AS (SELECT oid FROM above UNION SELECT oid FROM below)
"""
"""The table, what it is a partition of, and its partitions: an insert may name any of them."""
_WRITERS = sa.text(
    _FAMILY
    + """
    SELECT DISTINCT l.virtualtransaction AS id, l.pid, a.application_name AS application, p.gid,
        to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS since
    FROM pg_locks AS l
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND l.virtualtransaction = '-1/' || p.transaction
    WHERE l.locktype = 'relation' AND l.granted AND l.relation IN (SELECT oid FROM family)
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
)
_MEMBERS = sa.text(
    _FAMILY
    + """
    SELECT c.oid, c.oid::regclass::text AS name, c.relkind, c.relpersistence, a.attnotnull, a.attnum,
        pg_get_expr(d.adbin, d.adrelid) AS "default",
        EXISTS (SELECT FROM pg_subscription_rel AS s WHERE s.srrelid = c.oid) AS is_copy
    FROM family JOIN pg_class AS c USING (oid)
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = :by AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
"""
)
_SEQUENCES = sa.text(
    _FAMILY
    + """
    SELECT DISTINCT s.seqrelid AS oid, s.seqrelid::regclass::text AS name, s.seqcache, s.seqincrement, s.seqcycle,
        q.relpersistence
    FROM family JOIN pg_attribute AS a ON a.attrelid = family.oid AND a.attname = :by AND NOT a.attisdropped
    CROSS JOIN LATERAL (
        SELECT d.refobjid AS oid FROM pg_attrdef AS e JOIN pg_depend AS d ON d.objid = e.oid
        WHERE e.adrelid = family.oid AND e.adnum = a.attnum
            AND d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
        UNION
        SELECT d.objid FROM pg_depend AS d
        WHERE d.refobjid = family.oid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
            AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    ) AS used
    JOIN pg_sequence AS s ON s.seqrelid = used.oid JOIN pg_class AS q ON q.oid = s.seqrelid
"""
)
_INDEXED = sa.text("""
    SELECT EXISTS (
        SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = :oid AND a.attname = :by AND i.indisvalid AND i.indpred IS NULL
    )
""")
_NEXT_VALUE = re.compile(r"\(*nextval\('[^']*'::regclass\)\)*(::\w+)?")


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that may have inserted rows, as `pg_locks` names it."""

    id: str
    is_prepared: bool
    said: str = field(compare=False)

    def __str__(self) -> str:
        return self.said


def writers_of(connection: Connection, oid: int) -> frozenset[Holder]:
    """The transactions that hold a lock of writers on a table, its partitions, or what it is a partition of."""
    found = connection.execute(_WRITERS, {"oid": oid})
    return frozenset(Holder(row.id, row.pid is None, _said(row)) for row in found)


def _said(row: sa.Row[Any]) -> str:
    if row.pid is None:
        return f"prepared transaction {row.gid!r}"
    since = "" if row.since is None else f", begun at {row.since} UTC"
    return f"the transaction of pid {row.pid}" + (f" ({row.application})" if row.application else "") + since


def still_waited_for(waited_for: frozenset[Holder], now: frozenset[Holder]) -> frozenset[Holder]:
    """Who of `waited_for` may still bring rows, if all of `now` hold locks.

    PREPARE TRANSACTION gives a transaction another name. So where one has gone, all prepared ones are waited for, too; these
    keep their names until they end.
    """
    gone = waited_for - now
    renamed = now if any(not holder.is_prepared for holder in gone) else frozenset()
    return (waited_for & now) | {holder for holder in renamed if holder.is_prepared}


class Largest(NamedTuple):
    """What one statement has seen."""

    number: int | None
    """The largest one of a row; None without rows."""
    is_standby: bool
    is_told: bool
    """Whether the user may ask the sequence."""
    drawn: int | None
    """The last number that the sequence has given; None if it has given none."""


def largest(connection: Connection, column: sa.Column[Any], sequence: int) -> Largest:
    """Rows and sequence, in this order: the sequence has given what a row has."""
    is_told = sa.func.has_sequence_privilege(sa.cast(sequence, OID), "USAGE, SELECT")
    drawn = sa.case((is_told, sa.func.pg_sequence_last_value(sa.cast(sequence, OID))))
    asked = sa.select(sa.func.max(column), sa.func.pg_is_in_recovery(), is_told, drawn)
    return Largest(*connection.execute(asked).one())


def check_numbers(connection: Connection, name: TableName, by: str, place: str) -> tuple[int, int]:
    """The oids of a table and of the one sequence from which its column `by` is filled, one number after the other.

    Raises `ConfigurationError`, which begins with `place`.
    """
    asked = sa.text("SELECT CAST(to_regclass(:name) AS oid)")
    oid = connection.execute(asked, {"name": name.as_value()}).scalar_one()
    given = {"oid": oid, "by": by}
    for member in connection.execute(_MEMBERS, given):
        problem = _problem_of(member, by, is_partition=member.oid != oid)
        if problem is not None:
            raise ConfigurationError(f"{place} is read by column {by!r}, and {problem}")
    sequences = connection.execute(_SEQUENCES, given).all()
    if len(sequences) != 1:
        names = ", ".join(sorted(row.name for row in sequences))
        found = f"several sequences ({names})" if sequences else "no sequence"
        raise ConfigurationError(
            f"{place} is read by column {by!r}, which has {found} as its default: only numbers of one sequence rise from row "
            f"to row. Make it an identity column (ALTER TABLE ... ALTER COLUMN {in_double_quotes(by)} ADD GENERATED ALWAYS "
            "AS IDENTITY), or read the table by a SparkSource"
        )
    [sequence] = sequences
    told = f"{place} is read by column {by!r}, whose sequence {sequence.name}"
    if sequence.seqcache != 1:
        raise ConfigurationError(
            f"{told} has CACHE {sequence.seqcache}: a session takes numbers ahead, and inserts them later, below what was "
            f"read. ALTER SEQUENCE {sequence.name} CACHE 1, and have sessions that took numbers before connect anew"
        )
    if sequence.seqincrement < 0 or sequence.seqcycle:
        raise ConfigurationError(f"{told} falls, or begins anew at its end (CYCLE): its numbers do not rise")
    if sequence.relpersistence != "p":
        raise ConfigurationError(f"{told} is not logged: after a crash of the server its numbers begin anew")
    return int(oid), int(sequence.oid)


def _problem_of(member: sa.Row[Any], by: str, *, is_partition: bool) -> str | None:
    what = f"{member.name}, a partition of it or above it," if is_partition else "it"
    if member.relkind not in ("r", "p"):
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
        return f"{what} is {kinds.get(str(member.relkind), 'no table')}: it is not known here which transactions write to it"
    if member.relpersistence != "p":
        return f"{what} is not logged: a crash of the server empties it, and its numbers begin anew"
    if not member.attnotnull:
        return (
            f"{what} may have rows without {by}, which would never be read: ALTER TABLE {member.name} "
            f"ALTER COLUMN {in_double_quotes(by)} SET NOT NULL"
        )
    if member.default is not None and not _NEXT_VALUE.fullmatch(str(member.default)):
        return f"{what} fills it by {member.default}: numbers rise only as nextval() gives them"
    if member.is_copy:
        return (
            f"{what} is filled by a subscription: rows come in the order of their commits elsewhere, and not of their "
            "numbers. Read the table where it is written"
        )
    return None


def is_indexed(connection: Connection, oid: int, by: str) -> bool:
    """Whether an index finds ranges of the column."""
    return bool(connection.execute(_INDEXED, {"oid": oid, "by": by}).scalar_one())
