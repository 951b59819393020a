"""`logio status RUN` as text, for the log of a task."""

from __future__ import annotations

from io import StringIO
from typing import Any

from airflow_logio.commands import with_log
from airflow_logio.errors import LogioError
from airflow_logio.store.port import LogStore

WIDTH = 160
"""Characters of a line: the page of a task log is about so wide."""


def status_page(store: LogStore, run_uid: str, logio_conn_id: str) -> str:
    """What `logio status` shows of the run now; its commands name the log by its connection. Raises `LogUnavailable`."""
    # Imported to be shown: most segments of a task show nothing, and the command line is large.
    from rich.console import Console, Group

    from airflow_logio.cli import run_tables
    from airflow_logio.run_report.report import Reporter

    report = Reporter(store, run_uid).look()
    text = StringIO()
    console = Console(file=text, width=WIDTH, color_system=None, force_terminal=False, highlight=False, soft_wrap=True)
    console.print(Group(run_tables.whole(report), *run_tables.errors(report)))
    return with_log("\n".join(line.rstrip() for line in text.getvalue().splitlines()), logio_conn_id)


def say_status(log: Any, store: LogStore, run_uid: str, logio_conn_id: str) -> None:
    """Log the page, which is for people: a task does not fail because it cannot be read."""
    try:
        log.info("Run %s:\n%s", run_uid[:8], status_page(store, run_uid, logio_conn_id))
    except LogioError as error:
        log.warning("The state of run %s cannot be shown: %s", run_uid[:8], error)
