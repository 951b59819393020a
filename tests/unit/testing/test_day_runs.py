"""Thousands of schedules of runs that meet at one table, bucket or folder: each day, or row, is at every instant that of one
run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.day_runs.schedule import PLACES, DaySchedule, DaySimulator

SCHEDULES = {
    "days_in_a_table": 2_000,
    "days_in_a_bucket": 480,
    "days_in_a_folder": 480,
    "days_at_once": 2_000,
    "days_at_once_in_a_bucket": 320,
    "days_at_once_in_a_folder": 320,
    "versions": 1_600,
    "last_events": 1_600,
}
PARTS = 8
HAPPENS = (
    "killed",
    "stopped",
    "zombies",
    "begun again",
    "takes over",
    "no rows",
    "restored",
    "refused",
    "fenced",
    "done",
)


MORE = {
    "days_in_a_bucket": {"read"},
    "days_in_a_folder": {"read"},
    "days_at_once": {"fills", "two writers"},
    "days_at_once_in_a_bucket": {"fills", "read"},
    "days_at_once_in_a_folder": {"fills", "read"},
    "versions": {"two writers", "replaces"},
    "last_events": {"two writers"},
}


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in PLACES for part in range(PARTS)])
def test_each_day_is_that_of_one_run_at_every_instant(kind: str, part: int) -> None:
    """The old one, or the whole new one; and who is to have it gets it, once nothing else is at work. Or, where rows are
    updated by their keys, each is the one of the greatest version, or of the last event."""
    seen = Counter[str]()
    for seed in range(part, SCHEDULES[kind], PARTS):
        figures, failure = DaySimulator(kind).run(seed)
        assert failure is None, f"DaySimulator({kind!r}).run({seed}): {failure}"
        seen += figures
    assert all(seen[what] for what in HAPPENS), seen
    assert all(seen[what] >= 10 for what in MORE.get(kind, ())), seen


def test_a_seed_is_a_schedule_of_days() -> None:
    def trace(seed: int) -> list[str]:
        schedule = DaySchedule("days_in_a_folder", seed)
        schedule.run()
        return schedule.trace

    assert trace(1) == trace(1) != trace(2)
