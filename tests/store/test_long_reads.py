"""The server ends a session that stands still in a transaction: soon if it writes, and late if it reads."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.errors import LogUnavailable
from airflow_logio.store.sql.engines import writing
from airflow_logio.store.sql.session import SqlGroupSession
from tests.support.logs import assigned, open_sql_store, sent, start_driver

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "IDLE_IN_TRANSACTION_SECONDS", 1)


def test_a_group_that_takes_long_to_rebuild_is_recovered(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of events: what they are made of is decoded between two statements, and after the last one."""
    store = open_sql_store(postgres_url)
    driver = start_driver(store)
    driver.session.commit([sent(1), sent(2), assigned(1, "A"), assigned(2, "A")])
    for part in ("_acknowledged_events", "_pending_writes"):
        read = getattr(SqlGroupSession, part)

        def slowly(*arguments: Any, read: Any = read) -> Any:
            found = read(*arguments)
            time.sleep(1.5)
            return found

        monkeypatch.setattr(SqlGroupSession, part, slowly)
    recovered = driver.session.recover(["receiver"])
    assert [one.event.event_id for one in recovered.acknowledged] == [1, 2]
    store.dispose()


def test_who_stands_still_while_it_writes_is_ended(postgres_url: str) -> None:
    store = open_sql_store(postgres_url)
    with pytest.raises(LogUnavailable), writing(store.engine) as connection:
        connection.execute(sa.text("SELECT 1"))
        time.sleep(1.5)
        connection.execute(sa.text("SELECT 1"))
    store.dispose()
