"""What the page shows of one group beside its figures: its drivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.run_report.report import Report
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.ui.error_texts import names_input_set
from airflow_logio.ui.run_history import driver_document

MOST_DRIVERS = 50


def panel_document(
    report: Report, group: str, history_url: str, *, errors_shown: bool, ids_shown: Callable[[], bool]
) -> dict[str, Any]:
    """A group, a replica, or a replicated group as a whole: then with the drivers of all its replicas.

    `ids_shown` is asked if a driver has failed at an Input Set: its id is data. Raises `UnknownRun` for a group that the run
    does not have.
    """
    run = report.run
    if report.snapshot.group(group) is None:
        raise UnknownRun("the run has no such group")
    names = set(members_of(run, group)) if group in run.spec.replicated else {group}
    statuses = [one.status for one in report.snapshot.groups if one.name in names]
    drivers = [one for one in report.drivers if one.group in names]
    shown = drivers[: -MOST_DRIVERS - 1 : -1]
    hides_ids = any(names_input_set(one.failed_at) for one in shown) and not ids_shown()
    return {
        "group": group,
        "whole": replicated_group(group),
        "drivers": [
            {"group": one.group, **driver_document(one, shown=errors_shown, ids_shown=not hides_ids)} for one in shown
        ],
        "drivers_in_all": len(drivers),
        "spark_ui": SparkUi(history_url).address(statuses),
    }


def printing(report: Report, group: str) -> GroupStatus | None:
    """The group, if a driver of its own prints: a replicated group as a whole has none."""
    view = None if group in report.run.spec.replicated else report.snapshot.group(group)
    return None if view is None else view.status
