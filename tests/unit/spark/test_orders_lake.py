"""The pipeline of the lake, group after group in this process: PostgreSQL and folders have what DuckDB makes of the sales."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio.dataflow import Pipeline
from airflow_logio.dataflow.sources import FolderSource
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch import bundle
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from demo.checks import check_lake
from demo.data import parquet_file, sales_folder
from tests.support.frame_groups import driven
from tests.support.logs import spec, start_driver

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]

PIPELINE = Path(__file__).parents[3] / "dags" / "pipelines" / "orders_lake.py"
RECORDS = 20_000
DAYS = 20
"""Of a year: two events, the second one with fewer files."""


def test_the_pipeline_of_the_lake_is_exact(tmp_path: Path, sessions: SparkSessions, postgres_url: str) -> None:
    made = sales_folder(tmp_path / "made", RECORDS, lambda _: None)
    sales, lake = tmp_path / "sales", tmp_path / "lake"
    sales.mkdir()
    lake.mkdir()
    for file in sorted(made.glob("sales-*.parquet"))[:DAYS]:
        shutil.copy(file, sales)
    pipeline: Pipeline = bundle.load(bundle.parse_ref(f"{PIPELINE}:orders_lake"))
    params = {"sales": str(sales), "products": str(parquet_file("products"))}
    source = pipeline.operators["raw"]
    assert isinstance(source, FolderSource)
    store = MemoryLogStore()
    asked = replace(
        spec(*pipeline.groups),
        params=params,
        operators=operator_shapes(pipeline),
        actions={"raw": source.action(params)},
    )
    run = store.start_run(asked)
    urls = {"lake": str(lake), "warehouse": postgres_url}
    for group in pipeline.groups:
        assert finished(pipeline, group, store, run, urls, sessions, tmp_path / "payloads"), group
    checked = check_lake(lake, postgres_url, sales, parquet_file("products"))
    assert checked.exact and all(one.found_rows for one in checked.comparisons), "\n".join(checked.lines())


def finished(
    pipeline: Pipeline,
    group: str,
    store: MemoryLogStore,
    run: Run,
    urls: dict[str, str],
    sessions: SparkSessions,
    payloads: Path,
) -> bool:
    """Drive a group to its end."""
    driver, stop = start_driver(store, group=group, run=run), threading.Event()
    identity = WriterIdentity(run.uid, driver.ref.incarnation, run.created_at)
    connections = Connections(pipeline.name, urls, identity, 1.0, params=run.spec.params)
    settings = EpochSettings(
        pipeline, run, group, connections, sessions, lambda _: None, stop, payloads=Payloads(str(payloads))
    )
    return driven(settings, driver, stop)
