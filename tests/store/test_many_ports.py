"""What waits for many ports, fetched with one question: bounds, turns, and a price that does not grow with what is done."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from tests.store.test_retention_plans import explained
from tests.support.logs import UNDONE, spec, start_driver

A_MIB = 1 << 20


def slot(number: int) -> Port:
    return Port(f"work[{number}]", "in")


def for_slot(event_id: int, number: int, size: int = 4, **more: Any) -> fx.LogEvent:
    event = Event(Port("feed", f"slot{number}"), event_id, records=1, body=bytes([number]) * size)
    return fx.LogEvent(event, (fx.Delivery(slot(number)),), **more)


def used(event_id: int, number: int) -> fx.Acknowledge:
    return fx.Acknowledge(Port("feed", f"slot{number}"), slot(number), event_id, (("I", UNDONE),))


def fetched(
    session: GroupSession, cursors: Mapping[int, int], *, events: int = 64, size: int = A_MIB
) -> dict[int, list[int]]:
    """Slot → ids of its events, of the slots asked for; every event is the one that was sent there."""
    asked = {slot(n): after for n, after in cursors.items()}
    found = session.fetch_all(asked, max_events=events, max_bytes=size).events
    ids: dict[int, list[int]] = {}
    for number in cursors:
        for logged in found.get(slot(number), ()):
            assert (logged.receiver, logged.inset_id) == (slot(number), None)
            assert (logged.event.sender, set(logged.event.body or b"")) == (Port("feed", f"slot{number}"), {number})
            ids.setdefault(number, []).append(logged.event.event_id)
    assert found.keys() == {slot(number) for number in ids}, "ports for which nothing waits are left out"
    return ids


def test_each_port_is_read_beyond_its_own_cursor(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([for_slot(n, number) for number in (0, 1, 2) for n in (3, 1, 2)])
    session.commit([used(1, 1), used(2, 1)])
    session.commit([for_slot(4, 2, held=True)])
    cursors = dict.fromkeys(range(5), 0)
    assert fetched(session, cursors) == {0: [1, 2, 3], 1: [3], 2: [1, 2, 3]}, "not what is used or held"
    assert fetched(session, {0: 2, 1: 0, 2: 3}) == {0: [3], 1: [3]}
    assert fetched(session, {2: 0}) == {2: [1, 2, 3]}, "not what nobody asks for"
    assert fetched(session, {3: 0, 4: 0}) == {}


def test_another_run_has_the_same_ports(log_store: LogStore) -> None:
    first = start_driver(log_store)
    second = start_driver(log_store, run=log_store.start_run(spec(dag_run="run-2")))
    first.session.commit([for_slot(n, number) for n in (1, 2) for number in (0, 1)])
    second.session.commit([for_slot(1, 1)])
    assert fetched(first.session, {0: 0, 1: 0}) == {0: [1, 2], 1: [1, 2]}
    assert fetched(second.session, {0: 0, 1: 0}) == {1: [1]}


def test_the_bounds(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([for_slot(n, number, 100) for number in range(3) for n in range(1, 6)])
    cursors = dict.fromkeys(range(3), 0)
    assert fetched(session, cursors, events=2) == {0: [1, 2], 1: [1, 2], 2: [1, 2]}, "so many of each port"
    assert fetched(session, cursors, size=700) == {0: [1, 2, 3], 1: [1, 2], 2: [1, 2]}, "so many bytes of all, in turn"
    assert fetched(session, cursors, size=299) == {0: [1], 1: [1]}
    assert fetched(session, cursors, size=1) == {0: [1]}, "an event larger than the bound still comes, alone"
    assert fetched(session, {2: 0, 0: 0, 1: 0}, size=1) == {2: [1]}, "the turns are those of the question"
    assert fetched(session, {3: 0, 1: 4}, size=1) == {1: [5]}, "a port for which nothing waits takes no turn"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_waits_comes_in_turns_until_the_bounds(log_store: LogStore, seed: int) -> None:
    """Against the words of the contract, for questions of all shapes."""
    chance = random.Random(seed)
    session = start_driver(log_store).session
    sizes = {number: [chance.choice((0, 5, 80)) for _ in range(chance.randint(0, 9))] for number in range(8)}
    sent = [for_slot(n, number, size) for number, of in sizes.items() for n, size in enumerate(of, 1)]
    chance.shuffle(sent)
    session.commit([*sent])
    for _ in range(15):
        asked = chance.sample(range(8), chance.randint(1, 8))
        cursors = {number: chance.randint(0, len(sizes[number])) for number in asked}
        events, size = chance.randint(1, 6), chance.choice((1, 30, 100, 250, A_MIB))
        ports = {slot(n): after for n, after in cursors.items()}
        found = session.fetch_all(ports, max_events=events, max_bytes=size)
        ids = {number: [one.event.event_id for one in found.events.get(slot(number), ())] for number in asked}
        assert ids == by_the_book(sizes, cursors, events, size), (seed, cursors, events, size)
        everything = by_the_book(sizes, cursors, 64, A_MIB)
        said = seed, cursors, events, size
        assert not found.is_all or ids == everything, said
        assert found.is_all or ids != everything or any(len(of_port) == events for of_port in ids.values()), said


def by_the_book(
    sizes: Mapping[int, list[int]], cursors: Mapping[int, int], max_events: int, max_bytes: int
) -> dict[int, list[int]]:
    turns = sorted(
        (turn, place, number, after + turn + 1)
        for place, (number, after) in enumerate(cursors.items())
        for turn in range(min(max_events, len(sizes[number]) - after))
    )
    given: dict[int, list[int]] = {number: [] for number in cursors}
    room, too_large = max_bytes, set[int]()
    for nth, (_, _, number, event_id) in enumerate(turns):
        size = sizes[number][event_id - 1]
        if number in too_large or (nth and size > room):
            too_large.add(number)
            continue
        given[number].append(event_id)
        room -= size
    return given


def test_large_events_of_a_port_do_not_set_the_pace_of_the_others(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([*(for_slot(n, 0, 60) for n in (1, 2, 3)), *(for_slot(n, 1, 1) for n in range(1, 21))])
    assert fetched(session, {0: 0, 1: 0}, size=100) == {0: [1], 1: list(range(1, 21))}
    assert fetched(session, {0: 0, 1: 0}, size=50) == {0: [1]}, "one event always fits"
    assert fetched(session, {1: 0, 0: 0}, size=50) == {1: list(range(1, 21))}, "and the others come first next time"


@pytest.mark.parametrize("ports", [1, 3, 128])
def test_two_statements_are_enough_for_all_ports(sql_store: SqlLogStore, ports: int) -> None:
    session = start_driver(sql_store).session
    cursors = dict.fromkeys(range(ports), 0)
    with selects(sql_store) as seen:
        assert fetched(session, cursors) == {}
    assert len(seen) == 1, "while nothing waits"
    session.commit([for_slot(n, number) for number in cursors for n in (1, 2)])
    with selects(sql_store) as seen:
        assert fetched(session, cursors) == {number: [1, 2] for number in cursors}
    assert len(seen) == (1 if ports == 1 and sql_store.engine.dialect.name == "postgresql" else 2)


@contextmanager
def selects(store: SqlLogStore) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        if text.lstrip().upper().startswith("SELECT"):
            seen.append(text)

    sa.event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", note)


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
def test_no_statement_scans_what_is_done(sql_store: SqlLogStore, analyzed: bool) -> None:
    driver = start_driver(sql_store)
    fill(sql_store, driver.run.run_id)
    driver.session.commit([for_slot(n, number) for number in range(PORTS) for n in (DONE + 1, DONE + 2)])
    if analyzed:
        with sql_store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    plans: list[tuple[str, str]] = []
    with explained(sql_store, plans):
        assert len(fetched(driver.session, dict.fromkeys(range(PORTS), DONE))) == PORTS
        assert len(fetched(driver.session, {0: DONE})) == 1
    assert len(plans) >= 3
    for statement, plan in plans:
        assert "Seq Scan on logio" not in plan and "SCAN logio" not in plan, f"{statement}\n{plan}"
        assert "ix_logio_event_log_delivery" in plan, f"{statement}\n{plan}"


PORTS, DONE = 16, 1000


def fill(store: SqlLogStore, run_id: int) -> None:
    """Events that every port has used, and whose rows are not collected yet."""
    key = {"run_id": run_id, "send_op": "feed"}
    rows = [
        (number, {**key, "event_id": n, "channel": f"slot{number}", "send_port": f"slot{number}"})
        for number in range(PORTS)
        for n in range(1, DONE + 1)
    ]
    with store.engine.begin() as connection:
        connection.execute(
            sa.insert(schema.event_log),
            [
                {**row, "status": "done", "rec_op": slot(number).operator, "rec_port": "in", "inset_id": "I"}
                for number, row in rows
            ],
        )
        connection.execute(
            sa.insert(schema.event_data), [{**row, "header": b"\x80", "body": b"body" * 30} for _, row in rows]
        )


def test_a_body_that_is_missing_is_noticed(sql_store: SqlLogStore) -> None:
    session = start_driver(sql_store).session
    session.commit([for_slot(1, number) for number in (0, 1)])
    with sql_store.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM logio_event_data WHERE channel = 'slot1'"))
    with pytest.raises(LogInconsistent, match=r"event 1 of feed\.slot1"):
        fetched(session, {0: 0, 1: 0})
    assert fetched(session, {0: 0}) == {0: [1]}
