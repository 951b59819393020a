"""Airflow connections as URLs: SQLAlchemy's for the log and for warehouses, Airflow's for an author's own systems.

This needs no other provider: the fields of a connection are enough. A password is registered with Airflow's masker before
the URL is handed on, and no message repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from airflow.providers.common.compat.sdk import BaseHook
from airflow.sdk.log import mask_secret
from sqlalchemy.engine import URL

from airflow_logio.databases import read_url
from airflow_logio.errors import ConfigurationError

LIBPQ_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "target_session_attrs", "gssencmode")
"""Keys of a connection's extra that are passed to libpq."""
OWN_URL = "sqlalchemy_url"
"""A connection of any type may give its URL under this key of its extra."""


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


def _masked(url: URL) -> str:
    if url.password:
        for form in _written(url):
            mask_secret(form)
    return url.render_as_string(hide_password=False)


def _written(url: URL) -> set[str]:
    """The forms in which a password may be written: plain, quoted for any URL, and quoted as SQLAlchemy does."""
    password = str(url.password)
    alone = URL.create("x", username="u", password=password).render_as_string(hide_password=False)
    return {password, quote(password, safe=""), alone.removeprefix("x://u:").removesuffix("@")}


def _url(connection: Any) -> URL | None:
    """None for a type that this package does not use as a database."""
    extra = {key: value for key, value in connection.extra_dejson.items() if value not in (None, "")}
    kind = (connection.conn_type or "").lower()
    if OWN_URL in extra:
        return _own(connection, str(extra[OWN_URL]))
    if kind == "sqlite":
        return _sqlite(connection, connection.host or connection.schema)
    if kind == "logio" and "path" in extra:
        _refuse_both(connection)
        return _sqlite(connection, str(extra["path"]))
    if kind in ("postgres", "postgresql", "logio"):
        return _postgres(connection, extra)
    return None


def _own(connection: Any, text: str) -> URL:
    try:
        return read_url(text)
    except ConfigurationError:
        raise ConfigurationError(
            f"connection {connection.conn_id!r}: {OWN_URL!r} in its extra is not a SQLAlchemy URL"
        ) from None


def _sqlite(connection: Any, path: str | None) -> URL:
    if not path or not PurePath(path).is_absolute():
        raise ConfigurationError(
            f"connection {connection.conn_id!r} names the SQLite file {path or ''!r}; its absolute path is needed, because "
            "drivers run in folders of their own"
        )
    return URL.create("sqlite", database=path)


def _postgres(connection: Any, extra: Mapping[str, Any]) -> URL:
    if not connection.host or not connection.schema:
        what = "host" if not connection.host else "database (field schema)"
        raise ConfigurationError(f"connection {connection.conn_id!r} has no {what}")
    return URL.create(
        "postgresql+psycopg2",
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host,
        port=connection.port,
        database=connection.schema,
        query={key: str(extra[key]) for key in LIBPQ_OPTIONS if key in extra},
    )


def _refuse_both(connection: Any) -> None:
    if connection.host:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} names both an SQLite file and the server {connection.host!r}: "
            "which of them holds the log? Empty the other field"
        )
