"""What stands in a warehouse, whichever database it is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def warehouse_engine(url: str) -> sa.Engine:
    """An engine for a URL as a pipeline gets it: PostgreSQL without the name of a driver. A connection that is given back
    is closed."""
    parsed = sa.make_url(url)
    postgres = parsed.get_backend_name() == "postgresql"
    driver = parsed.set(drivername="postgresql+psycopg2") if postgres else parsed
    return sa.create_engine(driver, poolclass=sa.NullPool)


def rows_of(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, as plain tuples."""
    with warehouse_engine(url).connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def change(url: str, statement: str) -> None:
    """One statement, committed."""
    with warehouse_engine(url).begin() as connection:
        connection.execute(sa.text(statement))
