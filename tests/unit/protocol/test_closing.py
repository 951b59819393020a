"""Write actions that are held until the closing one is in the log: when an operator may be closed, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_logio.errors import LogInconsistent, OperatorFailed, ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import pending_write
from airflow_logio.protocol.context import decode_state, reopen
from airflow_logio.protocol.logic import OperatorSpec, Output, Write
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.writes import (
    CLOSE,
    MAX_ACTIONS_WAITING,
    HeldGroup,
    PendingWrite,
    WriteQueue,
    WriteStep,
)
from tests.support.logics import (
    ByDay,
    CountWindow,
    EachEvent,
    Failing,
    Group,
    Writing,
    end,
    fed,
    of,
    operator,
    produced,
)
from tests.support.loops import Epoch, states

IN, OUT = Port("op", "in"), Port("day", "in")
DAY = ("day", "wh")


def day(name: str = "day", logic: ByDay | None = None, **settings: Any) -> OperatorSpec:
    return operator(name, logic or ByDay(), outputs=(), closes=True, **settings)


def numbers(effects: fx.Effects) -> list[tuple[int, bool]]:
    """(number, whether it closes) of the write actions that a step logs."""
    return [(one.number, one.header.get("action") == CLOSE) for one in of(fx.LogWrite, effects)]


def finished(effects: fx.Effects, name: str = "day") -> bool:
    (one,) = [one for one in of(fx.StoreState, effects) if one.operator == name]
    return decode_state(name, one.data).context.finished


def alone(*specs: OperatorSpec) -> Epoch:
    """An epoch of these operators, whose opening actions are in the log and applied."""
    epoch = Epoch(*specs).begun()
    epoch.commit()
    for writer in epoch.writers.values():
        apply(epoch, writer)
    return epoch


def apply(epoch: Epoch, writer: WriteQueue) -> list[HeldGroup | int]:
    """Everything that a writer takes now, applied, and its success committed."""
    done: list[HeldGroup | int] = []
    while writer.pending:
        taken = writer.take(8)
        done.append(writer.group or taken[0].number)
        writer.applied()
        epoch.loop.applied(writer.report(), 0.0)
        epoch.loop.close()
        epoch.commit()
    return done


def ended(epoch: Epoch, *values: int, port: Port = OUT) -> Epoch:
    """All events of a stream and its end have come, and are committed."""
    for number, value in enumerate(values, start=1):
        epoch.loop.deliver(port, fed(number, value), 0.0)
    epoch.loop.deliver(port, end(len(values) + 1), 0.0)
    epoch.loop.close()
    epoch.commit()
    return epoch


# --- the group --------------------------------------------------------------------------------------------------------


def test_what_closes_does_not_finish_by_itself() -> None:
    group = Group([day()])
    group.resume()
    effects = group.step(fed(1, 7), end(2))
    assert numbers(effects) == [(2, False)] and not finished(effects)
    assert group.protocol.to_close() == ["day"] and not group.protocol.is_finished()


def test_the_closing_action_is_the_last_of_one_sequence_and_a_step_of_its_own() -> None:
    group = Group([day()])
    assert numbers(group.resume()) == [(1, False)]
    assert numbers(group.step(fed(1, 7), fed(2, 8), end(3))) == [(2, False), (3, False)]
    group.protocol.close_writer("day")
    assert group.protocol.ledger.has_output, "it does not wait for company"
    effects = group.protocol.close_step()
    assert numbers(effects) == [(4, True)] and finished(effects)
    assert produced(effects) == [], "it has no output port, so nothing says END"
    assert group.protocol.to_close() == [] and group.protocol.is_finished()


def test_a_day_without_rows_is_closed_right_behind_its_opening() -> None:
    group = Group([day()])
    group.resume()
    group.step(end(1))
    group.protocol.close_writer("day")
    assert numbers(group.protocol.close_step()) == [(2, True)]


def test_it_is_not_closed_while_an_input_set_is_open_or_under_way() -> None:
    group = Group([day(asynchronous=True)])
    group.resume()
    group.step(fed(1, 7), end(2))
    assert group.protocol.to_close() == []
    group.protocol.start_job("day", ["in:1"])
    assert group.protocol.to_close() == []
    group.protocol.generated("day", [("in:1", [Write("wh", {"insert": True}, [7], 1)])])
    group.protocol.close_step()
    assert group.protocol.to_close() == ["day"]


def test_an_input_port_that_has_not_ended_keeps_it_open() -> None:
    group = Group([operator("day", ByDay(), inputs=("left", "right"), outputs=(), closes=True)])
    group.resume()
    group.step(end(1), receiver=Port("day", "left"))
    assert group.protocol.to_close() == []
    group.step(end(1), receiver=Port("day", "right"))
    assert group.protocol.to_close() == ["day"]


def test_a_source_beside_it_ends_first() -> None:
    source = OperatorSpec("source", (), ("out",), None, forgets=True)
    group = Group([source, day()], {Port("source", "out"): [OUT]})
    group.resume()
    group.protocol.begin_source("source", {"start": 0})
    group.protocol.close_step()
    assert group.protocol.to_close() == []
    group.protocol.end_source("source")
    group.protocol.close_step()
    assert group.protocol.to_close() == ["day"]


def test_an_operator_beside_it_that_has_not_ended_keeps_it_open() -> None:
    group = Group([day(), operator("op", CountWindow(3))], {Port("op", "out"): [Port("sink", "in")]})
    group.resume()
    group.step(fed(1, 7), end(2))
    assert group.protocol.to_close() == [], "the window has not ended"
    group.step(fed(1, 7), end(2), receiver=IN)
    assert group.protocol.to_close() == ["day"]


def test_an_operator_beside_it_that_still_holds_what_it_sends_keeps_it_open() -> None:
    waits = operator("op", Writing(), sends_after_writes=True)
    group = Group([day(), waits], {Port("op", "out"): [Port("sink", "in")]})
    group.resume()
    group.step(end(1))
    group.step(fed(1, 7), end(2), receiver=IN)
    assert group.protocol.to_close() == [], "its events wait for their write actions"
    group.protocol.writes_done("op", "wh", 1, 2, 1)
    assert group.protocol.to_close() == ["day"]


def test_of_several_each_is_closed_when_all_have_come_to_their_end() -> None:
    group = Group([day(), day("other")])
    group.resume()
    group.step(end(1))
    assert group.protocol.to_close() == [], "the other one may still be set aside"
    group.step(fed(1, 7), end(2), receiver=Port("other", "in"))
    assert group.protocol.to_close() == ["day", "other"]
    group.protocol.close_writer("day")
    group.protocol.close_step()
    assert group.protocol.to_close() == ["other"] and not group.protocol.is_finished()
    group.protocol.close_writer("other")
    assert group.protocol.to_close() == [] and group.protocol.is_finished()


def test_of_several_none_is_closed_before_all_have_opened() -> None:
    """A day that belongs to another run is refused in its opening. Nothing is replaced beside it."""
    epoch = Epoch(day(), day("other")).begun()
    epoch.commit()
    ended(ended(epoch, 7), 8, port=Port("other", "in"))
    assert epoch.loop.to_close() == []
    first, second = (epoch.writers[name, "wh"] for name in ("day", "other"))
    assert apply(epoch, first) == [1] and epoch.loop.to_close() == []
    second.take(8)
    second.applied()
    assert epoch.loop.to_close() == [], "its success is not committed"
    epoch.loop.applied(second.report(), 0.0)
    epoch.loop.close()
    epoch.commit()
    assert epoch.loop.to_close() == ["day", "other"]
    epoch.loop.close_writer("day", 0.0)
    epoch.loop.close()
    epoch.commit()
    assert epoch.loop.to_close() == [], "one by one"
    assert len(apply(epoch, first)) == 1 and epoch.loop.to_close() == ["other"]


class Fails(ByDay):
    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        raise OperatorFailed("not today")


def test_what_it_has_set_aside_itself_does_not_keep_it_from_its_end() -> None:
    """Whether it may be closed is another question, which only the log can answer."""

    group = Group([day(logic=Fails(), quarantines=True)])
    group.resume()
    effects = group.step(fed(1, 8), end(2))
    assert len(of(fx.SetAside, effects)) == 1 and group.protocol.to_close() == ["day"]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{"outputs": ("out",)}, {"inputs": ()}, {"outputs": (), "sends_after_writes": True}],
    ids=["with an output port", "a source", "sends after its writes"],
)
def test_an_operator_that_cannot_close_is_refused(settings: Mapping[str, Any]) -> None:
    with pytest.raises(ProtocolViolation, match="'day' holds its write actions until it is closed"):
        operator("day", ByDay(), **{"outputs": (), **settings}, closes=True)


class Openings(ByDay):
    def __init__(self, *connections: str) -> None:
        self._connections = connections

    def opening(self) -> Sequence[Write]:
        return [Write(connection, {"clear": True}, []) for connection in self._connections]


@pytest.mark.parametrize("connections", [(), ("wh", "wh"), ("wh", "other")])
def test_it_begins_with_one_opening_action(connections: Sequence[str]) -> None:
    with pytest.raises(ProtocolViolation, match="'day' closes, so it has to begin with one opening action"):
        Group([day(logic=Openings(*connections))]).resume()


class Closings(ByDay):
    def __init__(self, *writes: Write) -> None:
        self._writes = writes

    def closing(self) -> Sequence[Write]:
        return self._writes


CLOSING = Write("wh", {"action": CLOSE}, [])


@pytest.mark.parametrize(
    "writes",
    [(), (CLOSING, CLOSING), (Write("other", {"action": CLOSE}, []),), (Write("wh", {"action": "insert"}, []),)],
    ids=["none", "two", "another connection", "one that does not say so"],
)
def test_it_closes_what_it_has_opened_with_one_action(writes: Sequence[Write]) -> None:
    group = Group([day(logic=Closings(*writes))])
    group.resume()
    group.step(end(1))
    with pytest.raises(ProtocolViolation, match="has to close the one connection"):
        group.protocol.close_writer("day")


class Makes(ByDay):
    def __init__(self, write: Write) -> None:
        self._write = write

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield self._write


@pytest.mark.parametrize("write", [CLOSING, Write("other", {"action": "insert"}, [])])
def test_no_output_set_closes_it_or_writes_elsewhere(write: Write) -> None:
    group = Group([day(logic=Makes(write))])
    group.resume()
    with pytest.raises(ProtocolViolation, match="an Output Set of it cannot write to"):
        group.step(fed(1, 7))


def test_it_is_closed_at_its_end_and_once() -> None:
    group = Group([day(), operator("op", EachEvent())])
    group.resume()
    for name in ("day", "op"):
        with pytest.raises(ProtocolViolation, match="closed before its group has ended, or twice"):
            group.protocol.close_writer(name)
    group.step(end(1), receiver=IN)
    group.step(end(1))
    group.protocol.close_writer("day")
    with pytest.raises(ProtocolViolation, match="or twice"):
        group.protocol.close_writer("day")


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_it_may_be_closed_when_the_log_has_all_of_it() -> None:
    epoch = alone(day())
    epoch.loop.deliver(OUT, fed(1, 7), 0.0)
    epoch.loop.deliver(OUT, end(2), 0.0)
    assert epoch.loop.to_close() == [], "a step is open"
    epoch.loop.close()
    assert epoch.loop.to_close() == [], "the committer is busy"
    epoch.commit()
    assert epoch.loop.to_close() == ["day"]
    assert not epoch.loop.is_finished()


def test_a_step_without_effects_that_matter_is_still_a_step() -> None:
    """It may say that an Input Set is set aside: the log does not know that yet."""
    epoch = ended(alone(day()), 7)
    epoch.loop.note(0.0)
    assert epoch.loop.to_close() == []
    with pytest.raises(ProtocolViolation, match="while something of its group is under way"):
        epoch.loop.close_writer("day", 0.0)


def test_what_others_of_the_group_write_is_applied_first() -> None:
    epoch = alone(day(), operator("op", Writing()))
    ended(epoch, 7)
    ended(epoch, 5, port=IN)
    assert epoch.loop.to_close() == [], "a write action of the other one is pending"
    apply(epoch, epoch.writers["op", "wh"])
    assert epoch.loop.to_close() == ["day"]


def test_its_own_held_actions_do_not_keep_it_open_and_hold_up_nothing() -> None:
    epoch = alone(day())
    values = range(MAX_ACTIONS_WAITING + 1)
    assert ended(epoch, *values).loop.accepts_inputs(lambda: False)
    assert not epoch.writers[DAY].pending, "they are in the log, and nowhere else"
    assert epoch.loop.to_close() == ["day"]


def test_closed_it_is_applied_as_one_and_then_the_group_finishes() -> None:
    epoch = ended(alone(day()), 7, 8)
    epoch.loop.close_writer("day", 5.0)
    assert epoch.loop.to_close() == [] and epoch.loop.is_due(5.0)
    epoch.loop.close()
    assert not epoch.writers[DAY].pending, "it is not in the log"
    epoch.commit()
    assert not epoch.loop.is_finished() and epoch.loop.to_close() == []
    assert apply(epoch, epoch.writers[DAY]) == [HeldGroup(2, 4, 2)]
    assert epoch.loop.is_finished()


def test_several_are_closed_one_by_one() -> None:
    epoch = alone(day(), day("other"))
    ended(epoch, 7)
    ended(epoch, 8, port=Port("other", "in"))
    assert epoch.loop.to_close() == ["day", "other"]
    epoch.loop.close_writer("other", 0.0)
    with pytest.raises(ProtocolViolation, match="under way"):
        epoch.loop.close_writer("day", 0.0)
    epoch.loop.close()
    epoch.commit()
    assert epoch.loop.to_close() == [], "the first one is not applied"
    assert apply(epoch, epoch.writers["other", "wh"]) == [HeldGroup(2, 3, 1)]
    assert epoch.loop.to_close() == ["day"]


# --- recovery ---------------------------------------------------------------------------------------------------------


def undone(effects: fx.Effects, done: int = 0) -> tuple[PendingWrite, ...]:
    return tuple(pending_write(one) for one in of(fx.LogWrite, effects) if one.number > done)


def logged(done: int = 1, *, closed: bool = False) -> Recovered:
    """What the log says when the day had one row and its end; `done` are applied."""
    group = Group([day()])
    effects = group.resume()
    effects += group.step(fed(1, 7), end(2))
    if closed:
        group.protocol.close_writer("day")
        effects += group.protocol.close_step()
    return Recovered(states(effects).states, (), (), undone(effects, done))


def test_dead_before_its_closing_action_was_logged_it_is_to_be_closed_again_with_the_same_number() -> None:
    epoch = Epoch(day()).begun(recovered=logged())
    epoch.commit()
    assert epoch.loop.to_close() == ["day"] and not epoch.writers[DAY].pending
    epoch.loop.close_writer("day", 0.0)
    assert numbers(epoch.loop.close()) == [(3, True)]


def test_dead_after_its_closing_action_was_logged_it_is_applied_and_not_closed_again() -> None:
    epoch = Epoch(day()).begun(recovered=logged(closed=True))
    epoch.commit()
    assert epoch.loop.to_close() == [] and not epoch.loop.is_finished()
    assert epoch.writers[DAY].recovered == 3
    assert apply(epoch, epoch.writers[DAY]) == [HeldGroup(2, 3, 1)]
    assert epoch.loop.is_finished()


def test_dead_before_its_opening_action_was_applied_that_comes_first_and_alone() -> None:
    epoch = Epoch(day()).begun(recovered=logged(0, closed=True))
    epoch.commit()
    assert apply(epoch, epoch.writers[DAY]) == [1, HeldGroup(2, 3, 1)]


def test_where_the_log_knows_the_success_of_some_the_rest_is_the_group() -> None:
    epoch = Epoch(day()).begun(recovered=logged(2, closed=True))
    epoch.commit()
    assert apply(epoch, epoch.writers[DAY]) == [HeldGroup(3, 3, 0)]


def test_a_retry_upstream_takes_the_end_back_and_the_closing_comes_behind_what_it_brings() -> None:
    """Its state has not finished, so `reopen` changes nothing but the end of its port; the number rises with the rows."""
    sent = Group([operator("op", Failing(1), quarantines=True)], {Port("op", "out"): [OUT]})
    sent.resume()
    stored = dict(states(sent.step(fed(1, 8), end(2))).states)
    group = Group([day()])
    before = group.resume()
    sender = Port("op", "out")
    before += group.step(end(1, sender=sender))
    stored["day"] = states(before).states["day"]
    assert group.protocol.to_close() == ["day"]

    again = reopen(stored, {OUT: sender}, {"op": ["000000"]})
    assert again.concerned == {"op", "day"} and again.ends == [(sender, 1)]
    epoch = Epoch(day()).begun(recovered=Recovered({"day": again.states["day"]}, (), (), ()))
    epoch.commit()
    assert epoch.loop.to_close() == [], "its input continues"
    epoch.loop.deliver(OUT, fed(2, 8, sender=sender), 0.0)
    epoch.loop.deliver(OUT, end(3, sender=sender), 0.0)
    assert numbers(epoch.loop.close()) == [(2, False)]
    epoch.commit()
    epoch.loop.close_writer("day", 0.0)
    assert numbers(epoch.loop.close()) == [(3, True)]


# --- the writer -------------------------------------------------------------------------------------------------------


def write(number: int, *, closes: bool = False, body: bytes = b"") -> PendingWrite:
    return PendingWrite(*DAY, number, {"action": CLOSE} if closes else {}, 10, body)


def wanted(queue: WriteQueue) -> WriteStep | None:
    return queue.wants


def taken(queue: WriteQueue) -> HeldGroup | list[int]:
    """What is taken, applied and reported."""
    found = queue.take(8)
    if not found:
        return []
    queue.applied()
    applied = queue.report()
    queue.settle(applied)
    group = queue.group
    if group is None:
        return [one.number for one in found]
    assert (applied.first, applied.last, applied.records) == (group.first, group.last, group.records)
    return group


def test_nothing_is_taken_between_the_opening_and_the_closing_action() -> None:
    queue = WriteQueue(*DAY, holds=True)
    queue.add([write(1), write(2)])
    assert taken(queue) == [1] and taken(queue) == []
    queue.add([write(3)])
    assert taken(queue) == [] and not queue.is_idle()
    queue.add([write(4, closes=True)])
    assert taken(queue) == HeldGroup(2, 4, 30)
    assert queue.is_idle()


def test_the_opening_is_alone_though_the_closing_is_there() -> None:
    queue = WriteQueue(*DAY, holds=True)
    queue.add([write(1), write(2), write(3, closes=True)], recovered=True)
    assert taken(queue) == [1]
    assert taken(queue) == HeldGroup(2, 3, 20) and queue.recovered == 3


def test_held_actions_are_numbers() -> None:
    queue = WriteQueue(*DAY, holds=True)
    queue.add([write(number, body=bytes(10_000)) for number in range(2, MAX_ACTIONS_WAITING + 10)])
    assert not queue.pending and not queue.is_full() and not queue.is_idle()
    plain = WriteQueue(*DAY)
    plain.add([write(number, body=bytes(10_000)) for number in range(2, MAX_ACTIONS_WAITING + 10)])
    assert plain.is_full()


def test_a_gap_in_what_is_held_is_refused_before_anything_is_applied() -> None:
    queue = WriteQueue(*DAY, holds=True)
    queue.add([write(2), write(3)])
    with pytest.raises(LogInconsistent, match="jump from 3 to 5"):
        queue.add([write(5, closes=True)])


def test_nothing_comes_behind_the_closing_action() -> None:
    queue = WriteQueue(*DAY, holds=True)
    queue.add([write(2), write(3, closes=True)])
    with pytest.raises(LogInconsistent, match="write action 4 of 'day' on 'wh' is behind the closing one"):
        queue.add([write(4)])


def test_the_marker_is_compared_at_the_opening_and_in_each_later_epoch_before_the_closing() -> None:
    first = WriteQueue(*DAY, compares=True, holds=True)
    first.add([write(1), write(2)])
    first.take(8)
    assert wanted(first) is WriteStep.COMPARE
    first.compared()
    first.release()
    first.applied()
    first.report()
    first.add([write(3, closes=True)])
    first.take(8)
    assert wanted(first) is WriteStep.APPLY, "this epoch has compared it"
    later = WriteQueue(*DAY, compares=True, holds=True)
    later.add([write(2), write(3)], recovered=True, log_end=3)
    later.add([write(4, closes=True)], log_end=3)
    later.take(8)
    assert (later.wants, later.log_end) == (WriteStep.COMPARE, 3)


@given(
    rows=st.lists(st.integers(0, 9), max_size=12),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    done=st.integers(0, 14),
    most=st.integers(1, 9),
)
def test_in_whatever_pieces_they_come_the_opening_is_applied_alone_and_the_rest_as_one(
    rows: list[int], cuts: list[int], done: int, most: int
) -> None:
    last = len(rows) + 2
    records = [0, *rows, 0]
    left = [
        PendingWrite(*DAY, number, {"action": CLOSE} if number == last else {}, records[number - 1], b"")
        for number in range(min(done, last - 1) + 1, last + 1)
    ]
    expected: list[HeldGroup | list[int]] = [[1]] if left[0].number == 1 else []
    held = [one for one in left if one.number > 1]
    expected.append(HeldGroup(held[0].number, last, sum(one.records for one in held)))
    queue, found, turn = WriteQueue(*DAY, holds=True), [], 0
    while left:
        size = cuts[turn % len(cuts)]
        queue.add(left[:size])
        del left[:size]
        turn += 1
        if turn % most == 0 or not left:
            while (one := taken(queue)) != []:
                found.append(one)
    assert found == expected and queue.is_idle()
