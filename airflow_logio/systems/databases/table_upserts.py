"""Arrow records into SQL tables by their keys: inserted, or put in the place of the row that is there.

The rows of a transaction are loaded into a temporary table. One statement then puts the newest row of each key into the
table, in the order of the keys, so that two transactions do not wait for each other in a circle. Then each row is compared
with what is there: with a version, something newer, or the row itself; without one, the row itself. That replaces the count
of rows that have arrived.

It is exact beside other transactions. INSERT ... ON CONFLICT DO UPDATE of PostgreSQL waits for a transaction that has
inserted, updated or deleted a row of the same key, then compares the row that is there by then, and locks it also where it
leaves it as it is. So what the comparison sees stays until this transaction has ended, and none has slipped in. A SQLite
file has one writer at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.databases import added_columns, sqlite, table_inserts
from airflow_logio.systems.databases.postgres import parsed
from airflow_logio.systems.databases.table_inserts import Insertion
from airflow_logio.systems.databases.table_names import TableName, folded, quoted
from airflow_logio.systems.databases.upsert_keys import key_of

_ROWS, _PLACE, _WINS = "logio_rows", "logio_place", "logio_wins"
_MADE_HERE = "CAST(CAST(t.xmin AS text) AS bigint) = mod(txid_current(), 4294967296)"
"""Whether a row of PostgreSQL was put there by this transaction, outside savepoints."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows are that are put into a table."""

    sql: str
    """What comes behind FROM."""
    tie: str
    """A column that tells each row from others."""
    values: tuple[Any, ...] = ()


class Upsertion:
    """How rows of some columns are put into a table by their keys, in a transaction that is open.

    `like` has the columns. Unless it is the `only` one of its transaction, a trigger that raises versions is not found.
    Raises `WriteRefused`.
    """

    def __init__(
        self, connection: Connection, writer: TableWriter, name: TableName, like: WriteAction, *, only: bool = True
    ) -> None:
        self._connection = connection
        self._writer = writer
        self._name = name
        self._only = only
        self._is_sqlite = connection.dialect.name == "sqlite"
        self._columns: Sequence[str] = like.records.column_names
        found = table_inserts.found_types(connection, name) or {}
        known = dict.fromkeys((*writer.primary_key, *filter(None, [writer.version])))
        for column in known:
            if column not in self._columns:
                raise WriteRefused(
                    f"records for table {writer.table!r} have no column {column!r}, by which its rows are updated; they have "
                    f"{list(self._columns)}"
                )
        table_inserts.check_columns(writer.table, dict.fromkeys(self._columns), found, connection.dialect.name)
        self._types = {column: found[folded(column) if self._is_sqlite else column] for column in self._columns}
        self._key = key_of(connection, writer, name)
        self._made = self._make()
        self._into = table_inserts.prepared(connection, writer, name, [like], self._made)
        self._kinds: Mapping[str, ColumnType | None] = {
            column: target.kind for column, target in self._into.targets.items()
        }

    def converted(self, actions: Sequence[WriteAction]) -> pa.Table:
        """As of `Insertion`."""
        return self._into.converted(actions)

    def load(self, records: pa.Table) -> None:
        """Converted records, which `merge` is to put into the table."""
        self._into.insert(self._connection, records)

    def insert(self, connection: Connection, records: pa.Table) -> None:
        """As of `Insertion`: just these."""
        self._execute(f"DELETE FROM {self._made.quoted(connection)}")
        self.load(records)
        self.merge()

    def as_insertion(self) -> Insertion:
        """To try rows out, by `first_refused`."""

        def into(connection: Connection, records: pa.Table) -> int:
            self.insert(connection, records)
            return int(records.num_rows)

        return replace(self._into, into=into)

    def merge(self, rows: Rows | None = None) -> None:
        """Put rows into the table, by default all that are loaded. Raises `WriteRefused`; then all is to be rolled back."""
        rows = rows or Rows(self._made.quoted(self._connection), "rowid" if self._is_sqlite else "ctid")
        self._check_rows(rows)
        if self._is_sqlite and self._writer.version is not None and self._only:
            self._mark_winners()
        self._put(rows)
        self._check_put(rows)

    def end(self) -> None:
        """Remove what was loaded."""
        self._execute(f"DROP TABLE {self._made.quoted(self._connection)}")

    # --- before ---------------------------------------------------------------------------------------------------

    def _make(self) -> TableName:
        """A temporary table of columns of the same types."""
        named = self._named
        made = _ROWS if folded(self._name.table) != _ROWS else f"{_ROWS}_"
        if self._is_sqlite:
            columns = ", ".join(
                f"{named(column)} {sqlite.affinity(found)}{self._key.get(column, '')}"
                for column, found in self._types.items()
            )
            self._execute(f"CREATE TEMP TABLE {named(made)} ({columns}, {_WINS} INTEGER)")
            return TableName(None, made)
        columns = ", ".join(map(named, self._columns))
        target = self._name.quoted(self._connection)
        self._execute(f"CREATE TEMP TABLE {named(made)} ON COMMIT DROP AS SELECT {columns} FROM {target} WITH NO DATA")
        asked = "SELECT nspname FROM pg_catalog.pg_namespace WHERE oid = pg_my_temp_schema()"
        return TableName(self._connection.exec_driver_sql(asked).scalar_one(), made)

    def _check_rows(self, rows: Rows) -> None:
        """Raises `WriteRefused` for a row without a key or a version, and without versions for a key that comes twice."""
        faults = [f"r.{self._named(column)} IS NULL" for column in self._key]
        if (version := self._writer.version) is not None:
            faults.append(f"r.{self._named(version)} IS NULL")
            if not self._is_sqlite and self._is_float(version):
                faults.append(f"r.{self._named(version)} = 'NaN'")
        places = ", ".join(f"CASE WHEN {fault} THEN 1 ELSE 0 END" for fault in faults)
        query = f"SELECT {self._shown('r')}, {places} FROM {rows.sql} AS r WHERE {' OR '.join(faults)} LIMIT 1"
        if (found := self._first(query, rows)) is not None:
            wrong = [*self._key, *([version, version] if version is not None else [])][found[len(self._key) :].index(1)]
            what = "version" if wrong == version else "key"
            raise WriteRefused(
                f"{self._where}, row with {self._told(found)}: its {what} {wrong!r} is null{' or NaN' * (what == 'version')}"
                ", so that no row is updated by it. Fill it, or leave such rows out before the writer, and start a fresh run "
                "(`logio fresh`)"
            )
        if version is None:
            self._check_once(rows)

    def _check_once(self, rows: Rows) -> None:
        by = ", ".join(f"r.{self._named(column)}" for column in self._key)
        keys = self._shown("r", "min({})")
        twice = f"GROUP BY {by} HAVING count(*) > 1 ORDER BY count(*) DESC LIMIT 1"
        query = f"SELECT {keys}, count(*) FROM {rows.sql} AS r {twice}"
        if (found := self._first(query, rows)) is not None:
            raise WriteRefused(
                f"{self._where}: one event has {found[len(self._key)]:,} rows with {self._told(found)}, and nothing says "
                "which of them is newer. Name the column that does, version='updated_at', or make one row of them before the "
                "writer, and start a fresh run (`logio fresh`)"
            )

    # --- put there ------------------------------------------------------------------------------------------------

    def _mark_winners(self) -> None:
        """Which rows are newer than what is there: SQLite does not say later who has put a row there."""
        is_left = f"{self._version('t')} >= {self._version('r')}"
        there = f"SELECT 1 FROM {self._target} AS t WHERE {self._same_key('r')} AND {is_left}"
        made = self._made.quoted(self._connection)
        self._execute(f"UPDATE {made} AS r SET {_WINS} = 1 WHERE NOT EXISTS ({there})")

    def _put(self, rows: Rows) -> None:
        names = ", ".join(map(self._named, self._columns))
        key = ", ".join(f"{self._named(column)}{how}" for column, how in self._key.items())
        changed = [column for column in self._columns if column not in self._key] or list(self._key)
        change = ", ".join(f"{self._named(column)} = excluded.{self._named(column)}" for column in changed)
        is_newer = f" WHERE {self._version('excluded')} > {self._version('t')}" if self._writer.version else ""
        self._execute(
            f"INSERT INTO {self._target} AS t ({names}) SELECT {names} FROM {self._ranked(rows)} AS r WHERE {_PLACE} = 1 "
            f"ORDER BY {', '.join(map(self._named, self._key))} ON CONFLICT ({key}) DO UPDATE SET {change}{is_newer}",
            rows,
        )

    def _ranked(self, rows: Rows) -> str:
        """The rows with their places among those of their key, the same ones each time: the first one is the newest."""
        by = ", ".join(f"r.{self._named(column)}" for column in self._key)
        order = f"{self._version('r')} DESC, r.{rows.tie}" if self._writer.version else f"r.{rows.tie}"
        return f"(SELECT r.*, row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS {_PLACE} FROM {rows.sql} AS r)"

    # --- after ----------------------------------------------------------------------------------------------------

    def _check_put(self, rows: Rows) -> None:
        """Raises `WriteRefused` unless each row is in the table, or with a version a newer one."""
        unlike = {column: self._unlike(column) for column in self._columns if column != self._writer.lineage_column}
        is_unlike = " OR ".join(unlike.values())
        is_missing = f"t.{self._named(next(iter(self._key)))} IS NULL"
        mine, is_equal, has_none = self._made_here, "1 = 0", "1 = 0"
        if self._writer.version is not None:
            has_none = f"{self._version('t')} IS NULL"
            newer, is_equal = (f"{self._version('t')} {how} {self._version('r')}" for how in (">", "="))
            is_left = f"coalesce({newer}, 1 = 0) OR (coalesce({is_equal}, 1 = 0) AND NOT ({is_unlike}))"
            is_wrong = f"CASE WHEN {mine} THEN {is_unlike} ELSE NOT ({is_left}) END"
        else:
            is_wrong = is_unlike
        flags = [is_missing, has_none, mine, is_equal, *unlike.values()]
        query = (
            f"SELECT {self._shown('r')}, {', '.join(f'CASE WHEN {flag} THEN 1 ELSE 0 END' for flag in flags)}, "
            f"{self._version_shown} FROM {self._ranked(rows)} AS r LEFT JOIN {self._target} AS t ON {self._same_key('r')} "
            f"WHERE {is_missing} OR {is_wrong} LIMIT 1"
        )
        if (found := self._first(query, rows)) is None:
            return
        missing, unversioned, made_here, equal, *differ = found[len(self._key) : -1]
        others = ", ".join(column for column, differs in zip(unlike, differ, strict=True) if differs)
        version = f"version {self._writer.version!r} = {found[-1]}"
        if missing:
            why = (
                "it is not in the table after it was written. A trigger, a policy or a conflict clause of the table drops "
                "it: change that, or leave such rows out before the writer, then retry"
            )
        elif unversioned:
            why = (
                f"the row in the table has {version}, with which none can be compared. Give that row a version, or delete "
                "it, then retry"
            )
        elif equal and not made_here:
            why = (
                f"two rows have {version}, the greatest one of that key, and differ in {others}: nothing says which of them "
                "is newer. If the row in the table is wrong, delete it, and `logio retry`. Else let the version tell them "
                "apart (a finer time; a number that rises with each correction of the code), and start a fresh run (`logio "
                "fresh`)"
            )
        else:
            why = (
                f"the table has other values than were written, in {others}. A trigger of the table changes them, or the key "
                "is there in another spelling that the database takes for the same: change that, then retry"
            )
        raise WriteRefused(f"{self._where}, row with {self._told(found)}: {why}. Nothing is written")

    def _unlike(self, column: str) -> str:
        """Whether a column differs between the table and a row, which is never null. To the bit, so that it does not matter
        which of two rows is left; but numbers of PostgreSQL may have more zeros, and times and decimals of SQLite are
        texts."""
        t, r = (f"{one}.{self._named(column)}" for one in "tr")
        if not self._is_sqlite:
            if (has := parsed(self._types[column])).name == "numeric" and not has.is_array:
                return f"{t} IS DISTINCT FROM {r}"
            return f"CAST(ROW({t}) AS record) *<> CAST(ROW({r}) AS record)"
        if (function := _function(self._kinds[column])) is not None:
            return f"ifnull({function}({t}), {t}) IS NOT ifnull({function}({r}), {r})"
        return f"{t} COLLATE BINARY IS NOT {r} COLLATE BINARY"

    # --- pieces of statements -------------------------------------------------------------------------------------

    def _version(self, of: str) -> str:
        """The version, as it is compared; null for a cell that is none, which other programs may have put there."""
        assert self._writer.version is not None
        cell = f"{of}.{self._named(self._writer.version)}"
        if not self._is_sqlite:
            return f"nullif({cell}, 'NaN')" if self._is_float(self._writer.version) else cell
        kind = self._kinds[self._writer.version]
        if (function := _function(kind)) is not None:
            order = f" COLLATE {sqlite.DECIMAL_ORDER}" if function == sqlite.DECIMAL_KEY else ""
            return f"{function}({cell}){order}"
        return f"CASE WHEN typeof({cell}) IN ('integer', 'real') THEN {cell} END"

    @property
    def _made_here(self) -> str:
        if self._writer.version is None or not self._only:
            return "1 = 0"
        return f"{_PLACE} = 1 AND {_WINS + ' IS 1' if self._is_sqlite else _MADE_HERE}"

    @property
    def _version_shown(self) -> str:
        return "NULL" if self._writer.version is None else f"CAST(t.{self._named(self._writer.version)} AS text)"

    def _same_key(self, rows: str) -> str:
        return " AND ".join(
            f"t.{self._named(column)} = {rows}.{self._named(column)}{how}" for column, how in self._key.items()
        )

    def _shown(self, rows: str, taken: str = "{}") -> str:
        form = "quote({})" if self._is_sqlite else "CAST({} AS text)"
        return ", ".join(taken.format(form.format(f"{rows}.{self._named(column)}")) for column in self._key)

    def _told(self, found: Sequence[Any]) -> str:
        return ", ".join(f"{column} = {value}" for column, value in zip(self._key, found, strict=False))

    def _is_float(self, column: str) -> bool:
        return parsed(self._types[column]).name in ("real", "double precision", "numeric")

    def _named(self, column: str) -> str:
        return quoted(self._connection, column)

    @property
    def _target(self) -> str:
        return self._name.quoted(self._connection)

    @property
    def _where(self) -> str:
        return f"table {self._writer.table!r}"

    def _first(self, query: str, rows: Rows) -> Sequence[Any] | None:
        found = self._execute(query, rows).first()
        return None if found is None else tuple(found)

    def _execute(self, statement: str, rows: Rows | None = None) -> Any:
        return self._connection.exec_driver_sql(statement, () if rows is None else rows.values)


def _function(kind: ColumnType | None) -> str | None:
    """What makes one text of all cells of SQLite that are the same time, or the same decimal."""
    if kind is None:
        return None
    if kind.name == DECIMAL:
        return sqlite.DECIMAL_KEY
    return sqlite.TIME_KEY if kind.name in ("timestamp", "timestamptz", "date") else None


def rehearse(connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]) -> None:
    """What a run would do: first with no row, then with the actions' records. Where it would add columns, only with these."""
    filled = [action for action in actions if action.records.num_rows]
    if filled:
        table_inserts.add_columns(connection, writer, name)
    elif added_columns.missing(writer, table_inserts.found_types(connection, name) or {}, connection.dialect.name):
        return
    columns = writer.columns or (*writer.primary_key, *filter(None, [writer.version]))
    nothing = WriteAction("", "", "", 0, 0, pa.table({column: pa.array([], pa.null()) for column in columns}))
    for action in [nothing, *filled]:
        upsertion = Upsertion(connection, writer, name, action, only=False)
        if action is not nothing:
            upsertion.load(upsertion.converted([action]))
        upsertion.merge()
        upsertion.end()
