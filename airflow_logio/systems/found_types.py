"""The types of the columns of a table that is there, as the database writes them.

SQLAlchemy tells neither how many digits a domain has, nor by which letters SQLite derives the affinity of a column.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.systems.table_names import TableName

_IN_POSTGRES = sa.text("""
    SELECT a.attname, base.described
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        WITH RECURSIVE inner_type(type, modifier, brackets, depth) AS (
            SELECT a.atttypid, a.atttypmod, '', 0
            UNION ALL
            SELECT
                CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
                CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE i.modifier END,
                CASE t.typtype WHEN 'd' THEN i.brackets ELSE '[]' END,
                i.depth + 1
            FROM inner_type AS i JOIN pg_catalog.pg_type AS t ON t.oid = i.type
            WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
        )
        SELECT format_type(type, modifier)
            || CASE WHEN type = 'money'::regtype THEN '(' || scale('0'::money::numeric) || ')' ELSE '' END
            || brackets AS described
        FROM inner_type ORDER BY depth DESC LIMIT 1
    ) AS base
    WHERE n.nspname = :schema AND c.relname = :table AND a.attnum > 0 AND NOT a.attisdropped
""")
"""Behind domains, and behind domains in arrays. Money has as many digits as the locale of the database gives it."""


def found_types(connection: Connection, name: TableName) -> dict[str, str] | None:
    """Column → type, such as ``numeric(9,2)``, ``character(3)[]`` or ``VARCHAR(10)``; None if there is no such table.

    In SQLite, the names are in lower case: it does not distinguish them.
    """
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(f"PRAGMA table_xinfo({name.quoted(connection)})").all()
        return {row.name.lower(): row.type for row in rows} or None
    found = connection.execute(_IN_POSTGRES, {"schema": name.schema, "table": name.table})
    return {column: kind for column, kind in found} or None
