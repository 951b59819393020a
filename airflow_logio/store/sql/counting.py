"""Counter rows of ports. Figures are read from them, so that nothing is counted by reading events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from airflow_logio.protocol.values import Port
from airflow_logio.store.sql.commit_statements import count

_PARAMETERS = ("b_op", "b_port", "b_direction", "b_events", "b_records", "b_bytes")


def add_to_counters(connection: Connection, run_id: int, counts: Mapping[tuple[Port, str], Sequence[int]]) -> None:
    """Add events, records and bytes, or subtract them, by (port, direction), in the transaction that changes the
    numbers."""
    changed = {key: total for key, total in counts.items() if any(total)}
    if not changed:
        return
    rows = [(*port, direction, *total) for (port, direction), total in changed.items()]
    statement, run = count(connection.dialect.name), {"b_run": run_id}
    if connection.dialect.name == "postgresql":
        connection.execute(statement, run | dict(zip(_PARAMETERS, map(list, zip(*rows, strict=True)), strict=True)))
    else:
        connection.execute(statement, [run | dict(zip(_PARAMETERS, row, strict=True)) for row in rows])
