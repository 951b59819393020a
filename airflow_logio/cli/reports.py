"""What is printed when a run has ended, including the end of a driver's log."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from airflow_logio.runtime.figures.authored_figures import ports_seen
from airflow_logio.runtime.figures.run_summary import Outcome, RunSummary
from airflow_logio.runtime.launch.driver_log import tail

MAX_QUARANTINED = 10
CHANGED = "if you have changed the code, with --code new"
"""A run keeps its code (ADR-63)."""


def report(console: Console, summary: RunSummary, *, debug: bool = False) -> None:
    """Ports, seconds and drivers; for a parked group, its cause.

    Of an error in the author's code the cause has the author's frames; the end of the driver's log, with ours around them,
    is shown with `debug`, and where the cause has none.
    """
    console.print(_ports(summary))
    seconds, rate = summary.event_seconds, summary.records_per_second
    if seconds is not None:
        speed = f", {rate:,.0f} records/s" if rate else ""
        console.print(f"first to last event {seconds:.1f} s{speed}; {summary.seconds:.1f} s in all", highlight=False)
    console.print(f"{len(summary.drivers)} drivers launched, {summary.recoveries} of them recoveries", highlight=False)
    for group in summary.parked:
        console.print(f"group {group.group} is parked: {group.error}", style="bold red", markup=False)
        if debug or not _has_frames(group.error):
            for line in tail(group.log_path):
                console.print(f"  | {line}", markup=False, highlight=False)
        elif group.log_path:
            console.print(f"Everything it has printed: {group.log_path}", markup=False, highlight=False)
        console.print(
            f"Fix the cause, then: logio retry {summary.run.uid[:8]} {group.group} ({CHANGED})",
            markup=False,
            highlight=False,
        )
    for one in summary.quarantined[:MAX_QUARANTINED]:
        console.print(f"quarantined: {one.error}", style="bold red", markup=False)
    if summary.quarantined:
        console.print(
            f"finished with quarantine: {len(summary.quarantined)} Input Set(s) are set aside. Fix the operator, then: "
            f"logio retry {summary.run.uid[:8]} ({CHANGED})",
            markup=False,
            highlight=False,
        )
    if summary.outcome is Outcome.HALTED:
        uid = summary.run.uid[:8]
        console.print(f"halted; every driver has ended. To continue: logio retry {uid}", markup=False, highlight=False)


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
    path.write_text(json.dumps(summary.as_json(), indent=2) + "\n")
