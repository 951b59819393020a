"""Garbage collection (Section 3.6): each rule with what it must leave alone, on every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_logio.errors import Fenced
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.support.faults import Pause, around_commit
from tests.support.garbage import EVERYBODY, NOTHING, OTHER, Left, collect, event, expiry, left, used
from tests.support.logs import DONE, IN, OUT, UNDONE, contents, fetched, held, replace_driver, spec, start_driver
from tests.support.racing import race


def test_what_is_done_goes_with_its_bodies(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(1), event(2), event(3), fx.LogEvent(Event(OUT, 4, Kind.END), (fx.Delivery(IN),))])
    session.commit([used(1, "A", "B"), used(2), used(3, "A", status=UNDONE), used(4)])
    session.commit([fx.MarkDone("receiver", "A", 1)])
    assert collect(session) == Collected(5, 5)
    assert left(log_store) == NOTHING
    assert collect(session) == Collected(), "there is nothing to find"


def test_what_is_done_in_the_same_commit_goes_with_it(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit(
        [event(1), used(1, "A", status=UNDONE), fx.MarkDone("receiver", "A", 1), fx.Collect(("receiver",), 9)]
    )
    assert left(log_store) == NOTHING


def test_what_is_not_done_stays(log_store: LogStore) -> None:
    """On its way, in an open Input Set, partly done, held back, set aside."""
    session = start_driver(log_store).session
    session.commit([*(event(n) for n in (1, 2, 3, 4)), event(1, sender=Port("sender", "held"), held=True)])
    session.commit([used(2, "A", status=UNDONE), fx.Acknowledge(OUT, IN, 3, (("A", UNDONE), ("B", DONE)))])
    session.commit([used(4, "Q", status=UNDONE), fx.SetAside("receiver", "Q", 1, "ValueError: no")])
    assert collect(session).rows == 1, "the row of Input Set B"
    assert left(log_store) == Left(
        [
            ("receiver", 1, None, "held"),
            ("receiver", 1, None, "undone"),
            ("receiver", 2, "A", "undone"),
            ("receiver", 3, "A", "undone"),
            ("receiver", 4, "Q", "aside"),
        ],
        [("held", 1), ("out", 1), ("out", 2), ("out", 3), ("out", 4)],
        [],
        [],
        [],
    )
    assert fetched(session) == [1]
    assert held(session) == [(2, "A"), (3, "A")]


def test_a_body_stays_until_its_last_receiver_is_done(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    a, b = (start_driver(log_store, group=name, run=run).session for name in ("a", "b"))
    a.commit([event(1, IN, OTHER)])
    a.commit([used(1, "A")])
    assert collect(a, "receiver").rows == 1
    assert left(log_store).bodies == [("out", 1)]
    assert fetched(b, receiver=OTHER) == [1]
    b.commit([used(1, receiver=OTHER)])
    assert collect(b, "other").rows == 1
    assert left(log_store) == NOTHING


def test_what_a_lineage_scope_needs_stays(log_store: LogStore) -> None:
    """A receiver off the path loses its row; the body stays for the sender's port, which is in OUT."""
    session = start_driver(log_store).session
    on_path = fx.LogEvent(
        Event(OUT, 1, Kind.DATA, 1, None, b"x"), (fx.Delivery(IN, kept=True), fx.Delivery(OTHER)), kept=True
    )
    session.commit([on_path, used(1, "A", kept=True), used(1, "B", receiver=OTHER)])
    session.commit([fx.LogStateEvent("receiver", 1, "A", b"at A", DONE, kept=True)])
    session.commit([fx.LogRead("receiver", "wh", 1, {}, ("A",), 1, None, b"effect"), fx.RecordLineage(OUT, 1, "A")])
    assert collect(session).rows == 1
    assert left(log_store) == Left(
        [("receiver", 1, "A", "done")] * 3, [("out", 1), ("read:wh", 1)], [1], [("wh", 1)], [(1, "A")]
    )


def test_collecting_is_for_the_operators_of_the_group(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(1, IN), event(2, OTHER), used(1, "A"), used(2, "A", receiver=OTHER)])
    assert collect(session, "receiver").rows == 1
    assert left(log_store).rows == [("other", 2, "A", "done")]
    assert collect(session, "nobody") == Collected()


def test_another_run_is_not_touched(log_store: LogStore) -> None:
    one = start_driver(log_store).session
    two = start_driver(log_store, run=log_store.start_run(spec(dag_run="run-2"))).session
    for session in (one, two):
        session.commit([event(1), used(1, "A")])
    collect(one)
    assert left(log_store).rows == [("receiver", 1, "A", "done")]
    assert left(log_store).bodies == [("out", 1)]


def test_a_batch_is_bounded_and_says_whether_there_is_more(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([*(event(n) for n in range(1, 8)), *(used(n, "A") for n in range(1, 8))])
    assert [collect(session, limit=3) for _ in range(4)] == [
        Collected(3, 3, more=True),
        Collected(3, 3, more=True),
        Collected(1, 1),
        Collected(),
    ]
    assert left(log_store) == NOTHING


def test_states_at_a_trigger_go_and_the_current_one_stays(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.StoreState("receiver", b"now"), fx.LogStateEvent("receiver", 1, "A", b"at A")])
    session.commit([fx.LogStateEvent("receiver", 2, "B", b"at B"), fx.MarkDone("receiver", "A", 1)])
    assert collect(session).rows == 1
    recovered = session.recover(["receiver"])
    assert recovered.states == {"receiver": b"now"}
    assert recovered.snapshots == (("receiver", "B", b"at B"),)
    assert left(log_store).states == [2]


def test_write_actions_go_when_they_are_done(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.LogWrite("receiver", "wh", n, {}, 1, None, b"w%d" % n) for n in (1, 2, 3)])
    session.commit([fx.WritesDone("receiver", "wh", 1, 2)])
    assert collect(session).rows == 2
    assert [(write.number, write.body) for write in session.recover(["receiver"]).writes] == [(3, b"w3")]
    assert left(log_store).bodies == [("write:wh", 3)]


def test_read_actions_of_a_source_go_but_for_the_current_one(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    for action in (1, 2, 3):
        session.commit([fx.StartReadAction("source", "source", action, {"part": action})])
        session.commit([fx.CompleteReadAction("source", "source", action)])
    session.commit([fx.StartReadAction("kept", "source", 1, {}, kept=True), fx.CompleteReadAction("kept", "source", 1)])
    session.commit([fx.StartReadAction("kept", "source", 2, {})])
    assert collect(session, "source", "kept").rows == 2
    assert left(log_store).reads == [("source", 1), ("source", 2), ("source", 3)]
    session.commit([fx.StartReadAction("source", "source", 4, {})])
    assert collect(session, "source").rows == 1
    assert (("source", 3) in left(log_store).reads, ("source", 4) in left(log_store).reads) == (False, True)


def test_a_stored_effect_is_there_until_it_is_discarded(log_store: LogStore) -> None:
    """Event r is done before its effect is discarded (Algorithm 1 Step 2.d): a crash in between must find it."""
    session = start_driver(log_store).session
    start, stored = fx.StartReadAction("source", "queue", 1, {}), fx.CompleteReadAction("source", "queue", 1, "ref", 3)
    session.commit([start, stored])
    session.commit([fx.ReadDone("source", "queue", 1), fx.StartReadAction("source", "queue", 2, {})])
    assert collect(session) == Collected()
    assert left(log_store).reads == [("queue", 1), ("queue", 2)]
    session.commit([fx.DropRead("source", "queue", 1)])
    assert left(log_store) == Left([], [], [], [("queue", 2)], [])


def test_references_of_collected_bodies_are_returned(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(1, ref="a/1"), event(2, ref="a/2"), event(3), used(1, "A"), used(3, "A")])
    assert collect(session).refs == ("a/1",)
    session.commit([used(2, "A")])
    assert collect(session).refs == ("a/2",)


def test_a_zombie_collects_nothing(log_store: LogStore) -> None:
    old = start_driver(log_store)
    old.session.commit([event(1), used(1, "A")])
    new = replace_driver(old)
    before = contents(log_store)
    for effect in (fx.Collect(EVERYBODY, 9), fx.SweepShared(OUT, 0, 9), expiry(OUT)):
        with pytest.raises(Fenced):
            old.session.commit([effect])
    assert contents(log_store) == before
    assert collect(new.session).rows == 1


def test_a_session_goes_on_after_a_collection(log_store: LogStore) -> None:
    """Ids are not used again: what was collected is obsolete by its mark, not by its row."""
    session = start_driver(log_store).session
    session.commit([event(1), used(1, "A"), fx.Collect(EVERYBODY, 9)])
    session.commit([event(2), used(2, "A"), fx.Collect(EVERYBODY, 9), event(3)])
    assert fetched(session) == [3]


# --- bodies that two groups share -------------------------------------------------------------------------------------


def test_two_receivers_at_once_lose_nothing_and_a_sweep_finds_what_both_left(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    a, b = (start_driver(log_store, group=name, run=run).session for name in ("a", "b"))
    numbers = range(1, 201)
    a.commit([*(event(n, IN, OTHER) for n in numbers), *(used(n, "A") for n in numbers)])
    b.commit([used(n, "A", receiver=OTHER) for n in numbers if n != 100])
    outcomes = race(lambda: collect(a, "receiver", limit=500), lambda: collect(b, "other", limit=500))
    assert [outcome.rows for outcome in outcomes if isinstance(outcome, Collected)] == [200, 199], outcomes
    assert left(log_store).rows == [("other", 100, None, "undone")]
    assert fetched(b, receiver=OTHER) == [100], "with its body"
    b.commit([fx.SweepShared(OUT, 0, 500)])
    assert left(log_store).bodies == [("out", 100)]


@pytest.mark.postgres
def test_neither_of_two_sees_that_the_other_has_deleted_its_row(postgres_url: str) -> None:
    """READ COMMITTED: so both leave the body, which a sweep finds, and so does the process that tidies up the run."""
    stores = [SqlLogStore.at(postgres_url, patience=QUICK) for _ in range(2)]
    run = stores[0].start_run(spec("a", "b"))
    a, b = (start_driver(store, group=name, run=run).session for store, name in zip(stores, "ab", strict=True))
    a.commit([event(1, IN, OTHER), used(1, "A"), used(1, "A", receiver=OTHER)])
    pause = Pause()
    with ThreadPoolExecutor(1) as pool, around_commit(stores[0], before=pause):
        collecting = pool.submit(collect, a, "receiver")
        pause.wait_until_reached()
        assert collect(b, "other").rows == 1, "no process waits for a driver that stands still"
        pause.release()
        assert collecting.result().rows == 1
    assert left(stores[0]) == Left([], [("out", 1)], [], [], [])
    assert b.commit([fx.SweepShared(OUT, 0, 9)]) == (Collected(1, 1),)
    assert left(stores[0]) == NOTHING
    for store in stores:
        store.dispose()


def test_a_sweep_goes_on_behind_what_is_needed(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([event(n, IN, OTHER) for n in range(1, 7)])
    session.commit([*(used(n, "A") for n in range(1, 7)), fx.Collect(("receiver",), 9)])
    sweeps, after = [], 0
    for _ in range(3):
        (swept,) = session.commit([fx.SweepShared(OUT, after, 3)])
        sweeps.append(swept)
        after = swept.after
    assert sweeps == [Collected(0, 3, more=True, after=3), Collected(0, 3, more=True, after=6), Collected()]
    assert len(left(log_store).bodies) == 6
