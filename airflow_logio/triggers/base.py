"""Bases of the triggers: plain arguments, and a share in the one poller of the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from airflow_logio._compat import BaseTrigger
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import SupervisorNote
from airflow_logio.triggers.log_poller import LogLook, Share, Watch, join

_T = TypeVar("_T")
SETTLING_SECONDS = 10.0
"""Time for an executor to report that the worker has ended which deferred the task: seconds, on a busy machine."""
LAST_TRY_FACTOR = 2
"""A task that has no other try waits longer: the report may be late, and then the try is the run's."""


class PlainTrigger(BaseTrigger):
    """Made of plain arguments. With `last_try`, Airflow would not try the task again by itself."""

    arguments: ClassVar[tuple[str, ...]]
    """Names of the constructor's arguments. All are plain data, and each is kept in the attribute of the same name."""

    def __init__(self, *, last_try: bool = False) -> None:
        super().__init__()
        self.last_try = last_try
        self._made_at = time.monotonic()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path, and the arguments that create an equal trigger in another process."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in self.arguments}

    async def _settled(self) -> None:
        """Wait until the task may be woken without the loss of a try.

        A task that is back with its executor, before the scheduler has read what the executor reports of its last segment,
        counts as killed from outside.
        """
        patience = SETTLING_SECONDS * (LAST_TRY_FACTOR if self.last_try else 1)
        left = self._made_at + patience - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)


class LogTrigger(PlainTrigger):
    """Looks at a log once per `poll_interval` seconds. A connection id names the database."""

    def __init__(self, logio_conn_id: str, poll_interval: float, *, last_try: bool = False) -> None:
        super().__init__(last_try=last_try)
        if poll_interval <= 0:
            raise ValueError(f"poll_interval is {poll_interval}; it must be above 0 seconds")
        self.logio_conn_id = logio_conn_id
        self.poll_interval = float(poll_interval)
        self._share: Share | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, given = super().serialize()
        return path, {"logio_conn_id": self.logio_conn_id, "poll_interval": self.poll_interval, **given}

    async def cleanup(self) -> None:
        """Leave the poller. This says nothing about what is watched: a restart of the triggerer calls it, too."""
        share, self._share = self._share, None
        if share is not None:
            share.leave()

    async def _seen(
        self,
        see: Callable[[LogLook], _T | None],
        *,
        uid: str | None = None,
        all_runs: bool = False,
        figures: bool = False,
        note: SupervisorNote | None = None,
        output: bool = False,
        place: bool = False,
    ) -> _T:
        """The first answer of `see`, which is called in a thread with each look. Raises what opening the log raises, and
        what `see` raises."""
        watch = Watch(see, self.poll_interval, uid, all_runs, figures, note, output=output, place=place)
        found: _T = await asyncio.wrap_future(self._in_poller().watch(watch))
        return found

    async def _in_thread(self, act: Callable[[LogStore], _T]) -> _T:
        """What `act` returns or raises. If the waiting task is cancelled, the thread continues."""
        return await asyncio.shield(asyncio.wrap_future(self._in_poller().act(act)))

    def _in_poller(self) -> Share:
        if self._share is None:
            self._share = join(self.logio_conn_id)
        return self._share
