"""What several jobs must not compute differently: the outputs of an operator that has several (ADR-81)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import ConfigurationError, OperatorFailed
from airflow_logio.runtime.datasets.spark_files import WRITER_SAFETY
from airflow_logio.runtime.engines.plans import analyzed

SHUFFLE_SAFETY: Mapping[str, str] = {
    # A task that runs again after its output was lost may make other records, which others have half of already (ADR-81).
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    # Those others may have ended within the same query: what is broadcast is the result of a job of its own.
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "true",
}
"""Since Spark 4.2. An earlier one takes any property that it does not know, and ignores it."""

FRAMES_SAFETY: Mapping[str, str] = {**WRITER_SAFETY, **SHUFFLE_SAFETY}
"""What nobody switches off in drivers that evaluate chains."""

_OF_NOW = re.compile(r"\b(current_timestamp|current_date|current_time|now|localtimestamp|localtime)\(", re.IGNORECASE)
"""Deterministic to Spark within one query, and another value in the next."""


def check_safety(session: Any) -> None:
    """Refuse a Spark that would not keep apart what a task made, and what it made when it ran again.

    Raises `ConfigurationError`.
    """
    if unknown := [name for name in SHUFFLE_SAFETY if not session.conf.isModifiable(name)]:
        raise ConfigurationError(
            f"Spark {session.version} does not know {', '.join(unknown)}, so a task that it runs again after the loss of an "
            "executor could mix records of two computations. Operators of mode 'dataframe' need Spark 4.2 or later: install "
            "pyspark>=4.2 (with pyspark-client of the same version, if that is installed), or set SPARK_HOME to a later Spark"
        )


def check_repeatable(outputs: Mapping[str, SparkFrame]) -> None:
    """Raises `OperatorFailed` if Spark knows that an output would not be the same if it was computed twice.

    Each output is written by a job of its own, so that records would be in two of them, or in none. What a Python function
    returns Spark takes for determined by its arguments, unless its author says `asNondeterministic`.
    """
    for port, frame in outputs.items():
        plan, is_deterministic = analyzed(frame)
        of_now = _OF_NOW.search(plan)
        if of_now or not is_deterministic:
            what = f"{of_now[1]}()" if of_now else "something random"
            raise OperatorFailed(
                f"output port {port!r}, one of {len(outputs)}, depends on {what}: outputs are computed one by one, so a "
                "record could be in two of them, or in none. Let an operator with one output compute that before: its "
                "records are written once, and can be divided then"
            )
