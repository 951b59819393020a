"""Database URLs as Airflow connections, in the JSON form of ``AIRFLOW_CONN_*``. They never appear on a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from airflow_logio.databases import parse_url
from demo.data import warehouse_engine


def log_connection(url: str, payloads: str | None = None) -> str:
    """Connection type ``logio``. Raises `ConfigurationError` for a database that cannot hold a log."""
    parsed = parse_url(url)
    extra = {} if payloads is None else {"payloads": payloads}
    if parsed.get_backend_name() == "sqlite":
        return json.dumps({"conn_type": "logio", "extra": {"path": parsed.database, **extra}})
    fields = _server("logio", parsed)
    return json.dumps({**fields, "extra": {**fields.get("extra", {}), **extra}} if extra else fields)


def folder_connection(folder: Path) -> str:
    """Connection type ``file``, as a URI."""
    return folder.as_uri()


def warehouse_connection(url: str) -> str:
    """Connection type ``sqlite``, ``postgres``, or any other by its URL."""
    engine = warehouse_engine(url)
    engine.dispose()
    if engine.dialect.name == "sqlite":
        return json.dumps({"conn_type": "sqlite", "host": engine.url.database})
    if engine.dialect.name == "postgresql":
        return json.dumps(_server("postgres", engine.url))
    return json.dumps(_by_url("generic", engine.url))


def spark_connection(master: str = "local[1]") -> str:
    """Drivers run on this machine. So do their jobs, with one core each, unless `master` names a cluster."""
    return json.dumps({"conn_type": "spark", "host": master})


def _server(conn_type: str, url: URL) -> dict[str, Any]:
    if not url.host or not url.database or any(not isinstance(value, str) for value in url.query.values()):
        return _by_url(conn_type, url)  # e.g. a socket's folder, which the fields of a connection cannot express
    fields = {
        "conn_type": conn_type,
        "host": url.host,
        "port": url.port,
        "schema": url.database,
        "login": url.username,
        "password": url.password,
        "extra": dict(url.query) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _by_url(conn_type: str, url: URL) -> dict[str, Any]:
    return {"conn_type": conn_type, "extra": {"sqlalchemy_url": url.render_as_string(hide_password=False)}}
