"""The pipeline that runs every day, in this process: lake and table have what DuckDB makes of the clicks, day by day."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from airflow_logio.dataflow import Pipeline
from airflow_logio.dataflow.sources import FolderSource
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch import bundle
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from demo.checks import check_clicks
from demo.clicks import DAYS, clicks_folder, late_file
from demo.examples import AFTER, BEFORE, replace_once
from tests.support.frame_groups import driven
from tests.support.logs import spec, start_driver

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SHIPPED = Path(__file__).parents[3] / "dags" / "pipelines" / "clicks.py"


class Days:
    def __init__(self, root: Path, sessions: SparkSessions) -> None:
        self.data, self.lake = clicks_folder(root / "data", lambda _: None), root / "lake"
        self.lake.mkdir()
        self._root, self._sessions, self._store = root, sessions, MemoryLogStore()
        self._urls = {"lake": str(self.lake), "warehouse": f"sqlite:///{root}/warehouse.db"}

    def compute(self, code: Path, day: date) -> None:
        """A run of its own, with one driver."""
        pipeline: Pipeline = bundle.load(bundle.parse_ref(f"{code}:clicks"))
        pipeline.validate()
        assert pipeline.partition is not None
        params = pipeline.check_params({"data": str(self.data)}, pipeline.partition.key_of(str(day)))
        source = pipeline.operators["web"]
        assert isinstance(source, FolderSource)
        asked = replace(
            spec("all", dag_run=f"{code.stem} {day}"),
            params=params,
            operators=operator_shapes(pipeline),
            actions={"web": source.action(params)},
        )
        run = self._store.start_run(asked)
        driver, stop = start_driver(self._store, group="all", run=run), threading.Event()
        line = ("clicks", self._store.log_uid(), run.ordinal)
        identity = WriterIdentity(run.uid, driver.ref.incarnation, run.created_at, (), *line)
        connections = Connections("clicks", self._urls, identity, 1.0, params=params)
        settings = EpochSettings(
            pipeline.for_run(params),
            run,
            "all",
            connections,
            self._sessions,
            lambda _: None,
            stop,
            payloads=Payloads(str(self._root / "payloads")),
        )
        assert driven(settings, driver, stop)

    def check(self, *changed: date) -> None:
        checked = check_clicks(self.lake, self._urls["warehouse"], self.data, changed)
        assert checked.exact and all(one.found_rows for one in checked.comparisons), "\n".join(checked.lines())


def test_each_day_is_exact_and_so_are_those_that_are_computed_again(tmp_path: Path, sessions: SparkSessions) -> None:
    days, changed = Days(tmp_path, sessions), tmp_path / "changed.py"
    for day in DAYS:
        days.compute(SHIPPED, day)
    days.check()
    shutil.copy(SHIPPED, changed)
    replace_once(changed, BEFORE, AFTER)
    days.compute(changed, DAYS[1])
    days.check(DAYS[1])
    late_file(days.data)
    days.compute(changed, DAYS[0])
    days.check(*DAYS[:2])
