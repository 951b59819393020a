"""Write actions that a writer holds until its closing one: what recovery reads of them, and how they are read in pages."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
import sqlalchemy as sa

from airflow_logio.errors import EpochVoid, Fenced, LogInconsistent, LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.writes import CLOSE, HeldGroup, PendingWrite
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import writing
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.store.sql.write_rows import SCANNED_AT_ONCE
from tests.support.faults import before_statement, lose_connection
from tests.support.logs import Driver, replace_driver, start_driver

DAY = ("save", "wh")
BESIDE = ("keep", "lake")
BODY = 1_000


def action(number: int, does: str = "insert", writer: tuple[str, str] = DAY) -> fx.LogWrite:
    body = None if does in ("begin", CLOSE) else b"%d" % number + b"w" * BODY
    return fx.LogWrite(*writer, number, {"action": does}, 0 if body is None else 10, None, body)


def logged(driver: Driver, many: int, *, closed: bool = False) -> None:
    """An opening action, `many` that are held, and the closing one; and one of another writer."""
    held = [action(number) for number in range(2, many + 2)]
    closing = [action(many + 2, CLOSE)] if closed else []
    driver.session.commit([action(1, "begin"), *held, action(1, "insert", BESIDE), *closing])


def pages(session: GroupSession, last: int, max_bytes: int = 4 * BODY) -> list[list[PendingWrite]]:
    """All of them, a page at a time."""
    found: list[list[PendingWrite]] = []
    number = 1
    while number < last:
        found.append(list(session.held_writes(DAY, number, last, max_bytes=max_bytes)))
        number = found[-1][-1].number
    return found


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_recovery_reads_what_stands_around_them(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    logged(driver, 5)
    found = driver.session.recover(["save", "keep"], [DAY])
    assert [(write.operator, write.number, len(write.body)) for write in found.writes] == [
        ("keep", 1, BODY + 1),
        ("save", 1, 0),
    ]
    assert found.held == {DAY: HeldGroup(2, 6, 50)}
    driver.session.commit([fx.WritesDone(*DAY, 1, 1), action(7, CLOSE)])
    found = driver.session.recover(["save", "keep"], [DAY])
    assert [write.number for write in found.writes if write.operator == "save"] == [7]
    assert found.held == {DAY: HeldGroup(2, 6, 50)}
    driver.session.commit([fx.WritesDone(*DAY, 2, 7)])
    found = driver.session.recover(["save", "keep"], [DAY])
    assert ([write.operator for write in found.writes], found.held) == (["keep"], {})


def test_a_day_without_records_holds_nothing(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    logged(driver, 0, closed=True)
    found = driver.session.recover(["save"], [DAY])
    assert ([write.number for write in found.writes], found.held) == ([1, 2], {})


def test_others_are_read_as_ever(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    logged(driver, 3, closed=True)
    assert [write.number for write in driver.session.recover(["save"]).writes] == [1, 2, 3, 4, 5]


def test_what_recovery_keeps_does_not_grow_with_them(log_store: LogStore) -> None:
    """Some five thousand bodies of a kilobyte, and more of them than are looked at in one statement."""
    driver = start_driver(log_store)
    many = SCANNED_AT_ONCE + 900
    logged(driver, many, closed=True)
    driver.session.recover(["save"], [DAY])
    tracemalloc.start()
    found = driver.session.recover(["save"], [DAY])
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.held == {DAY: HeldGroup(2, many + 1, 10 * many)}
    assert kept < many * BODY / 5, f"{kept:,} bytes are kept"
    if isinstance(log_store, SqlLogStore):
        assert peak < many * BODY, f"{peak:,} bytes were read: some bodies were"


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_have_all_of_them_in_order(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    many = SCANNED_AT_ONCE + 900
    logged(driver, many, closed=True)
    found = pages(driver.session, many + 1, max_bytes=1_000 * BODY)
    writes = [write for page in found for write in page]
    assert [write.number for write in writes] == list(range(2, many + 2))
    assert all(write.body.startswith(b"%d" % write.number) for write in writes)
    assert all(sum(len(write.body) for write in page) <= 1_000 * BODY for page in found)
    assert len(found) <= -(-many * (BODY + 4) // (999 * BODY)) + 1, "pages are as large as they may be"


def test_the_first_one_always_fits(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    logged(driver, 4)
    assert [[write.number for write in page] for page in pages(driver.session, 5, max_bytes=1)] == [[2], [3], [4], [5]]


def test_those_of_a_day_that_is_done_are_not_given_again(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    logged(driver, 4, closed=True)
    driver.session.commit([fx.WritesDone(*DAY, 1, 1), fx.WritesDone(*DAY, 2, 6)])
    with pytest.raises(LogInconsistent, match="write action 2 of 'save' on 'wh' is not in the log any more"):
        driver.session.held_writes(DAY, 1, 5, max_bytes=1)


def test_a_driver_that_was_replaced_gets_none(log_store: LogStore) -> None:
    zombie = start_driver(log_store)
    logged(zombie, 4, closed=True)
    successor = replace_driver(zombie)
    with pytest.raises(Fenced):
        zombie.session.held_writes(DAY, 1, 5, max_bytes=1)
    assert pages(successor.session, 5)


def test_an_epoch_that_is_void_gets_none(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    logged(driver, 4, closed=True)
    another = log_store.session(driver.ref)
    another.open(raise_epoch=True)
    for refused in (
        lambda: driver.session.held_writes(DAY, 1, 5, max_bytes=1),
        lambda: driver.session.check_patiently(lambda: True),
    ):
        with pytest.raises(EpochVoid):
            refused()
    assert pages(another, 5)


# --- damage and outages -----------------------------------------------------------------------------------------------


def gone(store: SqlLogStore, number: int) -> None:
    table = schema.event_log
    with writing(store.engine) as connection:
        connection.execute(sa.delete(table).where(table.c.send_op == "save", table.c.event_id == number))


def without_body(store: SqlLogStore, number: int) -> None:
    table = schema.event_data
    with writing(store.engine) as connection:
        connection.execute(sa.delete(table).where(table.c.send_op == "save", table.c.event_id == number))


def with_another_body(store: SqlLogStore, number: int) -> None:
    table = schema.event_data
    with writing(store.engine) as connection:
        where = (table.c.send_op == "save", table.c.event_id == number)
        connection.execute(sa.update(table).where(*where).values(body=b"%d" % number + b"x" * BODY))


@pytest.mark.parametrize("damage", [gone, without_body, with_another_body])
def test_one_that_is_not_whole_is_noticed(sql_store: SqlLogStore, damage: Callable[[SqlLogStore, int], None]) -> None:
    driver = start_driver(sql_store)
    logged(driver, 6, closed=True)
    damage(sql_store, 4)
    with pytest.raises(LogInconsistent):
        pages(driver.session, 7)
    if damage is not with_another_body:  # which is read with its page
        with pytest.raises(LogInconsistent):
            driver.session.recover(["save"], [DAY])


def test_a_page_does_not_wait_for_a_log_that_is_unavailable(sql_store: SqlLogStore) -> None:
    """A transaction of the warehouse is open meanwhile."""
    driver = start_driver(sql_store)
    logged(driver, 4, closed=True)
    with before_statement(sql_store, 1, lose_connection), pytest.raises(LogUnavailable):
        driver.session.held_writes(DAY, 1, 5, max_bytes=BODY)
    with before_statement(sql_store, 1, lose_connection):
        driver.session.check_patiently(lambda: True)
    with before_statement(sql_store, 1, lose_connection), pytest.raises(LogUnavailable):
        driver.session.check_patiently(lambda: False)
    numbers = [write.number for page in pages(driver.session, 5) for write in page]
    assert all(after == before + 1 for before, after in pairwise(numbers))
