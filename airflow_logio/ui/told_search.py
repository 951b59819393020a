"""One search as two threads see it: one searches, the other one tells a person how far it is, and may end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_logio.lineage.search_limits import SearchedSoFar
from airflow_logio.lineage.why_not import AnswerWatch, WhyNot

EVERY_SECONDS = 0.2
"""So often a person is told: a picture that follows, and a request that costs the server little."""
AT_ONCE = 50
"""So many times an answer that grows is made at once, and then as often as it is told: a group may have a thousand slots."""


class ToldSearch(AnswerWatch):
    """The search calls `looks`, `grows` and `is_stopped`; the one who tells of it calls the others, from another thread.

    `document` makes of an answer, and the seconds that it has taken, what is told of it.
    """

    def __init__(self, document: Callable[[WhyNot, float], dict[str, Any]]) -> None:
        self._document = document
        self._begun = time.monotonic()
        self._stopped = threading.Event()
        self._made = 0
        self._made_at = 0.0
        self._so_far: SearchedSoFar | None = None
        self._grown: Callable[[], WhyNot] | None = None
        """More is known than `answer` says."""
        self.answer: dict[str, Any] | None = None
        """Of the answer, what is known of it; a new one each time that more is known."""

    def looks(self, so_far: SearchedSoFar) -> None:
        self._so_far = so_far
        self._make()

    def grows(self, so_far: Callable[[], WhyNot]) -> None:
        self._grown = so_far
        self._make()

    def _make(self) -> None:
        """The answer as it is now, unless one was made a moment ago: then at one of the next calls."""
        if self._grown is None or (self._made >= AT_ONCE and time.monotonic() - self._made_at < EVERY_SECONDS):
            return
        self.answer = self.told(self._grown())
        self._grown = None
        self._made += 1
        self._made_at = time.monotonic()

    def told(self, answer: WhyNot) -> dict[str, Any]:
        return self._document(answer, time.monotonic() - self._begun)

    def progress(self) -> dict[str, Any] | None:
        """How far the search of a port has come; None before the first one."""
        one = self._so_far
        if one is None:
            return None
        return {"port": str(one.port), "slot": one.slot, "searched": one.searched, "sent": one.sent, "found": one.found}

    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the search at its next event."""
        self._stopped.set()
