"""Which tier a test belongs to, and which tests begin first: by where it lies, what it asks for, and `tests/tiers.toml`.

``make test-fast`` needs no JVM, no server and no Airflow, and holds to it: a test that loads Airflow there fails.
``make test`` keeps, of tests that cost, the cheapest that fails if a promise is broken. ``make test-all`` is everything but
what needs hours, which ``make soak`` runs. ``make test-slice`` is a tenth of what ``make test`` leaves out, another one for
each state of the tree: CI runs it behind ``make test``.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


class Tier(StrEnum):
    """What a run of the tests takes. Those that need hours are in none: `-m soak` chooses them."""

    FAST = "fast"
    TEST = "test"
    ALL = "all"
    SLICE = "slice"


SLICE = 10
"""One in so many of the tests that `make test` leaves out belongs to a slice."""
CORES = 2
"""Of the machine that the budgets are for."""
SLICE_SECONDS = 200.0
"""A slice holds tests of at most so many seconds (`SECONDS`) for each of two cores; its budget is 240 standard seconds."""
PLACES = {
    "acceptance": "acceptance",
    "e2e": "e2e",
    "soak": "soak",
    "unit/airflow": "airflow",
    "unit/openlineage/test_naming.py": "airflow",
    "unit/test_docker.py": "airflow",
    "unit/testing/test_simulator.py": "campaign",
    "unit/testing/test_failures.py": "campaign",
    "unit/testing/test_own_pipelines.py": "campaign",
    "unit/testing/test_mutants.py": "slow",
    "unit/contrib/paper_api/test_every_commit.py": "slow",
    "store/test_log_size.py": "slow",
    "store/test_pauses.py": "slow",
    "store/test_slot_pauses.py": "slow",
    "store/test_retention_plans.py": "slow",
    "store/test_zombies.py": "slow",
}
"""Folder or module below `tests` → the mark of its tests."""
BY_TURNS = {
    "test_by_hand.py": ("test_dying_there_twice_changes_nothing",),
    "test_crash_points.py": ("test_dying_there_twice_changes_nothing",),
    "test_draining.py": ("test_dying_in_a_drain_reads_nothing_further",),
    "test_empty_sources.py": ("test_files_and_tables_have_their_schema_once_wherever_drivers_die",),
    "test_lake.py": ("test_dying_around_jobs_manifests_and_publication",),
    "test_operator_errors.py": ("test_dying_around_the_report_of_an_error_twice", "test_dying_around_a_rebuild_twice"),
    "test_read_after_write.py": ("test_the_writer_dies_between_logging_and_sending",),
    "test_sources.py": (
        "test_dying_around_a_commit_twice",
        "test_dying_around_a_stored_effect_twice",
        "test_dying_around_a_body_too_large_for_the_log_twice",
        "test_dying_around_the_removal_of_collected_bodies_twice",
        "test_dying_between_the_files_of_a_replayable_source",
        "test_bodies_too_large_for_the_log",
    ),
    "test_spark_sources.py": ("test_dying_around_stored_dataframes_and_what_is_forgotten",),
    "test_spark_drivers.py": ("test_every_driver_is_killed_and_then_two_at_once",),
    "test_two_functions.py": ("test_dying_at_commits_changes_nothing",),
    "test_use_case_two.py": ("test_dying_at_random_commits_changes_nothing",),
    "test_writers.py": (
        "test_dying_around_a_write_action_twice_changes_nothing",
        "test_dying_around_the_question_what_was_written_twice",
        "test_dying_around_the_end_that_a_person_is_needed_for_twice",
    ),
}
"""Module of `acceptance` → its tests of every point on both databases: `make test` takes the next point on the other one."""
DATABASES = ("sqlite", "postgres")
BOTH = "transaction"
"""Points whose name says so are taken on both databases: there a lock is held."""
TOGETHER = {"acceptance/test_spark_connect.py": ("found", 30.0), "unit/spark": ("sessions", 6.0)}
"""Place below `tests` → its fixture that takes minutes, to make or until a JVM has compiled its code, and seconds of a test:
tests that ask for it belong to one process."""
HEAVY = ("postgres", "spark", "airflow", "acceptance", "e2e", "campaign", "slow", "soak")
"""None of it is fast."""
SECONDS = {"e2e": 120.0, "spark": 30.0, "acceptance": 8.0, "campaign": 6.0, "slow": 3.0}
"""What a test of that mark costs, roughly; all others cost nothing to speak of."""
LIGHT_SECONDS = 0.2
"""What any other test costs, where many are added up."""


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark each test by its folder and by the fixtures and parameters with which it was collected."""
    for item in out_of_turn(items):
        item.add_marker("soak")
    for item in items:
        for name in _marks_of(item.path):
            item.add_marker(name)
        if isinstance(item, pytest.Function) and _asks_for_postgres(item):
            item.add_marker("postgres")


@cache
def _module(path: Path) -> str:
    """The place of a module below `tests`, or `""`. Cached: paths are slow, and a module has many tests."""
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


@cache
def _marks_of(module: Path) -> list[str]:
    """The marks of the places in which a module lies. Cached: there are 8,000 tests in 300 modules."""
    return [name for place, name in PLACES.items() if module.is_relative_to(TESTS / place)]


def out_of_turn(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Of the tests of every point on both databases, those whose turn it is not: each point is left on one of them.

    The pairs before and after something take turns as well: what is before is not always on the same database.
    """
    points: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        name, _, parameters = item.name.rstrip("]").partition("[")
        if item.path.parent == TESTS / "acceptance" and name in BY_TURNS.get(item.path.name, ()):
            point = "-".join(part for part in parameters.split("-") if part not in DATABASES)
            points.setdefault(f"{item.path}::{name}", {}).setdefault(point, []).append(item)
    return [
        item
        for of_test in points.values()
        for turn, (point, both) in enumerate(of_test.items())
        for item in both
        if len(both) == len(DATABASES) and BOTH not in point and DATABASES[(turn + turn // 2) % 2] not in item.name
    ]


def _asks_for_postgres(item: pytest.Function) -> bool:
    """By name, or by the parameter of a fixture that chooses the database when it runs."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "postgres_server" in item.fixturenames or any(isinstance(one, str) and one == "postgres" for one in chosen)


@cache
def _kept() -> Mapping[str, Any]:
    return tomllib.loads((TESTS / "tiers.toml").read_text(encoding="utf-8"))


def kept_modules() -> Mapping[str, Mapping[str, int | Sequence[str]]]:
    """Module below `tests` → its tests → how many of their cases, or cases of which parameters, `make test` keeps."""
    modules: Mapping[str, Mapping[str, int | Sequence[str]]] = _kept()["keep"]
    return modules


@cache
def is_kept_on_postgres(path: Path) -> bool:
    """Whether `make test` runs the cases of a module on PostgreSQL, where it has the same ones on SQLite."""
    return any(path.is_relative_to(TESTS / place) for place in _kept()["on_postgres"]["modules"])


def left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that `make test` leaves to `make test-all`."""
    modules: dict[str, dict[str, list[pytest.Item]]] = {}
    left: list[pytest.Item] = []
    for item in items:
        module = _module(item.path)
        if module in kept_modules():
            modules.setdefault(module, {}).setdefault(item.name.partition("[")[0], []).append(item)
        elif _is_on_postgres_too(item) and not is_kept_on_postgres(item.path):
            left.append(item)
    for module, tests in modules.items():
        kept = kept_modules()[module]
        for name, cases in tests.items():
            wanted = _chosen(cases, kept.get(name, kept.get("*", 0)))
            left += [case for case in cases if case not in wanted]
    return left


def _chosen(cases: Sequence[pytest.Item], kept: int | Sequence[str]) -> list[pytest.Item]:
    if isinstance(kept, int):
        return [cases[n * len(cases) // kept] for n in range(kept)] if kept < len(cases) else list(cases)
    return [case for case in cases if any(fnmatchcase(_parameters(case), pattern) for pattern in kept)]


def _parameters(item: pytest.Item) -> str:
    return item.name.partition("[")[2].removesuffix("]")


def _is_on_postgres_too(item: pytest.Item) -> bool:
    """A case of a test that has the same one on SQLite: the database is one of its parameters."""
    chosen = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(isinstance(one, str) and one == "postgres" for one in chosen)


def of_each(items: Sequence[pytest.Item]) -> list[tuple[str, list[str]]]:
    """Each test, by its place below `tests`, with the tiers that it is in; `soak` stands for those that need hours."""
    left = set(left_out(items))
    found = []
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if item.get_closest_marker("soak") is not None:
            found.append((name, ["soak"]))
        else:
            kept = item not in left
            found.append((name, ["fast"] * (kept and is_fast(item)) + ["test"] * kept + ["all"]))
    return found


def drawn(items: Sequence[pytest.Item], tree: str) -> list[pytest.Item]:
    """A slice: about a tenth of the tests that `make test` leaves out, by the hash of each with that of the tree.

    Tests that share what takes minutes to make are drawn together. What would take longer than `SLICE_SECONDS` is not added.
    """
    units = sorted(_blocks_of_slice(left_out(items)).items(), key=lambda unit: _hash(tree, unit[0]))
    room, taken = SLICE_SECONDS * CORES, list[pytest.Item]()
    for _, tests in units[: len(units) // SLICE]:
        cost = sum(max(_cost(test), LIGHT_SECONDS) for test in tests)
        if cost <= room:
            taken += tests
            room -= cost
    order = {id(item): place for place, item in enumerate(items)}
    return sorted(taken, key=lambda item: order[id(item)])


def _blocks_of_slice(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(_shared(item) or item.nodeid, []).append(item)
    return units


def _hash(tree: str, name: str) -> str:
    return hashlib.sha256(f"{tree} {name}".encode()).hexdigest()


def is_heavy(path: Path) -> bool:
    """A folder or module that the fast tier must not even load."""
    return any(path == TESTS / place for place in PLACES)


def lasting() -> Mapping[str, Sequence[str]]:
    """Module below `tests` → its tests that need nothing but take too long for the fast tier."""
    modules: Mapping[str, Sequence[str]] = _kept()["lasting"]
    return modules


def is_fast(item: pytest.Item) -> bool:
    if item.name.partition("[")[0] in lasting().get(_module(item.path), ()):
        return False
    return not any(item.get_closest_marker(name) for name in HEAVY)


def assert_light(item: pytest.Item, loaded: Collection[str]) -> None:
    """For the fast tier: nothing that it has left out was loaded behind its back."""
    assert "airflow" not in loaded, f"{item.nodeid} loads Airflow: it is not of the fast tier"


def dealt(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """An order in which each of so many equal parts begins with what takes longest, and costs the same.

    xdist gives each worker one part, from the front to the end; who has finished takes from the ends of others. One
    worker gets all of the end-to-end tests: two Airflows at once are too much for two cores. So are an Airflow and other
    tests' drivers: the others begin with campaigns, which keep one process busy and start none. Tests that share what
    takes minutes to make stay together.
    """
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    costs = [0.0] * workers
    sizes = [(len(items) + number) // workers for number in range(workers)]
    light = [item for item in items if not _cost(item)]
    for block in sorted(_blocks(items), key=lambda block: (_turn(block[0]), -sum(map(_cost, block)))):
        least = 0 if block[0].get_closest_marker("e2e") else costs.index(min(costs))
        parts[least] += block
        costs[least] += sum(map(_cost, block))
    for part, size in zip(parts, sizes, strict=True):
        wanted = max(0, size - len(part))
        part.extend(light[:wanted])
        del light[:wanted]
    return [item for part in parts for item in part] + light


def _blocks(items: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
    """Tests that cost something, each by itself, but those together that share what takes minutes."""
    alone: list[list[pytest.Item]] = []
    shared: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (place := _shared(item)) is not None:
            shared.setdefault(place, []).append(item)
        elif _cost(item):
            alone.append([item])
    return [*shared.values(), *alone]


def _shared(item: pytest.Item) -> str | None:
    """The place whose fixture it asks for, of those that take minutes."""
    asked_for = getattr(item, "fixturenames", ())
    of_name = (place for place, (fixture, _) in TOGETHER.items() if fixture in asked_for)
    return next((place for place in of_name if item.path.is_relative_to(TESTS / place)), None)


def _turn(item: pytest.Item) -> int:
    return next((n for n, name in enumerate(("e2e", "campaign")) if item.get_closest_marker(name)), 2)


def _cost(item: pytest.Item) -> float:
    if (place := _shared(item)) is not None:
        return TOGETHER[place][1]
    return max((SECONDS[name] for name in SECONDS if item.get_closest_marker(name)), default=0.0)
