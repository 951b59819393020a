"""Ten thousand schedules, none of which loses, doubles or changes anything; and each is what it says it is."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from airflow_logio.testing import INVARIANTS, LogWatch, Simulator, Site
from airflow_logio.testing.scenarios import SCENARIOS
from airflow_logio.testing.schedule import MIN_COMMITS, MIN_CRASHES, MIN_EVENTS

SALES, PLAIN = 100, 900
"""Schedules of the sales pipeline, with Arrow, and of each scenario of plain Python."""
ON_SQLITE = 2
"""Of each scenario, on SQLite beside the log in memory."""
PARTS = 3


@cache
def simulator(name: str, store: str = "memory") -> Simulator:
    return Simulator(SCENARIOS[name](), store=store)


def schedules(name: str) -> int:
    return SALES if name == "sales" else PLAIN


def test_there_are_ten_thousand() -> None:
    assert sum(map(schedules, SCENARIOS)) == 10_000


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_schedule_changes_what_comes_out(name: str, part: int) -> None:
    sites = Counter[Site]()
    for seed in range(part, schedules(name), PARTS):
        figures, failure = simulator(name).run(seed)
        assert failure is None, f"logio simulate {name} --seed {seed} --schedules 1: {failure}"
        assert figures.events >= MIN_EVENTS
        assert figures.commits >= MIN_COMMITS
        assert figures.crashes >= MIN_CRASHES
        sites.update(figures.sites)
    assert sites[Site.AFTER_COMMIT] and sites[Site.AFTER_RECOVERY] and sites[Site.COMMIT_UNKNOWN]


@pytest.mark.parametrize("name", SCENARIOS)
def test_sqlite_and_memory_give_the_same_answers(name: str) -> None:
    for seed in range(ON_SQLITE):
        _, failure = simulator(name, "sqlite").run(seed)
        assert failure is None, f"logio simulate {name} --store sqlite --seed {seed} --schedules 1: {failure}"


def test_every_site_is_hit() -> None:
    """Every place where a driver can die in is one where some driver has died."""
    sites = Counter[Site]()
    for name in ("linear", "feed", "functions", "checkable"):
        for seed in range(20_000, 20_060):
            figures, _ = simulator(name).run(seed)
            sites.update(figures.sites)
    assert {site for site in Site if not sites[site]} <= {Site.AFTER_FINISH}


@pytest.mark.parametrize("name", ["linear", "nondeterministic", "feed"])
def test_a_seed_is_a_schedule(name: str) -> None:
    first, second = Simulator(SCENARIOS[name]()), Simulator(SCENARIOS[name]())
    assert [first.record(seed) for seed in range(5)] == [second.record(seed) for seed in range(5)]
    assert first.record(1) != first.record(2)


def test_invariants_are_sentences_of_the_watch() -> None:
    assert len({invariant.__name__ for invariant in INVARIANTS}) == len(INVARIANTS) >= 15
    assert all(getattr(LogWatch, invariant.__name__) is invariant for invariant in INVARIANTS)
