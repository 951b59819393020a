"""Read actions by hand: Algorithm 1 step by step, Algorithm 6 between any two."""

from __future__ import annotations

import pytest

from airflow_logio.contrib.paper_api import ActionInfo, EventInfo, Logio, ReadProgress, StateInfo
from airflow_logio.errors import ApiMisuse
from tests.support.logs import log_rows
from tests.unit.contrib.paper_api.support import Bench, table


def begun(logio: Logio, *, replayable: bool = False) -> ActionInfo:
    action = ActionInfo(logio.get_action_id(), description={"what": "all"}, replayable=replayable)
    logio.initialize_read_action(action, StateInfo(logio.get_state_id()), {"offset": 0})
    return action


def emit(logio: Logio, value: int, *, last: ActionInfo | None = None) -> None:
    with logio.begin_transaction() as transaction:
        transaction.log_source_event(EventInfo(logio.get_event_id("out"), "out"), table(value))
        if last is not None:
            transaction.done_event(last)
    logio.send("out")


def progress(logio: Logio) -> tuple[ReadProgress, str | None]:
    read = logio.last_read_action()
    assert read is not None
    return read.progress, read.action_data


def test_every_step_of_a_non_replayable_read_action_survives_a_failure(bench: Bench) -> None:
    feed = bench.ready("feed")
    assert feed.last_read_action() is None
    action = begun(feed)
    feed = bench.ready("feed")
    assert progress(feed) == (ReadProgress.INCOMPLETE, None)
    assert feed.get_proc_state() == {"offset": 0}
    feed.complete_read_action(action, "file", 2)
    feed = bench.ready("feed")
    assert progress(feed) == (ReadProgress.COMPLETE, "file")
    emit(feed, 1)
    feed = bench.ready("feed")
    assert progress(feed) == (ReadProgress.COMPLETE, "file")
    emit(feed, 2, last=action)
    feed = bench.ready("feed")
    assert progress(feed) == (ReadProgress.DONE, "file")
    dropped: list[str] = []
    feed.drop_read_action(action, dropped.append)
    feed = bench.ready("feed")
    assert (progress(feed)[0], dropped) == (ReadProgress.ENDED, ["file"])
    feed.end_of_stream()
    assert [row for row in log_rows(bench.store) if row[0] == "feed"] == [], "event r is gone"
    assert bench.open("feed").has_finished


def test_the_description_and_the_action_come_back_as_they_were(bench: Bench) -> None:
    action = begun(bench.ready("feed"))
    read = bench.ready("feed").last_read_action()
    assert read is not None
    assert (read.info, read.info.description) == (action, {"what": "all"})


def test_a_failed_discard_is_done_again(bench: Bench) -> None:
    feed = bench.ready("feed")
    action = begun(feed)
    feed.complete_read_action(action, "file", 0)

    def fails(ref: str) -> None:
        raise OSError(ref)

    with pytest.raises(OSError, match="file"):
        feed.drop_read_action(action, fails)
    assert progress(bench.ready("feed"))[0] is ReadProgress.DONE


def test_an_empty_effect_is_used_up_at_once(bench: Bench) -> None:
    feed = bench.ready("feed")
    action = begun(feed)
    feed.complete_read_action(action, "file", 0)
    assert progress(feed) == progress(bench.ready("feed")) == (ReadProgress.DONE, "file")


def test_a_replayable_action_is_complete_with_its_last_event(bench: Bench) -> None:
    feed = bench.ready("feed")
    action = begun(feed, replayable=True)
    emit(feed, 1, last=action)
    assert progress(bench.ready("feed"))[0] is ReadProgress.ENDED


def test_read_actions_follow_each_other(bench: Bench) -> None:
    feed = bench.ready("feed")
    first = begun(feed, replayable=True)
    with pytest.raises(ApiMisuse, match="one read action at a time"):
        begun(feed)
    emit(feed, 1, last=first)
    second = begun(feed)
    feed.complete_read_action(second, "file", 1)
    assert second.action_id > first.action_id
    third = ActionInfo(bench.ready("feed").get_action_id())
    assert third.action_id > second.action_id


def test_events_before_the_effect_is_stored_are_refused(bench: Bench) -> None:
    feed = bench.ready("feed")
    with pytest.raises(ApiMisuse, match="has begun no read action"):
        emit(feed, 1)
    begun(feed)
    with pytest.raises(ApiMisuse, match="store its whole effect first"):
        emit(feed, 1)


def test_events_behind_the_last_are_refused(bench: Bench) -> None:
    feed = bench.ready("feed")
    action = begun(feed, replayable=True)
    emit(feed, 1, last=action)
    with pytest.raises(ApiMisuse, match="all its events are logged"):
        emit(feed, 2)


def test_dropping_inside_the_loop_is_refused(bench: Bench) -> None:
    """As Listing 1 does it: the effect would be gone with the first event (hole H5)."""
    feed = bench.ready("feed")
    action = begun(feed)
    feed.complete_read_action(action, "file", 2)
    emit(feed, 1)
    dropped: list[str] = []
    with pytest.raises(ApiMisuse, match="cannot become ended"):
        feed.drop_read_action(action, dropped.append)
    assert dropped == []
    emit(feed, 2, last=action)


@pytest.mark.parametrize("replayable", [True, False])
def test_done_twice_complete_twice_and_unknown_actions_are_refused(bench: Bench, replayable: bool) -> None:
    feed = bench.ready("feed")
    with pytest.raises(ApiMisuse, match="not on record"):
        feed.done_event(ActionInfo(1))
    with pytest.raises(ApiMisuse, match="get_action_id"):
        feed.initialize_read_action(ActionInfo(7), StateInfo(feed.get_state_id()), {})
    action = begun(feed, replayable=replayable)
    if replayable:
        with pytest.raises(ApiMisuse, match="is replayable"):
            feed.complete_read_action(action, "file", 1)
    else:
        with pytest.raises(ApiMisuse, match="effect is not stored"):
            feed.done_event(action)
        feed.complete_read_action(action, "file", 1)
        with pytest.raises(ApiMisuse, match="cannot become complete"):
            feed.complete_read_action(action, "other", 1)
    with pytest.raises(ApiMisuse, match="done in this transaction"), feed.begin_transaction() as transaction:
        transaction.done_event(action)
        transaction.done_event(action)
    feed.done_event(action)
    with pytest.raises(ApiMisuse, match="it cannot become"):
        feed.done_event(action)


def test_a_source_has_no_input_sets_and_a_middle_operator_no_source_events(bench: Bench) -> None:
    feed, mid = bench.ready("feed"), bench.ready("mid")
    with pytest.raises(ApiMisuse, match="no input ports"), feed.begin_transaction() as transaction:
        transaction.log_output_events([], [], "1", [])
    with pytest.raises(ApiMisuse, match="Input Sets"), mid.begin_transaction() as transaction:
        transaction.log_source_event(EventInfo(1, "out"), table(1))
    with pytest.raises(ApiMisuse, match="for sources"):
        mid.initialize_read_action(ActionInfo(1), StateInfo(1), {})
    with pytest.raises(ApiMisuse, match="does not declare connection 'nowhere'"):
        mid.get_action_id("nowhere")
