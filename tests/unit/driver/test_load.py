"""How a driver's time is parted, and over which window its figures are."""

from __future__ import annotations

import time

import pytest

from airflow_logio.driver.mailbox import Bound, Doing, LoadMeter, Mailbox
from airflow_logio.store.records.driver_records import Load
from tests.support.waiting import eventually


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
    assert meter.read() == Load(0.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, 0, 0.0)


def test_every_moment_counts_once(meter: LoadMeter, clock: Clock) -> None:
    for doing, seconds in ((Doing.IDLE, 1.0), (Doing.BUSY, 2.0), (Doing.BLOCKED, 0.5), (Doing.BUSY, 0.5)):
        meter.now(doing)
        clock.now += seconds
    meter.watch(lambda: (2, 1.5))
    meter.took(3, 30)
    meter.sent(1, 5)
    assert meter.read() == Load(4.0, 0.625, 0.25, 0.125, 3, 30, 1, 5, 2, 1.5)
    meter.watch(None)
    assert (meter.read().queued, meter.read().lag_seconds) == (0, 0.0)


def test_what_goes_on_counts_before_it_ends(meter: LoadMeter, clock: Clock) -> None:
    meter.now(Doing.BUSY)
    clock.now += 3
    assert meter.read().busy == 1.0


def test_figures_are_of_the_last_seconds(meter: LoadMeter, clock: Clock) -> None:
    meter.now(Doing.BUSY)
    for _ in range(20):
        meter.took(1, 100)
        clock.now += 0.5
        meter.read()
    meter.now(Doing.IDLE)
    for _ in range(20):
        clock.now += 0.5
        load = meter.read()
    assert (load.busy, load.idle, load.records_in) == (0.0, 1.0, 0)
    assert load.seconds == pytest.approx(10.0)


def test_the_lag_is_the_age_of_the_oldest_event_in_memory(meter: LoadMeter) -> None:
    mailbox = Mailbox(Bound())
    meter.watch(mailbox.waiting)
    assert mailbox.waiting() == (0, 0.0)
    began = time.monotonic()
    mailbox.put_input("first", 1)
    eventually(lambda: meter.read().lag_seconds > 0.05, what="the first event waits")
    second = time.monotonic()
    mailbox.put_input("second", 1)
    load = meter.read()
    assert load.queued == 2 and 0.05 < load.lag_seconds <= time.monotonic() - began
    assert mailbox.get(0, inputs=True) == "first"
    after = meter.read()
    assert after.queued == 1 and after.lag_seconds <= time.monotonic() - second
