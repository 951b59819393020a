"""The page inside Airflow: a plugin with four places for it, and the web application behind it.

Every process of Airflow loads plugins, and only its API server asks this one for its parts. So they are made when they are
asked for. If that fails, because Airflow has moved what is not public (`_compat`), there is no page, and Airflow runs on.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_logio._compat import AirflowPlugin
from airflow_logio.ui.page_places import NAME, PREFIX, ROUTES

log = logging.getLogger(__name__)


class LogioPlugin(AirflowPlugin):
    """Entry point of group ``airflow.plugins``. All places have one name, because they share one bundle."""

    name = "logio"

    def __init__(self) -> None:
        self._parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        return self._made()[0]

    @property
    def react_apps(self) -> list[dict[str, Any]]:
        return self._made()[1]

    def _made(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        if self._parts is None:
            try:
                self._parts = _parts()
            except Exception:  # whatever an import raises: Airflow runs on without the page
                log.exception("The page of LOG.io is not shown: it cannot be loaded")
                self._parts = [], []
        return self._parts


def _parts() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from airflow_logio import _compat
    from airflow_logio.hooks.logio import LogioHook
    from airflow_logio.systems.payloads import Payloads
    from airflow_logio.ui.in_airflow import CLEARING, AirflowAccess, waiting_for_input, why_no_run
    from airflow_logio.ui.looks import MOST_ASKING, LogSource
    from airflow_logio.ui.page_places import PLUGIN, address
    from airflow_logio.ui.searches import MOST_STREAMS
    from airflow_logio.ui.web_app import create_app

    _compat.check_page()
    conn_id = _compat.page_conn_id()
    # Commands name no log: this connection may be one that only reads, and a retry would fail with it.
    source = LogSource(
        lambda: LogioHook(conn_id).get_store(connections=MOST_ASKING + MOST_STREAMS), None, _compat.is_paused
    )
    # What changes a run waits for the log in places of its own, and may need another role.
    action_id = _compat.page_action_conn_id()
    changed = LogSource(lambda: LogioHook(action_id).get_store(connections=MOST_ASKING), None)

    def payloads() -> Payloads | None:
        root = LogioHook(conn_id).get_payloads()
        return Payloads(root) if root else None

    url = _compat.spark_history_url()
    app = create_app(
        source,
        AirflowAccess(),
        CLEARING,
        changed=changed,
        payloads=payloads,
        history_url=url,
        why_no_run=why_no_run,
        waiting=waiting_for_input,
    )
    bundle = f"{_compat.page_path()}{PREFIX}/assets/{address(PLUGIN)}"
    views = [
        {"name": NAME, "bundle_url": bundle, "destination": place, "url_route": route, "category": "browse"}
        for place, route in ROUTES.items()
    ]
    return [{"app": app, "url_prefix": PREFIX, "name": NAME}], views
