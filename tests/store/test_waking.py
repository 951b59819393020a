"""How a receiver hears of new events, and how little that takes: PostgreSQL, SQLite and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from airflow_logio.store.session_port import GroupSession
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.store.sql.wake import BUSY_WAITS
from tests.support.logs import Driver, fetched, sent, start_driver
from tests.support.statements import counted_statements
from tests.support.waiting import eventually

SOON, LATE = 0.05, 20.0


class Pair:
    """A group that is fed by itself: one session sends, another one receives."""

    def __init__(self, store: SqlLogStore) -> None:
        self.store = store
        self.driver: Driver = start_driver(store)
        self.receiver: GroupSession = store.session(self.driver.ref)
        self.receiver.open()
        self.number = 0

    def send(self, *, announced: bool = True) -> None:
        self.number += 1
        self.driver.session.commit([sent(self.number)])
        if announced:
            self.driver.session.announce(["g"])

    def found(self) -> bool:
        """Whether the last event is there."""
        return fetched(self.receiver, after=self.number - 1) == [self.number]

    def park(self) -> None:
        self.receiver.wait(LATE)  # says that it waits, and ends at once
        assert not fetched(self.receiver, after=self.number)

    def seconds(self, timeout: float = LATE) -> float:
        """How long it waits."""
        began = time.monotonic()
        self.receiver.wait(timeout)
        return time.monotonic() - began

    def is_parked(self) -> bool:
        with self.store.engine.connect() as connection:
            return bool(connection.execute(sa.select(schema.waiting.c.parked)).scalar_one_or_none())

    def say(self, *, parked: bool) -> None:
        """As another driver of the group does."""
        with self.store.engine.begin() as connection:
            connection.execute(sa.update(schema.waiting).values(parked=parked))


@pytest.fixture
def pair(sql_store: SqlLogStore) -> Iterator[Pair]:
    if sql_store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite notifies no one")
    made = Pair(sql_store)
    yield made
    made.receiver.close()
    made.driver.session.close()


def test_events_that_come_one_by_one_take_one_look_and_no_word(pair: Pair) -> None:
    pair.park()
    with counted_statements(pair.store.engine) as statements:
        for _ in range(5):
            pair.send()
            assert pair.seconds() < LATE / 2 and pair.found()
            assert pair.receiver.will_hear(), "it need not look again before it waits"
            eventually(lambda: pair.seconds(SOON) >= SOON, what="nothing more is announced")
    flags = [one for one in statements if f"INTO {schema.waiting.name}" in one]
    assert pair.is_parked() and not flags, "it has said so before"


def test_who_is_always_notified_before_it_waits_is_notified_no_more(pair: Pair) -> None:
    pair.park()
    for _ in range(BUSY_WAITS):
        assert pair.is_parked()
        pair.send()
        time.sleep(SOON)  # while it takes the events before
        assert pair.seconds() < LATE / 2 and pair.found()
    assert not pair.is_parked() and not pair.receiver.will_hear(), "it looks until nothing is there"
    pair.send()
    assert pair.found()
    pair.park()
    assert pair.is_parked()
    pair.send()
    assert pair.seconds() < LATE / 2 and pair.found()


def test_a_flag_that_a_replaced_driver_has_cleared_is_set_again(pair: Pair) -> None:
    """Nothing is announced any more: the receiver finds that out when it looks, and does not poll for ever."""
    pair.park()
    pair.say(parked=False)
    pair.send()
    assert pair.seconds(SOON) >= SOON, "no one has told it"
    assert pair.found() and not pair.receiver.will_hear()
    pair.park()
    assert pair.is_parked()
    pair.send()
    assert pair.seconds() < LATE / 2 and pair.found()


def test_a_wait_that_ends_in_vain_says_nothing_again(pair: Pair) -> None:
    pair.park()
    with counted_statements(pair.store.engine) as statements:
        for _ in range(3):
            pair.receiver.wait(0.0)
    assert not statements and pair.is_parked()


def test_a_look_leaves_no_setting_and_needs_no_transaction(pair: Pair) -> None:
    """Behind a pooler the session is another client's next."""
    pair.send()
    with counted_statements(pair.store.engine) as statements:
        assert pair.found()
    assert len(statements) == 2, "what waits, and the events"
    assert _copying(pair.store) == [("idle", True)], "settings and COPY in one message, in no transaction"


def _copying(store: SqlLogStore) -> list[tuple[str, bool]]:
    """Of each session that has copied rows from the log: its state now, and whether settings were before that."""
    query = sa.text(
        "SELECT state, query LIKE 'SELECT set_config(%;%' FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE '%COPY (SELECT%' AND pid <> pg_backend_pid()"
    )
    with store.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]
