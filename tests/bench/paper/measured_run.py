"""One experiment: run, ended if it lasts too long, checked, and its time taken."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from airflow_logio.status.run_summary import RunSummary
from tests.bench.databases import Postgres
from tests.bench.paper.answer import Row, flaw
from tests.bench.paper.experiments import Experiment
from tests.bench.paper.flink_run import run_flink
from tests.bench.paper.logged_run import run_logged
from tests.bench.paper.plain_run import run_plain
from tests.bench.paper.scaled import Scaled
from tests.bench.throughput import WrongResult

VARIABLE, TABLE, COLUMNS = "PAPER_RUN", "paper_results", "batch, events, first, total, squares"
"""As the pipeline has them; it can be imported only where the variable is set."""
START_SECONDS = 120.0
"""A run that lasts this long, and three times as long as it must, is ended."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds from OP1's first event to OP5's last one, or to the commit of the last row, whichever is later."""

    seconds: float
    recoveries: tuple[Mapping[str, float], ...] = ()
    """Of each failure, seconds from the kill to the steps of the next driver's start."""


def measure(databases: Postgres, experiment: Experiment, factor: float) -> Taken:
    """The series times `factor`. Raises as `measured`."""
    return measured(databases, experiment, experiment.scaled(factor))


def measured(databases: Postgres, experiment: Experiment, wanted: Scaled) -> Taken:
    """Raises `WrongResult` if it does not end in time, or with another result than it must have."""
    limit = START_SECONDS + 3 * wanted.seconds
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        marks = folder / "marks"
        marks.mkdir()
        os.environ[VARIABLE] = json.dumps(_setup(experiment, wanted, marks))
        log_url, warehouse = databases.fresh(folder)
        if experiment.plain:
            _create_table(warehouse)
            run_plain(marks, warehouse, limit)
            return Taken(_checked(wanted, marks, warehouse))
        if experiment.flink:
            _create_table(warehouse)
            found = run_flink(folder, marks, wanted, experiment.failures, warehouse, limit)
            return Taken(_checked(wanted, marks, warehouse), _all_of(found, experiment))
        databases.configure(commit_delay=str(1_000 * experiment.commit_ms), commit_siblings="0")
        try:
            summary = run_logged(folder, marks, log_url, warehouse, limit)
        finally:
            databases.configure(commit_delay="0")
        recoveries = _all_of(_recoveries(summary, marks), experiment)
        return Taken(_checked(wanted, marks, warehouse), recoveries)


def _all_of(recoveries: list[dict[str, float]], experiment: Experiment) -> tuple[dict[str, float], ...]:
    if len(recoveries) != experiment.failures:
        raise WrongResult(f"{experiment.failures} failures were wanted, not {len(recoveries)}")
    return tuple(recoveries)


def _setup(experiment: Experiment, wanted: Scaled, marks: Path) -> dict[str, Any]:
    """What the pipeline is built from."""
    asked = {name: getattr(experiment, name) for name in ("lineage", "replay", "failures", "standby", "plain")}
    return {**wanted.as_json(), **asked, "folder": str(marks)}


def _recoveries(summary: RunSummary, marks: Path) -> list[dict[str, float]]:
    """Raises `WrongResult` if there are others than of the failures that were made."""
    kills = sorted(map(_at, marks.glob("killed-*")))
    drivers = sorted((one for one in summary.drivers if one.is_recovery), key=lambda one: one.claimed_at)
    if len(kills) != len(drivers):
        raise WrongResult(f"{len(kills)} failures, and {len(drivers)} recoveries")
    found = []
    for killed_at, driver in zip(kills, drivers, strict=True):
        steps = {
            "claimed": driver.claimed_at,
            "submitted": driver.submitted_at,
            "registered": driver.registered_at,
            "first commit": driver.first_commit_at,
        }
        found.append({step: round(at - killed_at, 2) for step, at in steps.items() if at is not None})
    return found


def _checked(wanted: Scaled, marks: Path, warehouse: str) -> float:
    """Seconds of a run whose result is right."""
    rows, last_commit = _written(warehouse)
    if wrong := flaw(wanted, rows):
        raise WrongResult(wrong)
    if not (marks / "ended").is_file() or (marks / "one_too_many").is_file():
        raise WrongResult(f"the last operator did not get {wanted.end} events: {sorted(marks.iterdir())}")
    return max(last_commit, _at(marks / "ended")) - _at(marks / "began")


def _at(mark: Path) -> float:
    return float(mark.read_text())


def _create_table(warehouse: str) -> None:
    """As the writer makes it, where it is missing."""
    columns = ", ".join(f"{name} bigint" for name in COLUMNS.split(", "))
    with psycopg2.connect(warehouse) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} ({columns}, PRIMARY KEY (batch))")
    connection.close()


def _written(warehouse: str) -> tuple[list[Row], float]:
    connection = psycopg2.connect(warehouse)
    try:
        with connection.cursor() as cursor:
            committed = "extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8"
            cursor.execute(f"SELECT {COLUMNS}, {committed} FROM {TABLE}")
            found = cursor.fetchall()
    finally:
        connection.close()
    return [row[:5] for row in found], max((row[5] for row in found), default=0.0)
