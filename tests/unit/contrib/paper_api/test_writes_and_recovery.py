"""Write actions by hand (Algorithms 5 and 8), recovery (Algorithms 7 and 9), and the end of the stream."""

from __future__ import annotations

import threading

import pytest

from airflow_logio.contrib.paper_api import EventInfo, Logio, StateInfo, Stopped, WriteAction
from airflow_logio.driver.manual_epoch import ManualEpoch
from airflow_logio.errors import ApiMisuse, ExternalUnavailable, LogInconsistent
from tests.support.logs import log_rows
from tests.unit.contrib.paper_api.support import Bench, assigned, generate, output, received, table, values


def write(logio: Logio, *numbers: int) -> None:
    """An Output Set of write actions only."""
    infos = [EventInfo(logio.get_event_id(connection="wh"), connection="wh", about={"n": n}) for n in numbers]
    with logio.begin_transaction() as transaction:
        transaction.log_output_events(infos, [table(n) for n in numbers], logio.get_inset_id(), [])


def undone(logio: Logio) -> list[tuple[int, list[int]]]:
    return [(a.number, a.records["value"].to_pylist()) for a in logio.get_write_actions()]


# --- write actions ----------------------------------------------------------------------------------------------------


def test_write_actions_are_seen_after_their_commit_and_until_they_are_done(bench: Bench) -> None:
    mid = bench.ready()
    write(mid, 10, 20)
    assert undone(mid) == [(1, [10]), (2, [20])]
    mid.done_event(EventInfo(1, connection="wh"))
    assert undone(mid) == undone(bench.open("mid")) == [(2, [20])]


def test_a_recovered_write_action_is_the_same_but_for_the_token(bench: Bench) -> None:
    mid = bench.ready()
    write(mid, 10)
    (before,) = mid.get_write_actions()
    (after,) = bench.open("mid").get_write_actions()
    assert (before.key, before.description, before.records) == (after.key, after.description, after.records)
    assert (before.token, after.token) == (1, 2)


def test_done_in_recovery_comes_before_the_context(bench: Bench) -> None:
    """Listing 3: the state that is stored with it must not be that of an empty context."""
    mid = bench.ready()
    with mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), {"kept": True})
    write(mid, 10)
    mid = bench.open("mid")
    mid.done_event(*mid.get_write_actions())
    mid = bench.ready()
    assert mid.get_proc_state() == {"kept": True}
    assert mid.get_event_id(connection="wh") == 2


def test_write_actions_are_executed_and_done_in_order_and_once(bench: Bench) -> None:
    mid = bench.ready()
    with pytest.raises(ApiMisuse, match="not among the undone ones"):
        mid.done_event(EventInfo(1, connection="wh"))
    write(mid, 10, 20)
    first, second = mid.get_write_actions()
    applied: list[int] = []
    with pytest.raises(ApiMisuse, match="is not due, 1 is"):
        mid.execute_write(second, lambda action: applied.append(action.number))
    with pytest.raises(ApiMisuse, match="is not due, 1 is"):
        mid.done_event(second)
    with pytest.raises(ApiMisuse, match="is not due, 2 is"):
        mid.done_event(first, first)
    mid.execute_write(first, lambda action: applied.append(action.number))
    mid.done_event(first, second)
    with pytest.raises(ApiMisuse, match="not among the undone ones"):
        mid.execute_write(first, lambda action: applied.append(action.number))
    assert applied == [1]


def test_an_external_system_that_is_away_is_asked_again(bench: Bench) -> None:
    mid = bench.ready()
    write(mid, 10)
    (action,) = mid.get_write_actions()
    answers = [False, True]

    def apply(action: WriteAction) -> str:
        if not answers.pop(0):
            raise ExternalUnavailable("away")
        return action.key

    assert mid.execute_write(action, apply) == action.key
    assert answers == []


def test_a_halt_ends_the_replay_of_an_action(bench: Bench) -> None:
    mid = bench.ready()
    write(mid, 10)
    (action,) = mid.get_write_actions()

    def away(action: WriteAction) -> None:
        bench.stop("mid")
        raise ExternalUnavailable("away")

    with pytest.raises(Stopped):
        mid.execute_write(action, away)
    assert undone(bench.open("mid")) == [(1, [10])]


def test_a_connection_without_a_declared_guarantee_is_refused(bench: Bench) -> None:
    mid = bench.ready()
    with pytest.raises(ApiMisuse, match=r"writes\(\) does not name it"):
        mid.get_event_id(connection="elsewhere")
    with pytest.raises(ApiMisuse, match="does not declare connection 'nowhere'"):
        mid.url("nowhere")
    assert (mid.url("elsewhere"), mid.marker("wh").key) == ("sqlite://", f"{bench.run.uid}/mid/wh/0")


def test_events_of_input_ports_are_not_marked_done_by_themselves(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    event = assigned(mid, mid.get_inset_id())
    with pytest.raises(ApiMisuse, match="done with their Input Set"):
        mid.done_event(event.info)


def test_a_log_that_has_lost_commits_is_noticed_at_the_first_look_at_the_marker(bench: Bench) -> None:
    """Also by the driver after one that has logged more and looked at nothing."""
    mid = bench.ready()
    write(mid, 10, 20)
    mid.marker("wh").unapplied(mid.get_write_actions(), 0, 0)
    mid = bench.ready()
    write(mid, 30, 40)
    mid = bench.ready()
    with pytest.raises(LogInconsistent, match="up to 3, but the log has given out numbers up to 2 only"):
        mid.marker("wh").unapplied(mid.get_write_actions(), 3, 1)


def test_what_was_applied_after_a_look_is_not_taken_for_lost(bench: Bench) -> None:
    """The log knows of the look before anything is applied, and nothing that waits is committed with it."""
    mid = bench.ready()
    write(mid, 10)
    assert [a.number for a in mid.marker("wh").unapplied(mid.get_write_actions(), 0, 0)] == [1]
    write(mid, 20)
    assert [a.number for a in mid.marker("wh").unapplied(mid.get_write_actions(), 1, 1)] == [2]
    mid = bench.ready()
    write(mid, 30)
    inset = mid.get_inset_id()
    actions = mid.get_write_actions()
    assert [a.number for a in mid.marker("wh").unapplied(actions, 2, 1)] == [3]
    mid = bench.ready()
    assert mid.get_inset_id() == inset, "its id was never committed"
    assert [a.number for a in mid.marker("wh").unapplied(mid.get_write_actions(), 3, 2)] == []


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_undelivered_output_events_are_fetched_once_in_order(bench: Bench) -> None:
    bench.feed([1], [2], [3])
    mid = bench.ready()
    assigned(mid, port="a")
    mid.begin_transaction().commit()
    feed = bench.open("feed")
    assert [(event.info, values(event)) for event in feed.fetch_resend_events()] == [
        (EventInfo(2, "out"), [2]), (EventInfo(3, "out"), [3]),
    ]  # fmt: skip


def test_acknowledged_events_come_back_by_turns_in_order_per_port(bench: Bench) -> None:
    bench.feed([1], [2], [3])
    bench.feed([10], source="more")
    mid = bench.ready()
    one, two = mid.get_inset_id(), mid.get_inset_id()
    for port, insets in (("a", [one]), ("a", [one, two]), ("b", [two]), ("a", [two])):
        assigned(mid, *insets, port=port)
    mid.begin_transaction().commit()
    mid = bench.open("mid")
    mid.initialize_context()
    back = [(event.port, values(event), event.inset_id) for event in mid.fetch_ack_events()]
    assert [item[0] for item in back] == ["a", "b", "a", "a", "a"]
    assert [item for item in back if item[0] == "a"] == [
        ("a", [1], one), ("a", [2], one), ("a", [2], two), ("a", [3], two),
    ]  # fmt: skip


def test_what_was_assigned_before_the_failure_is_done_after_it(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    inset = mid.get_inset_id()
    first = assigned(mid, inset)
    mid.begin_transaction().commit()
    mid = bench.ready()
    generate(mid, inset, first, assigned(mid, inset), outputs=[output(mid)])
    assert [row[1:] for row in log_rows(bench.store) if row[0] == "mid"] == [(1, inset, "done"), (2, inset, "done")]


def test_recovery_comes_first(bench: Bench) -> None:
    bench.feed([1])
    mid = bench.ready()
    assigned(mid, mid.get_inset_id())
    mid.begin_transaction().commit()
    mid = bench.open("mid")
    for call in (mid.begin_transaction, mid.receive, mid.get_state_id, mid.get_inset_id, mid.end_of_stream):
        with pytest.raises(ApiMisuse, match=r"initialize_context\(\)"):
            call()
    assert mid.initialize_context() == {"a": 1, "b": 0}
    with pytest.raises(ApiMisuse, match=r"comes after fetch_ack_events\(\)"):
        mid.receive()
    (event,) = mid.fetch_ack_events()
    with pytest.raises(ApiMisuse, match="has given its events already"):
        list(mid.fetch_ack_events())
    with pytest.raises(ApiMisuse, match="assigned as the log says"):
        mid.assign_in_sets([event.inset_id], event.info)


def test_the_handle_belongs_to_the_thread_of_run(bench: Bench) -> None:
    mid, caught = bench.ready(), []

    def elsewhere() -> None:
        try:
            mid.begin_transaction()
        except ApiMisuse as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "another thread" in caught[0]


# --- the end ----------------------------------------------------------------------------------------------------------


def finished_inputs(bench: Bench) -> Logio:
    bench.feed([1], end=True)
    bench.feed(source="more", end=True)
    return bench.ready()


def test_the_end_of_the_stream_is_logged_once(bench: Bench) -> None:
    mid = finished_inputs(bench)
    assigned(mid)
    assert mid.receive() is None
    assert mid.has_ended()
    mid.end_of_stream()
    rows = log_rows(bench.store)
    mid.end_of_stream()
    assert log_rows(bench.store) == rows
    assert [row for row in rows if row[0] in ("done", "rest")] == [
        ("done", 1, None, "undone"), ("rest", 1, None, "undone"),
    ]  # fmt: skip
    assert bench.open("mid").has_finished


def test_the_stream_does_not_end_while_anything_is_left_to_do(bench: Bench) -> None:
    mid = finished_inputs(bench)
    with pytest.raises(ApiMisuse, match="its input ports have not ended"):
        mid.end_of_stream()
    inset = mid.get_inset_id()
    event = received(mid, "a")
    mid.update_context(event.info)
    mid.assign_in_sets([inset], event.info)
    assert mid.receive(state={}) is None
    with pytest.raises(ApiMisuse, match=f"Input Set '{inset}' is not done"):
        mid.end_of_stream()
    generate(mid, inset, event)
    write(mid, 1)
    with pytest.raises(ApiMisuse, match="write action 1 on connection 'wh' is not done"):
        mid.end_of_stream()
    mid.done_event(*mid.get_write_actions())
    mid.end_of_stream({"end": True})
    assert bench.open("mid").get_proc_state() == {"end": True}


def test_a_source_does_not_end_with_a_read_action_under_way(bench: Bench) -> None:
    bench.feed([1])
    with pytest.raises(ApiMisuse, match="read action 1 is incomplete"):
        bench.ready("feed").end_of_stream()


def test_run_may_not_leave_a_transaction_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch: ManualEpoch = bench.epoch("feed")

    def run(logio: Logio) -> None:
        logio.initialize_context()
        logio.begin_transaction()

    monkeypatch.setattr(epoch._operator, "run", run)
    with pytest.raises(ApiMisuse, match="while a transaction is open"):
        epoch.run()
