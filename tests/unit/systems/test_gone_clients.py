"""A process that is gone leaves no statement behind in a warehouse: the server looks for its client and ends what it does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.systems.warehouse import Warehouse
from tests.support.pgbouncer import pgbouncer
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

DRIVER = """
import sys

import sqlalchemy as sa

from airflow_logio.systems.warehouse import Warehouse

with Warehouse("wh", sys.argv[1]).for_writes({"lock_timeout": "600s"}) as connection, connection.begin():
    connection.execute(sa.text("INSERT INTO kept VALUES (2)"))
    connection.execute(sa.text(sys.argv[2]))
"""
WAITS = {
    "a long statement": ("SELECT 7 + 1, pg_sleep(600)", "Timeout"),
    "a row of another": ("UPDATE kept SET a = 7 + 1 WHERE a = 1", "Lock"),
    "a lock of another": ("SELECT 7 + 1, pg_advisory_xact_lock(37)", "Lock"),
}
"""A statement, and the kind of event that it waits for."""
OTHERS = """
SELECT pid FROM pg_stat_activity
WHERE query LIKE '%%7 + 1%%' AND pid <> pg_backend_pid() AND wait_event_type = %s AND datname = current_database()
"""


@pytest.fixture(params=["directly", "transaction"])
def url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """The server itself, or a pooler in front of it."""
    if request.param == "directly":
        yield postgres_url
        return
    with pgbouncer(postgres_url, pool_mode=request.param, pool_size=5) as pooled:
        yield pooled


@contextmanager
def holding(postgres_url: str) -> Iterator[psycopg2.extensions.connection]:
    """A session that holds what the driver waits for, and sees who is there."""
    connection = psycopg2.connect(postgres_url)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (a bigint); INSERT INTO kept VALUES (1)")
        connection.commit()
        cursor.execute("SELECT pg_advisory_xact_lock(37); SELECT a FROM kept FOR UPDATE")
    yield connection
    connection.close()


def waiting(connection: psycopg2.extensions.connection, kind: str) -> list[tuple[int]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(OTHERS, [kind])
        found: list[tuple[int]] = cursor.fetchall()
        return found


@pytest.mark.parametrize("wait", WAITS)
def test_the_statement_of_a_killed_process_ends(wait: str, url: str, postgres_url: str) -> None:
    """Nothing of its transaction is there, and what it held is free, while the locks that it waited for are still held."""
    statement, kind = WAITS[wait]
    with holding(postgres_url) as holder:
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, url, statement])
        try:
            eventually(lambda: waiting(holder, kind), what="the driver's statement", timeout=60)
            driver.send_signal(signal.SIGKILL)
        finally:
            driver.kill()
            driver.wait()
        eventually(lambda: not waiting(holder, kind), what="the end of the statement")
        with holder.cursor() as cursor:
            cursor.execute("SELECT a FROM kept")
            assert cursor.fetchall() == [(1,)]


def asked(warehouse: Warehouse) -> list[str]:
    """What transactions have, one after another, and a connection each of whose statements is one."""
    name = sa.select(sa.func.current_setting("client_connection_check_interval"))
    options: list[dict[str, str]] = [{}, {}, {"isolation_level": databases.AUTOCOMMIT}]
    found = []
    for given in options:
        with warehouse.engine.connect().execution_options(**given) as connection:
            found.append(connection.execute(name).scalar_one())
    return found


def test_every_transaction_asks_for_it_and_leaves_nothing_behind(url: str) -> None:
    warehouse = Warehouse("wh", url)
    assert asked(warehouse) == ["2s", "2s", "2s"]
    warehouse.close()
    plain = psycopg2.connect(url)
    with plain, plain.cursor() as cursor:
        cursor.execute("SHOW client_connection_check_interval")
        assert cursor.fetchone() == ("0",)
    plain.close()


def test_a_url_that_says_how_often_is_obeyed(url: str) -> None:
    warehouse = Warehouse("wh", f"{url}?options=-cclient_connection_check_interval%3D7s")
    assert asked(warehouse) == ["7s", "7s", "7s"]
    warehouse.close()


def test_a_server_that_does_not_know_the_setting_is_used_without_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PostgreSQL 13 says of it, this server says of a name that no version knows."""
    monkeypatch.setattr(databases, "_LOOKED_FOR", {"client_connection_check_interval_13": "2s"})
    warehouse = Warehouse("wh", url)
    assert asked(warehouse) == ["0", "0", "0"]
    warehouse.close()
