"""Events that are evaluated side by side: in order, so many and no more, each error at its turn, and an end that comes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_jobs.side_by_side import SideBySide
from tests.support.waiting import eventually


@pytest.fixture
def beside() -> Iterator[SideBySide]:
    made = SideBySide("test")
    yield made
    made.stop()
    for thread in made.threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("at_once", [1, 3])
def test_results_come_in_order_and_no_more_than_so_many_are_begun_and_not_used(
    beside: SideBySide, at_once: int
) -> None:
    begun: set[int] = set()
    used: set[int] = set()
    most: list[int] = []
    lock, luck = threading.Lock(), random.Random(7)
    pauses = [luck.random() / 100 for _ in range(60)]

    def evaluate(item: int) -> int:
        with lock:
            begun.add(item)
            most.append(len(begun - used))
        time.sleep(pauses[item])
        return item * item

    for item, result in beside.begun(range(60), evaluate, lambda: at_once):
        assert result() == item * item
        time.sleep(pauses[-item] / 4)
        with lock:
            used.add(item)
    assert sorted(used) == list(range(60))
    assert max(most) == at_once
    assert len(beside.threads) == at_once


def test_an_error_waits_for_its_turn_and_what_was_begun_behind_it_is_begun_again(beside: SideBySide) -> None:
    failing = threading.Event()
    failing.set()
    begun: list[int] = []
    first_may_end = threading.Event()

    def evaluate(item: int) -> int:
        begun.append(item)
        if item == 0:
            assert first_may_end.wait(60)
        if item == 1 and failing.is_set():
            raise ValueError("1 is no order")
        return item

    made = beside.begun(range(6), evaluate, lambda: 4)
    taken = []
    item, result = next(made)
    eventually(lambda: len(begun) == 4, what="four are begun")
    first_may_end.set()
    taken.append((item, result()))
    item, result = next(made)
    with pytest.raises(ValueError, match="1 is no order"):
        result()
    made.close()
    assert taken == [(0, 0)]
    failing.clear()
    assert [(item, result()) for item, result in beside.begun(range(1, 6), evaluate, lambda: 4)] == [
        (number, number) for number in range(1, 6)
    ]
    assert [begun.count(item) for item in range(4)] == [1, 2, 2, 2]


def test_what_comes_while_the_first_is_evaluated_is_evaluated_beside_it(beside: SideBySide) -> None:
    both, coming = threading.Barrier(2), [[2], [3]]

    def evaluate(item: int) -> int:
        if item < 3:
            both.wait(60)
        return item

    def more(last: int) -> list[int]:
        return coming.pop(0) if coming and coming[0] == [last + 1] else []

    assert [result() for _, result in beside.begun([1], evaluate, lambda: 2, more)][:2] == [1, 2]


def test_who_waits_for_an_evaluation_is_told_when_the_epoch_ends(beside: SideBySide) -> None:
    ended, under_way = threading.Event(), threading.Event()

    def evaluate(item: int) -> int:
        under_way.set()
        ended.wait(60)
        return item

    made = beside.begun(range(6), evaluate, lambda: 2)
    _, result = next(made)
    assert under_way.wait(60)
    threading.Timer(0.1, beside.stop).start()
    began = time.monotonic()
    with pytest.raises(Closed):
        result()
    assert time.monotonic() - began < 50, "what is under way is not waited for"
    with pytest.raises(Closed):
        next(beside.begun([1], evaluate, lambda: 1))
    ended.set()
