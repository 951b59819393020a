"""The Spark session of a group: made in the background when the group has an operator that needs it (decision 7)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)

DEFAULT_CONF: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Batches come as Arrow tables and go back as Arrow tables: no row of them belongs into a literal relation, which is
    # parsed, planned and collected on the heap.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    # A job is one batch of a few hundred thousand records: re-planning between stages costs more than it finds.
    "spark.sql.adaptive.enabled": "false",
}


class SparkSessions:
    """Starts the session once, in a thread of its own; `get` waits for it."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._session: Any = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start making the session; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._make, name="logio-spark", daemon=True)
            self._thread.start()

    def get(self) -> Any:
        """The session, after one trivial job: class loading and code generation are paid for."""
        self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._session

    def is_ready(self) -> bool:
        return self._session is not None

    def failed(self) -> bool:
        return self._error is not None

    def _make(self) -> None:
        started = time.monotonic()
        try:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.appName(self._application)
            session = builder.getOrCreate()
            for name, value in DEFAULT_CONF.items():
                if name.startswith("spark.sql.") and session.conf.get(name, None) in (None, ""):
                    session.conf.set(name, value)
            log.info("Spark session ready after %.1f s", time.monotonic() - started)
            self._session = session
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()


def partitions_for(session: Any) -> int:
    """How many partitions a batch gets: one on a small local master, where an exchange costs more than a second core."""
    parallelism = int(session.sparkContext.defaultParallelism)
    return 1 if parallelism <= 2 else parallelism
