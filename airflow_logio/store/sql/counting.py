"""Counter rows of ports. Figures are read from them, so that nothing is counted by reading events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from airflow_logio.protocol.values import Port
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now


def add_to_counters(connection: Connection, run_id: int, counts: Mapping[tuple[Port, str], Sequence[int]]) -> None:
    """Add events, records and bytes, or subtract them, by (port, direction), in the transaction that changes the
    numbers."""
    changed = {key: total for key, total in counts.items() if any(total)}
    if not changed:
        return
    dialect = connection.dialect.name
    clock = connection.execute(sa.select(now(dialect))).scalar_one()
    table = schema.port_counter
    insert: Any = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    added = {name: table.c[name] + insert.excluded[name] for name in ("events", "records", "bytes")}
    statement = insert.on_conflict_do_update(
        index_elements=["run_id", "op", "port", "direction"], set_={**added, "last_at": insert.excluded.last_at}
    )
    rows = [
        {
            "run_id": run_id,
            "op": port.operator,
            "port": port.name,
            "direction": direction,
            "events": events,
            "records": records,
            "bytes": size,
            "first_at": clock,
            "last_at": clock,
        }
        for (port, direction), (events, records, size) in changed.items()
    ]
    connection.execute(statement, rows)
