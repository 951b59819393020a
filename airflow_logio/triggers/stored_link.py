"""Links of a task that is still running: stored at once, because each recovery brings another address."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from airflow_logio._compat import store_link

log = logging.getLogger(__name__)

SPARK_UI_KEY, MANAGER_KEY = "_link_LogioSparkUi", "_link_LogioClusterManager"
"""Where Airflow looks for the links, among the XComs of the task."""
RETRY_SECONDS = 30.0


class StoredLink:
    """A link of one task instance, by its key; None stores nothing. It never waits for Airflow's answer.

    An empty address is stored only after another one was: the segment of the task before has stored what it saw last. After
    a restart of the triggerer, the address of a dead driver stays until the next one reports.
    """

    def __init__(self, task_instance: Any | None, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._task_instance = task_instance
        self._key = key
        self._clock = clock
        self._stored = ""
        self._asked: tuple[str, Future[None]] | None = None
        self._not_before = 0.0

    def lead_to(self, address: str) -> None:
        """Call it with each look: it stores an address that is new, and tries again after a refusal."""
        self._settle()
        if self._task_instance is None or self._asked is not None or address == self._stored:
            return
        if self._clock() >= self._not_before:
            self._asked = address, store_link(self._task_instance, self._key, address)

    def _settle(self) -> None:
        if self._asked is None or not self._asked[1].done():
            return
        address, answer = self._asked
        self._asked = None
        error = answer.exception()
        if error is None:
            self._stored = address
            return
        self._not_before = self._clock() + RETRY_SECONDS
        log.warning("Airflow does not store link %s, trying again in %g s: %s", self._key, RETRY_SECONDS, error)


class StoredLinks:
    """The links of a group's task that change with its driver."""

    def __init__(self, task_instance: Any | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._spark_ui = StoredLink(task_instance, SPARK_UI_KEY, clock)
        self._manager = StoredLink(task_instance, MANAGER_KEY, clock)

    def lead_to(self, spark_ui: str, manager_page: str) -> None:
        """As `StoredLink`."""
        self._spark_ui.lead_to(spark_ui)
        self._manager.lead_to(manager_page)
