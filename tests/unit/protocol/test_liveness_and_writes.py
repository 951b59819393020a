"""Leases, budgets and runs of write actions: decisions over numbers."""

from __future__ import annotations

import pytest

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.liveness import Lease, LeaseObserver, Outage, RecoveryBudget
from airflow_logio.protocol.writes import PendingWrite, check_gapless, unapplied


def test_the_same_beat_for_a_whole_lease_is_death() -> None:
    observer = LeaseObserver(Lease(10, 120))
    assert observer.observe(1, 5, 100.0) == 0
    assert [observer.observe(1, 5, 100.0 + second) for second in range(1, 11)] == list(range(1, 11))
    assert not observer.is_expired(10, launching=False)
    assert observer.is_expired(10.1, launching=False)
    assert not observer.is_expired(10.1, launching=True)
    assert observer.is_expired(120.1, launching=True)


@pytest.mark.parametrize(("incarnation", "beat"), [(1, 6), (2, 5), (1, 4)])
def test_any_change_is_life(incarnation: int, beat: int) -> None:
    observer = LeaseObserver(Lease())
    observer.observe(1, 5, 100.0)
    assert observer.observe(incarnation, beat, 105.0) == 0


def test_a_failed_poll_begins_the_observation_again() -> None:
    observer = LeaseObserver(Lease())
    observer.observe(1, 5, 100.0)
    observer.poll_failed()
    assert observer.observe(1, 5, 200.0) == 0, "a log outage is not the death of every driver"
    assert observer.observe(1, 5, 202.0) == 2


@pytest.mark.parametrize(
    ("ages", "spent"), [([], False), ([1.0], False), ([1.0, 2.0], True), ([1.0, 61.0], False), ([60.0, 60.0], True)]
)
def test_a_budget_counts_what_is_in_its_window(ages: list[float], spent: bool) -> None:
    assert RecoveryBudget(recoveries=2, window_seconds=60).is_spent(ages) is spent


@pytest.mark.parametrize(
    "attempts",
    [
        [
            (0, 1, False),
            (2, 3, False),
            (5, 10.9, False),
            (10.9, 11, True),
        ],  # from the first failure, whatever came before
        [(0, 1, False), (20, 21, True)],
        [(0, 500, False), (501, 509, False), (509.5, 510, True)],  # it was there for 500 seconds
        [(0, 1, False), (5, 16, False), (17, 25, False), (25.5, 26, True)],  # it was there again
        [(0, 1, False), (2, 12, True)],  # as long as that is not longer
        [(0, 11, False), (12, 23, False), (24, 35, True)],  # three times it was there, and ended
        [(0, 11, False), (12, 13, False), (13, 24, False), (25, 26, False), (27, 38, True)],
    ],
)
def test_an_outage_lasts_from_its_first_failure(attempts: list[tuple[float, float, bool]]) -> None:
    """Attempts that failed: begin, end, whether that is enough, with ten seconds."""
    outage = Outage(10)
    assert [outage.failed(begun, ended) for begun, ended, _ in attempts] == [enough for *_, enough in attempts]


def test_without_patience_one_failure_is_enough() -> None:
    assert Outage(0).failed(1.0, 1.0)
    assert Outage(0).failed(1.0, 5.0)


@pytest.mark.parametrize(("recoveries", "window"), [(-1, 60.0), (1, 0.0)])
def test_an_impossible_budget_is_refused(recoveries: int, window: float) -> None:
    with pytest.raises(ValueError, match="recovery budget"):
        RecoveryBudget(recoveries, window)


def writes(*numbers: int) -> list[PendingWrite]:
    return [PendingWrite("writer", "wh", number, {}, 1, b"") for number in numbers]


def test_a_run_of_write_actions_has_no_hole() -> None:
    check_gapless(writes())
    check_gapless(writes(4, 5, 6))
    for broken in ((4, 6), (4, 4), (5, 4)):
        with pytest.raises(LogInconsistent, match="jump from"):
            check_gapless(writes(*broken))


@pytest.mark.parametrize(("marker", "left"), [(3, [4, 5, 6]), (4, [5, 6]), (6, []), (9, [])])
def test_what_the_marker_has_passed_was_applied(marker: int, left: list[int]) -> None:
    assert [write.number for write in unapplied(writes(4, 5, 6), marker)] == left


def test_a_marker_that_went_back_is_refused() -> None:
    with pytest.raises(LogInconsistent, match="restored from an older copy"):
        unapplied(writes(4, 5), 2)
    assert unapplied([], 2) == []
