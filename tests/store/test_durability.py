"""What is acknowledged is on disk: the settings that commits of the log rely on are those of its sessions."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from airflow_logio.store.sql import migrate
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.warehouse import Warehouse
from tests.support.logs import fetched, sent, start_driver


def asked(store: SqlLogStore, question: str, *, sessions: int = 6) -> set[Any]:
    """The answer of several sessions at once: those that lie in the pool, and one that is new."""
    with ExitStack() as stack:
        opened = [stack.enter_context(store.engine.connect()) for _ in range(sessions)]
        connections = [connection.execution_options(logio_writes=False) for connection in opened]
        return {connection.exec_driver_sql(question).scalar_one() for connection in connections}


@pytest.fixture
def careless_url(postgres_url: str) -> str:
    """A database whose administrator has told its sessions not to wait for the disk."""
    database = postgres_url.rpartition("/")[2]
    connection = psycopg2.connect(postgres_url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    connection.close()
    return postgres_url


def as_the_administrator_wants(url: str) -> str:
    connection = psycopg2.connect(url)
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        (answer,) = cursor.fetchone() or ("",)
    connection.close()
    return str(answer)


@pytest.mark.postgres
def test_commits_wait_for_the_disk_whatever_the_server_says(careless_url: str) -> None:
    assert as_the_administrator_wants(careless_url) == "off"
    store = SqlLogStore.at(careless_url)
    assert asked(store, "SHOW synchronous_commit") == {"on"}
    store.dispose()


@pytest.mark.postgres
def test_tables_written_by_conditional_write_actions_too(careless_url: str) -> None:
    warehouse = Warehouse("wh", careless_url)
    with warehouse.engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    warehouse.close()


@pytest.mark.postgres
def test_settings_of_the_url_hold_but_for_those_that_commits_rely_on(postgres_url: str) -> None:
    connection = psycopg2.connect(postgres_url)
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA apart")
    connection.close()
    url = f"{postgres_url}?options=-csearch_path%3Dapart%20-csynchronous_commit%3Doff"
    migrate.upgrade(url)
    store, warehouse = SqlLogStore.at(url), Warehouse("wh", url)
    start_driver(store)
    assert asked(store, "SHOW synchronous_commit") == {"on"}
    assert asked(store, "SHOW search_path") == {"apart"}
    assert asked(store, "SELECT count(*) FROM apart.logio_driver") == {1}
    with warehouse.engine.connect() as session:
        assert session.exec_driver_sql("SHOW search_path").scalar_one() == "apart"
    store.dispose()
    warehouse.close()


@pytest.mark.postgres
def test_what_need_not_wait_for_the_disk_leaves_no_session_behind_that_does_not(careless_url: str) -> None:
    """Heartbeats and wake-ups; a session of a group that is dropped without being closed is the worst case."""
    store = SqlLogStore.at(careless_url)
    driver = start_driver(store)
    receiver = store.session(driver.ref)
    receiver.open()
    receiver.wait(0.0)
    driver.session.commit([sent(1)])
    driver.session.announce(["g"])
    receiver.wait(0.0)
    store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
    assert fetched(receiver) == [1]
    del driver, receiver
    gc.collect()
    assert asked(store, "SHOW synchronous_commit") == {"on"}
    with ExitStack() as stack:
        pooled = [stack.enter_context(store.engine.connect()) for _ in range(6)]
        assert not any(one.connection.driver_connection.autocommit for one in pooled)  # type: ignore[union-attr]
    store.dispose()


def test_a_file_is_synced_at_every_commit(sqlite_url: str) -> None:
    store = SqlLogStore.at(sqlite_url)
    assert asked(store, "PRAGMA synchronous") == {2}, "FULL"
    assert asked(store, "PRAGMA journal_mode") == {"wal"}
    with store.beats.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 0, (
            "heartbeats are in a file of their own"
        )
        assert connection.engine.url.database != store.engine.url.database
    store.dispose()


def test_a_warehouse_in_a_file_is_too(tmp_path: Path) -> None:
    warehouse = Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")
    with warehouse.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    warehouse.close()
