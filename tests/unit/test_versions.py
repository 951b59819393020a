"""The versions that `.ci/versions` tests are those that README.md promises, and pyproject.toml allows."""

from __future__ import annotations

import re
import runpy
import tomllib
from typing import Any

import pytest

from tests.support.tiers import TESTS

ROOT = TESTS.parent
VERSIONS = runpy.run_path(str(ROOT / ".ci" / "versions"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROWS: tuple[Any, ...] = VERSIONS["ROWS"]


def table() -> list[tuple[str, str, str]]:
    """Airflow, Spark and Python of each row in README.md that `.ci/versions` tests."""
    section = (ROOT / "README.md").read_text().split("### Versions\n")[1].split("\n#")[0]
    lines = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| (.+) \|$", section, re.MULTILINE)
    return [(airflow, spark, python) for airflow, spark, python, by in lines if "`.ci/versions`" in by]


def test_the_table_of_the_readme_has_the_rows_that_are_tested() -> None:
    assert table() == [(row.airflow, row.spark, row.python) for row in ROWS]


def test_a_row_has_a_name_of_its_own_and_tests_that_are_there() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.tests and all(row.tests), row.name
        for path in (one.split("::")[0] for arguments in row.tests for one in arguments if one.startswith("tests/")):
            assert (ROOT / path).exists(), f"{row.name}: {path}"


def test_both_packages_of_spark_are_of_one_version() -> None:
    for row in ROWS:
        assert {f"pyspark=={row.spark}", f"pyspark-client=={row.spark}"} <= set(row.requirements), row.name


def test_each_python_that_is_declared_is_tested() -> None:
    said = "Programming Language :: Python :: "
    declared = {one.removeprefix(said) for one in PROJECT["project"]["classifiers"] if one.startswith(said)}
    constrained = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert declared == {row.python for row in ROWS} | {constrained}


def test_the_oldest_airflow_that_is_allowed_is_tested() -> None:
    (floor,) = (
        one for one in PROJECT["project"]["optional-dependencies"]["airflow"] if one.startswith("apache-airflow>")
    )
    oldest = min((row.airflow for row in ROWS), key=lambda version: [int(part) for part in version.split(".")])
    assert floor == f"apache-airflow>={oldest}"


def test_a_row_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SystemExit, match=rf"no row nothing; there are .*{re.escape(ROWS[0].name)}"):
        VERSIONS["chosen"](["nothing"])
    assert VERSIONS["chosen"]([ROWS[1].name]) == [ROWS[1]] and VERSIONS["chosen"]([]) == list(ROWS)
