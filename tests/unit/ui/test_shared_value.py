"""A value that many want and one thread finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_logio.ui.looks import MEANWHILE_SECONDS, OLDEST_SECONDS, SHARE, SharedValue


def test_what_costs_more_holds_for_longer() -> None:
    clock, costs = [0.0], iter([0.01, 0.2, 60.0])

    def find() -> float:
        clock[0] += (cost := next(costs))
        return cost

    shared = SharedValue(find, 1.0, lambda: clock[0])
    assert shared.fresh() is None
    assert shared.get() == 0.01
    clock[0] += 1.0
    assert shared.fresh() is None
    assert shared.get() == 0.2
    clock[0] += 0.2 / SHARE - 0.1
    assert shared.fresh() == shared.get() == 0.2
    clock[0] += 0.2
    assert shared.fresh() is None
    assert shared.get() == 60.0
    clock[0] += OLDEST_SECONDS - MEANWHILE_SECONDS
    assert shared.fresh() is None, "however much it costs: a page does not stand still on it"


def test_while_one_finds_the_next_value_the_others_have_the_last_one() -> None:
    clock, values = [0.0], iter([1, 2])
    begun, go = threading.Event(), threading.Event()

    def find() -> int:
        value = next(values)
        if value == 2:
            begun.set()
            assert go.wait(90)
        return value

    shared = SharedValue(find, 1.0, lambda: clock[0])
    assert shared.get() == 1
    clock[0] = 1.5
    with ThreadPoolExecutor(1) as pool:
        finding = pool.submit(shared.get)
        assert begun.wait(90)
        assert shared.fresh() == 1
        clock[0] = 1.0 + MEANWHILE_SECONDS
        assert shared.fresh() is None, "not for longer: the log may hang"
        go.set()
        assert finding.result(90) == 2


def test_a_failure_is_not_kept() -> None:
    outcomes: Iterator[int | Exception] = iter([ValueError("away"), 3])

    def find() -> int:
        one = next(outcomes)
        if isinstance(one, Exception):
            raise one
        return one

    shared = SharedValue(find, 1.0, lambda: 0.0)
    with pytest.raises(ValueError, match="away"):
        shared.get()
    assert shared.fresh() is None
    assert shared.get() == 3
