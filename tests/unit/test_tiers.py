"""How the tests are sorted into tiers and dealt to processes."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import (
    BOTH,
    BY_TURNS,
    CORES,
    DATABASES,
    HEAVY,
    PLACES,
    SECONDS,
    SLICE_SECONDS,
    TESTS,
    TOGETHER,
    assert_light,
    dealt,
    drawn,
    is_fast,
    is_heavy,
    is_kept_on_postgres,
    kept_modules,
    lasting,
    left_out,
    mark,
    out_of_turn,
)

MAKEFILE = (TESTS.parent / "Makefile").read_text()


class FakeItem:
    """As much of an item as is looked at."""

    def __init__(
        self, path: str = "unit/test_it.py", *marks: str, name: str = "test_it", fixtures: tuple[str, ...] = ()
    ) -> None:
        self.path, self.marks, self.name = TESTS / path, set(marks), name
        self.nodeid = path if name == "test_it" else f"{path}::{name}"
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
    collect = [
        sys.executable,
        "-m",
        "pytest",
        "--tier",
        "fast",
        "--collect-only",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
    ]
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
    tests += [FakeItem(f"campaign/{n}", "campaign") for n in range(150)]
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


def test_a_module_that_costs_says_what_make_test_keeps_of_it() -> None:
    """So that no test of minutes comes to `make test` unseen."""
    costly = [TESTS / place for place, name in PLACES.items() if name not in ("airflow", "soak")]
    modules = [one for place in costly for one in ([place] if place.suffix else sorted(place.rglob("test_*.py")))]
    spark = re.compile(r"^(pytestmark = .*|@)pytest\.mark\.spark\b", re.M)
    modules += [one for one in TESTS.rglob("test_*.py") if spark.search(one.read_text())]
    named = {one.relative_to(TESTS).as_posix() for one in modules if "soak" not in one.relative_to(TESTS).parts}
    assert sorted(named - set(kept_modules())) == []


def test_what_make_test_keeps_is_there() -> None:
    missing = []
    for module, tests in [*kept_modules().items(), *lasting().items()]:
        text = (TESTS / module).read_text() if (TESTS / module).exists() else ""
        missing += [f"{module}::{test}" for test in tests if test != "*" and f"def {test}(" not in text]
        missing += [] if text else [module]
    assert missing == []


def cases(module: str, name: str, *parameters: str) -> list[Any]:
    return [FakeItem(module, name=f"{name}[{one}]" if one else name) for one in parameters or ("",)]


def kept_of(items: list[Any]) -> list[str]:
    left = left_out(items)
    return [item.name for item in items if item not in left]


def test_of_a_module_that_costs_listed_cases_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"acceptance/test_it.py": {"test_some": 2, "test_named": ["*-b", "c"], "test_all": 99}}
    monkeypatch.setattr("tests.support.tiers.kept_modules", lambda: kept)
    items = [
        *cases("acceptance/test_it.py", "test_some", "1", "2", "3", "4"),
        *cases("acceptance/test_it.py", "test_named", "a-b", "a-c", "c"),
        *cases("acceptance/test_it.py", "test_all", "x", "y"),
        *cases("acceptance/test_it.py", "test_not_listed"),
        *cases("unit/test_cheap.py", "test_cheap"),
    ]
    names = [
        "test_some[1]",
        "test_some[3]",
        "test_named[a-b]",
        "test_named[c]",
        "test_all[x]",
        "test_all[y]",
        "test_cheap",
    ]
    assert kept_of(items) == names
    kept["acceptance/test_it.py"]["*"] = 1
    assert kept_of(items) == [*names[:-1], "test_not_listed", "test_cheap"]


def test_what_runs_on_postgresql_too_is_kept_where_a_lock_is_the_point() -> None:
    assert is_kept_on_postgres(TESTS / "store/test_fence.py")
    assert not is_kept_on_postgres(TESTS / "store/test_runs.py")


def test_a_slice_is_another_tenth_for_each_tree_and_in_the_end_everything() -> None:
    module = next(one for one in kept_modules() if one.startswith("unit/protocol"))
    items = cases(module, "test_left", *map(str, range(1_000)))
    left = left_out(items)
    slices = [drawn(items, f"tree {n}") for n in range(150)]
    assert all(len(one) == len(left) // 10 for one in slices)
    assert slices[0] == drawn(items, "tree 0") != slices[1]
    assert {id(item) for one in slices for item in one} == {id(item) for item in left}


def test_a_slice_has_a_budget() -> None:
    module = next(one for one in kept_modules() if one.startswith("acceptance"))
    items = cases(module, "test_left", *map(str, range(3_000)))
    for item in items:
        item.marks.add("acceptance")
    assert len(drawn(items, "tree")) == SLICE_SECONDS * CORES / SECONDS["acceptance"]


def test_tests_start_in_a_clean_environment() -> None:
    """Started as `make test` starts them; `test_this_environment_is_clean` looks around."""
    command = [sys.executable, str(TESTS.parent / ".ci" / "tests"), "fast", str(TESTS / "unit" / "test_tiers.py")]
    here = {**os.environ, "PYTHONUNBUFFERED": "1", "LOGIO_URL": "sqlite:////nowhere", "LOOK_FOR_STRANGERS": "1"}
    done = subprocess.run(
        [*command, "-q", "-n0", "-p", "no:cacheprovider", "-k", "test_this_environment_is_clean"],
        env=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert re.search(
        r"^fast: \d+ s, \d+ standard seconds \(20 million empty rounds take \d+\.\d\d s here\)$", done.stdout, re.M
    )


def test_this_environment_is_clean() -> None:
    """Nothing that the caller has set of `make test`; what pytest and its plug-ins set is theirs."""
    kept = set(runpy.run_path(str(TESTS.parent / ".ci" / "tests"))["KEPT"])
    strangers = {"PYTHONUNBUFFERED", "LOGIO_URL", "LOOK_FOR_STRANGERS"} - kept
    assert not strangers & set(os.environ) or "LOOK_FOR_STRANGERS" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["soak/test_it.py"], 2),
        (["soak/test_it.py::test_one"], 1),
        (["soak/test_it.py", "unit", "-k", "one"], 2),
        (["-k", "one"], 2),
        ([], 4),
    ],
)
def test_only_what_is_named_runs_in_the_soak(
    arguments: list[str], passed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With flags alone, everything that takes hours runs with these, wherever it is."""
    program = runpy.run_path(str(TESTS.parent / ".ci" / "tests"))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = soak unit\nmarkers =\n    soak:\n")
    marked = "import pytest\n\n@pytest.mark.soak\ndef test_one(): ...\n\n@pytest.mark.soak\ndef test_other(): ...\n"
    for folder in ("soak", "unit"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder / "test_it.py").write_text(f"{marked}\ndef test_short(): ...\n")
    assert program["run"]([*program["command"]("soak", arguments), "-n", "0"], tmp_path) == 0
    assert f"{passed} passed" in capfd.readouterr().out


@pytest.mark.parametrize("tier", ["fast", "test", "slice", "all", "soak"])
def test_a_tier_names_no_place_itself(tier: str) -> None:
    """Pytest would run it beside what ARGS names."""
    _python, *arguments = runpy.run_path(str(TESTS.parent / ".ci" / "tests"))["command"](tier, ())
    assert not [one for one in arguments if (TESTS.parent / one).exists()]


def test_the_makefile_has_a_target_for_each_tier() -> None:
    for target in ("test", "test-fast", "test-slice", "test-all", "soak"):
        assert f"\n{target}: " in MAKEFILE
    assert set(SECONDS) | set(PLACES.values()) <= set(HEAVY)


def test_tests_are_dealt_after_everything_else_has_chosen(request: pytest.FixtureRequest) -> None:
    """pytest overlooks hooks whose names do not begin with its own, and says nothing."""
    hooks = request.config.pluginmanager.hook.pytest_collection_modifyitems.get_hookimpls()
    assert hooks[0].function.__name__ == "pytest_long_ones_first", "what is called last stands first"


@pytest.mark.parametrize(
    ("failures", "code", "said"),
    [
        (["flaky"], 0, "NOT DETERMINISTIC: 1 failed"),
        (["flaky", "broken"], 1, "2 failed, and get a second look"),
        (["flaky"] * 6, 1, None),
    ],
)
def test_a_few_failures_get_a_second_look(
    failures: list[str], code: int, said: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What fails again has failed; what passes is named, since it is a defect all the same; of many none is looked at."""
    program = runpy.run_path(str(TESTS.parent / ".ci" / "tests"))
    tests = [
        f"def test_{number}(request):\n    was = request.config.rootpath / 'was{number}'\n    before = was.exists()\n"
        f"    was.touch()\n    assert before and {kind == 'flaky'}\n"
        for number, kind in enumerate(failures)
    ]
    (tmp_path / "test_it.py").write_text("\n".join(["def test_right():\n    pass\n", *tests]))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    first = program["run"]([sys.executable, "-m", "pytest", "-q", "-n", "0"], tmp_path)
    assert first == 1
    assert program["second_look"](first, tmp_path) == code
    printed = capfd.readouterr().out
    if said is None:
        assert "second look" not in printed
    else:
        assert said in printed and "test_it.py::test_0" in printed
    assert program["second_look"](0, tmp_path) == 0 and program["second_look"](2, tmp_path) == 2
