"""Arrow records into SQL tables: no column that is there may change a value, and each database has its fast way in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.database_errors import is_lasting
from airflow_logio.databases import savepoint
from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import RowsDropped, WriteRefused
from airflow_logio.systems.databases import added_columns, encodings, postgres, sql_types, sqlite
from airflow_logio.systems.databases.conversions import Target, as_declared
from airflow_logio.systems.databases.table_names import TableName, always_quoted, folded, reflected

ROWS_PER_STATEMENT = 50_000
ROWS_PER_MESSAGE, PARAMETERS_PER_MESSAGE = 1_000, 32_000
"""What SQLAlchemy sends at once where it writes the values of rows itself: of several messages, it counts the last one."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """How records of some columns are inserted into a table. Plain INSERTs: a duplicate key fails loudly."""

    table: str
    targets: Mapping[str, Target]
    into: Callable[[Connection, pa.Table], int]
    """Returns how many rows have arrived."""

    def converted(self, actions: Sequence[WriteAction]) -> pa.Table:
        """All records of the actions. Raises `WriteRefused`, naming what does not fit."""
        return as_declared(self.table, self.targets, actions)

    def insert(self, connection: Connection, records: pa.Table) -> None:
        """Insert converted records, in statements of bounded size. Raises `RowsDropped`."""
        for start in range(0, records.num_rows, ROWS_PER_STATEMENT):
            rows = records.slice(start, ROWS_PER_STATEMENT)
            check_arrived(self.table, rows.num_rows, self.into(connection, rows))


def check_arrived(table: str, sent: int, arrived: int) -> None:
    """Raises `RowsDropped` unless as many rows have come into the table as a statement was sent.

    A database drops rows without a word: by a BEFORE trigger that returns nothing, by a rule, by RAISE(IGNORE), by an ON
    CONFLICT IGNORE that the table has, by the trigger of a view.
    """
    if arrived == sent:
        return
    told = f"{sent:,} rows were sent to table {table!r}, and {arrived:,} have arrived; nothing is written. "
    if arrived > sent:
        raise RowsDropped(f"{told}A trigger or a rule puts rows of its own there as well: change it, then retry")
    raise RowsDropped(
        f"{told}A trigger, a rule or a conflict clause of the table drops the others: change it, or leave such rows out "
        "before the writer, then retry"
    )


def check_target(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` if the table is there and a column does not hold what is declared, or is missing and not to be
    added by a run, or not by this role; and if rows must have a value in one that is not declared."""
    declared, dialect = writer.column_types(), connection.dialect.name
    if declared is not None and (found := found_types(connection, name)) is not None:
        added = added_columns.missing(writer, found, dialect)
        there = {column: kind for column, kind in declared.items() if column not in added}
        check_columns(writer.table, there, found, dialect, writer.lineage_column)
        added_columns.check_may_add(connection, writer, name, found)
        added_columns.check_required(connection, writer, name)


def add_columns(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Add the columns that the table lacks and that a run may add. Raises `WriteRefused`."""
    if writer.may_add and (found := found_types(connection, name)) is not None:
        added_columns.add(connection, writer, name, found)


def target_table(connection: Connection, writer: TableWriter, name: TableName) -> sa.Table:
    """The table, as declared, made if it is missing; or as the database has it.

    Raises `WriteRefused` if it is missing and not declared.
    """
    metadata = sa.MetaData()
    declared = writer.column_types()
    if declared is not None:
        columns = [
            sa.Column(
                always_quoted(column),
                sql_types.sql_type(kind),
                primary_key=column in writer.primary_key,
                autoincrement=False,
            )
            for column, kind in declared.items()
        ]
        if writer.run_column is not None:
            columns += _column_of_runs(writer, name, writer.run_column)
        schema = None if name.schema is None else always_quoted(name.schema)
        table = sa.Table(always_quoted(name.table), metadata, *columns, schema=schema)
        metadata.create_all(connection, checkfirst=True)
        return table
    try:
        return reflected(connection, name.table, name.schema)
    except sa.exc.NoSuchTableError:
        raise WriteRefused(f"table {writer.table!r} does not exist, and its writer declares no columns") from None


def _column_of_runs(writer: TableWriter, name: TableName, column: str) -> list[Any]:
    """It is the last one of the primary key, so that rows of two runs may have one key otherwise. Its index finds the rows
    of a run."""
    kind: dict[str, Any] = {"primary_key": bool(writer.primary_key), "autoincrement": False, "nullable": False}
    made = sa.Column(always_quoted(column), sa.BigInteger, server_default=sa.text("0"), **kind)
    return [made, sa.Index(f"logio_run_{blake2b(name.key.encode(), digest_size=8).hexdigest()}", made)]


def prepared(
    connection: Connection,
    writer: TableWriter,
    name: TableName,
    actions: Sequence[WriteAction],
    into: TableName | None = None,
) -> Insertion:
    """How the records of the actions are inserted, by their columns; there is one at least.

    `into` is another table with columns of the same types. Raises `WriteRefused`.
    """
    dialect, declared = connection.dialect.name, writer.column_types()
    # Asked for each time: the table may be another one than when the writer began, or of another writer's making.
    found = found_types(connection, name) or {}
    if declared is not None and writer.run_column in actions[0].records.schema.names:
        declared |= _kind_of_runs(str(writer.run_column), found, dialect)
    kinds: Mapping[str, ColumnType | None] = declared or kinds_of_columns(
        writer.table, target_table(connection, writer, name), found, actions, dialect
    )
    if declared or dialect == "sqlite":
        check_columns(writer.table, kinds, found, dialect, writer.lineage_column)
    checked = {
        column: target._replace(check=encodings.checked(connection, target.check))
        for column, target in targets(kinds, found, dialect).items()
    }
    return Insertion(writer.table, checked, _way(connection, writer, into or name, kinds, found))


def _kind_of_runs(column: str, found: Mapping[str, str], dialect: str) -> dict[str, ColumnType]:
    """The column of runs as the database has it, if it does: some kind of integer."""
    kind = postgres.kind_of(found[column]) if dialect != "sqlite" and column in found else None
    return {column: kind or ColumnType("bigint")}


def _way(
    connection: Connection,
    writer: TableWriter,
    name: TableName,
    kinds: Mapping[str, ColumnType | None],
    found: Mapping[str, str],
) -> Callable[[Connection, pa.Table], int]:
    """The fastest one for columns of these types."""
    if connection.dialect.name == "sqlite":
        insert = sqlite.insert_into_view if sqlite.is_view(connection, name) else sqlite.insert
        return lambda on, rows: insert(on, name, rows)
    if None in kinds.values():
        table = target_table(connection, writer, name)
        return lambda on, rows: postgres.arrived(on, name, _insertion_of_values(table, kinds, rows))
    types = {column: postgres.array_type(kind, found[column]) for column, kind in kinds.items() if kind is not None}
    return lambda on, rows: postgres.insert(on, name, types, rows)


def rehearse(connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]) -> None:
    """Every kind of statement that a run would execute at the table, first of no row, then with the actions' records.

    Columns that a run would add are added for records only: until the end, no reader could read the table.
    """
    table, filled = target_table(connection, writer, name), [action for action in actions if action.records.num_rows]
    if filled:
        add_columns(connection, writer, name)
    missing = added_columns.missing(writer, found_types(connection, name) or {}, connection.dialect.name)
    if writer.on_new_run == "replace" or writer.owns:
        connection.execute(sa.delete(table).where(sa.false()))
    columns = [column for column in table.columns if column.name not in missing]
    nothing = sa.select(*(sa.cast(sa.null(), column.type) for column in columns)).where(sa.false())
    connection.execute(sa.insert(table).from_select(columns, nothing))
    if filled:
        made = prepared(connection, writer, name, filled)
        made.insert(connection, made.converted(filled))


def _insertion_of_values(
    table: sa.Table, kinds: Mapping[str, ColumnType | None], rows: pa.Table
) -> Callable[[Connection], int]:
    """Values as the driver passes them on, to columns of a type that only it knows."""
    columns: list[Any] = []
    for place, (name, kind) in enumerate(kinds.items()):
        columns.append(
            sa.column(always_quoted(name), table.columns[name].type if kind is None else sql_types.read_type(kind))
        )
        if kind is not None and kind.name == "timestamptz":
            rows = rows.set_column(place, name, rows.column(name).cast(pa.timestamp("us", "UTC")))
    target = sa.table(table.name, *columns, schema=table.schema)
    size = min(ROWS_PER_MESSAGE, PARAMETERS_PER_MESSAGE // len(columns))
    pages = [rows.slice(start, size).to_pylist() for start in range(0, rows.num_rows, size)]
    return lambda on: sum(on.execute(sa.insert(target), page).rowcount for page in pages)


# --- which row is refused: found by trying again, in halves and under savepoints (ADR-54) -----------------------------


def first_refused(connection: Connection, records: pa.Table, into: Insertion) -> int | None:
    """The place of the first row that the database refuses or drops; None if nothing before the commit does so.

    What is accepted stays, so that a row is found that is refused for one before it.
    """
    first, last = 0, records.num_rows
    size = last
    while first < last:
        end = min(first + size, last)
        try:
            with savepoint(connection):
                into.insert(connection, records.slice(first, end - first))
        except (sa.exc.DBAPIError, RowsDropped) as error:
            if isinstance(error, sa.exc.DBAPIError) and not is_lasting(error):
                raise
            if end - first == 1:
                return first
            last = end
            size = (end - first + 1) // 2
        else:
            first = end
            size = max(1, (last - first + 1) // 2)
    return None


# --- columns of a table that is there ---------------------------------------------------------------------------------


def found_types(connection: Connection, name: TableName) -> Mapping[str, str] | None:
    """Column → type as the database writes it, such as ``numeric(9,2)`` or ``VARCHAR(10)``; None if there is no such table.

    SQLAlchemy tells neither how many digits a domain has, nor by which letters SQLite derives the affinity of a column. In
    SQLite, the names are in lower case: it does not distinguish them.
    """
    of = sqlite if connection.dialect.name == "sqlite" else postgres
    found: Mapping[str, str] | None = of.found_types(connection, name)
    return found


def check_columns(
    table: str,
    kinds: Mapping[str, ColumnType | None],
    found: Mapping[str, str],
    dialect: str,
    lineage_column: str | None = None,
) -> None:
    """Raises `WriteRefused` for a column that is missing, or that does not hold every value of its type in `kinds`.

    `found` are the types in the database: none, if the table is gone. A column whose type in `kinds` is None is not judged
    here.
    """
    if not found:
        raise WriteRefused(
            f"table {table!r} is not there any more: dropped, renamed, or moved to another schema since the run began. "
            "Put it back under that name, then `logio retry`. Or let a new run make it anew: `logio again` for a day, else "
            "`logio fresh`"
        )
    loses = sqlite.loses if dialect == "sqlite" else postgres.loses
    for name, kind in kinds.items():
        has = found.get(_compared(name, dialect))
        if has is None:
            way_out = (
                ""
                if kind is None
                else added_columns.how_to_add(table, name, kind, dialect, is_declared=name != lineage_column)
            )
            raise WriteRefused(f"table {table!r} has no column {name!r}; it has {list(found)}{way_out}")
        if kind is not None and loses(kind, has):
            raise WriteRefused(
                f"table {table!r}, column {name!r} is declared {kind}, and the database has it as {has}, which "
                f"does not hold every such value; change one of them{added_columns.how_to_change(table, name, kind, dialect)}"
            )


def targets(kinds: Mapping[str, ColumnType | None], found: Mapping[str, str], dialect: str) -> dict[str, Target]:
    """The columns with what is asked of each value: a column may hold some values of a type, and change others."""
    check_of = sqlite.check_of if dialect == "sqlite" else postgres.check_of
    return {name: Target(kind, check_of(kind, found.get(_compared(name, dialect)))) for name, kind in kinds.items()}


def _compared(name: str, dialect: str) -> str:
    return folded(name) if dialect == "sqlite" else name


_SORTS = {
    **dict.fromkeys(("bigint", "int", "double", DECIMAL, "boolean"), "number"),
    **dict.fromkeys(("timestamp", "timestamptz", "date"), "time"),
    **dict.fromkeys(("text", "json", "uuid"), "text"),
    "binary": "bytes",
}
_CONVERTED = {("text", "number"), ("text", "time"), ("text", "bytes"), ("bytes", "text")}
"""Which sort of records is converted to which sort of column, and refused by value if it is none."""


def kinds_of_columns(
    table: str, described: sa.Table, found: Mapping[str, str], actions: Sequence[WriteAction], dialect: str
) -> dict[str, ColumnType | None]:
    """Column → its type in the database; None for one that only the database's driver knows.

    Raises `WriteRefused` for a column that is not there, and for records of another sort: the author has not declared that
    a number is to be a text, or a time a number.
    """
    names = actions[0].records.column_names
    check_columns(table, dict.fromkeys(names), found, dialect)
    if dialect == "sqlite":
        types = {folded(column.name): column.type for column in described.columns}
        kinds = {name: sql_types.described(types[folded(name)]) for name in names}
    else:
        kinds = {name: _kind_in_postgres(found[name], name, actions) for name in names}
    for name, kind in kinds.items():
        for action in actions:
            if kind is not None and name in action.records.schema.names:
                _check_sort(table, name, kind, action)
    return kinds


def _kind_in_postgres(found: str, column: str, actions: Sequence[WriteAction]) -> ColumnType | None:
    """A NUMERIC without a precision holds every decimal and every double: it is taken for what the records have."""
    if found == "numeric":
        schemas = [action.records.schema for action in actions]
        kinds = {sql_types.kind_of_records(one.field(column).type) for one in schemas if column in one.names}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and kind.name == DECIMAL:
            return kind
    return postgres.kind_of(found)


def _check_sort(table: str, name: str, kind: ColumnType, action: WriteAction) -> None:
    records = action.records.schema.field(name).type
    given = sql_types.kind_of_records(records)
    if given is None:
        return
    sorts = _SORTS[given.name], _SORTS[kind.name]
    if sorts[0] != sorts[1] and sorts not in _CONVERTED:
        raise WriteRefused(
            f"records for table {table!r}, column {name!r} ({kind}), write action {action.number}: they have {records} "
            "there; cast it before the writer, or declare the columns"
        )
