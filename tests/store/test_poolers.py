"""A log behind a connection pooler (PgBouncer) is as durable as one that is connected directly, or it is refused.

What a session sets for itself is the next client's as well there, and what it asks for when it connects is refused or
dropped. So transactions set what they rely on, and receivers poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import psycopg2
import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.errors import ConfigurationError
from airflow_logio.store import open_store
from airflow_logio.store.sql import engines, migrate
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.warehouse import Warehouse
from tests.conftest import QUICK
from tests.support.logs import IN, fetched, open_sql_store, replace_driver, sent, start_driver
from tests.support.pgbouncer import pgbouncer
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["session", "transaction"])
def pooled_url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """The administrator of the database has told its sessions not to wait for the disk."""
    database = postgres_url.rpartition("/")[2]
    with psycopg2.connect(postgres_url) as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    connection.close()
    # A session is a client's as long as it is connected.
    size = 20 if request.param == "session" else 2
    with pgbouncer(postgres_url, pool_mode=request.param, pool_size=size) as url:
        yield url


def settings(store: SqlLogStore) -> set[tuple[str, ...]]:
    """As transactions have them, after everything that a driver does has been done once."""
    names = ("synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout")
    query = sa.select(*(sa.func.current_setting(name) for name in names))
    found = set()
    for _ in range(8):
        with engines.writing(store.engine) as connection:
            found.add(tuple(connection.execute(query).one()))
    return found


def test_every_transaction_is_durable_and_bounded_whatever_other_clients_have_set(pooled_url: str) -> None:
    store = open_sql_store(pooled_url, patience=QUICK)
    driver = start_driver(store)
    receiver = store.session(driver.ref)
    receiver.open()
    receiver.wait(0.0)
    driver.session.commit([sent(1)])
    driver.session.announce(["g"])
    store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
    careless = psycopg2.connect(pooled_url)
    with careless, careless.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
    careless.close()
    assert settings(store) == {("on", "3s", "5s")}
    assert fetched(receiver) == [1]
    plain = psycopg2.connect(pooled_url)
    with plain, plain.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",), "nothing is left behind for others"
    plain.close()
    store.dispose()


def test_receivers_poll_and_supervisors_hear_nothing(pooled_url: str) -> None:
    store = open_sql_store(pooled_url, patience=QUICK)
    driver = start_driver(store)
    receiver = store.session(driver.ref)
    receiver.open()
    heard = store.listen(lambda: None)
    seen: list[float] = []

    def receive() -> None:
        while not seen:
            receiver.wait(60.0)
            if receiver.fetch(IN, 0, max_events=10, max_bytes=1000):
                seen.append(time.monotonic())

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    time.sleep(0.2)
    sent_at = time.monotonic()
    driver.session.commit([sent(1)])
    driver.session.announce(["g"])
    thread.join(90)
    assert seen[0] - sent_at < 30.0, "it did not sleep for as long as it may"
    assert heard is not None
    heard.close()
    store.dispose()


def test_a_driver_that_stops_in_a_transaction_is_replaced(pooled_url: str) -> None:
    """Its successor ends its session; without that right, the server does after `idle_in_transaction_session_timeout`."""
    supervisor = open_sql_store(pooled_url, patience=QUICK)
    driver = start_driver(supervisor)
    stuck = open_sql_store(pooled_url, driver=driver.claim, patience=QUICK)
    with stuck.engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM logio_fence FOR UPDATE")
        began = time.monotonic()
        assert replace_driver(driver).ref.incarnation == 2
        waited = time.monotonic() - began
        assert waited < databases.IDLE_IN_TRANSACTION_SECONDS, "it was ended, and not waited for"
        connection.invalidate()
    stuck.dispose()
    supervisor.dispose()


def test_a_stopped_driver_loses_its_locks_by_itself(pooled_url: str) -> None:
    store = open_sql_store(pooled_url, patience=QUICK)
    start_driver(store)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM logio_fence FOR UPDATE")

        def is_free() -> bool:
            with store.engine.connect() as other:
                query = "SELECT count(*) FROM (SELECT 1 FROM logio_fence FOR UPDATE SKIP LOCKED) AS free"
                return bool(other.exec_driver_sql(query).scalar_one() == 1)

        assert not is_free()
        eventually(is_free, what="the server ends the session")
        connection.invalidate()
    store.dispose()


def test_a_warehouse_behind_a_pooler_is_durable(pooled_url: str) -> None:
    warehouse = Warehouse("wh", pooled_url)
    with warehouse.engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "read committed"
    warehouse.close()


@pytest.mark.parametrize("drops", ["", "options"], ids=["refuses options", "drops options"])
def test_a_schema_of_the_url_is_the_schema_behind_a_pooler(postgres_url: str, drops: str) -> None:
    with psycopg2.connect(postgres_url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA apart")
    connection.close()
    with pgbouncer(postgres_url, pool_mode="transaction", drops=drops) as url:
        apart = f"{url}?options=-csearch_path%3Dapart"
        migrate.upgrade(apart)
        store = open_sql_store(apart, patience=QUICK)
        driver = start_driver(store)
        driver.session.commit([sent(1)])
        driver.session.announce(["g"])
        for schema, drivers in (("apart", 1), ("public", 0)):
            with store.engine.connect() as session:
                assert session.exec_driver_sql(f"SELECT count(*) FROM {schema}.logio_driver").scalar_one() == drivers
        store.dispose()


def test_one_session_per_statement_is_refused_with_the_way_out(postgres_url: str) -> None:
    """Whatever is done first: a run makes the tables of its log, and a person migrates them."""
    ways: list[Callable[[str], object]] = [open_store, partial(open_store, create=True), migrate.upgrade]
    with pgbouncer(postgres_url, pool_mode="statement") as url:
        for way in ways:
            with pytest.raises(ConfigurationError, match="pool_mode = session or transaction"):
                way(url)


@pytest.mark.parametrize("options", ["-e", "-c nothing"])
def test_options_that_are_no_settings_are_refused(postgres_url: str, options: str) -> None:
    with pytest.raises(ConfigurationError, match="must be settings"):
        open_store(f"{postgres_url}?options={options}")


def test_a_start_up_parameter_that_is_refused_is_no_outage(postgres_url: str) -> None:
    with (
        pgbouncer(postgres_url, pool_mode="transaction") as url,
        pytest.raises(ConfigurationError, match="unsupported startup parameter"),
    ):
        open_store(f"{url}?replication=database")


@pytest.mark.parametrize(("part", "name"), [("database", "no_such_log"), ("username", "nobody_of_ours")])
def test_a_database_or_user_that_the_pooler_does_not_know_is_no_outage(postgres_url: str, part: str, name: str) -> None:
    with pgbouncer(postgres_url, pool_mode="transaction") as url:
        known = sa.make_url(url)
        other = known.set(database=name) if part == "database" else known.set(username=name)
        wrong = other.render_as_string(hide_password=False)
        with pytest.raises(ConfigurationError, match=name):
            open_store(wrong)


def test_a_limit_on_locks_that_a_pooler_takes_away_is_refused() -> None:
    """Locks of a driver that is stopped would be waited for without an end."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        found = {"synchronous_commit": "on", "idle_in_transaction_session_timeout": "5s", "lock_timeout": "0"}
        connection.connection.create_function("current_setting", 1, found.get)
        with pytest.raises(ConfigurationError, match=r"lock_timeout is '0' .* pool_mode = session or transaction"):
            databases.check_settings(connection, "the log")
    engine.dispose()
