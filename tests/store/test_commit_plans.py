"""What a commit reads does not depend on how much of the log is done, nor on statistics that PostgreSQL does not have yet.

A new log is analyzed a minute after it was filled, at the earliest. Until then every index looks as good as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import IN, OUT, Driver, assigned, open_sql_store, sent, start_driver

pytestmark = pytest.mark.postgres

PER_COMMIT = 50
WAITING, USED_UP = 6_000, 1_500
MOST_BUFFERS_PER_EVENT = 25
"""Pages of an event's two updates, in five indexes; a plan that reads all rows of the operator takes hundreds."""


@pytest.fixture
def driver(postgres_url: str) -> Iterator[Driver]:
    store = open_sql_store(postgres_url)
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE logio_event_log SET (autovacuum_enabled = off)"))
    driver = start_driver(store)
    for first in range(1, WAITING + 1, 500):
        driver.session.commit([sent(number) for number in range(first, first + 500)])
    yield driver
    store.dispose()


def used_up(first: int) -> list[fx.Effect]:
    """A commit that uses events up, each in an Input Set of its own."""
    numbers = range(first, first + PER_COMMIT)
    return [
        *(assigned(number, f"I{number}") for number in numbers),
        *(fx.MarkDone("receiver", f"I{number}", 1) for number in numbers),
    ]


@contextmanager
def explained(store: SqlLogStore) -> Iterator[list[dict[str, Any]]]:
    """The plans of all updates of EVENT_LOG, with what they have read."""
    plans: list[dict[str, Any]] = []

    def explain(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "UPDATE logio_event_log" in statement:
            with cursor.connection.cursor() as another:
                another.execute("SAVEPOINT before")
                another.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
                plans.append(another.fetchone()[0][0]["Plan"])
                another.execute("ROLLBACK TO before")

    sa.event.listen(store.engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", explain)


@pytest.mark.parametrize("analyzed", [False, True], ids=["new", "analyzed"])
def test_events_are_looked_up_one_by_one(driver: Driver, *, analyzed: bool) -> None:
    store = driver.store
    assert isinstance(store, SqlLogStore)
    for first in range(1, USED_UP, PER_COMMIT):
        driver.session.commit(used_up(first))
        if first == 1 and analyzed:
            with store.engine.begin() as connection:
                connection.execute(sa.text("ANALYZE logio_event_log"))
    with explained(store) as plans:
        driver.session.commit(used_up(USED_UP + 1))
    assert len(plans) == 2, "one assigns, one marks done"
    read = [plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans]
    assert max(read) < MOST_BUFFERS_PER_EVENT * PER_COMMIT, plans
    assert driver.session.fetch(IN, USED_UP + PER_COMMIT, max_events=1, max_bytes=1 << 20)[0].event.sender == OUT
