"""Delta for Spark: its jars, for sessions of tests, and the settings with which a session has it."""

from __future__ import annotations

import os

import pyspark

from airflow_logio.dataflow.sources.delta_frames import EXTENSION
from tests.support.maven import NotFetched, jars

VERSION = "4.4.0"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_BUILT_FOR = ("4.0", "4.1", "4.2")
_OWN = ("delta-", "unitycatalog-", "RoaringBitmap-", "shims-")
"""The rest of what Maven brings is Spark's own."""


def delta_classes() -> str:
    """The jars as a class path. Raises `NotFetched`."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    if spark not in _BUILT_FOR:
        raise NotFetched(f"PySpark is {spark}, and Delta {VERSION} is built for {', '.join(_BUILT_FOR)}")
    folder = jars(f"io.delta:delta-spark_{spark}_2.13:{VERSION}")
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_OWN))


def why_no_delta_spark() -> str | None:
    """Why this machine cannot have it, in words; None if it can. Fetches it, the first time."""
    try:
        delta_classes()
    except NotFetched as error:
        return str(error)
    return None


def delta_settings() -> dict[str, str]:
    """Settings of Spark with which drivers and executors of this machine know Delta. Raises `NotFetched`."""
    classes = {f"spark.{who}.extraClassPath": delta_classes() for who in ("driver", "executor")}
    return {**classes, "spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}
