"""Airflow connections as SQLAlchemy URLs: each type, hostile passwords, and nothing secret in words."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk.log import redact
from sqlalchemy.engine import make_url

from airflow_logio.dataflow import (
    ConnectedSource,
    EveryEvents,
    FunctionRead,
    IdempotentWriter,
    Pipeline,
    QuerySource,
    SourceBatch,
    SourceConnection,
    TableRead,
    TableWriter,
    WriteAction,
    generate,
)
from airflow_logio.dataflow.functions.decorators import GenerativeFunction
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.connections import connection_urls, database_url, external_url
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.driver_config import needs_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Run
from tests.support.airflow_connections import connection

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
        (connection("generic", extra={"sqlalchemy_url": "db:hush@//"}), "not a SQLAlchemy URL"),
    ],
)
def test_an_unusable_connection_is_named(fields: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    with pytest.raises(ConfigurationError, match=message) as caught:
        database_url("x")
    assert "'x'" in str(caught.value)
    assert "hush" not in str(caught.value) and caught.value.__cause__ is None


# --- systems of an author's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        (connection("http", host="api.example", port=8443, schema="https"), "http://api.example:8443/https"),
        (connection("kafka", extra={"bootstrap.servers": "a:9092"}), "kafka:///?bootstrap.servers=a%3A9092"),
        (connection("aws", login="AKIA", password="s/e+c"), "aws://AKIA:s%2Fe%2Bc@"),
        ("google-cloud-platform://?project=p", "google-cloud-platform:///?project=p"),
        (connection("postgres", host="db", schema="x"), "postgresql+psycopg2://db/x"),
        (connection("sqlite", host="/data/own.db"), "sqlite:////data/own.db"),
        (connection("http", host="api", extra={"sqlalchemy_url": "mysql://db/x"}), "mysql://db/x"),
    ],
)
def test_any_type_is_a_url_for_code_that_knows_it(fields: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    assert external_url("x") == url


@pytest.mark.parametrize("password", HOSTILE)
def test_the_secrets_of_any_type_are_masked(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = connection("http", host="api", login="a", password=password, extra={"token": "t0ken/of=it"})
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    url = external_url("x")
    assert (urlsplit(url).hostname, unquote(urlsplit(url).password or "")) == ("api", password)
    for secret in (password, quote(password, safe=""), "t0ken/of=it", "t0ken%2Fof%3Dit", url):
        assert secret not in str(redact(f"asking {secret} now"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (connection("", host="api", password="hush"), "has no type"),
        (connection("postgres", schema="x", password="hush"), "has no host"),
        (connection("generic", extra={"sqlalchemy_url": "db:hush@//"}), "not a SQLAlchemy URL"),
    ],
)
def test_what_is_no_url_of_anything_is_named(fields: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", fields)
    with pytest.raises(ConfigurationError, match=message) as caught:
        external_url("x")
    assert "'x'" in str(caught.value) and "hush" not in str(caught.value)


class Post(IdempotentWriter[str]):
    """To a system that only its author knows."""

    @contextmanager
    def connect(self, url: str) -> Iterator[str]:
        yield url

    def write(self, client: str, action: WriteAction) -> None:
        raise NotImplementedError


class Queue(ConnectedSource):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        raise NotImplementedError


def looked_up(read: DeclaredRead) -> GenerativeFunction:
    return generate(mode="driver", reads={"known": read}, columns=("id",))(lambda records, known: records)


READS: dict[str, DeclaredRead] = {
    "a function": FunctionRead("api", lambda url, keys: pa.table({})),
    "a table": TableRead("api", "t"),
}


def posting(*, source: SourceOperator | None = None, read: str = "a function", table: bool = False) -> Pipeline:
    pipeline = Pipeline("posting", connections=["api"])
    begin = pipeline.source("begin", source or Queue("api"))
    looked = pipeline.operator("look", looked_up(READS[read]), begin, window=EveryEvents(2))
    pipeline.writer("post", TableWriter("api", "t") if table else Post("api"), looked)
    return pipeline.freeze()


def urls(pipeline: Pipeline) -> set[str]:
    run = cast("Run", SimpleNamespace(spec=SimpleNamespace(connections={"api": "x"})))
    return {
        url
        for group in pipeline.groups
        for url in connection_urls(needs_of(pipeline, group, 0), run, LaunchRecipe()).values()
    }


def test_a_system_that_only_the_code_of_its_author_uses_may_be_of_any_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("http", host="api.example"))
    assert urls(posting()) == {"http://api.example"}


@pytest.mark.parametrize(
    "sql",
    [
        {"table": True},
        {"read": "a table"},
        {"source": QuerySource("api", table="t", columns={"id": "bigint"}, records_per_event=1)},
    ],
    ids=["a table is written", "a table is read", "a query is read"],
)
def test_tables_and_queries_need_a_database(sql: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in the pipeline they are: no group of it starts."""
    pipeline = posting(**sql)
    for conn_type in ("http", "mysql"):
        monkeypatch.setenv("AIRFLOW_CONN_X", connection(conn_type, host="api.example"))
        for group in pipeline.groups:
            run = cast("Run", SimpleNamespace(spec=SimpleNamespace(connections={"api": "x"})))
            with pytest.raises(ConfigurationError, match=f"'x' is of type '{conn_type}'.*cannot turn into a database"):
                connection_urls(needs_of(pipeline, group, 0), run, LaunchRecipe())
    monkeypatch.setenv("AIRFLOW_CONN_X", connection("postgres", host="db", schema="x"))
    assert urls(pipeline) == {"postgresql+psycopg2://db/x"}


def test_a_missing_connection() -> None:
    with pytest.raises(AirflowNotFoundException):
        database_url("nowhere")


# --- the hook ---------------------------------------------------------------------------------------------------------


def test_the_hook_opens_the_log(log: LogStore) -> None:
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
