"""A run with LOG.io: real drivers, supervised as `logio run` does. Ended if it lasts too long."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from airflow_logio.dataflow import Pipeline
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.status.snapshot import Snapshot
from airflow_logio.supervision.local_run import LocalRun
from tests.bench.bench_run import bench_run
from tests.bench.throughput import WrongResult
from tests.support.standbys import standby_of

PIPELINE = Path(__file__).parents[1] / "pipelines" / "paper_use_cases.py"


def paper_pipeline() -> tuple[Pipeline, PipelineRef]:
    """As the variable says now: the module builds it when it is imported."""
    ref = bundle.parse_ref(f"{PIPELINE}:paper")
    sys.modules.pop(ref.module, None)
    return bundle.load(ref), ref


def run_logged(folder: Path, marks: Path, log_url: str, warehouse: str, limit: float) -> RunSummary:
    """Sources begin when all drivers are up, and the processes that stand by. `limit`: seconds.

    Raises `WrongResult` unless it finishes.
    """
    _, ref = paper_pipeline()
    with bench_run(ref, log_url, folder, {}, {"warehouse": warehouse}) as context:
        local = LocalRun(context)

        def look(_: Snapshot) -> None:
            if _are_standing_by(context):
                (marks / "go").touch()

        too_long = threading.Timer(limit, local.halt)
        too_long.start()
        try:
            summary = local.run(look)
        finally:
            too_long.cancel()
    if summary.outcome is not Outcome.FINISHED:
        errors = {group.group: group.error for group in summary.groups if group.error}
        raise WrongResult(f"the run is {summary.outcome} (it may last {limit:.0f} s): {errors}")
    return summary


def _are_standing_by(context: LaunchContext) -> bool:
    """All processes that are to stand by are ready."""
    wanted = [name for name in context.pipeline.applications if context.pipeline.group_of(name).standby]
    found = [standby_of(context.store, context.run.run_id, name) for name in wanted]
    return all(one is not None and one.is_ready for one in found)
