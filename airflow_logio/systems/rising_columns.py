"""How far a table can be read by a column of rising numbers, so that no row appears later below that (ADR-93)."""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.sources.connected import Settled
from airflow_logio.errors import ConfigurationError, SourceChanged
from airflow_logio.systems import rising_numbers
from airflow_logio.systems.rising_numbers import Holder
from airflow_logio.systems.table_names import table_name
from airflow_logio.systems.table_reads import column_kind, described_table
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
    """Raises `ConfigurationError` for a kind of database whose numbers nobody can wait for."""
    kinds: dict[str, type[FollowedColumn]] = {"postgresql": _PostgresColumn, "sqlite": _SqliteColumn}
    backend = warehouse.engine.dialect.name
    if backend not in kinds:
        raise ConfigurationError(rising_numbers.not_followed(warehouse.name, backend))
    return kinds[backend](warehouse, table, by, append_only=append_only)


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
        """The largest number of which it is sure that no row will appear at or below it; None if that is not known yet.

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
    """Whoever inserts has locked the table before the insert takes its number. So who may still bring a number up to the
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
                now = rising_numbers.writers_of(connection, self._oid)
            self._pending = number, rising_numbers.still_waited_for(waited_for, now)
        return None

    def _begin(self, after: int | None) -> None:
        """The largest number first; then, by another statement, who may still bring one up to it."""
        with self._now() as connection:
            column = self._known(connection).columns[self._by]
            self._check(connection)  # each time: somebody may have altered the sequence, or attached a partition
            found = rising_numbers.largest(connection, column, self._sequence)
            holders = rising_numbers.writers_of(connection, self._oid)
        if found.is_standby:
            raise ConfigurationError(
                f"connection {self._warehouse.name!r} is a standby, which does not know whose transactions are under way on "
                f"its primary, so nobody can tell which rows of {self._written!r} are still to come: connect to the primary"
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
        self._oid, self._sequence = rising_numbers.check_numbers(connection, found, self._by, self._place)

    def _is_indexed(self, connection: Connection, table: sa.Table) -> bool:
        return rising_numbers.is_indexed(connection, self._oid, self._by)


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
        kinds = {row.name: row.type.upper() for row in connection.exec_driver_sql(f'PRAGMA table_info("{table.name}")')}
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
