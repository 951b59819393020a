"""A run of ours: real drivers, supervised as `logio run` does, the log in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from airflow_logio.launch import bundle
from airflow_logio.status.run_summary import Outcome
from airflow_logio.supervision.local_run import LocalRun
from tests.bench.bench_run import bench_run
from tests.bench.peers.work import Work
from tests.bench.throughput import WrongResult

PIPELINES = Path(__file__).parents[1] / "pipelines" / "peers.py"


def run_logged(
    attr: str, work: Work, folder: Path, reads: Path, log_url: str, warehouse: str, *, pace: float = 0.0
) -> None:
    """`attr`: of the pipeline, in `PIPELINES`. The source begins when all drivers are up, and reads `pace` records a second,
    or as many as it can. Raises `WrongResult`."""
    ref = bundle.parse_ref(f"{PIPELINES}:{attr}")
    params = {"records": str(work.parquet), "reads": str(reads), "pace": pace}
    with bench_run(ref, log_url, folder, params, {"warehouse": warehouse}) as context:
        summary = LocalRun(context).run()
    if summary.outcome is not Outcome.FINISHED:
        errors = {group.group: group.error for group in summary.groups if group.error}
        raise WrongResult(f"the run of {attr} is {summary.outcome}: {errors}")
