"""Learns of failures at once, where the log announces them (`LogStore.listen`). A missed bell costs one poll interval."""

from __future__ import annotations

import asyncio

from airflow_logio.store.port import Hearing, LogStore


class FailureBell:
    """`wait` returns after `seconds`, or when a failure is announced. For one event loop; nothing here blocks it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rung = asyncio.Event()
        self._hearing: Hearing | None = None

    def listen(self, store: LogStore) -> None:
        """Begin to listen, if the log supports it. Further calls cost nothing."""
        if self._hearing is not None:
            return
        loop = asyncio.get_running_loop()

        def ring() -> None:
            loop.call_soon_threadsafe(self._rung.set)

        self._hearing = store.listen(ring)

    async def wait(self) -> None:
        """Wait until the bell rings, at most `seconds`."""
        try:
            await asyncio.wait_for(self._rung.wait(), self._seconds)
        except TimeoutError:
            return
        self._rung.clear()

    def close(self) -> None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.close()
