"""Deadlocks and serialization failures, real ones: the same effects again, and never taken for being replaced."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.protocol import effects as fx
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.every_effect import EVERY_KIND, picture, prepared
from tests.support.faults import before_statement
from tests.support.logs import OUT, open_sql_store, sent
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlLogStore]:
    opened = open_sql_store(postgres_url, patience=QUICK)
    yield opened
    opened.dispose()


@pytest.fixture
def expected(store: SqlLogStore) -> dict[str, Any]:
    undisturbed = prepared(store, "undisturbed")
    undisturbed.session.commit(EVERY_KIND)
    return picture(store, undisturbed.run.run_id)


def codes(store: SqlLogStore) -> list[str]:
    """Filled with the SQLSTATE of every error as it happens."""
    seen: list[str] = []

    @sa.event.listens_for(store.engine, "handle_error")
    def note(context: Any) -> None:
        seen.append(str(getattr(context.original_exception, "pgcode", "")))

    return seen


def waiting_backends(store: SqlLogStore) -> int:
    with store.engine.begin() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return int(connection.execute(sa.text(query)).scalar_one())


LOCKED = {
    "an event": "SELECT 1 FROM logio_event_log WHERE run_id = :run AND event_id = 2 AND send_op = 'sender' FOR UPDATE",
    "the state": "SELECT 1 FROM logio_state WHERE run_id = :run AND op = 'receiver' FOR UPDATE",
    "a counter": "SELECT 1 FROM logio_port_counter WHERE run_id = :run FOR UPDATE",
}


@pytest.mark.parametrize("what", LOCKED)
def test_a_deadlock_means_the_same_effects_again(store: SqlLogStore, expected: dict[str, Any], what: str) -> None:
    """The driver holds the fence and waits for a row, whose holder waits for the fence: PostgreSQL refuses the driver."""
    with store.engine.begin() as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET deadlock_timeout = '200ms'"))
    store.engine.dispose()
    driver = prepared(store, "run")
    seen = codes(store)
    with ThreadPoolExecutor(2) as pool:
        with store.engine.begin() as other:
            other.execute(sa.text("SET LOCAL deadlock_timeout = '30s'"))  # the driver is the one to be refused
            other.execute(sa.text(LOCKED[what]), {"run": driver.run.run_id})
            commit = pool.submit(driver.session.commit, EVERY_KIND)
            eventually(lambda: waiting_backends(store) == 1 or seen, what="the driver waits for the row", every=0.005)
            fence = "SELECT incarnation FROM logio_fence WHERE run_id = :run FOR UPDATE"
            assert other.execute(sa.text(fence), {"run": driver.run.run_id}).scalar_one() == 1
        commit.result(90)
    assert "40P01" in seen
    assert picture(store, driver.run.run_id) == expected
    assert driver.session.open().incarnation == 1


def test_a_serialization_failure_means_the_same_effects_again(store: SqlLogStore, expected: dict[str, Any]) -> None:
    """Under another isolation level than ours, which a pooler or a default of the server could bring about."""
    driver = prepared(store, "run")
    seen = codes(store)

    def in_an_old_snapshot(connection: Connection) -> None:
        """The transaction has its snapshot, then the fence row changes under it."""
        cursor: Any = connection.connection.cursor()
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT 1 FROM logio_fence")
        with store.engine.connect() as other, other.begin():
            other.execute(sa.text("UPDATE logio_fence SET epoch = epoch WHERE run_id = :r"), {"r": driver.run.run_id})

    with before_statement(store, 1, in_an_old_snapshot):
        driver.session.commit(EVERY_KIND)
    assert seen == ["40001"]
    assert picture(store, driver.run.run_id) == expected


def test_a_driver_commits_while_others_conflict_with_it_all_the_time(store: SqlLogStore) -> None:
    """Three that lock its rows in another order; it commits everything once, whichever is refused."""
    with store.engine.begin() as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET deadlock_timeout = '20ms'"))
    store.engine.dispose()
    driver = prepared(store, "run")
    stop: list[bool] = []
    refused: list[str] = []

    def conflict() -> None:
        while not stop:
            try:
                with store.engine.begin() as connection:
                    for statement in (*LOCKED.values(), "SELECT 1 FROM logio_fence WHERE run_id = :run FOR UPDATE"):
                        connection.execute(sa.text(statement), {"run": driver.run.run_id})
            except sa.exc.DBAPIError as error:
                refused.append(str(getattr(error.orig, "pgcode", "")))

    with ThreadPoolExecutor(3) as pool:
        rivals = [pool.submit(conflict) for _ in range(3)]
        try:
            for number in range(10, 40):
                driver.session.commit(_touching_what_they_lock(number))
        finally:
            stop.append(True)
        for rival in rivals:
            rival.result(90)
    assert driver.session.open().commit_no == 31
    assert store.progress(driver.run.run_id)[0].events == 4 + 30
    assert set(refused) <= {"40P01", "55P03"}


def _touching_what_they_lock(number: int) -> fx.Effects:
    return [sent(number), fx.StoreState("receiver", b"%d" % number), fx.CountEvents(OUT, "out", 1, 1, 1)]
