"""URLs of PostgreSQL: one form for each way of writing, everything that libpq knows, and nothing else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from airflow_logio.databases import parse_url, postgres_engine, read_url, shown
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.store.sql import migrate
from airflow_logio.store.sql.engines import log_engine, reading
from airflow_logio.systems.warehouse import Warehouse
from tests.support.postgres import PostgresServer
from tests.support.warehouse import change


@pytest.mark.parametrize(
    ("written", "host", "port", "query"),
    [
        ("postgresql://u@h/db", "h", None, {}),
        ("postgresql://u@h:5/db", "h", 5, {}),
        ("postgresql://u@[::1]:5/db", "::1", 5, {}),
        ("postgresql://u@/db?host=h", "h", None, {}),
        ("postgresql://u@/db?host=h&port=5", "h", 5, {}),
        ("postgresql://u@h1:1,h2:2/db", None, None, {"host": "h1,h2", "port": "1,2"}),
        ("postgresql://u:a%2Cb@h1:1,[::1]:2/db?sslmode=require", None, None, {"host": "h1,::1", "port": "1,2"}),
        ("postgresql://u@h1:1,h2/db", None, None, {"host": "h1,h2", "port": "1,"}),
        ("postgresql://u@h1,h2:5/db", None, None, {"host": "h1,h2", "port": "5"}),
        ("postgresql://u@/db?host=h1:1&host=h2:2", None, None, {"host": "h1,h2", "port": "1,2"}),
        ("postgresql://u@/db?host=h1,h2&port=1,2", None, None, {"host": "h1,h2", "port": "1,2"}),
        ("postgresql://u@/db?host=%2Fvar%2Frun", None, None, {"host": "/var/run"}),
        ("postgresql://u@%2Fvar%2Frun/db", None, None, {"host": "/var/run"}),
        ("postgresql://u@%2Fvar%2Frun:5/db", None, None, {"host": "/var/run", "port": "5"}),
        ("postgresql://h/?user=u&dbname=db", "h", None, {}),
        ("postgresql://u@/db?service=x", None, None, {"service": "x"}),
        ("postgresql://u@/db?hostaddr=127.0.0.1", None, None, {"hostaddr": "127.0.0.1"}),
        ("postgresql://u@h/db?sslrootcert=system", "h", None, {"sslrootcert": "system"}),
    ],
)
def test_the_same_server_has_one_form(written: str, host: str | None, port: int | None, query: dict[str, str]) -> None:
    url = read_url(written)
    assert (url.username, url.database, url.host, url.port) == ("u", "db", host, port)
    assert {name: value for name, value in url.query.items() if name != "sslmode"} == query
    assert read_url(url.render_as_string(hide_password=False)) == url, "it is read as it was written"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("postgresql://u@h/db?serch_path=app", "'serch_path', which is neither an option of libpq"),
        ("postgresql://u@h/db?search_path=app", "options=-c NAME=VALUE"),
        ("postgresql://u@h/db?plugin=x", "'plugin'"),
        ("postgresql://u@h/db?__extra__=%7B%7D", "'__extra__'"),
        ("postgresql://u@h/db?host=g", "'host' twice"),
        ("postgresql://u@h1:1,h2:2/db?host=g", "'host' twice"),
        ("postgresql://u@h:5/db?port=6", "'port' twice"),
        ("postgresql://u@h/db?user=v", "'user' twice"),
        ("postgresql://u:hush@h/db?password=hush", "'password' twice"),
        ("postgresql://u@h/db?sslmode=require&sslmode=disable", "'sslmode' several times"),
        ("postgresql://u@h/db?sslrootcert=ca.pem", "'sslrootcert' as the relative path 'ca.pem'.*absolute path"),
        ("postgresql://u@h/db?sslkey=~/key&sslcert=/c", "'sslkey' as the relative path"),
        ("postgresql://u@h/db?passfile=./pass", "'passfile' as the relative path"),
        ("sqlite:////x.db?timeout=3", "'timeout' behind a"),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(written: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        parse_url(written)
    assert "hush" not in str(caught.value)


def test_a_url_for_messages_has_hosts_and_no_secrets() -> None:
    url = read_url("postgresql://u:hush@h1:1,h2:2/db?sslpassword=hush&options=-cx.y%3Dhush")
    assert "hush" not in shown(url) and "h1,h2" in shown(url)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("-c search_path=app", {"search_path": "app"}),
        ('-csearch_path="$user",App', {"search_path": '"$user",App'}),
        ("-c search_path=a,\\ b --work-mem=64MB", {"search_path": "a, b", "work_mem": "64MB"}),
        ("-c TimeZone=Asia/Kolkata", {"timezone": "Asia/Kolkata"}),
        ("-c default_transaction_read_only=on", {"transaction_read_only": "on"}),
    ],
)
@pytest.mark.postgres
def test_settings_are_read_as_the_server_reads_them(options: str, settings: dict[str, str], postgres_url: str) -> None:
    url = make_url(postgres_url).update_query_dict({"options": options})
    engine = postgres_engine(read_url(url.render_as_string(hide_password=False)), "test", lock_timeout=1.0)
    with engine.connect() as connection:
        for name, value in settings.items():
            assert connection.execute(sa.select(sa.func.current_setting(name))).scalar_one() == value
    engine.dispose()


@pytest.mark.parametrize("options", ["-d 5", "-c a='b'", "-c default_transaction_isolation=serializable"])
def test_options_that_are_no_settings_are_refused(options: str) -> None:
    url = make_url("postgresql://u@h/db").update_query_dict({"options": options})
    with pytest.raises(ConfigurationError, match="options of a database URL"):
        postgres_engine(read_url(url.render_as_string(hide_password=False)), "test", lock_timeout=1.0)


@pytest.mark.postgres
@pytest.mark.parametrize("opened", ["log", "warehouse"])
def test_what_libpq_takes_reaches_the_server(opened: str, postgres_url: str) -> None:
    asked = {
        "application_name": "my app",
        "connect_timeout": "7",
        "keepalives_idle": "11",
        "target_session_attrs": "read-write",
        "options": "-c search_path=pg_catalog",
        "gssencmode": "disable",
    }
    url = make_url(postgres_url).update_query_dict(asked).render_as_string(hide_password=False)
    engine = log_engine(url) if opened == "log" else Warehouse("wh", url).engine
    with engine.connect() as connection:
        names = [sa.func.current_setting(name) for name in ("application_name", "search_path")]
        assert tuple(connection.execute(sa.select(*names)).one()) == ("my app", "pg_catalog")
        given = connection.connection.driver_connection.info.dsn_parameters  # type: ignore[union-attr]
    engine.dispose()
    assert asked.items() - {"options": asked["options"]}.items() <= given.items()
    assert given["keepalives_interval"] == "2", "ours, where the URL says nothing"


@pytest.mark.postgres
@pytest.mark.parametrize("wrong", ["sslmode=require", "sslmode=yes", "service=nowhere", "keepalives=often"])
def test_an_option_that_cannot_work_is_not_an_outage(wrong: str, postgres_url: str) -> None:
    with (
        closing(Warehouse("wh", f"{postgres_url}?{wrong}")) as warehouse,
        pytest.raises(ConfigurationError, match="connection 'wh'"),
        warehouse.snapshot(),
    ):
        pass


REFUSED = {
    "unknown": "-c work_memory=1MB",
    "of another kind": "-c work_mem=lots",
    "a zone that is none": "-c TimeZone=Mars/North",
    "only at the start of the server": "-c shared_buffers=1GB",
    "a role that is none": "-c role=nowhere_at_all",
}


@pytest.mark.postgres
@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_a_setting_that_the_server_refuses_is_a_matter_of_the_url(options: str, postgres_url: str) -> None:
    """Not of the statement that comes after it in one message, and no damage of a log."""
    url = make_url(postgres_url).update_query_dict({"options": options}).render_as_string(hide_password=False)
    named = rf"the options of the database URL set: .*{options.partition('=')[0].removeprefix('-c ')}"
    with closing(Warehouse("wh", url)) as warehouse:
        with pytest.raises(ConfigurationError, match=f"connection 'wh': .*{named}"), warehouse.snapshot():
            pass
        with pytest.raises(ConfigurationError, match=f"connection 'wh': .*{named}"):
            warehouse.rehearse(TableWriter("wh", "t", {"a": "bigint"}))
    engine = log_engine(url)
    with pytest.raises(ConfigurationError, match=f"log database .*{named}"), reading(engine):
        pass
    engine.dispose()


REFUSALS = {
    "may not log in": ("ALTER ROLE {0} NOLOGIN", "not permitted to log in"),
    "may not use the database": ('REVOKE CONNECT ON DATABASE "{1}" FROM PUBLIC', "permission denied for database"),
    "is none": ("DROP ROLE {0}", "does not exist"),
}


@pytest.mark.postgres
@pytest.mark.parametrize(("change_it", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_role_that_is_not_let_in_is_no_outage(change_it: str, said: str, postgres_url: str) -> None:
    url, role = make_url(postgres_url), f"someone_{make_url(postgres_url).database}"
    change(postgres_url, f"DROP ROLE IF EXISTS {role}")
    change(postgres_url, f"CREATE ROLE {role} LOGIN")
    change(postgres_url, change_it.format(role, url.database))
    asked = url.set(username=role).render_as_string(hide_password=False)
    with (
        closing(Warehouse("wh", asked)) as warehouse,
        pytest.raises(ConfigurationError, match=f"connection 'wh': .*{said}"),
        warehouse.snapshot(),
    ):
        pass
    engine = log_engine(asked)
    with pytest.raises(ConfigurationError, match=f"log database .*{said}"), reading(engine):
        pass
    engine.dispose()
    change(postgres_url, f"DROP ROLE IF EXISTS {role}")


@pytest.mark.postgres
def test_a_role_whose_connections_are_taken_is_waited_for(postgres_url: str) -> None:
    url, role = make_url(postgres_url), f"busy_{make_url(postgres_url).database}"
    change(postgres_url, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    asked = url.set(username=role).render_as_string(hide_password=False)
    with (
        closing(Warehouse("wh", asked)) as warehouse,
        pytest.raises(ExternalUnavailable, match="too many connections"),
        warehouse.snapshot(),
    ):
        pass
    change(postgres_url, f"DROP ROLE {role}")


@pytest.mark.postgres
def test_a_database_that_is_closed_for_a_while_is_waited_for(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    """An administrator closes it to copy it, or to give it another name."""
    postgres_server.close_database(postgres_url)
    with (
        closing(Warehouse("wh", postgres_url)) as warehouse,
        pytest.raises(ExternalUnavailable, match="not currently accepting connections"),
        warehouse.snapshot(),
    ):
        pass
    postgres_server.open_database(postgres_url)


@pytest.mark.postgres
def test_a_log_in_a_schema_that_is_none_says_what_to_make(postgres_url: str) -> None:
    url = make_url(postgres_url).update_query_dict({"options": "-c search_path=nowhere"})
    with pytest.raises(ConfigurationError, match=r"no schema has been selected.*create the schema"):
        migrate.upgrade(url.render_as_string(hide_password=False))


@pytest.fixture(scope="module")
def sockets() -> Iterator[tuple[PostgresServer, str]]:
    """A server that is reached by a socket, too."""
    with tempfile.TemporaryDirectory(prefix="lg-") as folder:
        os.chmod(folder, stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
        server = PostgresServer(settings={"unix_socket_directories": folder}, in_memory=True)
        server.create()
        server.start()
        yield server, folder
        server.destroy()


@pytest.mark.postgres
def test_sockets_services_and_several_hosts(
    sockets: tuple[PostgresServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = sockets
    services = tmp_path / "services"
    services.write_text(f"[there]\nhost={server.host}\nport={server.port}\ndbname=postgres\nuser=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    quoted, one = folder.replace("/", "%2F"), f"{server.host}:{server.port}"
    for written in (
        f"postgresql://postgres@/postgres?host={quoted}&port={server.port}",
        f"postgres://postgres@{quoted}:{server.port}/postgres",
        f"postgresql://postgres@127.0.0.1:1,{one}/postgres?target_session_attrs=any",
        f"postgresql://postgres@{one},{one}/postgres",
        "postgresql:///?service=there",
    ):
        with closing(Warehouse("wh", written)) as warehouse, warehouse.snapshot() as connection:
            assert connection.execute(sa.select(sa.func.current_database())).scalar_one() == "postgres"
            local = connection.execute(sa.select(sa.func.inet_server_addr())).scalar_one() is None
        assert local == ("%2F" in written), written
