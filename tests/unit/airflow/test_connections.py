"""Airflow connections as SQLAlchemy URLs: each type, hostile passwords, and nothing secret in words."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk.log import redact
from sqlalchemy.engine import make_url

from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.connections import database_url
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.store.sql.store import SqlLogStore
from tests.unit.airflow.support import connection

HOSTILE = ["p@ss:w/ord%", "a b+c?d=e&f", "100%40pct", "ünïcode€", "[::1]/x", "'; DROP TABLE run; --"]


@pytest.mark.parametrize("password", HOSTILE)
@pytest.mark.parametrize("conn_type", ["postgres", "logio"])
def test_a_server(conn_type: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = connection(
        conn_type,
        host="db.example",
        port=6543,
        schema="lo gio",
        login="an@na",
        password=password,
        extra={"sslmode": "require"},
    )
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    url = make_url(database_url("x"))
    assert (url.drivername, url.username, url.password) == ("postgresql+psycopg2", "an@na", password)
    assert (url.host, url.port, url.database, dict(url.query)) == ("db.example", 6543, "lo gio", {"sslmode": "require"})


def test_a_uri_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", "postgresql://anna:p%40ss%3Aw%2Ford%25@db/logio?sslmode=disable")
    url = make_url(database_url("x"))
    assert (url.password, url.host, url.database) == ("p@ss:w/ord%", "db", "logio")
    assert url.query == {"sslmode": "disable"}


@pytest.mark.parametrize("password", HOSTILE)
def test_a_password_is_masked_once_the_connection_was_read(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_X", connection("postgres", host="db", schema="logio", login="a", password=password)
    )
    url = database_url("x")
    assert password not in str(redact(f"connecting with {password} to {url}"))
    assert url not in str(redact(url))


@pytest.mark.parametrize(
    "fields",
    [
        connection("sqlite", host="/data/warehouse.db"),
        "sqlite://%2Fdata%2Fwarehouse.db",
        "sqlite:////data/warehouse.db",
        connection("logio", extra={"path": "/data/warehouse.db", "sslmode": None, "sslrootcert": ""}),
        connection("generic", extra={"sqlalchemy_url": "sqlite:////data/warehouse.db"}),
    ],
)
def test_an_sqlite_file(fields: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    assert database_url("x") == "sqlite:////data/warehouse.db"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (connection("sqlite", host="warehouse.db"), "absolute path"),
        (connection("sqlite"), "absolute path"),
        (connection("mysql", host="db", schema="x", password="hush"), "'mysql'.*sqlalchemy_url"),
        (connection("postgres", schema="x", password="hush"), "has no host"),
        (connection("postgres", host="db", password="hush"), "has no database"),
        (connection("logio", host="db", extra={"path": "/x"}, password="hush"), "both"),
        (connection("generic", extra={"sqlalchemy_url": "db:hush@//"}), "no SQLAlchemy URL"),
    ],
)
def test_an_unusable_connection_is_named(fields: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    with pytest.raises(ConfigurationError, match=message) as caught:
        database_url("x")
    assert "'x'" in str(caught.value)
    assert "hush" not in str(caught.value) and caught.value.__cause__ is None


def test_a_missing_connection() -> None:
    with pytest.raises(AirflowNotFoundException):
        database_url("nowhere")


# --- the hook ---------------------------------------------------------------------------------------------------------


def test_the_hook_opens_the_log(log: SqlLogStore) -> None:
    store = LogioHook().get_store()
    assert list(store.list_runs()) == []
    store.dispose()
    assert LogioHook().test_connection() == (True, "The log answers; there are no runs yet.")


@pytest.mark.postgres
def test_the_hook_opens_a_log_on_postgresql(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the fields of a form, with the password that a real role has."""
    url = make_url(postgres_url).set(drivername="postgresql+psycopg2")
    engine = sa.create_engine(url)
    with engine.begin() as database:
        database.execute(sa.text("CREATE ROLE anna LOGIN SUPERUSER PASSWORD 'p@ss:w/ord%'"))
    engine.dispose()
    server = {"host": url.host, "port": url.port, "schema": url.database, "login": "anna", "password": "p@ss:w/ord%"}
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"sslmode": "disable"}, **server))
    store = LogioHook().get_store()
    assert list(store.list_runs()) == []
    store.dispose()
    assert LogioHook().test_connection()[0]


def test_the_hook_creates_tables_only_in_an_empty_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"path": str(tmp_path / "new.db")}))
    hook = LogioHook()
    found, words = hook.test_connection()
    assert found and "no LOG.io tables yet" in words
    with pytest.raises(ConfigurationError, match="logio db upgrade"):
        hook.get_store()
    hook.get_store(create=True).dispose()
    hook.get_store(create=True).dispose()
    assert hook.test_connection()[0]


def test_a_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fields = connection("logio", host="127.0.0.1", port=1, schema="logio", login="anna", password="p@ss:w/ord%")
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", fields)
    with caplog.at_level(logging.DEBUG):
        found, words = LogioHook().test_connection()
    assert not found and "LogUnavailable" in words
    assert "p@ss" not in words + caplog.text and "p%40ss" not in words + caplog.text


def test_the_payload_store_is_in_the_extra_of_the_log_s_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"payloads": "sftp://anna:geh%40eim@store/logio"}
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("logio", host="db", schema="logio", login="a", extra=extra))
    assert LogioHook("x").get_payloads() == extra["payloads"]
    assert "geh" not in str(redact(f"opening {extra['payloads']} with geh@eim"))


def test_a_log_without_a_setting_has_the_payload_store_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("logio", extra={"path": "/data/logio.db"}))
    assert LogioHook("x").get_payloads() == "/data/logio.db.payloads"
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("logio", host="db", schema="logio"))
    assert LogioHook("x").get_payloads() is None


@pytest.mark.parametrize("payloads", ["relative/folder", 5])
def test_a_payload_store_that_no_driver_would_find_is_refused(
    payloads: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"payloads": payloads}
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("logio", host="db", schema="logio", extra=extra))
    with pytest.raises(ConfigurationError, match="payload"):
        LogioHook("x").get_payloads()
