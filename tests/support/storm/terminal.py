"""The command `logio`, with drivers that are forked instead of started by spark-submit, and die where the seed says."""

from __future__ import annotations

import os

import pytest

from airflow_logio.cli import preparation
from airflow_logio.cli.app import main
from airflow_logio.launch import spark_submit
from tests.support import impatient
from tests.support.running import PlainLauncher
from tests.support.storm.outages import BUSY_SECONDS
from tests.support.storm.pipelines import pipeline_of
from tests.support.storm.weather import armed

if __name__ == "__main__":
    seed = int(os.environ["STORM_SEED"])
    points = armed(seed, pipeline_of(seed).applications)
    first = {driver: point for driver, point in points.items() if driver[1] == 1}
    everywhere = impatient.variables(BUSY_SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            preparation, "LocalProcessLauncher", lambda folder: PlainLauncher(folder, first, everywhere=everywhere)
        )
        patch.setattr(spark_submit, "check", lambda _: None)
        main()
