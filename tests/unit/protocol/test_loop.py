"""What an epoch of a group wants next: the loop, and the state machines of the threads beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_logio.errors import EpochVoid, LogInconsistent, ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import (
    CommitAttempt,
    CommitQueue,
    CommitStep,
    DiscardOrder,
    ForgetOrder,
    ReadOrder,
    hand_over,
)
from airflow_logio.protocol.life import Life, LifeStep
from airflow_logio.protocol.logic import Emit, OperatorSpec
from airflow_logio.protocol.loop import FLUSH_EVENTS, FLUSH_SECONDS
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.protocol.writes import MAX_ACTIONS_WAITING, PendingWrite, WriteQueue, WriteStep
from tests.support.logics import CountWindow, Writing, end, fed, of, operator, serialized
from tests.support.loops import QUEUE, STORED, Epoch, drained, reading, source, states

IN = Port("op", "in")


def window(size: int = 3) -> Epoch:
    epoch = Epoch(operator("op", CountWindow(size))).begun()
    epoch.commit()
    return epoch


# --- steps ------------------------------------------------------------------------------------------------------------


def test_an_output_set_is_committed_as_soon_as_the_committer_is_free() -> None:
    epoch = window(1)
    epoch.loop.deliver(IN, fed(1, 7), now=10.0)
    assert epoch.loop.is_due(10.0) and epoch.loop.wants_to_commit()
    assert epoch.loop.patience(10.0) == 0.0, "no one will say that it is free: it is"
    epoch.commits.add([fx.DrainGroup()])
    assert not epoch.loop.is_due(10.0), "the committer is busy: the step takes more meanwhile"
    assert epoch.loop.awaits_committer() and epoch.loop.patience(10.0) == FLUSH_SECONDS
    assert epoch.loop.is_due(10.0 + FLUSH_SECONDS)


def test_assignments_alone_wait_for_company_and_not_for_ever() -> None:
    epoch = window()
    assert not epoch.loop.is_due(0.0) and epoch.loop.patience(0.0) == FLUSH_SECONDS
    epoch.loop.deliver(IN, fed(1, 7), now=0.0)
    assert not epoch.loop.awaits_committer()
    epoch.loop.deliver(IN, fed(2, 7), now=0.2)
    assert not epoch.loop.is_due(0.2) and epoch.loop.patience(0.2) == pytest.approx(0.05)
    assert epoch.loop.is_due(FLUSH_SECONDS), "counted from the first"
    effects = epoch.loop.close()
    assert [one.event_id for one in of(fx.Acknowledge, effects)] == [1, 2]
    assert not epoch.loop.has_step


def test_many_assignments_do_not_wait() -> None:
    epoch = window(10 * FLUSH_EVENTS)
    for number in range(1, FLUSH_EVENTS + 1):
        epoch.loop.deliver(IN, fed(number, 1), now=0.0)
    assert epoch.loop.is_due(0.0)


def test_garbage_is_due_where_nothing_else_is() -> None:
    epoch = window()
    epoch.garbage.overdue = True
    assert epoch.loop.is_due(0.0)


def test_inputs_wait_while_something_lags() -> None:
    epoch = window()
    assert epoch.loop.accepts_inputs(lambda: False) and not epoch.loop.accepts_inputs(lambda: True)
    epoch.writers["op", "wh"].add([write(number) for number in range(1, MAX_ACTIONS_WAITING + 1)])
    assert not epoch.loop.accepts_inputs(lambda: pytest.fail("the log was asked for nothing"))


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_group_finishes_when_the_success_of_its_last_write_is_committed() -> None:
    epoch = Epoch(operator("op", Writing())).begun()
    writer = epoch.writers["op", "wh"]
    epoch.loop.deliver(IN, fed(1, 7), 0.0)
    epoch.loop.deliver(IN, end(2), 0.0)
    epoch.loop.close()
    assert not epoch.loop.is_finished(), "nothing is committed"
    epoch.commit()
    assert not epoch.loop.is_finished(), "nothing is written"
    while writer.pending:
        writer.take(1)
        writer.applied()
        assert not epoch.loop.is_finished(), "it is not known"
        epoch.loop.applied(writer.report(), 0.0)
    assert not epoch.loop.is_finished(), "the log does not know"
    epoch.loop.close()
    epoch.commit()
    assert epoch.loop.is_finished()
    assert of(fx.FinishGroup, epoch.loop.finish()) and not epoch.loop.is_finished(), "once"


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_read_action_is_executed_when_the_log_has_it() -> None:
    epoch = source().begun()
    assert epoch.orders == []
    assert of(fx.StartReadAction, epoch.commit()) and epoch.orders == [ReadOrder("source", 1, QUEUE)]


def test_a_recovered_read_action_resumes_from_its_stored_effect() -> None:
    epoch = reading()
    epoch.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    epoch.loop.close()
    again = source().begun(recovered=states(epoch.commit()))
    assert again.orders == [ReadOrder("source", 1, QUEUE, 1, STORED)]


def test_a_used_up_effect_is_discarded_after_its_last_event_is_logged() -> None:
    epoch = reading()
    epoch.loop.used_whole("source", 0.0)
    epoch.loop.end_read("source", None, 0.0)
    epoch.loop.close()
    effects = epoch.commit()
    assert epoch.orders == [DiscardOrder("source", 1)]
    again = source().begun(recovered=states(effects))
    assert again.orders == [DiscardOrder("source", 1, STORED)], "it may not have been done"


RANGE = {"start": 0, "end": 5}
FORGETS = OperatorSpec("source", (), ("out",), None, forgets=True)


def test_a_range_may_be_forgotten_once_its_event_is_durable_and_until_somebody_was_told() -> None:
    epoch = Epoch(FORGETS, first=RANGE).begun()
    epoch.commit()
    epoch.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    epoch.loop.close()
    assert epoch.orders == [ReadOrder("source", 1, RANGE)], "nothing of the event is durable"
    effects = epoch.commit()
    assert epoch.orders == [ForgetOrder("source", 1, RANGE)]
    again = Epoch(FORGETS, first=RANGE).begun(recovered=states(effects))
    assert again.orders == [ForgetOrder("source", 1, RANGE), ReadOrder("source", 1, RANGE, 1)], (
        "the sender may not have been told"
    )
    again.loop.end_read("source", None, 0.0)
    again.loop.close()
    effects = again.commit()
    assert not again.loop.is_finished()
    once_more = Epoch(FORGETS, first=RANGE).begun(recovered=states(effects))
    assert once_more.orders == [ForgetOrder("source", 1, RANGE)], "after the end of the stream, too"
    once_more.loop.forgotten("source", 1, 0.0)
    once_more.loop.close()
    last = Epoch(FORGETS, first=RANGE).begun(recovered=states(once_more.commit()))
    assert last.orders == []
    assert once_more.loop.is_finished()


def test_the_newest_range_is_remembered_and_none_that_a_drain_has_cut_off() -> None:
    epoch = Epoch(FORGETS, first=RANGE).begun()
    epoch.commit()
    epoch.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    epoch.loop.end_read("source", {"start": 5, "end": 9}, 0.0)
    epoch.loop.close()
    effects = epoch.commit()
    assert epoch.orders == [ForgetOrder("source", 1, RANGE), ReadOrder("source", 2, {"start": 5, "end": 9})]
    drained(epoch)
    epoch.loop.close()
    effects = epoch.commit()
    assert not of(fx.MayForget, effects), "its second range was not read"
    again = Epoch(FORGETS, first=RANGE).begun(recovered=states(effects))
    assert again.orders == [ForgetOrder("source", 1, RANGE)]

    later = Epoch(FORGETS, first=RANGE).begun()
    later.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    later.loop.end_read("source", {"start": 5, "end": 9}, 0.0)
    later.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    later.loop.forgotten("source", 1, 0.0)
    later.loop.close()
    again = Epoch(FORGETS, first=RANGE).begun(recovered=states(later.commit()))
    assert again.orders[0] == ForgetOrder("source", 2, {"start": 5, "end": 9})


def test_a_drain_ends_what_can_be_read_again_where_it_stands() -> None:
    epoch = source(replayable=True).begun()
    epoch.commit()
    assert drained(epoch) == [("source", "cut short")]
    effects = epoch.loop.close()
    assert of(fx.DrainGroup, effects) and [e.event.kind for e in of(fx.LogEvent, effects)] == [Kind.END]
    epoch.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    epoch.loop.end_read("source", QUEUE, 0.0)
    assert epoch.loop.close() == [], "what was in the mailbox is not read"
    assert drained(epoch) == [], "once per epoch"


def test_a_drain_waits_for_a_stored_effect() -> None:
    epoch = reading()
    assert drained(epoch) == [("source", "to its end")]
    epoch.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    assert [e.event.kind for e in of(fx.LogEvent, epoch.loop.close())] == [Kind.DATA]
    epoch.told.clear()
    epoch.loop.used_whole("source", 0.0)
    assert epoch.told == [("source", "cut short")], "its reader may be asking what follows, and may fail at that"
    assert [e.event.kind for e in of(fx.LogEvent, epoch.loop.close())] == [Kind.END]


def test_a_drain_ends_a_source_whose_stored_effect_is_used_whole() -> None:
    epoch = reading()
    epoch.loop.used_whole("source", 0.0)
    assert drained(epoch) == [("source", "cut short")], "what follows is not asked for"


def test_a_driver_that_begins_to_drain_begins_no_read_action() -> None:
    epoch = source().begun(drains=True)
    assert epoch.orders == [] and not of(fx.StartReadAction, epoch.commit())
    replayed = source(replayable=True).begun()
    begun = replayed.commit()
    again = source(replayable=True).begun(drains=True, recovered=states(begun))
    assert again.orders == []


# --- the committer ----------------------------------------------------------------------------------------------------


def test_what_is_closed_while_a_transaction_is_under_way_goes_into_the_next() -> None:
    queue = CommitQueue()
    for number in range(3):
        queue.add([fx.MarkDone("op", str(number), 1)])
    assert len(queue.take(lambda _: 1, most_steps=2)) == 2
    with pytest.raises(ProtocolViolation, match="another one is under way"):
        queue.take(lambda _: 1)
    queue.encoded(queue.taken)
    queue.committed()
    queue.handed_over()
    assert not queue.is_idle() and len(queue.take(lambda _: 1)) == 1


def test_nothing_leaves_before_the_commit() -> None:
    queue = CommitQueue()
    queue.add([fx.DrainGroup()])
    queue.take(lambda _: 0)
    assert wanted(queue) is CommitStep.ENCODE
    with pytest.raises(ProtocolViolation, match="COMMIT"):
        queue.committed()
    queue.encoded(queue.taken)
    with pytest.raises(ProtocolViolation, match="HAND_OVER"):
        queue.peek()
    assert wanted(queue) is CommitStep.COMMIT
    queue.committed()
    assert queue.peek().drained and wanted(queue) is CommitStep.HAND_OVER
    assert not queue.is_idle(), "the loop must not finish while something is being handed over"
    queue.handed_over()
    assert queue.is_idle() and wanted(queue) is None


def test_what_a_void_epoch_has_queued_is_dropped() -> None:
    queue = CommitQueue()
    queue.add([fx.DrainGroup()])
    queue.drop()
    assert queue.is_idle()


def test_events_that_are_held_wake_nobody_until_they_are_released() -> None:
    sent, held = window(1), window(1)
    for epoch in (sent, held):
        epoch.loop.deliver(IN, fed(1, 7), 0.0)
    (event,) = of(fx.LogEvent, serialized(sent.loop.close()))
    assert hand_over([event]).sent == [Port("elsewhere", "in")]
    assert hand_over([fx.LogEvent(event.event, event.deliveries, event.kept, True)]).sent == []
    assert hand_over([fx.Release(Port("op", "out"), 1, 1, 1)]).released == [Port("op", "out")]


@pytest.mark.parametrize(("commit_no", "committed"), [(7, True), (6, False)])
def test_an_unknown_outcome_is_asked_for(commit_no: int, *, committed: bool) -> None:
    attempt = CommitAttempt(2, 7)
    attempt.send()
    assert attempt.is_in_doubt
    assert attempt.was_committed(2, commit_no) is committed
    assert [attempt.is_in_doubt] == [False], "it is sent again, or it is over"


def test_an_outcome_that_another_epoch_has_decided_is_void() -> None:
    attempt = CommitAttempt(2, 7)
    with pytest.raises(EpochVoid):
        attempt.was_committed(3, 7)
    with pytest.raises(LogInconsistent, match="commit 7 is unknown, and the log is at commit 9"):
        attempt.was_committed(2, 9)


# --- a writer ---------------------------------------------------------------------------------------------------------


def write(number: int, *, ref: str | None = None) -> PendingWrite:
    return PendingWrite("op", "wh", number, {}, 10, b"", ref)


def test_write_actions_are_reported_when_they_are_applied() -> None:
    queue = WriteQueue("op", "wh")
    queue.add([write(1), write(2)], recovered=True)
    queue.add([write(3)])
    assert (len(queue.take(2)), queue.recovered, queue.wants) == (2, 2, WriteStep.APPLY)
    with pytest.raises(ProtocolViolation, match="REPORT"):
        queue.report()
    queue.applied()
    applied = queue.report()
    assert (applied.first, applied.last, applied.records) == (1, 2, 20)
    queue.settle(applied)
    assert not queue.is_idle(), "the third is pending"


def test_a_large_body_is_taken_alone() -> None:
    queue = WriteQueue("op", "wh")
    queue.add([write(1), write(2, ref="bodies/2"), write(3)])
    assert [one.number for one in queue.take(8)] == [1, 2]


# --- epochs -----------------------------------------------------------------------------------------------------------


def wanted(by: CommitQueue | WriteQueue | Life) -> object:
    return by.wants


def raised(life: Life) -> bool:
    return life.raises_epoch


def lived(life: Life) -> Sequence[LifeStep]:
    done = []
    while life.wants not in (LifeStep.RUN, LifeStep.WAIT, LifeStep.STOP):
        done.append(life.wants)
        life.done(life.wants)
    return [*done, life.wants]


def test_the_fence_comes_before_the_log() -> None:
    assert lived(Life()) == [LifeStep.OPEN, LifeStep.READ, LifeStep.REBUILD, LifeStep.RUN]
    with pytest.raises(ProtocolViolation, match="OPEN comes first"):
        Life().done(LifeStep.READ)


def test_a_void_epoch_is_rebuilt_from_the_log_under_the_next() -> None:
    life = Life(is_replica=True)
    assert lived(life)[:2] == [LifeStep.OPEN, LifeStep.ASK_SLOTS] and not raised(life)
    life.void()
    assert wanted(life) is LifeStep.STOP
    life.stopped()
    assert raised(life) and lived(life)[-2:] == [LifeStep.REBUILD, LifeStep.RUN]
    assert not raised(life)


def test_a_replica_without_slots_rebuilds_nothing() -> None:
    life = Life(is_replica=True)
    life.done(LifeStep.OPEN)
    life.done(LifeStep.ASK_SLOTS)
    life.owns_nothing()
    assert wanted(life) is LifeStep.WAIT
    life.void()
    life.stopped()
    assert lived(life)[-1] is LifeStep.RUN
