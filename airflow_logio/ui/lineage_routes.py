"""The routes of lineage: each answers one click, with a bounded question. Records need the right to data, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import BoundedSemaphore
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Response
from pydantic import Field

from airflow_logio.commands import with_log
from airflow_logio.errors import LineageUnknown, LogioError
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.lineage.why_not import WhyNot, why_not
from airflow_logio.protocol.replicas import MAX_SLOTS
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.result import Direction
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LARGEST
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.access import LONGEST_GIVEN, NO_NUL, Access, Posted, Text, decoded, posted_after
from airflow_logio.ui.lineage_documents import (
    LIMITS,
    MOST_EVENTS,
    MOST_FOUND,
    Sought,
    event_node,
    found_document,
    held_document,
    ports_document,
    read_node,
    records_document,
    step_document,
    why_not_document,
)
from airflow_logio.ui.looks import LogSource, RunLook, TooManyAsk
from airflow_logio.ui.record_documents import PagePayloads, behind_document
from airflow_logio.ui.searches import SearchStream, Streams, WatchedSearch

MOST_CRITERIA = 20
MOST_SEARCHING = 2
"""Steps of searches through records at a time: some take seconds, and looks at runs need the log (`looks.MOST_ASKING`).
Searches for what is missing take longer, and have places of their own (`searches`)."""
MOST_WAITING = 2
WAIT_SECONDS = 1.0
"""How many more searches wait for a place, and how long: a step takes less. Each of them has a thread of the server."""
Number = Annotated[int, Query(ge=1, le=LARGEST)]
Place = Annotated[int, Query(ge=0, le=LARGEST)]
Numbers = Annotated[list[Annotated[int, Field(ge=1, le=LARGEST)]], Query(max_length=MOST_EVENTS)]
Name = Annotated[str, Query(max_length=LONGEST_GIVEN, pattern=NO_NUL)]


class SoughtEvents(Posted, frozen=True):
    """What is looked for on a port: one of the four."""

    port: Text
    event: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] | None = None
    input_set: Text | None = None
    at: Annotated[float, msgspec.Meta(ge=0, le=LARGEST)] | None = None
    """Seconds since the epoch: events that were logged from then on."""
    where: Annotated[dict[Text, Text], msgspec.Meta(min_length=1, max_length=MOST_CRITERIA)] | None = None
    """Column → value: of a record that the event holds."""
    before: (
        Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]], msgspec.Meta(max_length=MAX_SLOTS)] | None
    ) = None
    """Where a search by values continues: as its answer has said, a number for each port of the log."""
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_FOUND)] = MOST_FOUND
    """Events that a search by values is to find in this step."""


class MissingRecord(Posted, frozen=True):
    """A record that is not among the output of a port."""

    port: Text
    where: Annotated[dict[Text, Text], msgspec.Meta(min_length=1, max_length=MOST_CRITERIA)]


class LineageRoutes:
    """`payloads`: where bodies are that are not in the log. `readable` finds a run that a person may see. `refused` has
    status and sentence for an error of an answer that has begun; `streams` are the long searches."""

    def __init__(
        self,
        source: LogSource,
        access: Access,
        payloads: Callable[[], Elsewhere | None],
        readable: Callable[[str, Any], RunLook],
        refused: Callable[[LogioError], tuple[int, str]],
        streams: Streams,
    ) -> None:
        self._source = source
        self._access = access
        self._payloads = PagePayloads(payloads)
        self._readable = readable
        self._refused = refused
        self._streams = streams
        self._searches = BoundedSemaphore(MOST_SEARCHING)
        self._places = BoundedSemaphore(MOST_SEARCHING + MOST_WAITING)

    def add_to(self, app: FastAPI) -> None:
        self._add_looks(app)
        self._add_searches(app)

    def _add_looks(self, app: FastAPI) -> None:
        user = Depends(self._access.user)

        @app.get("/api/runs/{uid}/lineage")
        def ports(uid: str, who: Any = user) -> dict[str, Any]:
            with self._asking(self._readable(uid, who)) as (log, run):
                return ports_document(log, run)

        @app.get("/api/runs/{uid}/lineage/step")
        def step(
            uid: str,
            port: Name,
            event: Numbers,
            direction: Direction,
            who: Any = user,
        ) -> dict[str, Any]:
            look = self._readable(uid, who)
            with_data = self._access.may_read_data(who, look.dag_id)
            with self._asking(look) as (log, run):
                return step_document(log, run, direction, port, event, with_data=with_data)

        @app.get("/api/runs/{uid}/lineage/records")
        def records(uid: str, port: Name, event: Number, who: Any = user) -> dict[str, Any]:
            with self._asking(self._with_data(uid, who)) as (log, run):
                node = event_node(run, port, event)
                return records_document(log, run, node, self._payloads)

        @app.get("/api/runs/{uid}/lineage/behind")
        def behind(uid: str, port: Name, event: Number, place: Place, who: Any = user) -> dict[str, Any]:
            with self._searching(), self._asking(self._with_data(uid, who)) as (log, run):
                return behind_document(log, run, port, event, place, self._payloads)

        @app.get("/api/runs/{uid}/lineage/read")
        def read(uid: str, operator: Name, connection: Name, action: Number, who: Any = user) -> dict[str, Any]:
            with self._asking(self._with_data(uid, who)) as (log, run):
                node = read_node(operator, connection, action)
                return records_document(log, run, node, self._payloads)

    def _add_searches(self, app: FastAPI) -> None:
        """Posted, though they change nothing: values are data, and stand in no address."""
        user = Depends(self._access.user)
        given = Depends(posted_after(self._access.user))

        @app.post("/api/runs/{uid}/lineage/find")
        def find(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            look = self._readable(uid, who)
            it = decoded(raw, SoughtEvents)
            if [it.event, it.input_set, it.at, it.where].count(None) != 3:
                raise HTTPException(422, "give the number of an event, an Input Set, a time, or values of a record")
            if it.where is not None or it.input_set is not None:  # authors may make ids of values
                look = self._with_data(uid, who)
            if it.where is None:
                with self._asking(look) as (log, run):
                    return found_document(log, run, it.port, Sought(it.event, it.input_set, it.at))
            with self._searching(), self._asking(look) as (log, run):
                return held_document(log, run, it.port, it.where, it.before, self._payloads, it.most)

        @app.post("/api/runs/{uid}/lineage/why_not")
        def missing(uid: str, who: Any = user, raw: bytes = given) -> Response:
            look = self._with_data(uid, who)
            it = decoded(raw, MissingRecord)
            with _known(look):
                CapturedPorts(look.report.run).checked(it.port)
            return self._missing(look, it, errors_shown=self._access.may_read_output(who, look.dag_id))

    def _missing(self, look: RunLook, it: MissingRecord, *, errors_shown: bool) -> Response:
        """A long search holds none of the places of `asking`, and none of the searches in steps."""
        told = WatchedSearch(partial(why_not_document, log=look.report.log, errors_shown=errors_shown))

        def search() -> WhyNot:
            with _known(look):
                store, run = self._source.opened().store, look.report.run
                return why_not(store, run, it.port, it.where, self._payloads, LIMITS, told)

        return SearchStream(self._streams, told, search, self._refused)

    def _with_data(self, uid: str, who: Any) -> RunLook:
        look = self._readable(uid, who)
        if not self._access.may_read_data(who, look.dag_id):
            raise HTTPException(403, "you may not read the data of this DAG")
        return look

    @contextmanager
    def _searching(self) -> Iterator[None]:
        with _one_of(self._places, 0), _one_of(self._searches, WAIT_SECONDS):
            yield

    @contextmanager
    def _asking(self, look: RunLook) -> Iterator[tuple[LogStore, Run]]:
        """The log and the run as it is described now. Raises as `_known`."""
        with self._source.asking() as log, _known(look):
            yield log.store, look.report.run


@contextmanager
def _known(look: RunLook) -> Iterator[None]:
    """What is not there is 404, with the sentence of `logio lineage`."""
    try:
        yield
    except LineageUnknown as error:
        raise HTTPException(404, with_log(str(error), look.report.log)) from error


@contextmanager
def _one_of(places: BoundedSemaphore, seconds: float) -> Iterator[None]:
    """Raises `TooManyAsk` if none is free for so long."""
    if not (places.acquire(timeout=seconds) if seconds else places.acquire(blocking=False)):
        raise TooManyAsk(f"{MOST_SEARCHING} searches through records are under way: try again in a moment")
    try:
        yield
    finally:
        places.release()
