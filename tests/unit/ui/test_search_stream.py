"""A long search as a stream: it is told while it is found, over a socket, and ends with its connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.testclient import TestClient
from starlette.types import Message

from airflow_logio.errors import LogUnavailable
from airflow_logio.lineage.search_limits import SearchedSoFar, SearchStopped
from airflow_logio.lineage.why_not import WhyNot
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.payload_roots import payload_root
from airflow_logio.systems.payloads import Payloads
from airflow_logio.ui import lineage_routes, looks, searches
from airflow_logio.ui.alone import PageServer
from airflow_logio.ui.looks import LogSource
from airflow_logio.ui.searches import MOST_STREAMS, SearchStream, Streams, WatchedSearch
from airflow_logio.ui.web_app import create_app
from tests.support.gates import Gate
from tests.support.page_readers import Readers, Retries
from tests.support.served import served
from tests.support.streams import ends, events
from tests.support.waiting import eventually
from tests.unit.lineage.test_why_not import SALES, logged
from tests.unit.ui.conftest import OWNER

ASIDE = {"port": "hourly.out", "where": {"shop": "aside"}}


@pytest.fixture
def run(store: LogStore) -> Run:
    return logged(store).run


@pytest.fixture
def gate(store: LogStore, run: Run, sqlite_url: str) -> Gate:
    """Before the two newest events of `clean.out`, which the search reaches after `hourly.out`."""
    newest = {event: SALES[event] for event in (4, 5)}
    return Gate.before(store, run, "clean.out", newest, Payloads(payload_root(sqlite_url, None) or ""))


@pytest.fixture
def app(store: LogStore, readers: Readers, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """With one place each for those who ask the log, and who search in steps: who takes it holds up all others."""
    monkeypatch.setattr(looks, "MOST_ASKING", 1)
    monkeypatch.setattr(lineage_routes, "MOST_SEARCHING", 1)
    source = LogSource(lambda: store, "logio_default")
    return create_app(source, readers, Retries().retrying(), payloads=lambda: gate)


@pytest.fixture(params=["alone", "in Airflow"])
def server(app: FastAPI, request: pytest.FixtureRequest) -> PageServer:
    """As `logio ui` has it, and below what Airflow has before it: each hands on answers, and ends of connections."""
    served_app = app if request.param == "alone" else FastAPI()
    if served_app is not app:
        served_app.middleware("http")(handed_on)
        served_app.add_middleware(GZipMiddleware, minimum_size=1)
        served_app.mount("/", app)
    return PageServer(uvicorn.Config(served_app, log_level="warning"), app.state.streams)


async def handed_on(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return await call_next(request)


@pytest.fixture
def address(server: PageServer, gate: Gate) -> Iterator[str]:
    with served(server) as found:
        yield found
        gate.open()


@contextmanager
def asked(address: str, run: Run) -> Iterator[httpx.Response]:
    """The connection is closed at the end, whatever is left of the answer."""
    where = f"{address}/api/runs/{run.uid}/lineage/why_not"
    with httpx.Client(timeout=60) as client, client.stream("POST", where, json=ASIDE, headers=OWNER) as answer:
        yield answer


def test_it_is_told_while_it_is_found(address: str, run: Run, gate: Gate) -> None:
    with asked(address, run) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
        found = events(answer.iter_lines())
        so_far = next(data for name, data in found if name == "so_far")
        assert [one["said"] for one in so_far["searches"]] == [
            "hourly.out: no record has shop=aside (1 event searched)"
        ]
        at = next(data for name, data in found if name == "progress" and data["port"] == "clean.out")
        assert at == {"port": "clean.out", "slot": None, "searched": 0, "sent": 5, "found": 0}
        gate.await_reader()
        assert gate.read == ["event 5 of clean.out"], "the search is under way"
        gate.open()
        *_, (name, whole) = found
    assert name == "answer" and whole["searches"][0] == so_far["searches"][0]
    assert "it is quarantined: ValueError: no price" in whole["searches"][1]["met"][0]["said"]


def test_a_search_ends_with_its_connection_and_its_place_is_free(
    address: str, run: Run, gate: Gate, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, ended = app.state.streams, ends(monkeypatch)
    with asked(address, run) as left:
        assert left.status_code == 200
        gate.await_reader()
        with asked(address, run) as other:
            assert other.status_code == 200
            gate.await_reader()
            assert streams.under_way == MOST_STREAMS == 2
            with asked(address, run) as late:
                assert late.status_code == 503
                assert "2 long searches through records are under way" in late.read().decode()
    eventually(lambda: len(ended) == 2, what="the server has seen that the clients are gone")
    assert streams.under_way == 2, "a thread that cannot end yet keeps its place"
    gate.open()
    eventually(lambda: streams.under_way == 0)
    assert gate.read == ["event 5 of clean.out"] * 2, "neither has read on"
    with asked(address, run) as again:
        assert list(events(again.iter_lines()))[-1][0] == "answer"


def test_looks_and_steps_of_searches_do_not_wait_for_it(address: str, run: Run, gate: Gate) -> None:
    with asked(address, run) as answer:
        assert answer.status_code == 200
        gate.await_reader()
        lineage = f"{address}/api/runs/{run.uid}/lineage"
        assert httpx.get(lineage, headers=OWNER).status_code == 200
        found = httpx.post(f"{lineage}/find", json={"port": "hourly.out", "where": {"shop": "x"}}, headers=OWNER)
        assert (found.status_code, len(found.json()["events"])) == (200, 1)


def test_a_server_that_shuts_down_ends_it_and_says_so(server: PageServer, address: str, run: Run, gate: Gate) -> None:
    with asked(address, run) as answer:
        gate.await_reader()
        server.should_exit = True
        eventually(lambda: refuses(address), what="the server takes no more requests")
        gate.open()
        *_, (name, refused) = events(answer.iter_lines())
    assert (name, refused["status"]) == ("refused", 503)
    assert "this server is shutting down" in refused["detail"]
    assert gate.read == ["event 5 of clean.out"]


def refuses(address: str) -> bool:
    try:
        httpx.get(address)
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            LogUnavailable("role airflow at host db.internal"),
            503,
            "the log cannot be read; why is in the log of this server",
        ),
        (RuntimeError("db.internal"), 500, "the search has failed; why is in the log of this server"),
    ],
)
def test_an_error_after_the_beginning_has_the_sentence_of_one_before_it(
    client: TestClient,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
    said: str,
) -> None:
    def fail(*_: Any) -> WhyNot:
        raise error

    monkeypatch.setattr(lineage_routes, "why_not", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.post(f"/api/runs/{run.uid}/lineage/why_not", json=ASIDE, headers=OWNER)
    assert answer.status_code == 200
    assert list(events(answer.text.splitlines()))[-1] == ("refused", {"status": status, "detail": said})
    assert "db.internal" not in answer.text and "db.internal" in caplog.text


async def disconnected() -> Message:
    return {"type": "http.disconnect"}


def test_who_has_gone_before_the_first_byte_leaves_nothing_behind() -> None:
    streams, told = Streams(), WatchedSearch(lambda _answer, _seconds: {})

    def search() -> WhyNot:
        eventually(told.is_stopped)
        raise SearchStopped

    async def send(_message: Message) -> None:
        await anyio.sleep_forever()  # as to a client that takes nothing

    def response() -> SearchStream:
        return SearchStream(streams, told, search, lambda error: (500, str(error)))

    unheard = [response() for _ in range(MOST_STREAMS)]
    assert (streams.under_way, len(unheard)) == (0, MOST_STREAMS), "what no one awaits has taken nothing"
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(response(), scope, disconnected, send)
    assert streams.under_way == 0 and told.is_stopped()


def test_who_goes_is_no_error_where_the_server_says_it_by_one() -> None:
    """As servers of ASGI 2.4 and later do."""
    streams, told = Streams(), WatchedSearch(lambda _answer, _seconds: {})

    def search() -> WhyNot:
        eventually(told.is_stopped)
        raise SearchStopped

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("the client has gone")

    response = SearchStream(streams, told, search, lambda error: (500, str(error)))
    anyio.run(response, {"type": "http", "asgi": {"spec_version": "2.4"}}, disconnected, send)
    assert streams.under_way == 0 and told.is_stopped()


def test_who_reads_slowly_holds_no_place_once_the_search_has_ended() -> None:
    streams, reads = Streams(), anyio.Event()

    async def send(_message: Message) -> None:
        await reads.wait()

    async def connected() -> Message:
        await reads.wait()
        return await disconnected()

    def response() -> SearchStream:
        told = WatchedSearch(lambda _answer, _seconds: {})
        return SearchStream(streams, told, lambda: WhyNot(AuthoredPorts({})), lambda error: (500, str(error)))

    async def ask() -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        async with anyio.create_task_group() as group:
            group.start_soon(response(), scope, connected, send)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(60):
                while streams.under_way:
                    await anyio.sleep(0.01)
            reads.set()

    anyio.run(ask)


def test_a_search_that_comes_when_the_server_shuts_down_does_not_begin() -> None:
    streams, told = Streams(), WatchedSearch(lambda _answer, _seconds: {})
    streams.stop()
    late = SearchStream(streams, told, lambda: pytest.fail("it searches"), lambda error: (500, str(error)))

    async def send(_message: Message) -> None:
        pytest.fail("it answers")

    with pytest.raises(LogUnavailable, match="shutting down"):
        anyio.run(late, {"type": "http", "asgi": {"spec_version": "2.3"}}, disconnected, send)
    assert streams.under_way == 0


def test_an_answer_that_grows_fast_is_told_whole_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group has sixty-four slots, and the port after them takes half a minute."""
    told = WatchedSearch(lambda answer, _seconds: {"notes": list(answer.notes)})
    answer = WhyNot(AuthoredPorts({}))
    monkeypatch.setattr(searches, "EVERY_SECONDS", 3600.0)
    for slot in range(64):
        answer.notes.append(f"slot {slot}")
        told.grows(lambda: answer)
    assert told.answer is not None and len(told.answer["notes"]) == searches.AT_ONCE
    so_far = SearchedSoFar(Port("source", "out"), None, 1, 2, 0)
    told.looks(so_far)
    assert len(told.answer["notes"]) == searches.AT_ONCE, "a moment has not passed"
    monkeypatch.setattr(searches, "EVERY_SECONDS", 0.0)
    told.looks(so_far)
    assert len(told.answer["notes"]) == 64
