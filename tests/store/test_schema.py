"""The schema: migrations make what is declared, one at another version is refused with a sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from airflow_logio.errors import ConfigurationError, LogUnavailable, SchemaMismatch
from airflow_logio.store import open_store
from airflow_logio.store.sql import engines, migrate, schema
from airflow_logio.store.sql.engines import log_engine
from tests.conftest import SQL, STORES
from tests.support.logs import fetched, open_sql_store, sent, spec, start_driver
from tests.support.postgres import PostgresServer

SHOW_LIMIT = sa.text("SHOW lock_timeout")
HOSTILE = "p@ss:w/or%d?#[]hunter2"
HOSTILE_ENCODED = "p%40ss%3Aw%2For%25d%3F%23%5B%5Dhunter2"


@pytest.fixture(params=SQL)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    if request.param == "sqlite":
        (tmp_path / "empty.db").touch()
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database(migrated=False)
    yield url
    server.drop_database(url)


def set_revision(url: str, revision: str) -> None:
    engine = log_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE logio_alembic_version SET version_num = :r"), {"r": revision})
    engine.dispose()


@pytest.mark.filterwarnings("ignore:.*expression-based index")  # which is why it is looked up by name below
def test_migrations_make_the_declared_tables(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) == schema.REVISION
    engine = log_engine(empty_url)
    beats = set(schema.beat_metadata.tables)
    with engine.begin() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": schema.VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
                "include_name": lambda name, kind, _: kind != "table" or name not in beats,
            },
        )
        assert compare_metadata(context, schema.metadata) == []
        names = {
            "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'uq_logio_event_log_row'",
            "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = 'uq_logio_event_log_row'",
        }
        definition = connection.execute(sa.text(names[engine.dialect.name])).scalar_one().lower()
    engine.dispose()
    assert "unique" in definition
    for column in [column.name for column in schema.event_log.c if column.name in _KEY]:
        assert column in definition
    assert definition.count("coalesce") == 2


_KEY = {"run_id", "send_op", "channel", "event_id", "rec_op", "rec_port", "inset_id"}


def test_the_code_expects_the_newest_migration() -> None:
    assert migrate.head() == schema.REVISION


def test_an_upgrade_keeps_what_is_there(empty_url: str) -> None:
    store = open_sql_store(empty_url, create=True)
    driver = start_driver(store)
    driver.session.commit([sent(1)])
    store.dispose()
    again = open_sql_store(empty_url, create=True)
    assert fetched(again.session(driver.ref)) == [1]
    again.dispose()


def test_several_processes_upgrade_at_once(empty_url: str) -> None:
    program = "import sys; from airflow_logio.store.sql import migrate; migrate.upgrade(sys.argv[1])"
    command = [sys.executable, "-c", program, empty_url]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    open_sql_store(empty_url).dispose()


@pytest.mark.postgres
def test_an_upgrade_waits_for_another_one_longer_than_for_any_other_lock(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a large log takes minutes. Other locks are waited for as ever: readers and drivers stand behind them."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_SECONDS", 0.2)
    url = postgres_server.new_database(migrated=False)
    engine, limits = engines.log_engine(url), list[str]()
    monkeypatch.setattr(
        migrate, "_upgrade_beats", lambda connection: limits.append(connection.execute(SHOW_LIMIT).scalar_one())
    )
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as other:
            other.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('logio schema'))"))
            upgrading = pool.submit(migrate.upgrade, url)
            with pytest.raises(TimeoutError):
                upgrading.result(1.0)
        assert upgrading.result(60) == schema.REVISION
    assert limits == ["200ms"]
    engine.dispose()
    postgres_server.drop_database(url)


def test_a_database_without_tables_is_refused(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"schema none.*`logio db upgrade`"):
        open_sql_store(empty_url)


def test_asking_for_a_log_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no log"):
        open_sql_store(f"sqlite:///{tmp_path}/missing.db")
    assert not (tmp_path / "missing.db").exists()


def test_an_older_schema_is_refused(log_url: str) -> None:
    set_revision(log_url, "0000")
    with pytest.raises(SchemaMismatch, match=f"schema 0000.*needs {schema.REVISION}.*`logio db upgrade`"):
        open_sql_store(log_url)


@pytest.mark.parametrize("create", [False, True])
def test_a_newer_schema_is_refused_and_left_alone(log_url: str, create: bool) -> None:
    set_revision(log_url, "9999")
    with pytest.raises(SchemaMismatch, match=r"9999, which is newer .* upgrade airflow_logio"):
        open_sql_store(log_url, create=create)
    with pytest.raises(SchemaMismatch, match="9999"):
        open_sql_store(log_url)


def test_tables_that_vanish_are_a_configuration_error(log_url: str) -> None:
    store = open_sql_store(log_url)
    store.start_run(spec())
    with store.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE logio_port_counter"))
    with pytest.raises(ConfigurationError, match="`logio db upgrade`"):
        store.progress(1)
    store.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text_is_refused(postgres_server: PostgresServer, encoding: str) -> None:
    """Before anything is made or read: later it would refuse a name or a message, in the middle of a run."""
    url = postgres_server.new_database(migrated=False, encoding=encoding)
    ways: list[Callable[[str], object]] = [open_store, partial(open_store, create=True), migrate.upgrade]
    for way in ways:
        with pytest.raises(ConfigurationError, match=rf"has the encoding {encoding}.* ENCODING 'UTF8'"):
            way(url)
    engine = log_engine(url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
    postgres_server.drop_database(url)


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{HOSTILE_ENCODED}@127.0.0.1:1/db",
        f"postgresql://user@127.0.0.1:1/db?password={HOSTILE_ENCODED}",
        f"mysql://user:{HOSTILE_ENCODED}@host/db",
        f"mysql://user@host/db?password={HOSTILE_ENCODED}",
        f"postgresql://user:{HOSTILE}@host/db",
        "postgresql://user@host:hunter2/db",
        "hunter2",
        "sqlite://",
        "sqlite:////no/such/folder/log.db",
    ],
)
def test_no_message_repeats_a_password(url: str) -> None:
    with pytest.raises((ConfigurationError, LogUnavailable)) as refused:
        open_sql_store(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__
    assert not refused.value.__context__ or refused.value.__suppress_context__ or refused.value.__cause__


@pytest.mark.postgres
def test_a_hostile_password_is_no_obstacle(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database(migrated=False).replace("postgres@", f"postgres:{HOSTILE_ENCODED}@")
    store = open_sql_store(url, create=True)
    assert store.engine.url.password == HOSTILE
    assert store.list_runs() == []
    store.dispose()
    postgres_server.drop_database(url)


def test_the_suite_runs_on_three_stores() -> None:
    """Zero skips: what one store cannot do is a test of its own, not a hole in the contract."""
    assert [parameter.values for parameter in STORES] == [("memory",), ("sqlite",), ("postgres",)]
    texts = [path.read_text() for path in Path(__file__).parent.glob("*.py") if path != Path(__file__)]
    assert not any("pytest.skip" in text or "mark.skip" in text for text in texts)
