"""State Update by hand (Algorithm 2): the filter, the state and its events, assignments without a gap."""

from __future__ import annotations

import pytest

from airflow_logio.contrib.paper_api import EventInfo, StateInfo, Stopped
from airflow_logio.errors import ApiMisuse, ProtocolViolation
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.logs import log_rows
from tests.unit.contrib.paper_api.support import Bench, assigned, generate, output, received, table, values


def of_mid(bench: Bench) -> list[tuple[int, str | None, str]]:
    return [row[1:] for row in log_rows(bench.store) if row[0] == "mid"]


def test_events_come_in_order_and_the_ports_take_turns(bench: Bench) -> None:
    bench.feed([1], [2], [3])
    bench.feed([10], [20], source="more")
    mid = bench.ready()
    found = []
    for _ in range(5):
        event = received(mid)
        mid.assign_in_sets((), event.info)
        found.append((event.port, *values(event)))
    assert found == [("a", 1), ("b", 10), ("a", 2), ("b", 20), ("a", 3)]
    assert mid.receive(timeout=0.01) is None
    assert not mid.has_ended()


def test_an_event_used_by_no_input_set_is_done_with_its_acknowledgement(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    assigned(mid)
    assert of_mid(bench) == [(1, None, "undone")], "it rides with the next commit"
    mid.begin_transaction().commit()
    assert of_mid(bench) == [(1, None, "done")]


def test_an_event_of_several_input_sets_has_a_row_for_each(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    one, two = mid.get_inset_id(), mid.get_inset_id()
    event = assigned(mid, one, two)
    generate(mid, one, event)
    assert of_mid(bench) == [(1, one, "done"), (1, two, "undone")]
    mid = bench.open("mid")
    mid.initialize_context()
    assert [(event.info.event_id, event.inset_id) for event in mid.fetch_ack_events()] == [(1, two)]


def test_the_filter_is_less_than_or_equal(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    assigned(mid)
    assert [mid.check_event(EventInfo(n, "a")) for n in (1, 2)] == [False, True]
    with pytest.raises(ProtocolViolation, match="an event is missing in between"):
        mid.check_event(EventInfo(3, "a"))


def test_the_state_counts_an_event_once_whatever_fails(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    inset, event = mid.get_inset_id(), received(mid, "a")
    assert mid.update_context(event.info)
    mid.assign_in_sets([inset], event.info)
    mid = bench.ready()
    assert received(mid, "a").info == event.info, "nothing was committed, so it comes again"
    assert mid.update_context(event.info), "and the state, that of the start, does not count it"
    inset = mid.get_inset_id()
    mid.assign_in_sets([inset], event.info)
    with mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), {"seen": 1})
    mid = bench.open("mid")
    mid.initialize_context()
    (again,) = mid.fetch_ack_events()
    assert not mid.update_context(again.info)


def test_a_commit_without_the_state_that_counts_its_events_is_refused(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    inset, event = mid.get_inset_id(), received(mid, "a")
    mid.update_context(event.info)
    mid.assign_in_sets([inset], event.info)
    with pytest.raises(ApiMisuse, match="does not store the state"):
        mid.begin_transaction().commit()


def test_a_state_that_counts_an_unassigned_event_is_refused(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    event = received(mid, "a")
    mid.update_context(event.info)
    with pytest.raises(ApiMisuse, match="counted twice"), mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), {"seen": 1})


def test_counting_twice_or_late_is_refused(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    event = received(mid, "a")
    mid.update_context(event.info)
    with pytest.raises(ApiMisuse, match="is counted by the state already"):
        mid.update_context(event.info)
    mid.assign_in_sets((), event.info)
    event = received(mid, "a", state={})
    mid.assign_in_sets((), event.info)
    with pytest.raises(ApiMisuse, match="or assigned"):
        mid.update_context(event.info)


def test_received_is_assigned_before_the_next_is_received(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    received(mid)
    with pytest.raises(ApiMisuse, match="event 1 of port 'a' was received and not assigned"):
        mid.receive()


def test_assignments_that_the_log_could_not_hold_are_refused(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    inset, event = mid.get_inset_id(), received(mid, "a")
    for inset_ids, message in (((inset, inset), "twice"), (("9",), "get_inset_id"), ((inset, "x"), "get_inset_id")):
        with pytest.raises(ApiMisuse, match=message):
            mid.assign_in_sets(inset_ids, event.info)
    mid.assign_in_sets([inset], event.info)
    for info in (event.info, EventInfo(2, "a")):
        with pytest.raises(ApiMisuse, match="was not received, or is assigned"):
            mid.assign_in_sets([inset], info)
    with pytest.raises(ApiMisuse, match="not of an input port"):
        mid.assign_in_sets([inset], EventInfo(1, "out"))


def test_no_event_joins_an_input_set_that_is_triggered_or_done(bench: Bench) -> None:
    bench.feed([1], [2], [3])
    mid = bench.ready()
    inset = mid.get_inset_id()
    first = assigned(mid, inset)
    mid.trigger(inset)
    event = received(mid, "a")
    with pytest.raises(ApiMisuse, match="is triggered"):
        mid.assign_in_sets([inset], event.info)
    generate(mid, inset, first)
    with pytest.raises(ApiMisuse, match="has no Input Set"):
        mid.assign_in_sets([inset], event.info)
    mid.assign_in_sets([mid.get_inset_id()], event.info)


def test_ids_of_input_sets_are_never_given_twice(bench: Bench) -> None:
    bench.feed([1], [2])
    given = []
    for _ in range(2):
        mid = bench.ready()
        inset = mid.get_inset_id()
        generate(mid, inset, assigned(mid, inset))
        given.append(inset)
    assert len(set(given)) == 2
    assert bench.ready().get_inset_id() not in given


def test_acknowledgements_are_flushed_with_the_state_while_there_is_nothing_to_do(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    inset, event = mid.get_inset_id(), received(mid, "a")
    mid.update_context(event.info)
    mid.assign_in_sets([inset], event.info)
    with pytest.raises(ApiMisuse, match=r"receive\(state=...\)"):
        mid.receive(timeout=0.01)
    assert mid.receive(state={"seen": 1}, timeout=0.6) is None
    assert of_mid(bench) == [(1, inset, "undone")]
    assert bench.ready().get_proc_state() == {"seen": 1}


def test_a_sender_waits_while_its_receiver_lags(bench: Bench) -> None:
    narrow = Bench(bench.store, name="narrow", backlog=BacklogBound(events=2))
    narrow.feed([1])
    feed = narrow.ready("feed")
    with feed.begin_transaction() as transaction:
        transaction.log_source_event(output(feed), table(1))
    narrow.stop("feed")
    with pytest.raises(Stopped):
        feed.send("out")


def test_a_halt_is_heard_where_the_operator_would_wait(bench: Bench) -> None:
    mid = bench.ready()
    bench.stop("mid")
    assert mid.is_stopping
    with pytest.raises(Stopped):
        mid.receive()


@pytest.mark.parametrize("port", ["out", "c"])
def test_only_input_ports_are_received_from(bench: Bench, port: str) -> None:
    with pytest.raises(ApiMisuse, match="no input port"):
        bench.ready().receive(port)
    with pytest.raises(ApiMisuse, match="no input port"):
        bench.ready("feed").receive()
