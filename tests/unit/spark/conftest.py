"""A Spark session for the tests of this folder, with its event log, and a payload store for each of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import is_guarded
from airflow_logio.systems.payloads import EpochPayloads, Payloads


@pytest.fixture(scope="package")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what Spark writes about its jobs, as plain text."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="package")
def sessions(event_log: Path) -> Iterator[SparkSessions]:
    """As a driver on one machine has it: two executors' worth of threads, and a zone that is not UTC."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("chains")
    settings = {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
    }
    as_launched = SparkSettings()
    for name, value in as_launched.effective_conf(settings, frames=True, guarded=is_guarded(as_launched)).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    made = SparkSessions()
    made.get()
    yield made
    session.stop()


@pytest.fixture
def spark(sessions: SparkSessions) -> Any:
    return sessions.get()


@pytest.fixture
def epoch(tmp_path: Path) -> EpochPayloads:
    return Payloads(str(tmp_path / "payloads")).epoch("run", "g", 1, 0)
