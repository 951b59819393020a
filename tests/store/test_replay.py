"""Events of replay operators in the log: no bodies, and everything that they are made of again (Section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from tests.support.garbage import collect, event, expiry, left, used
from tests.support.logs import IN, OUT, UNDONE, assigned, start_driver

SOURCE, INTO = Port("source", "out"), Port("sender", "in")


def made(event_id: int, inset_id: str, place: int = 0, *, size: int = 100) -> fx.LogEvent:
    """An event of the replay operator `sender`, on its way to `receiver`; a body was left in it."""
    made_of = MadeOf(inset_id, place, bytes([event_id] * 16), size)
    logged = Event(OUT, event_id, Kind.DATA, 3, None, b"not for the log", {"note": event_id}, made_of=made_of)
    return fx.LogEvent(logged, (fx.Delivery(IN),), kept=True)


def generated(session: GroupSession, first: int, *inset_ids: str, of: int = 2) -> None:
    """source.out → sender: Input Sets of so many events each, and two events of each Input Set."""
    for number, inset_id in enumerate(inset_ids):
        ids = range(of * (first + number - 1) + 1, of * (first + number) + 1)
        session.commit([event(n, INTO, sender=SOURCE, kept=True) for n in ids])
        session.commit([used(n, inset_id, sender=SOURCE, receiver=INTO, kept=True) for n in ids])
        event_id = 2 * (first + number) - 1
        session.commit([made(event_id, inset_id), made(event_id + 1, inset_id, 1)])
        session.commit([fx.RecordLineage(OUT, n, inset_id) for n in (event_id, event_id + 1)])


def used_in(session: GroupSession, operator: str, inset_id: str) -> Sequence[LoggedEvent]:
    (found,) = session.input_sets(operator, [inset_id], 0).values()
    return found


def test_an_event_comes_back_with_what_it_is_made_of_and_without_a_body(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([made(1, "A"), made(2, "A", 1)])
    session.commit([assigned(1, "R")])
    (waiting,) = session.fetch(IN, 1, max_events=9, max_bytes=999)
    (held,) = session.recover(["receiver"]).acknowledged
    for logged, place in ((held, 0), (waiting, 1)):
        found = logged.event
        assert found.made_of == MadeOf("A", place, bytes([found.event_id] * 16), 100)
        assert (found.body, found.ref, found.records, found.about) == (b"", None, 3, {"note": found.event_id})


def test_bytes_of_a_fetch_are_those_that_the_events_will_have(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([made(n, f"S{n}", size=100) for n in range(1, 6)])
    assert len(session.fetch(IN, 0, max_events=9, max_bytes=250)) == 2


def test_an_input_set_is_read_in_order_whatever_has_become_of_it(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(n, INTO, sender=SOURCE, kept=True) for n in (1, 2, 3)])
    for n, insets in ((1, ("A",)), (2, ("A", "B")), (3, ("B", "A"))):
        session.commit([used(n, *insets, sender=SOURCE, receiver=INTO, kept=True, status=UNDONE)])
    session.commit([fx.MarkDone("sender", "A", 3)])
    collect(session)
    for inset_id, ids in (("A", [1, 2, 3]), ("B", [2, 3])):
        found = used_in(session, "sender", inset_id)
        assert [one.event.event_id for one in found] == ids
        assert {(one.receiver, one.inset_id, one.event.body) for one in found} == {(INTO, inset_id, b"body")}


def test_states_and_side_effect_reads_of_an_input_set_are_no_events_of_it(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    generated(session, 1, "A")
    session.commit(
        [fx.LogStateEvent("sender", 1, "A", b"state"), fx.LogRead("sender", "wh", 1, {}, ("A",), 1, None, b"x")]
    )
    assert [one.event.event_id for one in used_in(session, "sender", "A")] == [1, 2]


def test_what_is_not_there_is_no_empty_input_set(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    generated(session, 1, "A")
    for operator, inset_id in (("sender", "B"), ("receiver", "A")):
        with pytest.raises(LogInconsistent, match=f"Input Set '{inset_id}' of replay operator '{operator}'"):
            used_in(session, operator, inset_id)


def test_retention_leaves_what_an_undone_event_is_made_of(log_store: LogStore) -> None:
    """Of two Output Sets, one event is not done; its sibling, and all of the other Output Set, go."""
    session = start_driver(log_store).session
    generated(session, 1, "A", "B")
    session.commit([assigned(2, "R")])
    session.commit([used(n) for n in (1, 3, 4)])
    for _ in range(2):
        collect(session)
        session.commit([expiry(OUT)])
        session.commit([expiry(SOURCE)])
    assert left(log_store).lineage == [(2, "A")]
    assert [one.event.event_id for one in used_in(session, "sender", "A")] == [1, 2]
    (held,) = session.recover(["receiver"]).acknowledged
    assert held.event.made_of is not None and held.event.made_of.place == 1
    with pytest.raises(LogInconsistent):
        used_in(session, "sender", "B")
    session.commit([fx.MarkDone("receiver", "R", 1)])
    collect(session)
    session.commit([expiry(OUT), expiry(SOURCE)])
    assert left(log_store).bodies == []


def test_several_input_sets_are_read_at_once_as_far_as_they_fit(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    generated(session, 1, "A", "B", "C", "D")

    def ids(asked: Sequence[str], max_bytes: int) -> dict[str, list[int]]:
        found = session.input_sets("sender", asked, max_bytes)
        return {inset_id: [one.event.event_id for one in used] for inset_id, used in found.items()}

    size = 2 * len(b"body")
    assert ids(["B", "A", "D"], 2 * size) == {"B": [3, 4], "A": [1, 2]}
    assert ids(["C", "A"], size - 1) == {"C": [5, 6]}, "the first fits in any case"
    assert ids(["D", "gone", "A"], 9 * size) == {"D": [7, 8], "A": [1, 2]}, "what is done may be gone"
    with pytest.raises(LogInconsistent, match="'gone'"):
        ids(["gone", "A"], 9 * size)
