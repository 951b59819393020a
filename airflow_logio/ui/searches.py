"""Searches that take long, answered as server-sent events: the progress, the answer so far, then all of it or an error.

A search has one thread, which ends soon after the connection does: Starlette cancels a response whose client has gone. One
call of the response takes everything that a search needs, and gives it back: an abandoned response leaves nothing behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from anyio import CapacityLimiter, Event, create_task_group, move_on_after, to_thread
from fastapi import HTTPException
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.lineage.search_limits import SearchedSoFar, SearchStopped
from airflow_logio.lineage.why_not import AnswerWatch, WhyNot
from airflow_logio.ui.looks import TooManyAsk

MOST_STREAMS = 2
"""Long searches at a time: each has a thread, and one connection to the log beside those of `looks.MOST_ASKING`. So
neither looks at runs nor steps of searches by values wait for one."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx hands on what it gets at once
}
EVERY_SECONDS = 0.2
"""Seconds between two events of progress: a picture that follows, and a request that costs the server little."""
AT_ONCE = 50
"""How many times a growing answer is made at once; from then on as often as it is told. A group may have a thousand slots."""
log = logging.getLogger(__name__)


class Streams:
    """The searches of one server that are under way. For its event loop alone."""

    def __init__(self) -> None:
        self._under_way: set[WatchedSearch] = set()
        self._is_closed = False

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def take_place(self, search: WatchedSearch) -> None:
        """One of the few. Raises `TooManyAsk`, and `LogUnavailable` once the server is shutting down."""
        if self._is_closed:
            raise LogUnavailable("this server is shutting down")
        if self.under_way >= MOST_STREAMS:
            raise TooManyAsk(
                f"{MOST_STREAMS} long searches through records are under way: try again when one has ended"
            )
        self._under_way.add(search)

    def give_back(self, search: WatchedSearch) -> None:
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
        told: WatchedSearch,
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


class WatchedSearch(AnswerWatch):
    """One search as two threads see it. The search calls `looks`, `grows` and `is_stopped`; the thread that tells of its
    progress, and may end it, calls the others.

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
        """What is known of the answer; a new value each time that more is known."""

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
