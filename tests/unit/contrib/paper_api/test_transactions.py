"""One API transaction is one fenced commit: all of it or nothing, and nothing of a driver that was replaced."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.contrib.paper_api import EventInfo, StateInfo
from airflow_logio.errors import ApiMisuse, EpochVoid, Fenced
from tests.support.logs import contents, log_rows
from tests.unit.contrib.paper_api.support import Bench, Died, assigned, generate, output, table


def test_a_dropped_transaction_leaves_the_log_unchanged_and_its_ids_are_given_again(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    inset = mid.get_inset_id()
    event = assigned(mid, inset)
    before = contents(bench.store)
    with pytest.raises(ZeroDivisionError), mid.begin_transaction() as transaction:
        transaction.log_output_events([output(mid)], [table(1)], inset, [event.info])
        _ = 1 / 0
    assert contents(bench.store) == before
    generate(mid, inset, event, outputs=[output(mid)])
    assert ("done", 1, None, "undone") in log_rows(bench.store)


def test_a_commit_carries_assignment_output_state_and_lineage_together(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    inset = mid.get_inset_id()
    event = assigned(mid, inset)
    with mid.begin_transaction() as transaction:
        transaction.log_output_events([output(mid)], [table(1)], inset, [event.info])
        transaction.store_state(StateInfo(mid.get_state_id()), {"total": 1})
    assert [row for row in log_rows(bench.store) if row[0] in ("mid", "done")] == [
        ("done", 1, None, "undone"),
        ("mid", 1, inset, "done"),
    ]
    assert bench.ready().get_proc_state() == {"total": 1}


@pytest.mark.parametrize("what", ["commit", "store_state", "done_event", "log_source_event"])
def test_a_transaction_that_is_over_is_refused(bench: Bench, what: str) -> None:
    feed = bench.ready("feed")
    transaction = feed.begin_transaction()
    transaction.commit()
    arguments: dict[str, tuple[Any, ...]] = {
        "commit": (),
        "store_state": (StateInfo(1), {}),
        "done_event": (EventInfo(1, connection="wh"),),
        "log_source_event": (EventInfo(1, "out"), table(1)),
    }
    with pytest.raises(ApiMisuse, match="is over; begin another one"):
        getattr(transaction, what)(*arguments[what])


def test_one_transaction_at_a_time(bench: Bench) -> None:
    mid = bench.ready()
    transaction = mid.begin_transaction()
    for call in (
        mid.begin_transaction,
        mid.receive,
        mid.end_of_stream,
        mid.get_write_actions,
        lambda: mid.send("out"),
        lambda: mid.done_event(EventInfo(1, connection="wh")),
    ):
        with pytest.raises(ApiMisuse, match="while a transaction is open"):
            call()
    transaction.commit()
    mid.begin_transaction().commit()


def test_output_events_are_sent_before_anything_else_happens(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    inset = mid.get_inset_id()
    event = assigned(mid, inset)
    with mid.begin_transaction() as transaction:
        transaction.log_output_events([output(mid)], [table(1)], inset, [event.info])
    for call in (mid.begin_transaction, mid.receive, mid.end_of_stream):
        with pytest.raises(ApiMisuse, match=r"send\('out'\) first"):
            call()
    mid.send("out")
    mid.begin_transaction().commit()


def test_the_state_is_taken_when_it_is_stored(bench: Bench) -> None:
    mid = bench.ready()
    state = {"seen": [1]}
    with mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), state)
        state["seen"].append(2)
    stored = mid.get_proc_state()
    assert stored == {"seen": [1]}
    stored["seen"].append(3)
    assert mid.get_proc_state() == bench.ready().get_proc_state() == {"seen": [1]}


def test_a_state_that_msgpack_does_not_know_is_refused(bench: Bench) -> None:
    mid = bench.ready()
    with pytest.raises(ApiMisuse, match="cannot be stored"), mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), {"table": table(1)})
    assert mid.get_proc_state() is None


def test_states_are_stored_in_the_order_of_their_ids(bench: Bench) -> None:
    mid = bench.ready()
    first, second = StateInfo(mid.get_state_id()), StateInfo(mid.get_state_id())
    with mid.begin_transaction() as transaction:
        transaction.store_state(second, {})
    for wrong in (first, StateInfo(99), StateInfo(0)):
        with pytest.raises(ApiMisuse, match="cannot be stored"), mid.begin_transaction() as transaction:
            transaction.store_state(wrong, {})


def test_a_replaced_driver_commits_nothing_and_hears_it_again(bench: Bench) -> None:
    bench.feed([1])
    zombie = bench.ready()
    inset = zombie.get_inset_id()
    event = assigned(zombie, inset)
    bench.ready()
    before = contents(bench.store)
    with pytest.raises(Fenced):
        generate(zombie, inset, event, outputs=[output(zombie)])
    for call in (zombie.begin_transaction, zombie.receive, zombie.get_inset_id, zombie.end_of_stream):
        with pytest.raises(Fenced):
            call()
    assert contents(bench.store) == before


def test_a_raised_epoch_voids_the_memory_of_the_handle(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    inset = mid.get_inset_id()
    event = assigned(mid, inset)
    bench.store.session(bench.epochs["mid"]._session.ref).open(raise_epoch=True)
    with pytest.raises(EpochVoid):
        generate(mid, inset, event)


def test_after_a_commit_of_unknown_outcome_the_handle_is_of_no_use(bench: Bench) -> None:
    bench.die_at["mid"] = (1, True)
    mid = bench.ready()
    with pytest.raises(Died), mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), {"a": 1})
    with pytest.raises(Died):
        mid.begin_transaction()
    assert bench.ready().get_proc_state() == {"a": 1}


def test_nothing_pending_is_no_commit(bench: Bench) -> None:
    mid = bench.ready()
    before = contents(bench.store)
    mid.begin_transaction().commit()
    assert contents(bench.store) == before
