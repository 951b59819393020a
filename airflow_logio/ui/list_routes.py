"""The routes of lists: all runs, and the days of a pipeline as a calendar, of the DAGs that a reader may read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Response

from airflow_logio.errors import ConfigurationError, UnknownRun
from airflow_logio.run_report.calendar import calendar_document
from airflow_logio.store.port import LogStore
from airflow_logio.ui.access import NO_NUL, Access
from airflow_logio.ui.looks import CalendarAsked, ListAsked, LogSource, list_document

LONGEST_NAME = 250
"""Characters of a DAG's or a DAG run's id, as Airflow has them, or of a part of a name that is looked for."""
JSON = "application/json"
WhyNoRun = Callable[[LogStore, str, str], str | None]
"""Of a DAG and a DAG run, for which the log has no run: why, and what to do; None where that is not known."""
WaitingRuns = Callable[[Collection[str] | None], Sequence[Mapping[str, str]]]
"""Of DAGs, or of all (None): their DAG runs that have no run yet, because they wait for its input, each with what that is."""
_Name = Annotated[str | None, Query(max_length=LONGEST_NAME, pattern=NO_NUL)]


class ListRoutes:
    """`why_no_run` explains a DAG run without a run; `waiting` lists those whose input is not there yet."""

    def __init__(self, source: LogSource, access: Access, why_no_run: WhyNoRun, waiting: WaitingRuns) -> None:
        self._source = source
        self._access = access
        self._why_no_run = why_no_run
        self._waiting = waiting

    def add_to(self, app: FastAPI) -> None:
        user = Depends(self._access.user)

        @app.get("/api/runs")
        def runs(
            who: Any = user,
            dag_id: _Name = None,
            dag_run_id: _Name = None,
            named: str | None = Query(None, min_length=1, max_length=LONGEST_NAME, pattern=NO_NUL),
            pipeline: _Name = None,
            partition: _Name = None,
        ) -> Response:
            access = self._access
            if dag_id is None:
                allowed = access.readable(who)
            elif access.may_read(who, dag_id):
                allowed = [dag_id]
            else:
                raise HTTPException(403, "you may not read this DAG")
            dag_ids = None if allowed is None else frozenset(allowed)
            listed = self._source.listed(ListAsked(dag_ids, dag_run_id, named, pipeline, partition))
            note = None if listed.runs else self._why(dag_id, dag_run_id)
            said: dict[str, Any] = {} if note is None else {"note": note}
            if dag_run_id is named is pipeline is None:  # the list as a whole
                said["waiting"] = self._waiting(dag_ids)
            return json_answer(
                {**list_document(listed, partial(access.may_read_output, who)), **said}, seen_at=listed.at
            )

        @app.get("/api/days")
        def days(
            who: Any = user,
            pipeline: str = Query(max_length=LONGEST_NAME, pattern=NO_NUL),
            last: _Name = None,
        ) -> Response:
            try:
                found = self._source.calendar(CalendarAsked(pipeline, last))
            except UnknownRun:
                raise
            except ConfigurationError as error:  # a text that names no day
                raise HTTPException(422, str(error)) from error
            may_read = cache(partial(self._access.may_read, who))
            if not any(map(may_read, found.dag_ids)):
                raise UnknownRun("this reader may see none of its runs")
            document = calendar_document(found, may_read, partial(self._access.may_read_output, who))
            return json_answer(document, seen_at=found.at)

    def _why(self, dag_id: str | None, dag_run_id: str | None) -> str | None:
        if dag_id is None or dag_run_id is None:
            return None
        with self._source.asking() as log:
            return self._why_no_run(log.store, dag_id, dag_run_id)


def json_answer(content: Any, *, seen_at: float | None = None) -> Response:
    """`seen_at`: when the log was looked at, by this machine's clock."""
    return Response(msgspec.json.encode(content), media_type=JSON, headers=None if seen_at is None else age(seen_at))


def age(seen_at: float) -> dict[str, str]:
    """How old the answer is when it leaves, in whole seconds: a shared look may be older than the request."""
    return {"Age": f"{max(0.0, time.time() - seen_at):.0f}"}
