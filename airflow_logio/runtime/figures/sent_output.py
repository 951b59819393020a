"""The last lines that a driver has sent of its log, without its secrets: what is shown where its file is not."""

from __future__ import annotations

from airflow_logio.errors import LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import GroupStatus, Run


def sent_lines(store: LogStore, run: Run, status: GroupStatus, most: int) -> list[str]:
    """The last lines that the group's last driver has sent; none while the log does not answer."""
    try:
        parts = store.output.parts(run.run_id, status.group, status.incarnation)
    except LogUnavailable:
        return []
    return "".join(part.text for part in parts).splitlines()[-most:]
