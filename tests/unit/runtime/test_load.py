"""How a driver's time is parted, and over which window its figures are."""

from __future__ import annotations

import pytest

from airflow_logio.runtime.load import Doing, LoadMeter
from airflow_logio.store.records import Load


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> LoadMeter:
    return LoadMeter(clock)


def test_a_driver_that_has_just_begun_is_idle(meter: LoadMeter) -> None:
    assert meter.read() == Load(0.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, 0)


def test_every_moment_counts_once(meter: LoadMeter, clock: Clock) -> None:
    for doing, seconds in ((Doing.IDLE, 1.0), (Doing.BUSY, 2.0), (Doing.BLOCKED, 0.5), (Doing.BUSY, 0.5)):
        meter.now(doing)
        clock.now += seconds
    meter.took(3, 30, queued=2)
    meter.sent(1, 5)
    assert meter.read() == Load(4.0, 0.625, 0.25, 0.125, 3, 30, 1, 5, 2)


def test_what_goes_on_counts_before_it_ends(meter: LoadMeter, clock: Clock) -> None:
    meter.now(Doing.BUSY)
    clock.now += 3
    assert meter.read().busy == 1.0


def test_figures_are_of_the_last_seconds(meter: LoadMeter, clock: Clock) -> None:
    meter.now(Doing.BUSY)
    for _ in range(20):
        meter.took(1, 100, queued=0)
        clock.now += 0.5
        meter.read()
    meter.now(Doing.IDLE)
    for _ in range(20):
        clock.now += 0.5
        load = meter.read()
    assert (load.busy, load.idle, load.records_in) == (0.0, 1.0, 0)
    assert load.seconds == pytest.approx(10.0)
