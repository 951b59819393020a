"""Waiting for a log database, or a payload store, that is unavailable (hole H10): bounded retries with back-off, then the
last error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from airflow_logio.errors import LogUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a driver waits for its database before it gives up, and how often it asks."""

    total_seconds: float = 900.0
    first_wait_seconds: float = 0.05
    longest_wait_seconds: float = 2.0
    waits_for: str = "the log database"
    """What is said to be unavailable meanwhile."""

    def call(self, what: str, action: Callable[[], T], *, still_wanted: Callable[[], bool] = lambda: True) -> T:
        """Run `action` until it does not raise `LogUnavailable`. When patience or interest ends, raise the last
        error."""
        patience_ends = tenacity.stop_after_delay(self.total_seconds)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(LogUnavailable),
            wait=tenacity.wait_exponential(self.first_wait_seconds, self.longest_wait_seconds)
            + tenacity.wait_random(0, self.first_wait_seconds),
            stop=lambda state: not still_wanted() or patience_ends(state),
            before_sleep=self._reporting(what),
            reraise=True,
        )
        return retrying(action)

    def _reporting(self, what: str) -> Callable[[tenacity.RetryCallState], None]:
        def report(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if state.attempt_number in (1, 10) or state.attempt_number % 30 == 0:
                log.warning("%s: waiting for %s (attempt %d): %s", what, self.waits_for, state.attempt_number, error)

        return report
