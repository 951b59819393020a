"""Which table a name means: two names of one table, as the database compares them, are one name here."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql import quoted_name

from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.errors import ConfigurationError

_FOUND = sa.text(
    "SELECT n.nspname, c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(:name)"
)

_FOLDED = {ord(upper): upper.lower() for upper in string.ascii_uppercase}


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of a database. `schema` is None in SQLite, which has one schema."""

    schema: str | None
    table: str

    @property
    def key(self) -> str:
        """Equal for two names of one table of this schema."""
        return folded(self.table) if self.schema is None else self.table

    def quoted(self, connection: Connection) -> str:
        """For the text of a statement that the driver executes as it is (`exec_driver_sql`)."""
        return ".".join(quoted(connection, part) for part in (self.schema, self.table) if part is not None)

    def as_value(self) -> str:
        """For `to_regclass`."""
        return ".".join(in_double_quotes(part) for part in (self.schema, self.table) if part is not None)

    def __str__(self) -> str:
        return ".".join(part for part in (self.schema, self.table) if part is not None)


def folded(name: str) -> str:
    """As SQLite compares names: it does not distinguish A to Z from a to z, and no other letters."""
    return name.translate(_FOLDED)


def always_quoted(name: str) -> str:
    """A name that SQLAlchemy quotes in any statement, and not only where it knows that it must."""
    return quoted_name(name, True)


def quoted(connection: Connection, name: str) -> str:
    """A name, for the text of a statement that the driver executes as it is: per cent signs are as drivers want them."""
    return connection.dialect.identifier_preparer.quote_identifier(name)


def in_text(dialect: Dialect, name: str) -> str:
    """A name in the quotes of a database, for `sqlalchemy.text`."""
    how: Any = dialect.identifier_preparer
    return str(how.initial_quote + name.replace(how.escape_quote, how.escape_to_quote) + how.final_quote)


def in_double_quotes(name: str) -> str:
    """As PostgreSQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def table_name(connection: Connection, written: str) -> TableName:
    """The table that an author's ``table`` or ``schema.table`` means, or would make.

    Raises `ConfigurationError` for a schema of SQLite, and where no schema is the default one.
    """
    schema, name = schema_and_table(written)
    if connection.dialect.name == "sqlite":
        check_schema_of_sqlite(written)
        return TableName(None, name)
    if found := connection.execute(_FOUND, {"name": TableName(schema, name).as_value()}).one_or_none():
        return TableName(found.nspname, found.relname)
    schema = schema or connection.execute(sa.text("SELECT current_schema()")).scalar_one()
    if schema is None:
        raise ConfigurationError(f"table {written!r}: no schema of the search path exists; write 'schema.table'")
    return TableName(schema, name)


def reflected(connection: Connection, table: str, schema: str | None) -> sa.Table:
    """A table as the database describes it. Raises `NoSuchTableError` of SQLAlchemy."""
    listeners = [("column_reflect", _as_ours)]
    if not getattr(
        connection.dialect, "requires_name_normalize", False
    ):  # where sale is SALE, quotes would name another one
        table, schema = always_quoted(table), None if schema is None else always_quoted(schema)
    return sa.Table(table, sa.MetaData(), schema=schema, autoload_with=connection, listeners=listeners)


def _as_ours(_: object, __: object, column: dict[str, Any]) -> None:
    """PostgreSQL describes an identity column in JSON, which our engines leave as text: SQLAlchemy cannot read that."""
    column.pop("identity", None)
    column["name"] = always_quoted(column["name"])


def check_schema_of_sqlite(written: str) -> None:
    """Raises `ConfigurationError` for a schema that an SQLite file cannot have."""
    schema, name = schema_and_table(written)
    if schema is not None and schema.lower() != "main":
        raise ConfigurationError(f"table {written!r}: SQLite has no schemas; write {name!r}")
