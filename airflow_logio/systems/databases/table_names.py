"""Which table a name means: two names of one table, as the database compares them, are one name here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.errors import ConfigurationError

_FOUND = sa.text(
    "SELECT n.nspname, c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(:name)"
)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of a database. `schema` is None in SQLite, which has one schema."""

    schema: str | None
    table: str

    @property
    def key(self) -> str:
        """Equal for two names of one table of this schema. SQLite does not distinguish upper case from lower case."""
        return self.table.lower() if self.schema is None else self.table

    def quoted(self, connection: Connection) -> str:
        """For SQL."""
        quote = connection.dialect.identifier_preparer.quote
        return ".".join(quote(part) for part in (self.schema, self.table) if part is not None)

    def __str__(self) -> str:
        return ".".join(part for part in (self.schema, self.table) if part is not None)


def table_name(connection: Connection, written: str) -> TableName:
    """The table that an author's ``table`` or ``schema.table`` means, or would make.

    Raises `ConfigurationError` for a schema of SQLite, and where no schema is the default one.
    """
    schema, name = schema_and_table(written)
    if connection.dialect.name == "sqlite":
        check_schema_of_sqlite(written)
        return TableName(None, name)
    quoted = ".".join(f'"{part}"' for part in (schema, name) if part is not None)
    if found := connection.execute(_FOUND, {"name": quoted}).one_or_none():
        return TableName(found.nspname, found.relname)
    schema = schema or connection.execute(sa.text("SELECT current_schema()")).scalar_one()
    if schema is None:
        raise ConfigurationError(f"table {written!r}: no schema of the search path exists; write 'schema.table'")
    return TableName(schema, name)


def reflected(connection: Connection, table: str, schema: str | None) -> sa.Table:
    """A table as the database describes it. Raises `NoSuchTableError` of SQLAlchemy."""
    listeners = [("column_reflect", _without_identity)]
    return sa.Table(table, sa.MetaData(), schema=schema, autoload_with=connection, listeners=listeners)


def _without_identity(_: object, __: object, column: dict[str, Any]) -> None:
    """PostgreSQL describes an identity column in JSON, which our engines leave as text: SQLAlchemy cannot read that."""
    column.pop("identity", None)


def check_schema_of_sqlite(written: str) -> None:
    """Raises `ConfigurationError` for a schema that an SQLite file cannot have."""
    schema, name = schema_and_table(written)
    if schema is not None and schema.lower() != "main":
        raise ConfigurationError(f"table {written!r}: SQLite has no schemas; write {name!r}")
