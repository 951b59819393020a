"""Base of the triggers: plain arguments, and one store that is opened late and closed in `cleanup`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from airflow_logio._compat import BaseTrigger
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run

_T = TypeVar("_T")


class LogTrigger(BaseTrigger):
    """Looks at a log once per `poll_interval` seconds. A connection id names the database."""

    arguments: ClassVar[tuple[str, ...]]
    """Names of the constructor's arguments. All are plain data, and each is kept in the attribute of the same name."""

    def __init__(self, logio_conn_id: str, poll_interval: float) -> None:
        super().__init__()
        if poll_interval <= 0:
            raise ValueError(f"poll_interval is {poll_interval}; it must be above 0 seconds")
        self.logio_conn_id = logio_conn_id
        self.poll_interval = float(poll_interval)
        self._store: LogStore | None = None
        self._threads: set[asyncio.Task[Any]] = set()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path, and the arguments that create an equal trigger in another process."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in ("logio_conn_id", "poll_interval", *self.arguments)}

    async def cleanup(self) -> None:
        """Close connections. This says nothing about what is watched: a restart of the triggerer calls it, too."""
        try:
            if self._threads:
                await asyncio.wait(self._threads)
        finally:
            store, self._store = self._store, None
            if store is not None:
                await asyncio.to_thread(store.dispose)

    async def _in_thread(self, act: Callable[[], _T]) -> _T:
        """What `act` returns or raises. If the waiting task is cancelled, the thread keeps running and may still open the
        log, so `cleanup` waits for it."""
        thread = asyncio.create_task(asyncio.to_thread(act))
        self._threads.add(thread)
        thread.add_done_callback(self._ended)
        return await asyncio.shield(thread)

    def _ended(self, thread: asyncio.Task[Any]) -> None:
        self._threads.discard(thread)
        if not thread.cancelled():
            thread.exception()  # no task may be left to retrieve it

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _open_log(self) -> LogStore:
        """Open the log. Raises `LogUnavailable`, and what a wrong connection raises."""
        self._store = LogioHook(self.logio_conn_id).get_store()
        return self._store

    def _open_run(self, uid: str) -> tuple[LogStore, Run]:
        """Open the log, and find the run. Raises `UnknownRun`, and what `_open_log` raises."""
        store = LogioHook(self.logio_conn_id).get_store()
        try:
            run = store.find_run(uid)
        except BaseException:
            store.dispose()
            raise
        self._store = store
        return store, run
