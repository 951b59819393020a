"""Whether heartbeats can be written (`LogStore.check_heartbeats`)."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy.engine import Engine

from airflow_logio.errors import LogUnavailable
from airflow_logio.store.sql import beats
from airflow_logio.store.sql.beat_file import held
from airflow_logio.store.sql.engines import writing

CHECK_SECONDS = 1.0
"""For so long heartbeats that were found to be written count as written: shorter than any lease."""


class BeatCheck:
    """`is_alone`: heartbeats are in a file of their own."""

    def __init__(self, engine: Engine, *, is_alone: bool) -> None:
        self._engine = engine
        self._is_alone = is_alone
        self._asked_at = float("-inf")
        self._refused: LogUnavailable | None = None

    def check(self) -> None:
        """Raises `LogUnavailable`."""
        if time.monotonic() - self._asked_at >= CHECK_SECONDS:
            self._refused = self._refusal()
            self._asked_at = time.monotonic()
        if self._refused is not None:
            raise self._refused.with_traceback(None)  # it is raised again and again

    def _refusal(self) -> LogUnavailable | None:
        try:
            with writing(self._engine, durable=False) as connection:
                beats.check(connection)
        except LogUnavailable as error:
            return (held(Path(str(self._engine.url.database)), error) or error) if self._is_alone else error
        return None
