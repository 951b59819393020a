"""The page's web application: JSON of one log, for those who may see it. It only reads.

Every route asks who wants to know (`Access`), and runs of a DAG are only for readers of that DAG: 401, 403, and 404 for what
is not there. A log that does not answer is 503, with the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from airflow_logio.errors import LogioError, LogUnavailable, UnknownRun
from airflow_logio.ui.group_panel import panel_document
from airflow_logio.ui.log_source import LogSource
from airflow_logio.ui.looks import Looks, RunLook
from airflow_logio.ui.page_access import Access
from airflow_logio.ui.page_files import served
from airflow_logio.ui.run_list import listed_runs

LONGEST_NAME = 250
"""Characters of a DAG's or a DAG run's id, as Airflow has them."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
JSON = "application/json"
NEVER_KEPT = "no-store"
KEPT_FOR_EVER = "private, max-age=31536000, immutable"


def create_app(source: LogSource, access: Access, *, history_url: str = "", files_are_public: bool = False) -> FastAPI:
    """`history_url`: address of a Spark history server, empty for none. The built files have no data in them."""
    app = FastAPI(title="LOG.io", docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(secured)
    app.add_exception_handler(LogioError, _refused)
    user = Depends(access.user)

    def readable(looks: Looks, uid: str, who: Any) -> RunLook:
        look = looks.at(uid)
        if not access.may_read(who, look.dag_id):
            raise HTTPException(403, "you may not read the DAG of this run")
        return look

    @app.get("/api/runs")
    def runs(
        who: Any = user,
        dag_id: str | None = Query(None, max_length=LONGEST_NAME),
        dag_run_id: str | None = Query(None, max_length=LONGEST_NAME),
    ) -> Response:
        allowed = access.readable(who)
        if dag_id is not None:
            if not access.may_read(who, dag_id):
                raise HTTPException(403, "you may not read this DAG")
            allowed = [dag_id]
        with source.asking() as looks:
            return _json({"runs": listed_runs(looks.store, looks.log, allowed, dag_run_id=dag_run_id)})

    @app.get("/api/runs/{uid}")
    def run(uid: str, who: Any = user) -> Response:
        with source.asking() as looks:
            return Response(readable(looks, uid, who).encoded, media_type=JSON)

    @app.get("/api/runs/{uid}/groups/{group}")
    def group(uid: str, group: str, who: Any = user) -> Response:
        with source.asking() as looks:
            look = readable(looks, uid, who)
            with_lines = access.may_read_output(who, look.dag_id)
            return _json(panel_document(looks.store, look.report, group, history_url, with_lines=with_lines))

    @app.get("/assets/{name}", dependencies=[] if files_are_public else [user])
    def asset(name: str) -> Response:
        return asset_response(name)

    return app


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


async def _refused(_request: Request, error: Exception) -> Response:
    if isinstance(error, UnknownRun):
        return JSONResponse({"detail": "there is no such run, or no such group in it"}, 404)
    status = 503 if isinstance(error, LogUnavailable) else 500
    return JSONResponse({"detail": f"the log cannot be read: {error}"}, status)


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type=JSON)
