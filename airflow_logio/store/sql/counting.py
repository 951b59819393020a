"""Counter rows of ports. Figures are read from them, so that nothing is counted by reading events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from airflow_logio.protocol.values import Port
from airflow_logio.store.sql.commit_statements import count


def add_to_counters(connection: Connection, run_id: int, counts: Mapping[tuple[Port, str], Sequence[int]]) -> None:
    """Add events, records and bytes, or subtract them, by (port, direction), in the transaction that changes the
    numbers."""
    changed = {key: total for key, total in counts.items() if any(total)}
    if not changed:
        return
    rows = [
        {
            "run_id": run_id,
            "op": port.operator,
            "port": port.name,
            "direction": direction,
            "events": events,
            "records": records,
            "bytes": size,
        }
        for (port, direction), (events, records, size) in changed.items()
    ]
    connection.execute(count(connection.dialect.name), rows)
