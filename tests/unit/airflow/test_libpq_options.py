"""A PostgreSQL means the same by every way in: what libpq knows arrives, secrets are masked, and the rest is refused."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
from airflow.sdk.log import redact
from sqlalchemy.engine import make_url

from airflow_logio.databases import read_url
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.connections import database_url, external_url
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.warehouse import Warehouse
from tests.support.airflow_connections import connection

ASKED = {
    "options": "-c search_path=app -c TimeZone=Europe/Berlin",
    "application_name": "my app",
    "connect_timeout": "7",
    "keepalives_idle": "9",
    "target_session_attrs": "read-write",
    "sslmode": "prefer",
}


def ways(postgres_url: str) -> dict[str, str]:
    """Way in → what is written there."""
    url = make_url(postgres_url)
    fields: dict[str, Any] = {"host": url.host, "port": url.port, "schema": url.database, "login": url.username}
    whole = f"{postgres_url}?{urlencode(ASKED)}"
    return {
        "form": connection("postgres", extra=ASKED, **fields),
        "form of a log": connection("logio", extra=ASKED, **fields),
        "numbers": connection("postgres", extra=ASKED | {"connect_timeout": 7, "keepalives_idle": 9}, **fields),
        "uri": whole,
        "sqlalchemy_url": connection("generic", extra={"sqlalchemy_url": whole}),
    }


@pytest.mark.postgres
def test_every_way_in_means_the_same(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = read_url(f"{postgres_url}?{urlencode(ASKED)}")
    for way, written in ways(postgres_url).items():
        monkeypatch.setenv("AIRFLOW_CONN_X", written)
        assert read_url(database_url("x")) == plain, way
        assert database_url("x") == external_url("x"), way


@pytest.mark.postgres
def test_the_log_and_a_warehouse_are_where_the_search_path_says(
    postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.new_database(migrated=False)
    engine = sa.create_engine(read_url(url))
    with engine.begin() as made:
        made.exec_driver_sql("CREATE SCHEMA app")
    monkeypatch.setenv("AIRFLOW_CONN_X", ways(url)["form of a log"])
    store = LogioHook("x").get_store(create=True)
    assert isinstance(store, SqlLogStore)
    with engine.connect() as found:
        asked = "SELECT schemaname, count(*) > 20 FROM pg_tables WHERE tablename LIKE 'logio%%' GROUP BY 1"
        assert [tuple(row) for row in found.exec_driver_sql(asked)] == [("app", True)]
    with closing(Warehouse("wh", database_url("x"))) as warehouse, warehouse.snapshot() as connected:
        names = ("search_path", "timezone", "application_name")
        asked_for = sa.select(*(sa.func.current_setting(name) for name in names))
        assert tuple(connected.execute(asked_for).one()) == ("app", "Europe/Berlin", "my app")
    store.dispose()
    engine.dispose()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (connection("postgres", host="h", schema="x", extra={"search_path": "app"}), "'search_path'.*options=-c"),
        (connection("postgres", host="h", schema="x", extra={"cursor": "dictcursor"}), "'cursor'"),
        ("postgres://u@h/db?serch=1", "'serch'"),
        (connection("postgres", host="h", schema="x", extra={"options": ["-c", "a=b"]}), "'options'.*no text"),
        (connection("postgres", host="h", schema="x", extra={"host": "g"}), "'host' twice"),
        (connection("logio", extra={"path": "/x.db", "sslmode": "require"}), "'sslmode'.*no effect"),
        (connection("sqlite", host="/x.db", extra={"timeout": 3}), "'timeout'.*no effect"),
        (
            connection("logio", extra={"sqlalchemy_url": "postgresql://h/x", "sslmode": "require"}),
            "'sslmode'.*no effect",
        ),
        (connection("generic", extra={"sqlalchemy_url": "postgresql://h/x?serch=1"}), "'serch'"),
    ],
)
def test_what_would_be_lost_is_refused_by_name(fields: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    with pytest.raises(ConfigurationError, match=said) as caught:
        database_url("x")
    assert "connection 'x'" in str(caught.value)


@pytest.mark.parametrize("name", ["sslpassword", "password"])
def test_secrets_among_the_options_are_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hush hush/hush+1"
    fields = connection("postgres", host="h", schema="x", extra={name: secret, "sslmode": "require"})
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    url = database_url("x")
    assert read_url(url).render_as_string(hide_password=False) == url
    assert "hush" not in str(redact(url)) and "hush" not in str(redact(f"with {secret}"))


def test_sockets_and_several_hosts_in_the_field_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for host, port, query in (
        ("/var/run/postgresql", 5433, {"host": "/var/run/postgresql", "port": "5433"}),
        ("h1,h2", 5433, {"host": "h1,h2", "port": "5433"}),
        ("h1:1,h2:2", None, {"host": "h1,h2", "port": "1,2"}),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_X", connection("postgres", host=host, port=port, schema="x"))
        found = read_url(database_url("x"))
        assert (dict(found.query), found.host, found.port) == (query, None, None)
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("postgres", extra={"service": "there"}))
    assert dict(read_url(database_url("x")).query) == {"service": "there"}
