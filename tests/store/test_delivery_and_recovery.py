"""What a receiver fetches, and what recovery reads: order, bounds, and exactly what is undone."""

from __future__ import annotations

import threading

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port import LogStore
from tests.support.logs import IN, OUT, UNDONE, assigned, fetched, held, replace_driver, sent, start_driver


def test_events_come_in_order_of_their_ids_whatever_the_order_of_commits(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(3), sent(1), sent(2)])
    session.commit([sent(5), sent(4)])
    assert fetched(session) == [1, 2, 3, 4, 5]


def test_an_event_comes_back_whole(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1, bytes(range(256)) * 10)])
    (logged,) = session.fetch(IN, 0, max_events=9, max_bytes=9)
    event = logged.event
    assert (logged.receiver, logged.inset_id) == (IN, None)
    assert (event.sender, event.event_id, event.kind, event.records) == (OUT, 1, Kind.DATA, 3)
    assert event.body == bytes(range(256)) * 10


def test_the_cursor_and_the_bounds(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(n, b"x" * 100) for n in range(1, 11)])

    def ids(after: int, events: int, size: int) -> list[int]:
        return [row.event.event_id for row in session.fetch(IN, after, max_events=events, max_bytes=size)]

    assert ids(0, 3, 10_000) == [1, 2, 3]
    assert ids(3, 3, 10_000) == [4, 5, 6]
    assert ids(0, 100, 250) == [1, 2]
    assert ids(0, 100, 200) == [1, 2], "a bound is reached by what fills it exactly"
    assert ids(0, 100, 1) == [1], "an event larger than the bound still comes, alone"
    assert ids(9, 100, 10_000) == [10]
    assert ids(10, 100, 10_000) == []


def test_ports_of_one_operator_are_apart(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    right = Port("receiver", "right")
    session.commit([sent(1), sent(1, receiver=right, sender=Port("another", "out"))])
    session.commit([assigned(1, "A")])
    assert fetched(session) == []
    assert fetched(session, receiver=right) == [1]


def test_unacknowledged_events_are_delivered_again(log_store: LogStore) -> None:
    old = start_driver(log_store)
    old.session.commit([sent(1), sent(2), sent(3)])
    assert fetched(old.session) == [1, 2, 3]
    old.session.commit([assigned(1, "A")])
    new = replace_driver(old)
    assert fetched(new.session) == [2, 3]
    assert held(new.session) == [(1, "A")]


def test_recovery_reads_what_is_undone_in_order(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    left, right = Port("receiver", "left"), Port("receiver", "right")
    other = Port("bystander", "in")
    session.commit(
        [sent(n, receiver=port, sender=Port(port.name, "out")) for port in (left, right, other) for n in (2, 1, 10)]
    )
    insets = {1: ("B", "A"), 2: ("A",), 10: ("C",)}
    for port in (right, left, other):
        session.commit(
            [fx.Acknowledge(Port(port.name, "out"), port, n, tuple((i, UNDONE) for i in insets[n])) for n in insets]
        )
    session.commit([fx.MarkDone("receiver", "A", 4)])
    session.commit(
        [
            fx.LogWrite("receiver", "wh", 2, {}, 1, None, b"2"),
            fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"1"),
            fx.LogWrite("receiver", "archive", 1, {}, 1, None, b"a"),
            fx.LogWrite("bystander", "wh", 1, {}, 1, None, b"b"),
            fx.LogStateEvent("receiver", 1, "B", b"at B"),
            fx.StoreState("receiver", b"now"),
        ]
    )
    recovered = session.recover(["receiver"])
    assert [(row.receiver.name, row.event.event_id, row.inset_id) for row in recovered.acknowledged] == [
        ("left", 1, "B"),
        ("left", 10, "C"),
        ("right", 1, "B"),
        ("right", 10, "C"),
    ]
    assert all(row.event.body == b"body" for row in recovered.acknowledged)
    assert [(write.connection, write.number) for write in recovered.writes] == [("archive", 1), ("wh", 1), ("wh", 2)]
    assert recovered.snapshots == (("receiver", "B", b"at B"),)
    assert recovered.states == {"receiver": b"now"}
    assert len(session.recover(["receiver", "bystander"]).writes) == 4


def test_recovery_of_a_new_run_reads_nothing(log_store: LogStore) -> None:
    recovered = start_driver(log_store).session.recover(["receiver"])
    assert (recovered.states, recovered.snapshots, recovered.acknowledged, recovered.writes) == ({}, (), (), ())


def test_a_fused_event_that_is_held_is_reloaded_from_the_log(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    delivery = fx.Delivery(Port("next", "in"), (("A", UNDONE),), fused=True)
    session.commit([fx.LogEvent(Event(OUT, 1, Kind.DATA, 1, None, b"fused"), (delivery,))])
    (row,) = session.recover(["sender", "next"]).acknowledged
    assert (row.receiver, row.inset_id, row.event.body) == (Port("next", "in"), "A", b"fused")


@pytest.mark.parametrize("group", ["g", "a group with a long name " * 8, "a" * 200 + "é"])
def test_a_commit_wakes_a_waiting_receiver(log_store: LogStore, group: str) -> None:
    """The receiver polls, then waits; what is committed meanwhile ends the wait long before its timeout."""
    sender = start_driver(log_store, group=group)
    receiver = log_store.session(sender.ref)
    receiver.open()
    found = threading.Event()

    def receive() -> None:
        while not fetched(receiver):
            receiver.wait(60)
        found.set()

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    sender.session.commit([sent(1)])
    sender.session.announce(sorted({"g", group, "z" * 300}))
    assert found.wait(60), "the receiver slept through the commit"
    thread.join()
    receiver.close()
    sender.session.close()


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_a_wait_ends_without_news(log_store: LogStore, timeout: float) -> None:
    session = start_driver(log_store).session
    for _ in range(3):
        session.wait(timeout)
    session.close()
