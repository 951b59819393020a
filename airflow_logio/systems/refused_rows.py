"""Which row a database refuses is found by trying again, in halves and under savepoints (ADR-54)."""

from __future__ import annotations

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.systems.table_inserts import Insertion


def first_refused(connection: Connection, records: pa.Table, into: Insertion) -> int | None:
    """The place of the row; None if the rows are refused by nothing that happens before the commit.

    What is accepted stays, so that a row is found that is refused for one before it.
    """
    first, last = 0, records.num_rows
    size = last
    while first < last:
        end = min(first + size, last)
        try:
            with connection.begin_nested():
                into.insert(connection, records.slice(first, end - first))
        except sa.exc.DBAPIError:
            if end - first == 1:
                return first
            last = end
            size = (end - first + 1) // 2
        else:
            first = end
            size = max(1, (last - first + 1) // 2)
    return None
