"""The last lines that a driver has sent of its log, without its secrets: what is shown where its file is not."""

from __future__ import annotations

from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus

FIRST_PARTS = 16
"""Parts that are read first: mostly they have all lines that are wanted."""


def sent_lines(store: LogStore, run: Run, status: GroupStatus, most: int) -> list[str]:
    """The last lines that the group's last driver has sent. Raises `LogUnavailable`."""
    wanted = FIRST_PARTS
    while True:
        parts = store.output.parts(run.run_id, status.group, status.incarnation, most=wanted)
        lines = "".join(part.text for part in parts).splitlines()
        # The first of the lines may have begun in an earlier part.
        if len(lines) > most or len(parts) < wanted:
            return lines[-most:]
        wanted *= 4
