"""How the tests are sorted into tiers and dealt to processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.tiers import (
    BOTH,
    BY_TURNS,
    DATABASES,
    HEAVY,
    PLACES,
    SECONDS,
    TESTS,
    TOGETHER,
    assert_light,
    dealt,
    is_fast,
    is_heavy,
    mark,
    out_of_turn,
)

MAKEFILE = (TESTS.parent / "Makefile").read_text()


class FakeItem:
    """As much of an item as is looked at."""

    def __init__(
        self, path: str = "unit/test_it.py", *marks: str, name: str = "test_it", fixtures: tuple[str, ...] = ()
    ) -> None:
        self.path, self.marks, self.nodeid, self.name = TESTS / path, set(marks), path, name
        self.fixturenames = fixtures

    def add_marker(self, name: str) -> None:
        self.marks.add(name)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


def order(tests: list[FakeItem], workers: int) -> list[FakeItem]:
    items: Any = tests
    dealt_items: Any = dealt(items, workers)
    return list(dealt_items)


@pytest.mark.parametrize(("path", "name"), PLACES.items())
def test_a_folder_says_what_its_tests_need(path: str, name: str) -> None:
    item: Any = FakeItem(path if path.endswith(".py") else f"{path}/test_it.py")
    mark([item])
    assert item.marks == {name}
    assert not is_fast(item)


def test_what_chooses_postgres_is_marked(request: pytest.FixtureRequest) -> None:
    """This very test has no database; those that the suite has are marked when they are collected."""
    item: Any = request.node
    assert is_fast(item)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_parameter_tells_the_server(database: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("postgres") is not None) == (database == "postgres")


def test_places_that_are_left_out_are_there() -> None:
    assert [place for place in PLACES if not (TESTS / place).exists()] == []
    assert all(is_heavy(TESTS / place) for place in PLACES)
    assert not is_heavy(TESTS / "unit")


def test_every_point_is_left_on_a_database_and_databases_take_turns() -> None:
    module, (test, *_) = next(iter(BY_TURNS.items()))
    points = [f"{point}_{BOTH}" if point == "e" else point for point in "abcde"]
    items: Any = [
        FakeItem(f"acceptance/{module}", name=f"{test}[{database}-{point}]")
        for database in DATABASES
        for point in points
    ]
    others: Any = [FakeItem(f"acceptance/{module}", name=f"test_else[{database}-a]") for database in DATABASES]
    left_out = out_of_turn(items + others)
    kept = [item.name.rstrip("]").partition("[")[2] for item in items if item not in left_out]
    assert sorted(kept) == sorted(
        ["sqlite-a", "postgres-b", "postgres-c", "sqlite-d", *(f"{d}-e_{BOTH}" for d in DATABASES)]
    )
    assert out_of_turn(items[:1]) == [], "asked for by itself"


def test_what_takes_turns_is_there() -> None:
    for module, tests in BY_TURNS.items():
        text = (TESTS / "acceptance" / module).read_text()
        assert [test for test in tests if f"def {test}(" not in text] == []


def test_a_fast_test_must_not_load_airflow() -> None:
    item: Any = FakeItem()
    assert_light(item, ["airflow_logio"])
    with pytest.raises(AssertionError, match="loads Airflow"):
        assert_light(item, ["airflow", "airflow_logio"])


def test_the_modules_of_the_fast_tier_load_no_airflow() -> None:
    collect = [sys.executable, "-m", "pytest", "--fast", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider"]
    found = subprocess.run(collect, check=False, cwd=TESTS.parent, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("light", [0, 5, 200])
def test_every_test_is_dealt_once_and_one_airflow_runs_at_a_time(workers: int, light: int) -> None:
    tests = [FakeItem() for _ in range(light)]
    tests += [FakeItem(f"acceptance/{n}", "acceptance") for n in range(40)]
    tests += [FakeItem(f"e2e/{n}", "e2e") for n in range(4)]
    found = order(tests, workers)
    assert sorted(map(id, found)) == sorted(map(id, tests))
    assert [test.nodeid for test in found[:4]] == ["e2e/0", "e2e/1", "e2e/2", "e2e/3"]


def test_beside_an_airflow_run_campaigns_and_no_drivers() -> None:
    tests = [FakeItem(f"acceptance/{n}", "acceptance", "spark") for n in range(30)]
    tests += [FakeItem(f"campaign/{n}", "campaign") for n in range(60)]
    tests += [FakeItem("e2e/it", "e2e")]
    found = [test.nodeid.partition("/")[0] for test in order(tests, 3)]
    begun = [found[part * len(found) // 3] for part in range(3)]
    assert begun == ["e2e", "campaign", "campaign"]


def test_every_part_begins_with_what_takes_long() -> None:
    tests = [FakeItem() for _ in range(200)] + [FakeItem("acceptance/it", "acceptance") for _ in range(40)]
    found = order(tests, 2)
    for part in (found[:120], found[120:]):
        assert ["acceptance" in test.marks for test in part] == [True] * 20 + [False] * 100


def test_parts_cost_the_same() -> None:
    tests = [FakeItem("unit/test_it.py") for _ in range(999)] + [
        FakeItem("acceptance/it", "acceptance") for _ in range(300)
    ]
    found, size = order(tests, 3), 433
    costs = [sum("acceptance" in test.marks for test in found[n * size : (n + 1) * size]) for n in range(3)]
    assert costs == [100, 100, 100]


@pytest.mark.parametrize("place", TOGETHER)
def test_what_takes_minutes_to_make_is_made_in_one_process_and_the_others_level_it(place: str) -> None:
    fixture, seconds = TOGETHER[place]
    made_in = TESTS / place if place.endswith(".py") else TESTS / place / "conftest.py"
    assert f"def {fixture}(" in made_in.read_text()
    module = place if place.endswith(".py") else f"{place}/test_it.py"
    sharing = [FakeItem(module, "spark", fixtures=(fixture,)) for _ in range(150)]
    tests = sharing + [FakeItem(f"acceptance/{n}", "acceptance") for n in range(1500)] + [FakeItem()] * 6000
    found = order(tests, 3)
    parts = [found[part * 2550 : part * 2550 + 2550] for part in range(3)]
    assert [sum(test in sharing for test in part) for part in parts] == [150, 0, 0]
    costs = [
        sum(seconds if test in sharing else SECONDS["acceptance"] for test in part if test.marks) for part in parts
    ]
    assert max(costs) - min(costs) <= SECONDS["acceptance"]
    assert not parts[0][-1].marks, "who has finished takes from the end: what is shared is not there"


def test_the_makefile_has_a_target_for_each_tier() -> None:
    for target in ("test", "test-fast", "soak"):
        assert f"\n{target}: " in MAKEFILE
    assert set(SECONDS) | set(PLACES.values()) <= set(HEAVY)


def test_tests_are_dealt_after_everything_else_has_chosen(request: pytest.FixtureRequest) -> None:
    """pytest overlooks hooks whose names do not begin with its own, and says nothing."""
    hooks = request.config.pluginmanager.hook.pytest_collection_modifyitems.get_hookimpls()
    assert hooks[0].function.__name__ == "pytest_long_ones_first", "what is called last stands first"
