"""Launches without a run: what a driver with a configuration is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.launch.driver_config import DriverConfig, Launch, StandbyRecipe, launch_of_standby
from airflow_logio.launch.spark_settings import SparkSettings


def launch_of(
    config: DriverConfig,
    settings: SparkSettings | None = None,
    conf: Mapping[str, str] | None = None,
    code: CodeBundle | None = None,
) -> Launch:
    """The launch of a driver that gets this configuration, by default with nothing that concerns Spark, and no code."""
    settings = settings or SparkSettings()
    given = replace(config, standby=StandbyRecipe(settings, conf or {}))
    return replace(launch_of_standby(given, settings, code or CodeBundle({}, is_shipped=False)), standby=None)
