"""Airflow connections as URLs: SQLAlchemy's for the log and for warehouses, Airflow's for an author's own systems.

This needs no other provider: the fields of a connection are enough. A password is registered with Airflow's masker before
the URL is handed on, and no message repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from airflow.providers.common.compat.sdk import BaseHook
from airflow.sdk.log import mask_secret
from sqlalchemy.engine import URL

from airflow_logio.databases import SECRETS, is_of_libpq, of_postgres, read_url, unknown_option
from airflow_logio.errors import ConfigurationError
from airflow_logio.store.records.driver_records import GroupNeeds, LaunchRecipe
from airflow_logio.store.records.run_records import Run

log = logging.getLogger(__name__)

OWN_URL = "sqlalchemy_url"
"""A connection of any type may give its URL under this key of its extra."""
PAYLOADS = "payloads"
"""Key of the extra of a log's connection: where the payload store is."""
OURS = (OWN_URL, "path", PAYLOADS)
POSTGRES = ("postgres", "postgresql", "logio")
"""Types of connections that are a PostgreSQL, unless their extra says otherwise."""


def database_url(conn_id: str) -> str:
    """The SQLAlchemy URL, password included, of the database that an Airflow connection names.

    Types: ``postgres``, ``sqlite`` (its host is the absolute path of the file), ``logio``, or any other whose extra has
    ``sqlalchemy_url``. Raises `ConfigurationError`, and Airflow's error for a missing connection.
    """
    connection = BaseHook.get_connection(conn_id)
    url = _url(connection)
    if url is None:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} is of type {connection.conn_type!r}, which LOG.io cannot turn into a "
            f"database; use type postgres or sqlite, or put a SQLAlchemy URL under {OWN_URL!r} into its extra"
        )
    return _masked(url)


def known_url(conn_id: str) -> str | None:
    """As `database_url`; None for a connection that there is not, that is no database, or that cannot be asked for now."""
    try:
        return database_url(conn_id)
    except Exception as error:  # what a secrets backend raises is its own
        log.debug("connection %r is not known: %s", conn_id, type(error).__name__)
        return None


def external_url(conn_id: str) -> str:
    """The URL of any external system, for author's code that knows how to use it.

    If `database_url` can use the connection, this is the same URL. Otherwise it is the one that Airflow makes of it
    (``Connection.get_uri()``), with the extra in its query. Raises as `database_url` does, but never because of the type.
    """
    connection = BaseHook.get_connection(conn_id)
    if (url := _url(connection)) is not None:
        return _masked(url)
    if not connection.conn_type:
        raise ConfigurationError(f"connection {connection.conn_id!r} has no type, so no URL can be made of it")
    uri: str = connection.get_uri()
    if connection.password:
        for form in (connection.password, quote(connection.password, safe="")):
            mask_secret(form)
    for key, value in connection.extra_dejson.items():  # masked if the key sounds like a secret
        mask_secret(value, key)
        mask_secret(quote_plus(str(value)), key)
    if (query := urlsplit(uri).query) or connection.password:
        mask_secret(query)
        mask_secret(uri)
    return uri


def connection_urls(needs: GroupNeeds, run: Run, recipe: LaunchRecipe) -> dict[str, str]:
    """Connection of the pipeline → URL, for those that a group needs: by the ids of its task, or else of its run. Raises as
    `external_url` does, and for a SQL database as `database_url`."""
    ids = {**run.spec.connections, **recipe.connections}
    return {
        name: database_url(ids[name]) if is_sql else external_url(ids[name])
        for name, is_sql in needs.connections.items()
    }


def _masked(url: URL) -> str:
    for secret in filter(None, (url.password, *(url.query.get(name) for name in SECRETS))):
        for form in _written(str(secret)):
            mask_secret(form)
    return url.render_as_string(hide_password=False)


def _written(secret: str) -> set[str]:
    """The forms in which a secret may be written: plain, quoted for any URL, and quoted as SQLAlchemy does."""
    alone = URL.create("x", username="u", password=secret).render_as_string(hide_password=False)
    return {secret, quote(secret, safe=""), quote_plus(secret), alone.removeprefix("x://u:").removesuffix("@")}


def _url(connection: Any) -> URL | None:
    """None for a type that this package does not use as a database."""
    extra = {key: value for key, value in connection.extra_dejson.items() if value not in (None, "")}
    kind = (connection.conn_type or "").lower()
    if OWN_URL in extra:
        if kind in POSTGRES:
            _refuse_beside(connection, extra, f"the URL under {OWN_URL!r} says all")
        return _own(connection, str(extra[OWN_URL]))
    if kind == "sqlite":
        _refuse_beside(connection, extra, "LOG.io sets by itself how an SQLite file is opened")
        return _sqlite(connection, connection.host or connection.schema)
    if kind == "logio" and "path" in extra:
        _refuse_both(connection)
        _refuse_beside(connection, extra, "LOG.io sets by itself how an SQLite file is opened")
        return _sqlite(connection, str(extra["path"]))
    if kind in POSTGRES:
        return _postgres(connection, extra)
    return None


def _own(connection: Any, text: str) -> URL:
    try:
        return read_url(text)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"connection {connection.conn_id!r}: {OWN_URL!r} in its extra is not a SQLAlchemy URL: {error}"
        ) from None


def _sqlite(connection: Any, path: str | None) -> URL:
    if not path or not PurePath(path).is_absolute():
        raise ConfigurationError(
            f"connection {connection.conn_id!r} names the SQLite file {path or ''!r}; its absolute path is needed, because "
            "drivers run in folders of their own"
        )
    return URL.create("sqlite", database=path)


def _postgres(connection: Any, extra: Mapping[str, Any]) -> URL:
    query = {key: _option(connection, key, value) for key, value in extra.items() if key not in OURS}
    elsewhere = "service" in query
    if not connection.host and not elsewhere and not {"host", "hostaddr"} & query.keys():
        raise ConfigurationError(f"connection {connection.conn_id!r} has no host")
    if not connection.schema and not elsewhere and "dbname" not in query:
        raise ConfigurationError(f"connection {connection.conn_id!r} has no database (field schema)")
    written = URL.create(
        "postgresql+psycopg2",
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host or None,
        port=connection.port,
        database=connection.schema or None,
        query=query,
    )
    try:
        return of_postgres(written)
    except ConfigurationError as error:
        raise ConfigurationError(f"connection {connection.conn_id!r}: {error}") from None


def _option(connection: Any, key: str, value: Any) -> str:
    """An option of libpq, as text: there, a truth is 1 or 0."""
    if not is_of_libpq(key):
        raise ConfigurationError(f"connection {connection.conn_id!r} has {unknown_option(key)} in its extra")
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise ConfigurationError(f"connection {connection.conn_id!r}: {key!r} in its extra is no text; give it as text")
    return str(value)


def _refuse_beside(connection: Any, extra: Mapping[str, Any], why: str) -> None:
    """Refuse what would be lost."""
    if lost := [key for key in extra if key not in OURS]:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has {', '.join(map(repr, lost))} in its extra, which would have no effect: "
            f"{why}. Leave it out, or write it there"
        )


def _refuse_both(connection: Any) -> None:
    if connection.host:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} names both an SQLite file and the server {connection.host!r}: "
            "which of them holds the log? Empty the other field"
        )
