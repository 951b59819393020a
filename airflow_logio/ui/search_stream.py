"""An answer that takes long, as server-sent events: how far the search is, the answer so far, then all of it or an error.

A search has one thread, which ends soon after the connection does: Starlette cancels a response whose client has gone. All
that a search takes is taken and given back in one call of the response: nothing is left of a response that no one awaits.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from anyio import CapacityLimiter, Event, create_task_group, move_on_after, to_thread
from fastapi import HTTPException
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.lineage.search_limits import SearchStopped
from airflow_logio.lineage.why_not import WhyNot
from airflow_logio.ui.log_source import TooManyAsk
from airflow_logio.ui.told_search import EVERY_SECONDS, ToldSearch

MOST_STREAMS = 2
"""Long searches at a time: each has a thread, and one connection to the log beside those of `log_source.MOST_ASKING`. So
neither looks at runs nor steps of searches by values wait for one."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx hands on what it gets at once
}
log = logging.getLogger(__name__)


class Streams:
    """The searches of one server that are under way. For its event loop alone."""

    def __init__(self) -> None:
        self._under_way: set[ToldSearch] = set()
        self._is_closed = False

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def take_place(self, search: ToldSearch) -> None:
        """One of the few. Raises `TooManyAsk`, and `LogUnavailable` once the server is shutting down."""
        if self._is_closed:
            raise LogUnavailable("this server is shutting down")
        if self.under_way >= MOST_STREAMS:
            raise TooManyAsk(
                f"{MOST_STREAMS} long searches through records are under way: try again when one has ended"
            )
        self._under_way.add(search)

    def give_back(self, search: ToldSearch) -> None:
        """Its place, if it has one."""
        self._under_way.discard(search)

    def stop(self) -> None:
        """End them all, and let none begin: the server is shutting down."""
        self._is_closed = True
        for one in self._under_way:
            one.stop()


class SearchStream(StreamingResponse):
    """Searches when it is awaited. Raises `TooManyAsk` or `LogUnavailable` then, before anything is sent.

    `search` finds the answer in a thread; `refused` has the status and the sentence of what it raises.
    """

    def __init__(
        self,
        streams: Streams,
        told: ToldSearch,
        search: Callable[[], WhyNot],
        refused: Callable[[LogioError], tuple[int, str]],
    ) -> None:
        super().__init__(self._events(), headers=HEADERS, media_type="text/event-stream")
        self._streams, self._told, self._search, self._refused = streams, told, search, refused
        self._ended: Event
        self._last = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ended = Event()  # of the event loop, in which it was perhaps not made
        self._streams.take_place(self._told)
        try:
            async with create_task_group() as group:  # it waits for the thread, however the response ends
                group.start_soon(self._find)
                try:
                    await super().__call__(scope, receive, send)
                except ClientDisconnect:
                    pass  # as servers of ASGI 2.4 say it, where earlier ones send a message: no one waits any more
                finally:
                    self._told.stop()
        finally:
            self._streams.give_back(self._told)

    async def _find(self) -> None:
        """In a thread beside those that all requests share."""
        self._last = await to_thread.run_sync(self._found, limiter=CapacityLimiter(1))
        self._streams.give_back(self._told)  # a client may take its time to read what was found
        self._ended.set()

    def _found(self) -> bytes:
        """The last event."""
        try:
            return _event("answer", self._told.told(self._search()))
        except SearchStopped:
            return _refusal(503, "the search was stopped: this server is shutting down; ask again in a moment")
        except HTTPException as error:
            return _refusal(error.status_code, error.detail)
        except LogioError as error:
            return _refusal(*self._refused(error))
        except Exception:
            log.exception("A search of the page of LOG.io has failed")
            return _refusal(500, "the search has failed; why is in the log of this server")

    async def _events(self) -> AsyncIterator[bytes]:
        answer = None
        while not self._ended.is_set():
            if self._told.answer is not answer:
                answer = self._told.answer
                yield _event("so_far", answer)
            yield _event("progress", self._told.progress())  # the first one at once, and one whenever nothing is new
            with move_on_after(EVERY_SECONDS):
                await self._ended.wait()
        yield self._last


def _refusal(status: int, detail: str) -> bytes:
    return _event("refused", {"status": status, "detail": detail})


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
