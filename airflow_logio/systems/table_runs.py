"""The rows that runs of one partition of a pipeline have written into a table, wherever their values lie (design, "Days").

A scope, the partition of the pipeline, has a number in ``logio_scope``, and each of its rows has that number in the column of
runs. A number is never given twice while there are rows of it. Rows without a number, or with 0, belong to no run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.query_text import bare, for_sqlalchemy
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.systems import warehouse_rows
from airflow_logio.systems.databases import column_indexes, kept_rows, postgres, table_inserts
from airflow_logio.systems.databases.table_names import TableName, always_quoted, folded, in_double_quotes
from airflow_logio.systems.owned_rows import OwnedRows
from airflow_logio.systems.stored_records import StagedFiles

_INTEGERS = ("bigint", "int")
_FILLED_BY = sa.text("""
    SELECT CASE
        WHEN CAST(a.attidentity AS text) <> '' THEN 'GENERATED AS IDENTITY'
        WHEN CAST(a.attgenerated AS text) <> '' THEN 'GENERATED ALWAYS'
        ELSE pg_get_expr(d.adbin, d.adrelid)
    END
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE n.nspname = :schema AND c.relname = :table AND a.attname = :column AND NOT a.attisdropped
""")
_OF_NO_RUN = re.compile(r"\(?'?0'?\)?(::\w+)?|NULL(::\w+)?", re.IGNORECASE)
"""Defaults of a column of runs by which a row that does not say belongs to none."""
_COLUMNS_IN_SQLITE = sa.text('SELECT name, type, "notnull", dflt_value FROM pragma_table_info(:name) ORDER BY cid')


class RunRows(OwnedRows):
    """The rows of a scope, which is locked. Raises `WriteRefused` if the table has no column that tells them."""

    def __init__(self, connection: Connection, writer: TableWriter, name: TableName, scope: ScopeContender) -> None:
        column = column_of(writer)
        super().__init__(connection, writer, name, column)
        check_run_column(connection, writer, name)
        number = warehouse_rows.read_scope_id(connection, name, scope.key)
        if number is None:
            raise WriteRefused(f"{self._where}: {scope.key} has no number in logio_scope: it was changed there")
        self.constants = {column: number}

    @property
    def _is_mine(self) -> sa.ColumnElement[bool]:
        (number,) = self.constants.values()
        return self._column == sa.literal(number, sa.BigInteger())

    def check_staged(self, staged: StagedFiles, counts: Sequence[int]) -> None:
        """Records of any values are the run's."""

    def check_part(self, part: WriteAction) -> None:
        """As above."""

    def labelled(self, actions: Sequence[WriteAction]) -> Sequence[WriteAction]:
        ((column, number),) = self.constants.items()
        return labelled(actions, column, number)

    def adopt(self, condition: str, expected: int | None) -> int:
        """Rows of no run that fulfil a person's condition become these, if they are as many as `expected`; how many they are.

        Raises `WriteRefused` if rows of runs fulfil it, too.
        """
        asked = sa.text(f"(\n{for_sqlalchemy(bare(condition))}\n)")
        is_of_none = sa.func.coalesce(self._column, 0) == 0
        if of_runs := self._number(asked, sa.not_(is_of_none)):
            raise WriteRefused(
                f"{self._where}: {of_runs:,} rows that fulfil {condition!r} belong to runs already, and the next run of "
                "their partition replaces them. Leave them out of the condition; nothing is changed"
            )
        found = self._number(asked, is_of_none)
        if expected is None:
            return found
        ((column, number),) = self.constants.items()
        change = sa.update(self._table).where(asked, is_of_none).values({column: number})
        before = self.count()
        changed = self._connection.execute(change).rowcount
        if not expected == found == changed == self.count() - before:
            raise WriteRefused(
                f"{self._where}: {expected:,} rows were to belong to {self._scope}, and {changed:,} would. Another program "
                "changes them at the same time, or a trigger does; nothing is changed"
            )
        return changed

    def _number(self, *conditions: Any) -> int:
        query = sa.select(sa.func.count()).select_from(self._table).where(*conditions)
        return int(self._connection.execute(query).scalar_one())


def labelled(actions: Iterable[WriteAction], column: str, number: int) -> Sequence[WriteAction]:
    """The actions with a number in each of their records."""
    return [replace(action, records=_with_number(action.records, column, number)) for action in actions]


def _with_number(records: pa.Table, column: str, number: int) -> pa.Table:
    return records.append_column(column, pa.repeat(pa.scalar(number, pa.int64()), records.num_rows))


def column_of(writer: TableWriter) -> str:
    """The column of runs of a writer that has one."""
    assert writer.run_column is not None, "a writer that supersedes has a column of runs"
    return writer.run_column


def make_scope(connection: Connection, name: TableName, writer: TableWriter, scope: ScopeContender) -> None:
    """Make the row of a scope, with a number, unless there is one. The owner of the table is locked."""
    if warehouse_rows.read_scope_id(connection, name, scope.key) is not None:
        return
    warehouse_rows.lock_scope_ids(connection, name)
    warehouse_rows.make_scope(connection, name, scope.key, scope.mine)
    if warehouse_rows.read_scope_id(connection, name, scope.key) is None:
        # Above all rows, too: of scopes that were removed, rows may be left.
        greatest = max(warehouse_rows.greatest_scope_id(connection, name), _greatest(connection, name, writer))
        warehouse_rows.number_scope(connection, name, scope.key, greatest + 1)


def _greatest(connection: Connection, name: TableName, writer: TableWriter) -> int:
    column: sa.ColumnClause[Any] = sa.column(always_quoted(column_of(writer)))
    schema = None if name.schema is None else always_quoted(name.schema)
    table = sa.table(always_quoted(name.table), column, schema=schema)
    return int(connection.execute(sa.select(sa.func.max(column)).select_from(table)).scalar() or 0)


def check_none_written(where: str, column: str, names: Iterable[str]) -> None:
    """Raises `WriteRefused` if what appends to a table has the column by which rows of runs are told."""
    if folded(column) in map(folded, names):
        raise WriteRefused(
            f"{where}: its column {column!r} says which rows are those of runs that own them, and the writer that appends "
            "has a column of that name: leave it out, then its rows belong to no run"
        )


# --- a table that is there --------------------------------------------------------------------------------------------


def check_run_column(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` for a table without a column that tells rows of runs, with the statements that make it."""
    found = table_inserts.found_types(connection, name)
    if found is None:
        return
    where, column = f"table {writer.table!r}", column_of(writer)
    kept_rows.check_owned_by_value(connection, writer, name)
    is_sqlite = connection.dialect.name == "sqlite"
    kind = found.get(folded(column) if is_sqlite else column)
    if kind is not None and not _is_integer(kind, is_sqlite=is_sqlite):
        raise WriteRefused(
            f"{where}, column {column!r}, which says which rows are those of a run, has the type {kind} and must be bigint "
            "or integer; give run_column another name"
        )
    filled_by = _filled_by(connection, name, column)
    if filled_by is not None and _OF_NO_RUN.fullmatch(filled_by) is None:
        raise WriteRefused(
            f"{where}: the database fills column {column!r} by itself ({filled_by}), and rows that others write there would "
            "be taken for those of a run, and deleted with them. Let its default be 0, and give rows that got another value "
            "0, too; or give run_column another name"
        )
    if statements := _missing(connection, name, column, kind is None):
        raise WriteRefused(
            f"{where} has {_lacks(column, kind)}, by which a run finds the rows that earlier runs of its partition have "
            f"written. Make it: {'; '.join(statements)}. Rows that are there belong to no run then, and stay. To let a "
            f"partition own some: `logio adopt {writer.table} --connection {writer.connection} --pipeline PIPELINE "
            "--partition KEY --where CONDITION`"
        )


def _filled_by(connection: Connection, name: TableName, column: str) -> str | None:
    """What a row gets there that does not say; None for null."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(_COLUMNS_IN_SQLITE, {"name": name.table}).all()
        return next((row.dflt_value for row in rows if folded(row.name) == folded(column)), None)
    asked = {"schema": name.schema, "table": name.table, "column": column}
    found: str | None = connection.execute(_FILLED_BY, asked).scalar()
    return found


def _lacks(column: str, kind: str | None) -> str:
    return f"no column {column!r}" if kind is None else f"a column {column!r} that is not in its key, or has no index"


def _is_integer(kind: str, *, is_sqlite: bool) -> bool:
    if is_sqlite:  # by these letters it takes a column for one of integers
        return "INT" in kind.upper()
    known = postgres.kind_of(kind)
    return known is not None and known.name in _INTEGERS


def _missing(connection: Connection, name: TableName, column: str, is_new: bool) -> Sequence[str]:
    """The statements that make what is missing, in their order."""
    key = sa.inspect(connection).get_pk_constraint(name.table, schema=name.schema)
    columns, named = list(key["constrained_columns"]), in_double_quotes(column)
    is_outside = bool(columns) and folded(column) not in map(folded, columns)
    index = column_indexes.index_of(connection, name, column)
    if not is_new and not is_outside:
        return list(filter(None, [column_indexes.index_to_make(connection, name, column)]))
    if connection.dialect.name == "sqlite" and is_outside:
        return [*_made_anew(connection, name, column, columns, is_new), index]
    statements = []
    if is_new:
        statements.append(f"ALTER TABLE {name.as_value()} ADD COLUMN {named} bigint NOT NULL DEFAULT 0")
    if is_outside:
        all_of_key = ", ".join(in_double_quotes(one) for one in (*columns, column))
        dropped = f"DROP CONSTRAINT {in_double_quotes(str(key['name']))}"
        statements.append(f"ALTER TABLE {name.as_value()} {dropped}, ADD PRIMARY KEY ({all_of_key})")
    needs_index = is_new or column_indexes.index_to_make(connection, name, column) is not None
    return [*statements, index] if needs_index else statements


def _made_anew(connection: Connection, name: TableName, column: str, key: Sequence[str], is_new: bool) -> Sequence[str]:
    """SQLite cannot change a primary key: the table under another name, and a new one with all rows."""
    before = in_double_quotes(f"{name.table}_before")
    rows = connection.execute(_COLUMNS_IN_SQLITE, {"name": name.table}).all()
    columns = [
        f"{in_double_quotes(row.name)} {row.type}{' NOT NULL' if row.notnull else ''}"
        + (f" DEFAULT {row.dflt_value}" if row.dflt_value is not None else "")
        for row in rows
    ]
    if is_new:
        columns.append(f"{in_double_quotes(column)} bigint NOT NULL DEFAULT 0")
    all_of_key = ", ".join(in_double_quotes(one) for one in (*key, column))
    names = ", ".join(in_double_quotes(row.name) for row in rows)
    return [
        f"ALTER TABLE {name.as_value()} RENAME TO {before}",
        f"CREATE TABLE {name.as_value()} ({', '.join(columns)}, PRIMARY KEY ({all_of_key}))",
        f"INSERT INTO {name.as_value()} ({names}) SELECT {names} FROM {before}",
        f"DROP TABLE {before}",
    ]
