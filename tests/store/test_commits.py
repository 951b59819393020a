"""What a commit applies, what it refuses, and that a refused one leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_logio.errors import EpochVoid, Fenced, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import CommitAttempt
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Event, Kind, Port, Status
from airflow_logio.store.port import LogStore
from tests.support.logs import (
    DONE,
    IN,
    OUT,
    UNDONE,
    assigned,
    contents,
    fetched,
    held,
    log_rows,
    replace_driver,
    sent,
    spec,
    start_driver,
)

FUSED = Port("next", "in")


def test_an_event_for_another_group_is_on_its_way(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2)])
    assert log_rows(log_store) == [("receiver", 1, None, "undone"), ("receiver", 2, None, "undone")]
    assert fetched(session) == [1, 2]


def test_an_unknown_outcome_is_resolved(log_store: LogStore) -> None:
    """The commit is in the log or it is not; then the session continues behind it, or sends the same effects again."""
    driver = start_driver(log_store)
    driver.session.commit([sent(1)])
    successful = log_store.session(driver.ref)
    successful.open()
    successful.commit([sent(2)])
    assert driver.session.resolve(CommitAttempt(0, 2)), "it was another connection's: the log cannot tell"
    assert not driver.session.resolve(CommitAttempt(0, 3))
    driver.session.commit([sent(3)])
    assert fetched(driver.session) == [1, 2, 3]


def test_an_unknown_outcome_of_a_void_epoch_or_a_replaced_driver(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    with pytest.raises(LogInconsistent, match="the outcome of commit 7 is unknown, and the log is at commit 0"):
        driver.session.resolve(CommitAttempt(0, 7))
    log_store.session(driver.ref).open(raise_epoch=True)
    with pytest.raises(EpochVoid):
        driver.session.resolve(CommitAttempt(0, 1))
    replace_driver(driver)
    with pytest.raises(Fenced):
        driver.session.resolve(CommitAttempt(0, 1))


def test_an_event_with_several_receivers_has_a_row_each_and_one_body(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    other = Port("other", "in")
    event = Event(OUT, 1, Kind.DATA, 3, None, b"body")
    session.commit([fx.LogEvent(event, (fx.Delivery(IN), fx.Delivery(other)))])
    session.commit([assigned(1, "A")])
    assert fetched(session) == []
    assert fetched(session, receiver=other) == [1], "one receiver's acknowledgement is not another's"


def test_rows_of_a_fused_receiver(log_store: LogStore) -> None:
    session = start_driver(log_store).session

    def event(event_id: int, *assignments: tuple[str, Status]) -> fx.LogEvent:
        delivery = fx.Delivery(FUSED, assignments, fused=True)
        return fx.LogEvent(Event(OUT, event_id, Kind.DATA, 1, None, b"x"), (delivery,))

    session.commit([event(1, ("A", UNDONE), ("B", DONE)), event(2)])
    assert log_rows(log_store) == [("next", 1, "A", "undone"), ("next", 1, "B", "done"), ("next", 2, None, "done")]
    assert fetched(session, receiver=FUSED) == [], "a fused receiver has used it already"
    assert held(session, "next") == [(1, "A")]


def test_assignments_take_the_waiting_row_and_add_rows(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2), sent(3), sent(4)])
    session.commit([assigned(1, "A", "B"), assigned(2), assigned(3, "A", status=DONE)])
    assert log_rows(log_store) == [
        ("receiver", 1, "A", "undone"),
        ("receiver", 1, "B", "undone"),
        ("receiver", 2, None, "done"),
        ("receiver", 3, "A", "done"),
        ("receiver", 4, None, "undone"),
    ]
    assert fetched(session) == [4]
    assert held(session) == [(1, "A"), (1, "B")]


def test_done_marks(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2)])
    session.commit([assigned(1, "A", "B"), assigned(2, "B")])
    session.commit([fx.MarkDone("receiver", "A", 1)])
    assert held(session) == [(1, "B"), (2, "B")]
    session.commit([fx.MarkDone("receiver", "B", 2)])
    assert held(session) == []


def test_one_commit_may_hold_the_whole_life_of_an_event(log_store: LogStore) -> None:
    """Group commit: the steps of sender and receiver, concatenated."""
    session = start_driver(log_store).session
    session.commit([sent(1), assigned(1, "A"), fx.MarkDone("receiver", "A", 1)])
    assert log_rows(log_store) == [("receiver", 1, "A", "done")]


def test_another_run_of_the_same_pipeline_is_not_touched(log_store: LogStore) -> None:
    one = start_driver(log_store)
    two = start_driver(log_store, run=log_store.start_run(spec(dag_run="run-2")))
    effects: fx.Effects = [sent(1), sent(2), fx.StoreState("receiver", b"state"), fx.CountEvents(IN, "in", 1, 1, 1)]
    one.session.commit(effects)
    two.session.commit(effects)
    one.session.commit([assigned(1, "A"), assigned(2, "A"), fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"w")])
    one.session.commit([fx.MarkDone("receiver", "A", 2), fx.WritesDone("receiver", "wh", 1, 1)])
    assert fetched(two.session) == [1, 2]
    assert two.session.acknowledged([IN]) == {IN: (1, 1)}


def test_states_are_replaced_and_snapshots_kept(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.StoreState("receiver", b"1"), fx.StoreState("receiver", b"2"), fx.StoreState("other", b"x")])
    session.commit(
        [
            fx.StoreState("receiver", b"3"),
            fx.LogStateEvent("receiver", 1, "A", b"at A"),
            fx.LogStateEvent("receiver", 2, "B", b"at B", DONE),
        ]
    )
    recovered = session.recover(["receiver"])
    assert recovered.states == {"receiver": b"3"}
    assert recovered.snapshots == (("receiver", "A", b"at A"),)
    session.commit([fx.MarkDone("receiver", "A", 1)])
    assert session.recover(["receiver"]).snapshots == ()


def test_write_actions_wait_until_they_are_done(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.LogWrite("receiver", "wh", n, {"table": "t"}, n, None, b"w%d" % n) for n in (1, 2, 3)])
    assert fetched(session) == [], "a write action is no event to fetch"
    session.commit([fx.WritesDone("receiver", "wh", 1, 2)])
    (write,) = session.recover(["receiver"]).writes
    assert (write.operator, write.connection, write.number, write.records) == ("receiver", "wh", 3, 3)
    assert (dict(write.header), write.body) == ({"table": "t"}, b"w3")


def test_a_port_and_a_connection_may_have_one_name(log_store: LogStore) -> None:
    """Event 1 of port `in` and write action 1 on a connection `in`: only the port keeps them apart."""
    session = start_driver(log_store).session
    session.commit([sent(1), fx.LogWrite("receiver", "in", 1, {}, 1, None, b"w")])
    session.commit([assigned(1, "A")])
    assert held(session) == [(1, "A")]
    assert [write.number for write in session.recover(["receiver"]).writes] == [1]


def test_read_actions(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.StartReadAction("source", "source", 1, {"path": "p"})])
    session.commit([fx.CompleteReadAction("source", "source", 1)])
    session.commit([fx.LogRead("reader", "wh", 1, {"table": "t"}, ("A", "B"), 2, None, b"effect")])
    assert log_rows(log_store) == [("reader", 1, "A", "done"), ("reader", 1, "B", "done")]
    rows = contents(log_store)
    assert len(rows["reads" if "reads" in rows else "logio_read_action"]) == 2


def test_counters_add_up(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit(
        [fx.CountEvents(OUT, "out", 2, 20, 200), fx.CountEvents(OUT, "out", 1, 1, 1), fx.CountEvents(IN, "in", 5, 50)]
    )
    driver.session.commit([fx.CountEvents(OUT, "out", 1, 10, 100), fx.CountEvents(IN, "in", 1, 2, 3)])
    figures = [(p.port, p.direction, p.events, p.records, p.bytes) for p in log_store.progress(driver.run.run_id)]
    assert figures == [(IN, "in", 6, 52, 3), (OUT, "out", 4, 31, 301)]
    assert driver.session.acknowledged([IN, Port("no", "body")]) == {IN: (6, 3)}
    assert driver.session.acknowledged([]) == {}
    (first, _) = log_store.progress(driver.run.run_id)
    assert first.first_at <= first.last_at


def test_the_end_of_a_stream_needs_no_body(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.LogEvent(Event(OUT, 1, Kind.END), (fx.Delivery(IN),))])
    (logged,) = session.fetch(IN, 0, max_events=1, max_bytes=1)
    assert logged.event.kind is Kind.END


def test_the_last_commit_finishes_the_group(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([fx.StoreState("receiver", b"1"), fx.FinishGroup()])
    assert log_store.group(driver.run.run_id, "g").state is GroupState.FINISHED


def test_an_empty_commit_counts(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([])
    driver.session.commit([])
    assert driver.session.open().commit_no == 2


# --- refusals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    what: str
    effect: fx.Effect


REFUSED = [
    Refused("an event of that id again", sent(1)),
    Refused("an event without a body", fx.LogEvent(Event(OUT, 9), (fx.Delivery(IN),))),
    Refused("an event that is not there", assigned(7, "A")),
    Refused("an acknowledged event again", assigned(2, "C")),
    Refused("an acknowledged event again, into nothing", assigned(2)),
    Refused("more done rows than there are", fx.MarkDone("receiver", "A", 2)),
    Refused("fewer done rows than there are", fx.MarkDone("receiver", "B", 1)),
    Refused("done rows of an Input Set that is not there", fx.MarkDone("receiver", "Z", 1)),
    Refused("a write action of that number again", fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"")),
    Refused("write actions that are not there", fx.WritesDone("receiver", "wh", 1, 2)),
    Refused("write actions of another operator", fx.WritesDone("sender", "wh", 1, 1)),
    Refused("a read action that was not begun", fx.CompleteReadAction("source", "source", 2)),
    Refused("a read action of that id again", fx.StartReadAction("source", "source", 1, {})),
    Refused("a state event of that id again", fx.LogStateEvent("receiver", 1, "A", b"")),
    Refused("a lineage row again", fx.RecordLineage(OUT, 1, "A")),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.what)
def test_a_refused_commit_leaves_nothing_behind(log_store: LogStore, refused: Refused) -> None:
    session = start_driver(log_store).session
    session.commit(
        [
            sent(1),
            sent(2),
            sent(3),
            assigned(2, "A", "B"),
            assigned(3, "B"),
            fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"w"),
            fx.StartReadAction("source", "source", 1, {}),
            fx.LogStateEvent("receiver", 1, "S", b"snapshot"),
            fx.RecordLineage(OUT, 1, "A"),
            fx.StoreState("receiver", b"state"),
            fx.CountEvents(OUT, "out", 3, 9, 12),
        ]
    )
    before = contents(log_store)
    effects: fx.Effects = [
        sent(4),
        fx.StoreState("receiver", b"new"),
        fx.CountEvents(OUT, "out", 1, 3, 4),
        assigned(1, "Q"),
    ]
    with pytest.raises(LogInconsistent):
        session.commit([*effects, refused.effect])
    assert contents(log_store) == before
    session.commit(effects)
    assert fetched(session) == [4], "the session can continue after a refusal"


def test_counts_of_two_input_sets_do_not_cancel_out(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2), assigned(1, "A", "B"), assigned(2, "B")])
    before = contents(log_store)
    with pytest.raises(LogInconsistent, match="'A'"):
        session.commit([fx.MarkDone("receiver", "A", 2), fx.MarkDone("receiver", "B", 1)])
    assert contents(log_store) == before


def test_a_group_finishes_once(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.FinishGroup()])
    before = contents(log_store)
    with pytest.raises(LogInconsistent, match="can finish"):
        session.commit([fx.StoreState("receiver", b"more"), fx.FinishGroup()])
    assert contents(log_store) == before
