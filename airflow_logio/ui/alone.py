"""The page without Airflow: a web server on this machine only, for the person who started it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import closing
from html import escape

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from airflow_logio.errors import ConfigurationError
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.ui.access import TokenAccess
from airflow_logio.ui.actions import Retrying
from airflow_logio.ui.looks import LogSource
from airflow_logio.ui.page_places import ALONE, address
from airflow_logio.ui.searches import Streams
from airflow_logio.ui.web_app import create_app

LOOPBACK = "127.0.0.1"


def alone_app(
    source: LogSource,
    token: str,
    retrying: Retrying,
    payloads: Callable[[], Elsewhere | None] = lambda: None,
    changed: LogSource | None = None,
) -> FastAPI:
    """The page and its data. The page itself is for everyone on this machine, and has no data; the token opens those.

    The token comes in the fragment of the printed address, which no browser sends; the page sends it as a header. So other
    pages cannot ask in its name, as they could with a cookie. Addresses with another host name are refused: a name that an
    attacker lets point here would make the page his own.
    """
    app = create_app(source, TokenAccess(token), retrying, changed=changed, payloads=payloads, is_of_one_person=True)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])
    page = HTMLResponse(_page())
    app.add_api_route("/", lambda: page, methods=["GET"], response_class=HTMLResponse)
    return app


def serve(
    source: LogSource,
    retrying: Retrying,
    port: int,
    say: Callable[[str], None],
    *,
    run: str | None = None,
    payloads: Callable[[], Elsewhere | None] = lambda: None,
    changed: LogSource | None = None,
) -> None:
    """Serve the page until Ctrl-C; port 0 takes a free one. Says the address.

    `changed`: the log as actions ask it, in places of their own. Raises `ConfigurationError` for a port that is taken.
    """
    token = secrets.token_urlsafe(32)
    with closing(_bound(port)) as listening:
        place = "" if run is None else f"&run={run}"
        say(f"http://{LOOPBACK}:{listening.getsockname()[1]}/#token={token}{place}")
        app = alone_app(source, token, retrying, payloads, changed)
        PageServer(uvicorn.Config(app, log_level="warning", access_log=False), app.state.streams).run(
            sockets=[listening]
        )


class PageServer(uvicorn.Server):
    """Ends long searches when it is to end: uvicorn waits for answers that are under way."""

    def __init__(self, config: uvicorn.Config, streams: Streams) -> None:
        super().__init__(config)
        self._streams = streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.stop()
        await super().shutdown(sockets)


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen()  # a browser that is quicker than the server waits, and is not refused
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"port {port} cannot be used: {error.strerror}; leave --port out for a free one"
        ) from error
    return listening


def _page() -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>LOG.io</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<script src="assets/{escape(address(ALONE))}" defer></script></head><body><div id="root"></div></body></html>'
    )
