"""What is printed when a run has ended, including the end of a driver's log."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from airflow_logio.commands import counted
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.driver_log import tail
from airflow_logio.protocol.states import CONCLUDED, ENDED, GroupState
from airflow_logio.status.authored_figures import ports_seen
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.store.records.status_records import GroupStatus

MAX_QUARANTINED = 10
CHANGED = "if you have changed the code, with --code new"
"""A run keeps its code (ADR-63)."""


def report(console: Console, summary: RunSummary, *, debug: bool = False) -> None:
    """Ports, seconds and drivers; for a parked group, its cause; and the command that comes next.

    Of an error in the author's code the cause has the author's frames; the end of the driver's log, with ours around them,
    is shown with `debug`, and where the cause has none.
    """
    console.print(_ports(summary))
    seconds, rate = summary.event_seconds, summary.records_per_second
    if seconds is not None:
        speed = f", {rate:,.0f} records/s" if rate else ""
        console.print(f"first to last event {seconds:.1f} s{speed}; {summary.seconds:.1f} s in all", highlight=False)
    drivers = counted(len(summary.drivers), "driver")
    console.print(f"{drivers} launched, {summary.recoveries} of them recoveries", highlight=False)
    for group in summary.parked:
        _parked(console, group, debug=debug)
    for one in summary.quarantined[:MAX_QUARANTINED]:
        console.print(f"quarantined: {one.error}", style="bold red", markup=False)
    for line in _next(summary):
        console.print(line, markup=False, highlight=False)


def _parked(console: Console, group: GroupStatus, *, debug: bool) -> None:
    console.print(f"group {group.group} is parked: {group.error}", style="bold red", markup=False)
    if debug or not _has_frames(group.error):
        for line in tail(group.log_path):
            console.print(f"  | {line}", markup=False, highlight=False)
    if group.log_path:
        console.print(f"Everything it has printed: {group.log_path}", markup=False, highlight=False)


def _next(summary: RunSummary) -> Iterator[str]:
    """How the run has ended, where that is not plain, and what to type."""
    uid = summary.run.uid[:8]
    retry = f"`logio retry {uid}`"
    if len(summary.parked) == 1:
        yield f"Fix the cause, then: `logio retry {uid} {summary.parked[0].group}` ({CHANGED})"
    elif summary.parked:  # they go on together: while one is parked, `logio retry` of another one ends at once
        yield f"Fix the causes, then: {retry} ({CHANGED})"
    aside = len(summary.quarantined)
    if aside > MAX_QUARANTINED:
        yield f"... and {aside - MAX_QUARANTINED:,} more quarantined: `logio status {uid} --json` shows all"
    if aside:
        is_over = "finished with quarantine: " if summary.outcome is Outcome.QUARANTINED else ""
        yield f"{is_over}{aside:,} Input Set(s) are set aside. Fix the operator, then: {retry} ({CHANGED})"
    if summary.outcome is Outcome.HALTED:
        yield f"{_halted(summary)} To continue: {retry}"
    elif summary.outcome is not Outcome.PARKED and (left := _states(summary.groups, CONCLUDED)):
        yield f"These groups have finished; the run goes on: {left}"


def _halted(summary: RunSummary) -> str:
    left = _states(summary.groups, ENDED | {GroupState.NEW, GroupState.DEAD})
    return f"halted; as the log last knew, not ended: {left}." if left else "halted; every driver has ended."


def _states(groups: Sequence[GroupStatus], besides: Collection[GroupState]) -> str:
    return ", ".join(f"{group.group} {group.state.value}" for group in groups if group.state not in besides)


def _has_frames(error: str | None) -> bool:
    return error is not None and '\n  File "' in error


def _ports(summary: RunSummary) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, justify in (("port", "left"), ("", "left"), ("events", "right"), ("records", "right"), ("MB", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    for row in ports_seen(summary.run, summary.ports):
        size = f"{row.bytes / 2**20:,.1f}" if row.bytes else ""
        table.add_row(str(row.port), row.direction, f"{row.events:,}", f"{row.records:,}", size)
    return table


def write_json(path: Path, summary: RunSummary) -> None:
    """Raises `ConfigurationError` if the file cannot be written."""
    try:
        path.write_text(json.dumps(summary.as_json(), indent=2) + "\n")
    except OSError as error:
        raise ConfigurationError(
            f"the summary cannot be written to {path}: {error}. The run itself has ended as it says above; `logio status "
            f"{summary.run.uid[:8]} --json` has its figures"
        ) from error
