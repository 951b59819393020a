"""The page's web application: JSON of one log, for those who may see it. What changes a run is a POST (`actions`).

Every route knows its user (`Access`), and runs of a DAG are only for readers of that DAG: 401, 403, and 404 for what is not
there. A log that does not answer is 503.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from airflow_logio.errors import LogioError, LogUnavailable, RunRemoved, UnknownRun
from airflow_logio.launch.driver_log import sent_lines
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.run_report.report import Report
from airflow_logio.ui.access import Access
from airflow_logio.ui.actions import ActionRoutes, Retrying, RunActions
from airflow_logio.ui.lineage_routes import LineageRoutes
from airflow_logio.ui.list_routes import JSON, ListRoutes, WaitingRuns, WhyNoRun, age, json_answer
from airflow_logio.ui.looks import LogSource, RunLook, TooManyAsk
from airflow_logio.ui.page_places import served
from airflow_logio.ui.record_documents import RecordsOutOfReach
from airflow_logio.ui.run_history import panel_document, printing
from airflow_logio.ui.searches import Streams

MOST_LINES = 200
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
NEVER_KEPT = "no-store"
KEPT_FOR_EVER = "private, max-age=31536000, immutable"
AGAIN_SECONDS = 60.0
"""After so long the same reason is logged again: each viewer asks every two seconds."""
log = logging.getLogger(__name__)


def create_app(
    source: LogSource,
    access: Access,
    retrying: Retrying,
    *,
    changed: LogSource | None = None,
    payloads: Callable[[], Elsewhere | None] = lambda: None,
    history_url: str = "",
    why_no_run: WhyNoRun = lambda _store, _dag_id, _dag_run_id: None,
    waiting: WaitingRuns = lambda _dag_ids: (),
    is_of_one_person: bool = False,
) -> FastAPI:
    """`changed`: the log as actions open it, if with another role. `payloads`: where bodies are that are not in the log.
    `history_url`: address of a Spark history server, empty for none. `why_no_run` explains a DAG run without a run;
    `waiting` lists those whose input is not there yet.

    `is_of_one_person`: the server belongs to the person that started it and may read the log. Then answers say what is
    wrong with the log; else only the log of the server does. The built files have no data in them, and need no user then.
    """
    app = FastAPI(title="LOG.io", docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(secured)
    refusals = Refusals(says_why=is_of_one_person)
    app.add_exception_handler(LogioError, refusals.answer)
    app.state.streams = Streams()
    user = Depends(access.user)

    def readable(uid: str, who: Any) -> RunLook:
        look = source.look(uid)
        if not access.may_read(who, look.dag_id):
            raise HTTPException(403, "you may not read the DAG of this run")
        return look

    @app.get("/api/runs/{uid}")
    def run(uid: str, who: Any = user) -> Response:
        look = readable(uid, who)
        errors_shown = access.may_read_output(who, look.dag_id)
        ids_shown = not look.has_ids or access.may_read_data(who, look.dag_id)
        return Response(look.encoded(errors=errors_shown, ids=ids_shown), media_type=JSON, headers=age(look.at))

    @app.get("/api/runs/{uid}/groups/{group}")
    def group(uid: str, group: str, who: Any = user) -> Response:
        look = readable(uid, who)
        may_read_output = access.may_read_output(who, look.dag_id)
        ids_shown = partial(access.may_read_data, who, look.dag_id)
        panel = panel_document(look.report, group, history_url, errors_shown=may_read_output, ids_shown=ids_shown)
        return json_answer(
            {**panel, "lines": lines_of(source, look.report, group) if may_read_output else None}, seen_at=look.at
        )

    @app.get("/api/runs/{uid}/rights")
    def rights(uid: str, who: Any = user) -> Response:
        look = readable(uid, who)
        told = retrying.told if access.may_retry(who, look.dag_id) else None
        may_change, data = access.may_change(who, look.dag_id), access.may_read_data(who, look.dag_id)
        return json_answer({"change": may_change, "data": data, "retry": told, "puts_back": retrying.puts_back})

    ListRoutes(source, access, why_no_run, waiting).add_to(app)
    ActionRoutes(changed or source, access, RunActions(retrying), readable).add_to(app)
    LineageRoutes(source, access, payloads, readable, refusals.said, app.state.streams).add_to(app)

    @app.get("/assets/{name}", dependencies=[] if is_of_one_person else [user])
    def asset(name: str) -> Response:
        return asset_response(name)

    return app


def lines_of(source: LogSource, report: Report, group: str) -> list[str] | None:
    """What its driver has sent to the log, without secrets: no file is opened here because the log names it."""
    status = printing(report, group)
    if status is None:
        return None
    with source.asking() as log:
        return sent_lines(log.store, report.run, status, MOST_LINES)


def asset_response(name: str) -> Response:
    """A built file of the page, by the name under which it is served."""
    path = served().get(name)
    if path is None:
        raise HTTPException(404, "there is no such file")
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": KEPT_FOR_EVER})


async def secured(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Every answer has the headers that keep a browser from doing more with it than the page needs."""
    response = await call_next(request)
    response.headers.setdefault("Cache-Control", NEVER_KEPT)
    for name, value in SECURITY_HEADERS.items():
        response.headers[name] = value
    return response


class Refusals:
    """What the page answers when the log, or the payload store, refuses.

    Reasons name the database's host, role and path. With `says_why` the answer has them, else only the server's log.
    """

    def __init__(self, *, says_why: bool) -> None:
        self._says_why = says_why
        self._logged: tuple[float, str] | None = None

    async def answer(self, _request: Request, error: Exception) -> Response:
        """For a `LogioError`, before anything else was answered."""
        status, detail = self.said(error)
        return JSONResponse({"detail": detail}, status)

    def said(self, error: Exception) -> tuple[int, str]:
        """404, 500 or 503 for a `LogioError`, and the sentence with it. The payload store has sentences of its own."""
        if isinstance(error, RunRemoved):
            return 404, f"this run {error.when}"  # not which: whether the person may read its DAG was not asked
        if isinstance(error, UnknownRun):
            return 404, "there is no such run, or no such group in it"
        if isinstance(error, TooManyAsk):
            return 503, str(error)
        if isinstance(error, RecordsOutOfReach):
            return error.status, self._out_of_reach(error)
        status = 503 if isinstance(error, LogUnavailable) else 500
        if self._says_why:
            return status, f"the log cannot be read: {error}"
        self._log(f"the log: {error}")
        return status, "the log cannot be read; why is in the log of this server"

    def _out_of_reach(self, error: RecordsOutOfReach) -> str:
        if not error.reason:
            return str(error)
        if self._says_why:
            return f"{error} ({error.reason})"
        self._log(f"the payload store: {error.reason}")
        return f"{error}. What is wrong is in the log of this server"

    def _log(self, reason: str) -> None:
        now = time.monotonic()
        if self._logged is None or self._logged[1] != reason or now - self._logged[0] >= AGAIN_SECONDS:
            self._logged = now, reason
            log.error("The page of LOG.io cannot read %s", reason)
