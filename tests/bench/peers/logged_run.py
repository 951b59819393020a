"""A run of ours: real drivers, supervised as `logio run` does, the log in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from airflow_logio.runtime.figures.run_summary import Outcome
from airflow_logio.runtime.launch import bundle
from airflow_logio.runtime.launch.launcher import LaunchContext, LocalProcessLauncher
from airflow_logio.runtime.launch.start_run import run_spec
from airflow_logio.runtime.supervision.local_run import LocalRun
from airflow_logio.store import open_store
from tests.bench.peers.work import Work
from tests.bench.throughput import WrongResult

PIPELINES = Path(__file__).parents[1] / "pipelines" / "peers.py"


def run_logged(attr: str, work: Work, folder: Path, reads: Path, log_url: str, warehouse: str) -> None:
    """`attr`: of the pipeline, in `PIPELINES`. The source begins when all drivers are up. Raises `WrongResult`."""
    ref = bundle.parse_ref(f"{PIPELINES}:{attr}")
    pipeline = bundle.load(ref)
    store = open_store(log_url, application="logio bench")
    try:
        spec = run_spec(
            pipeline,
            ref,
            dag_id="bench",
            dag_run_id="peers",
            params={"records": str(work.parquet), "reads": str(reads)},
            connections={"warehouse": "warehouse"},
            hold_sources=True,
        )
        launcher = LocalProcessLauncher(folder / "drivers")
        run = store.start_run(spec)
        context = LaunchContext(store, log_url, run, pipeline, ref, {"warehouse": warehouse}, launcher)
        summary = LocalRun(context).run()
    finally:
        store.dispose()
    if summary.outcome is not Outcome.FINISHED:
        errors = {group.group: group.error for group in summary.groups if group.error}
        raise WrongResult(f"the run of {attr} is {summary.outcome}: {errors}")
