"""Looks at a run repeatedly, through outages of the log, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_logio.cli.status.screens import Screen
from airflow_logio.errors import LogUnavailable
from airflow_logio.run_report.report import Report

FINISHING_SECONDS = 30.0
"""How long to wait for a run to be marked as finished after all its groups have finished."""


def watch(
    look: Callable[[], Report],
    screen: Screen,
    interval: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Look and show every `interval` seconds; returns when the run has ended. Raises `UnknownRun`."""
    finishing_since: float | None = None
    away_since: float | None = None
    while True:
        try:
            report = look()
        except LogUnavailable as error:
            away_since = time.time() if away_since is None else away_since
            screen.away(away_since, error)
        else:
            away_since = None
            screen.show(report)
            if report.has_ended:
                return
            if not report.is_finishing:
                finishing_since = None
            elif finishing_since is None:
                finishing_since = clock()
            elif clock() - finishing_since >= FINISHING_SECONDS:
                return
        sleep(interval)
