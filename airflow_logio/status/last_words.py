"""What the log of a task shows of a driver that has ended: the end of what it has printed, and where the rest is."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_logio.errors import LogUnavailable
from airflow_logio.launch.driver_log import WORDS_LINES, end_of, sent_lines
from airflow_logio.launch.managers.known_managers import where_its_output_is
from airflow_logio.launch.processes import this_host
from airflow_logio.launch.redaction import Redaction
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus


def last_words(store: LogStore, run: Run, status: GroupStatus) -> str:
    """The end of the group's last driver log, or of what the driver has sent of it, and its location."""
    if status.submissions:
        return _with_sent_lines(store, run, status, f"The driver was {where_its_output_is(status.submissions)}.")
    if status.log_path is None:
        return "There is no driver log: the driver was never started."
    path = Path(status.log_path)
    try:
        lines = end_of(path, WORDS_LINES)
    except OSError as error:
        host = status.identity.host if status.identity else "the worker that launched it"
        reason = error.strerror if host == this_host() else f"this is {this_host()}"
        return _with_sent_lines(store, run, status, f"The driver's log is {path} on {host} ({reason}).")
    shown = Redaction([], environment=os.environ).of("\n".join(lines))
    return "\n".join([f"The end of the driver's log, {path}:", *(f"  {line}" for line in shown.splitlines())])


def _with_sent_lines(store: LogStore, run: Run, status: GroupStatus, where: str) -> str:
    try:
        lines = sent_lines(store, run, status, WORDS_LINES)
    except LogUnavailable:
        return where
    if not lines:
        return where
    return "\n".join([f"{where} The end of what the driver has sent of it:", *(f"  {line}" for line in lines)])
