"""Retention of lineage (Section 3.6): what no retained target event is made from goes, and nothing else."""

from __future__ import annotations

import time

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.source import READ_ACTION_ID
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.garbage import NOTHING, OTHER, Left, event, expiry, left, make_older, used
from tests.support.logs import IN, OUT, UNDONE, fetched, held, start_driver
from tests.support.own_calls import replace_call

SOURCE, MIDDLE, TARGET = Port("source", "out"), Port("middle", "out"), Port("target", "out")


def flow(session: GroupSession, first: int, last: int, *, closed: bool = True) -> None:
    """source.out → middle (one event per Input Set) → target (all of them in one) → target.out, lineage throughout."""
    for n in range(first, last + 1):
        session.commit(
            [
                event(n, Port("middle", "in"), sender=SOURCE, kept=True, about={READ_ACTION_ID: 1}),
                used(n, f"M{n}", sender=SOURCE, receiver=Port("middle", "in"), kept=True),
                event(n, Port("target", "in"), sender=MIDDLE, kept=True),
                fx.RecordLineage(MIDDLE, n, f"M{n}"),
                fx.LogRead("middle", "wh", n, {"key": n}, (f"M{n}",), 1, None, b"effect"),
                fx.LogStateEvent("target", n, f"T{first}", b"state", UNDONE, kept=True),
                used(n, f"T{first}", sender=MIDDLE, receiver=Port("target", "in"), kept=True, status=UNDONE),
            ]
        )
    if closed:
        rows = 2 * (last - first + 1)
        made = Event(TARGET, first, Kind.DATA, 1, None, b"result")
        session.commit(
            [
                fx.MarkDone("target", f"T{first}", rows),
                fx.LogEvent(made, (), kept=True),
                fx.RecordLineage(TARGET, first, f"T{first}"),
            ]
        )


def expire_all(session: GroupSession, seconds: float = -1.0, *, limit: int = 1000) -> list[Collected]:
    """A pass over everything, in reverse topological order and in batches."""
    found = []
    for operator, kept, name in [
        ("target", Kept.EVENTS, "out"),
        ("target", Kept.STATES, ""),
        ("middle", Kept.EVENTS, "out"),
        ("middle", Kept.READS, "wh"),
        ("source", Kept.EVENTS, "out"),
        ("source", Kept.SOURCE_READS, ""),
    ]:
        after, more = 0, True
        while more:
            effect = fx.ExpireLineage(operator, kept, seconds, after, limit, name, ("out",))
            (collected,) = session.commit([effect])
            found.append(collected)
            after, more = collected.after, collected.more
    return found


@pytest.mark.parametrize("limit", [1000, 2])
def test_lineage_goes_with_the_target_event_that_it_leads_to(log_store: LogStore, limit: int) -> None:
    session = start_driver(log_store).session
    session.commit([fx.StartReadAction("source", "source", 1, {}, kept=True)])
    flow(session, 1, 3)
    flow(session, 4, 6)
    expire_all(session, limit=limit)
    assert left(log_store) == Left([], [], [], [("source", 1)], [])


def test_nothing_goes_before_its_time(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    flow(session, 1, 3)
    before = left(log_store)
    assert all(collected.rows == 0 for collected in expire_all(session, 3600.0))
    assert left(log_store) == before


def test_no_drivers_clock_makes_lineage_old(sql_store: SqlLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events, and how old they are, go by the clock of the database."""
    session = start_driver(sql_store).session
    flow(session, 1, 3)
    before = left(sql_store)
    in_a_year = time.time() + 365 * 86_400
    replace_call(monkeypatch, time, "time", lambda: in_a_year)
    expire_all(session, 3_600.0)
    assert left(sql_store) == before


def test_an_open_input_set_keeps_what_it_holds(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    flow(session, 1, 3)
    flow(session, 4, 6, closed=False)
    expire_all(session)
    kept = left(log_store)
    assert {event_id for _, event_id, _, _ in kept.rows} == {4, 5, 6}
    assert kept.bodies == [("out", n) for n in (4, 4, 5, 5, 6, 6)] + [("read:wh", n) for n in (4, 5, 6)]
    assert kept.states == [4, 5, 6]
    assert kept.lineage == [(n, f"M{n}") for n in (4, 5, 6)]
    assert held(session, "target") == [(n, "T4") for n in (4, 5, 6)], "recovery finds all of it"


def test_an_event_on_its_way_keeps_what_it_was_made_from(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(1, Port("middle", "in"), sender=SOURCE, kept=True)])
    session.commit([used(1, "M1", sender=SOURCE, receiver=Port("middle", "in"), kept=True)])
    session.commit([event(1, Port("target", "in"), sender=MIDDLE, kept=True), fx.RecordLineage(MIDDLE, 1, "M1")])
    before = left(log_store)
    expire_all(session)
    assert left(log_store) == before


def test_input_sets_without_result_and_filtered_events_go(log_store: LogStore) -> None:
    """No target event leads to them: they are unreachable, and age alone decides."""
    session = start_driver(log_store).session
    receiver = Port("middle", "in")
    session.commit([event(n, receiver, sender=SOURCE, kept=True) for n in (1, 2)])
    session.commit([used(1, sender=SOURCE, receiver=receiver, kept=True)])
    session.commit([used(2, "empty", sender=SOURCE, receiver=receiver, kept=True)])
    session.commit([expiry(SOURCE, 3600.0)])
    assert len(left(log_store).bodies) == 2
    session.commit([expiry(SOURCE)])
    assert left(log_store) == NOTHING


def test_what_another_scope_needs_stays(log_store: LogStore) -> None:
    """middle.out is the target of a longer retention: a scope without one is never swept at all."""
    session = start_driver(log_store).session
    flow(session, 1, 3)
    for effect in (expiry(TARGET), expiry(MIDDLE, 3600.0), expiry(SOURCE)):
        session.commit([effect])
    kept = left(log_store)
    assert ("out", 3) in kept.bodies
    assert kept.lineage == [(n, f"M{n}") for n in (1, 2, 3)], "from middle.out back to source.out"
    assert len([row for row in kept.rows if row[0] == "middle"]) == 6, "events of source.out and reads"


def test_an_event_with_a_receiver_that_is_not_done_stays(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(1, IN, OTHER, kept=True), used(1, "A", kept=True)])
    session.commit([expiry(OUT)])
    assert fetched(session, receiver=OTHER) == [1]
    assert left(log_store).bodies == [("out", 1)]
    session.commit([used(1, "A", receiver=OTHER, kept=True), expiry(OUT)])
    assert left(log_store) == NOTHING


def test_a_pass_stops_at_the_first_young_event(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([*(event(n, kept=True) for n in (1, 2, 3)), *(used(n, "A", kept=True) for n in (1, 2, 3))])
    make_older(log_store, 3600.0)
    session.commit([*(event(n, kept=True) for n in (4, 5)), *(used(n, "A", kept=True) for n in (4, 5))])
    (collected,) = session.commit([expiry(OUT, 1800.0)])
    assert collected == Collected(6, 3)
    assert left(log_store).bodies == [("out", 4), ("out", 5)]
    assert [session.commit([expiry(OUT, limit=1)])[0].after for _ in range(2)] == [4, 5]


def test_read_actions_of_a_source_go_when_their_last_event_has_gone(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    for action in (1, 2, 3):
        begun = fx.StartReadAction("source", "source", action, {}, kept=True)
        made = event(action, sender=SOURCE, kept=True, about={READ_ACTION_ID: action})
        session.commit([begun, fx.CompleteReadAction("source", "source", action), made])
    reads = fx.ExpireLineage("source", Kept.SOURCE_READS, -1.0, 0, 9, ports=("out",))
    session.commit([reads])
    assert len(left(log_store).reads) == 3
    session.commit([used(1, sender=SOURCE, kept=True), expiry(SOURCE), reads])
    assert left(log_store).reads == [("source", 2), ("source", 3)]
    session.commit([used(n, sender=SOURCE, kept=True) for n in (2, 3)])
    session.commit([expiry(SOURCE), reads])
    assert left(log_store).reads == [("source", 3)], "the current one"


def test_references_of_expired_bodies_are_returned(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(1, kept=True, ref="a/1"), used(1, "A", kept=True)])
    (collected,) = session.commit([expiry(OUT)])
    assert collected.refs == ("a/1",)
