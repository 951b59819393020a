"""What stands in a warehouse, whichever database it is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def warehouse_engine(url: str) -> sa.Engine:
    """An engine for a URL as a pipeline gets it: PostgreSQL without the name of a driver."""
    parsed = sa.make_url(url)
    postgres = parsed.get_backend_name() == "postgresql"
    return sa.create_engine(parsed.set(drivername="postgresql+psycopg2") if postgres else parsed)


def rows_of(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, as plain tuples."""
    engine = warehouse_engine(url)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(sa.text(query))]
    engine.dispose()
    return rows
