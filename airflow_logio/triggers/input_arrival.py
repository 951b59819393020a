"""`LogioInputTrigger`: waits in the triggerer until the input of a run may be there.

The task has the last word: it looks again when it is woken. So the triggerer may look wherever it runs, and what it sees is
only a reason to wake the task. That something is *not* there it believes where it sees what the worker sees: on its machine,
as its user, in its container. Elsewhere, and for what is no local file, it wakes the task now and then to look itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from airflow_logio._compat import TriggerEvent
from airflow_logio.dataflow.sources.arrival import Awaited
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.launch.surroundings import machine_of_this_process
from airflow_logio.triggers.base import PlainTrigger

LOOK_SECONDS = 15.0
"""Between two looks at files."""
BELIEVED_SECONDS = 3600.0
"""After that the task looks itself all the same."""
LEAST_SECONDS, MOST_SECONDS, PART = 60.0, 300.0, 20
"""Between two looks of the task itself: a twentieth of the time that it has waited for, within these bounds. Each needs a
worker."""
ANSWER_SECONDS = 30.0
"""A file system that answers later than this is left to the task."""

_looking = ThreadPoolExecutor(8, thread_name_prefix="logio looks for input")
"""A file system may hang. Those that wait for it must not fill the event loop's own executor, which others need."""


class LogioInputTrigger(PlainTrigger):
    """Fires one event, ``{"why": ...}``, when the task is to look.

    :param places: (kind, path) of what is waited for in file systems; None if that would not tell all.
    :param machine: that of the worker (`surroundings.machine_of_this_process`).
    :param since: when the wait has begun, in seconds since the epoch.
    :param until: when it is over.
    :param last_try: whether Airflow would not try the task again by itself.
    """

    arguments = ("places", "machine", "since", "until", "last_try")

    def __init__(
        self,
        *,
        places: Sequence[Sequence[str]] | None,
        machine: Sequence[str],
        since: float,
        until: float,
        last_try: bool = False,
    ) -> None:
        super().__init__(last_try=last_try)
        self.places = None if places is None else [list(place) for place in places]
        self.machine = list(machine)
        self.since = float(since)
        self.until = float(until)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is a reason to wake the task."""
        why = await self._reason()
        await self._settled()
        yield TriggerEvent({"why": why})

    async def _reason(self) -> str:
        places = [Awaited(kind, path) for kind, path in self.places or ()]
        sees_all = (
            bool(places) and all(place.is_local for place in places) and self.machine == machine_of_this_process()
        )
        wake_at = min(self.until, time.time() + BELIEVED_SECONDS) if sees_all else self._next_look()
        was_missing = sees_all
        while True:
            missing = await self._missing(places) if places else None
            if missing is False and was_missing:
                return "it is there"
            if missing is None:
                places, wake_at = [], min(wake_at, self._next_look())
            # What the worker does not see and this machine does was no news: another file system, perhaps.
            was_missing = was_missing or missing is True
            left = wake_at - time.time()
            if left <= 0:
                return "the time is over" if wake_at == self.until else "the task looks itself"
            await asyncio.sleep(min(left, LOOK_SECONDS))

    def _next_look(self) -> float:
        """When the task is to look itself."""
        now = time.time()
        return min(self.until, now + min(MOST_SECONDS, max(LEAST_SECONDS, (now - self.since) / PART)))

    async def _missing(self, places: Sequence[Awaited]) -> bool | None:
        """Whether something is not there; None if that cannot be told from here."""
        with suppress(ConfigurationError, ExternalUnavailable, TimeoutError):
            found = asyncio.get_running_loop().run_in_executor(_looking, _is_missing, places)
            return await asyncio.wait_for(found, ANSWER_SECONDS)
        return None


def _is_missing(places: Sequence[Awaited]) -> bool:
    return any(place.missing() is not None for place in places)
