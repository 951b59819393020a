"""What the page shows of one group beside its figures: its drivers, and the end of what the last one has printed."""

from __future__ import annotations

from typing import Any

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.run_report.report import Report
from airflow_logio.runtime.figures.sent_output import sent_lines
from airflow_logio.runtime.figures.spark_ui import SparkUi
from airflow_logio.runtime.figures.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.ui.run_history import driver_document
from airflow_logio.ui.run_look import shortened

MOST_DRIVERS = 50
MOST_LINES = 200


def panel_document(
    store: LogStore, report: Report, group: str, history_url: str, *, with_lines: bool
) -> dict[str, Any]:
    """A group, a replica, or a replicated group as a whole: then with the drivers of all its replicas.

    The lines, None without `with_lines`, are those that the driver has sent to the log, without secrets: no file is opened
    here because the log names it. Raises `UnknownRun` for a group that the run does not have.
    """
    run, view = report.run, report.snapshot.group(group)
    if view is None:
        raise UnknownRun("the run has no such group")
    names = set(members_of(run, group)) if group in run.spec.replicated else {group}
    statuses = [one.status for one in report.snapshot.groups if one.name in names]
    drivers = [one for one in report.drivers if one.group in names]
    return {
        "group": group,
        "whole": replicated_group(group),
        "drivers": [
            {"group": one.group, **driver_document(one), "error": shortened(one.error)}
            for one in drivers[: -MOST_DRIVERS - 1 : -1]
        ],
        "drivers_in_all": len(drivers),
        "spark_ui": SparkUi(history_url).address(statuses),
        "lines": sent_lines(store, run, view.status, MOST_LINES) if with_lines and names == {group} else None,
    }
