"""In what order the loop tells the threads beside it, when an epoch begins, drains or has committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_logio.protocol.commit import HandOver, ReadOrder
from airflow_logio.protocol.logic import Emit, OperatorSpec
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.writes import PendingWrite
from tests.support.breaking import Variants
from tests.support.logics import Writing, operator
from tests.support.loops import QUEUE, STORED, Epoch, drained, reading, source, states
from tests.unit.testing.mutants.draining import drain_forgets_the_read_under_way

CLOSED, TO_ITS_END = "a step is closed", ("source", "to its end")
AGAIN = ReadOrder("source", 1, QUEUE, 1, STORED)


def half_used() -> Recovered:
    """A stored effect. One record of it is used."""
    epoch = reading()
    epoch.loop.emit("source", [Emit("out", [1], 1)], 1, 0.0)
    epoch.loop.close()
    return states(epoch.commit())


def threads_start_where_memory_stands() -> None:
    seen: list[int] = []
    epoch = source()
    epoch.begun(
        recovered=half_used(), start_threads=lambda: seen.append(epoch.loop.last_sent(Port("source", "out"))[0])
    )
    assert seen == [1], "threads start from what memory was before"


def pending_writes_come_before_new_ones() -> None:
    epoch, pending = Epoch(operator("op", Writing())), PendingWrite("op", "wh", 1, {}, 10, b"")
    seen: list[int] = []
    epoch.begun(
        recovered=Recovered({}, (), (), (pending,)),
        start_threads=lambda: seen.append(len(epoch.writers["op", "wh"].pending)),
    )
    assert seen == [1], "a write action of an earlier epoch waits for nothing"


def readers_are_asked_when_the_first_step_is_closed() -> None:
    epoch = source().begun(recovered=half_used())
    assert epoch.told == [CLOSED, AGAIN], "readers are asked too early"


def readers_know_of_a_drain_before_they_are_asked() -> None:
    epoch = source().begun(recovered=half_used(), drains=True)
    assert epoch.told == [CLOSED, TO_ITS_END, AGAIN], "a reader may ask the outside what follows"


def a_drain_ends_the_read_under_way() -> None:
    epoch = source(replayable=True).begun()
    epoch.commit()
    assert epoch.orders == [ReadOrder("source", 1, QUEUE)]
    assert drained(epoch) == [("source", "cut short")], "the read under way is forgotten"
    assert epoch.loop.protocol.source("source").has_ended
    epoch.loop.close()
    epoch.commit()
    assert epoch.loop.is_finished()


def what_is_durable_is_handed_over() -> None:
    epoch, order = (
        Epoch(operator("op", Writing()), OperatorSpec("source", (), ("out",), None)),
        ReadOrder("source", 1, {}),
    )
    epoch.begun()
    epoch.loop.hand_over(HandOver(writes=[PendingWrite("op", "wh", 1, {}, 10, b"")], sources=[order]))
    assert [one.number for one in epoch.writers["op", "wh"].pending] == [1], "the writer does not get it"
    assert epoch.orders == [order], "the reader does not get it"


CHECKS = [
    threads_start_where_memory_stands,
    pending_writes_come_before_new_ones,
    readers_are_asked_when_the_first_step_is_closed,
    readers_know_of_a_drain_before_they_are_asked,
    a_drain_ends_the_read_under_way,
    what_is_durable_is_handed_over,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_loop(check: Callable[[], None]) -> None:
    check()


# --- that it is noticed if it does not --------------------------------------------------------------------------------

BROKEN = Variants()
BROKEN.of(a_drain_ends_the_read_under_way, "is forgotten")(drain_forgets_the_read_under_way)


class Held:
    """Keeps back what readers are told, until it is let go: for an order that the loop does not take."""

    def __init__(self, readers: Any) -> None:
        self._readers = readers
        self.asked: list[Any] = []
        self.drained: list[Any] = []

    def ask(self, orders: Any) -> None:
        self.asked.append(lambda: self._readers.ask(orders))

    def drain(self, name: str, *, cut_short: bool) -> None:
        self.drained.append(lambda: self._readers.drain(name, cut_short=cut_short))


def begins(patch: pytest.MonkeyPatch, how: Callable[[Callable[..., Any], GroupLoop, Any, Any, Any, Any], Any]) -> None:
    """`begin` in another order."""
    begin = GroupLoop.begin

    def broken(self: GroupLoop, recovered: Any, unpack: Any, start_threads: Any, *, drains: Any) -> Any:
        return how(begin, self, recovered, unpack, start_threads, drains)

    patch.setattr(GroupLoop, "begin", broken)


@BROKEN.of(threads_start_where_memory_stands, "what memory was before")
def threads_before_memory(patch: pytest.MonkeyPatch) -> None:
    """Threads start before memory is rebuilt."""

    def early(begin: Any, loop: Any, recovered: Any, unpack: Any, start: Any, drains: Any) -> Any:
        start()
        return begin(loop, recovered, unpack, lambda: None, drains=drains)

    begins(patch, early)


@BROKEN.of(pending_writes_come_before_new_ones, "waits for nothing")
def pending_writes_come_late(patch: pytest.MonkeyPatch) -> None:
    """Pending write actions go to their writers when the threads run."""

    def late(begin: Any, loop: Any, recovered: Any, unpack: Any, start: Any, drains: Any) -> Any:
        write, loop.write = loop.write, lambda _writes, **_: None
        effects = begin(loop, recovered, unpack, start, drains=drains)
        write(recovered.writes, recovered=True)
        return effects

    begins(patch, late)


@BROKEN.of(readers_are_asked_when_the_first_step_is_closed, "too early")
def orders_before_the_step(patch: pytest.MonkeyPatch) -> None:
    """Readers are asked, and then the first step is closed."""

    def early(begin: Any, loop: Any, recovered: Any, unpack: Any, start: Any, drains: Any) -> Any:
        close, loop.close = loop.close, lambda: []
        begin(loop, recovered, unpack, start, drains=drains)
        return close()

    begins(patch, early)


@BROKEN.of(readers_know_of_a_drain_before_they_are_asked, "may ask the outside")
def orders_before_the_drain(patch: pytest.MonkeyPatch) -> None:
    """Readers are asked, and then hear of the drain."""

    def late(begin: Any, loop: Any, recovered: Any, unpack: Any, start: Any, drains: Any) -> Any:
        held = Held(loop._readers)
        loop._readers = held
        effects = begin(loop, recovered, unpack, start, drains=drains)
        for tell in held.asked + held.drained:
            tell()
        return effects

    begins(patch, late)


@BROKEN.of(readers_know_of_a_drain_before_they_are_asked, "may ask the outside")
def readers_do_not_hear_of_the_drain(patch: pytest.MonkeyPatch) -> None:
    """An epoch that begins to drain tells no other."""

    def silent(begin: Any, loop: Any, recovered: Any, unpack: Any, start: Any, drains: Any) -> Any:
        held, readers = Held(loop._readers), loop._readers
        loop._readers = held
        effects = begin(loop, recovered, unpack, start, drains=drains)
        loop._readers = readers
        for tell in held.asked:
            tell()
        return effects

    begins(patch, silent)


@BROKEN.of(what_is_durable_is_handed_over, "the reader does not")
def orders_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Of what is durable, readers get nothing."""
    patch.setattr(GroupLoop, "hand_over", lambda self, durable: self.write(durable.writes))


@BROKEN.of(what_is_durable_is_handed_over, "the writer does not")
def writes_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Of what is durable, writers get nothing."""
    patch.setattr(GroupLoop, "hand_over", lambda self, durable: self._readers.ask(durable.sources))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_loop_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name].is_noticed(monkeypatch)
