"""How a receiver hears of new events, and how little that takes. Only PostgreSQL notifies anyone."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.session import SqlGroupSession
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.store.sql.wake import BUSY_LOOKS, PostgresWaker
from tests.support.logs import Driver, fetched, open_sql_store, sent, start_driver
from tests.support.statements import counted_statements
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

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

    def until_notified(self) -> None:
        """The notification has come, and no one has waited for it."""
        assert isinstance(self.receiver, SqlGroupSession) and isinstance(self.receiver._waker, PostgresWaker)
        readable, _, _ = select.select([self.receiver._waker._listening], [], [], LATE)
        assert readable

    def is_parked(self) -> bool:
        with self.store.engine.connect() as connection:
            return bool(connection.execute(sa.select(schema.waiting.c.parked)).scalar_one_or_none())

    def say(self, *, parked: bool) -> None:
        """As another driver of the group does."""
        with self.store.engine.begin() as connection:
            connection.execute(sa.update(schema.waiting).values(parked=parked))


@pytest.fixture
def pair(postgres_url: str) -> Iterator[Pair]:
    store = open_sql_store(postgres_url)
    yield Pair(store)
    store.dispose()


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
    rounds = 0
    while pair.receiver.will_hear():
        assert pair.is_parked()
        pair.send()
        pair.until_notified()  # it takes the events before meanwhile
        assert pair.seconds() < LATE / 2 and pair.found()
        rounds += 1
    assert rounds == BUSY_LOOKS - 1 and not pair.is_parked(), "it looks until nothing is there"
    pair.send()
    assert pair.found()
    pair.park()
    assert pair.is_parked()
    pair.send()
    assert pair.seconds() < LATE / 2 and pair.found()


def test_who_finds_something_without_waiting_is_notified_no_more(pair: Pair) -> None:
    """It lags: each look is full, and none of them is followed by a wait."""
    pair.park()
    for _ in range(BUSY_LOOKS):
        assert pair.is_parked()
        pair.send()
        assert pair.found()
        pair.receiver.will_hear()
    assert not pair.is_parked()
    with counted_statements(pair.store.engine) as statements:
        for _ in range(3):
            pair.send()
            assert pair.found() and not pair.receiver.will_hear()
    assert not [one for one in statements if f"INTO {schema.waiting.name}" in one], "it says so once"


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


def test_who_becomes_busy_after_a_wait_in_vain_is_notified_no_more(pair: Pair) -> None:
    """What its senders would say, no one would read."""
    pair.park()
    pair.send(announced=False)
    assert pair.seconds(SOON) >= SOON
    assert pair.found() and not pair.receiver.will_hear() and pair.is_parked()
    for _ in range(BUSY_LOOKS - 1):
        pair.send()
        assert pair.found() and not pair.receiver.will_hear()
    assert not pair.is_parked()


def test_a_wait_that_ends_in_vain_says_nothing_again(pair: Pair) -> None:
    pair.park()
    with counted_statements(pair.store.engine) as statements:
        for _ in range(3):
            pair.receiver.wait(0.0)
    assert not statements and pair.is_parked()


def test_a_look_leaves_no_setting_and_needs_no_transaction(pair: Pair) -> None:
    """Behind a pooler the session is another client's next."""
    pair.send()
    raw: list[Any] = []

    @sa.event.listens_for(pair.store.engine, "after_cursor_execute")
    def note(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        raw.append((connection.connection.dbapi_connection, statement))

    assert pair.found()
    sa.event.remove(pair.store.engine, "after_cursor_execute", note)
    ((session, statement),) = raw
    assert statement.startswith("SELECT"), "what waits, how large it is, and the events"
    assert session.autocommit and session.info.transaction_status == TRANSACTION_STATUS_IDLE
    with session.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')")
        assert cursor.fetchone() == ("0", "0"), "those of the server, which the look had set for itself"


def test_a_hint_that_cannot_be_sent_takes_nothing_from_those_who_listen(pair: Pair) -> None:
    """It belongs to another thread, whose connection is not the one that was lost."""
    pair.park()
    with counted_statements(pair.store.engine) as statements:
        pair.receiver.announce(["g"])
        with pair.store.engine.begin() as connection:
            connection.execute(
                sa.text(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%pg_notify%' "
                    "AND datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        pair.receiver.announce(["g"])  # in vain
        pair.send()
        eventually(lambda: pair.seconds() < LATE / 2 and pair.found())
    assert not [one for one in statements if f"INTO {schema.waiting.name}" in one], "it waits as before"
