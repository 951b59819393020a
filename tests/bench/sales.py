"""One run of the sales pipeline as `logio run` makes it: real spark-submit drivers, checked by DuckDB afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_logio.launch import bundle
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store import open_store
from airflow_logio.supervision.local_run import LocalRun
from demo.checks import check_sales
from demo.data import parquet_file

PIPELINE = Path(__file__).parents[2] / "dags" / "pipelines" / "sales.py"


@dataclass(frozen=True, slots=True)
class SalesRun:
    """Ready to be supervised; nothing is launched yet."""

    context: LaunchContext
    local: LocalRun
    transactions: Path

    def is_exact(self) -> bool:
        """Every row of both tables, by other means."""
        return check_sales(self.context.connections["warehouse"], self.transactions, parquet_file("products")).exact


@contextmanager
def sales_run(
    urls: tuple[str, str],
    folder: Path,
    *,
    transactions: Path | None = None,
    hold_sources: bool = True,
    lease: Lease | None = None,
    ref: bundle.PipelineRef | None = None,
    connect: bool = False,
) -> Iterator[SalesRun]:
    """`hold_sources`: the first event is read when all drivers are up, Spark warm. `ref`: another form of the pipeline.
    `connect`: the drivers share a Spark Connect server."""
    log_url, warehouse_url = urls
    ref = ref or bundle.parse_ref(f"{PIPELINE}:sales")
    pipeline = bundle.load(ref)
    file = transactions or parquet_file("transactions")
    store = open_store(log_url, application="logio bench")
    try:
        spec = run_spec(
            pipeline,
            ref,
            dag_id="bench",
            dag_run_id="bench",
            params={"transactions": str(file)},
            connections={"warehouse": "warehouse"},
            hold_sources=hold_sources,
            lease=lease,
        )
        context = LaunchContext(
            store=store,
            log_url=log_url,
            run=store.start_run(spec),
            imported=pipeline,
            ref=ref,
            connections={"warehouse": warehouse_url},
            launcher=LocalProcessLauncher(folder / "drivers"),
            settings=SparkSettings(connect=connect),
        )
        yield SalesRun(context, LocalRun(context), file)
    finally:
        store.dispose()
