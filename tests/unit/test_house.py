"""Rules of the house that no linter checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_logio

PACKAGE = Path(airflow_logio.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 400
PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("airflow.md", "correctness.md")]
"""Pages that name the tests which show what they say."""


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_modules_stay_small(module: Path) -> None:
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{module.name} has {lines} lines: split it by what it knows, not by length"


@pytest.mark.parametrize("package", ["errors", "protocol.group", "store.opening", "dataflow", "api"])
def test_the_core_loads_neither_airflow_nor_spark(package: str) -> None:
    """In a process of its own: what import-linter says of the source, seen at run time (optional imports included)."""
    program = (
        f"import sys, airflow_logio.{package}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'airflow', 'pyspark'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


NAMED = {
    page: re.findall(
        r"`((?:unit|store|acceptance|e2e)(?:/[\w/]+)?(?:\.py)?(?:::\w+)?)`", page.read_text(encoding="utf-8")
    )
    for page in PAGES
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_promise_name_tests(page: Path) -> None:
    assert len(NAMED[page]) > 20


@pytest.mark.parametrize(("page", "named"), sorted({(page.name, one) for page in PAGES for one in NAMED[page]}))
def test_what_a_page_names_is_there(page: str, named: str) -> None:
    path, _, function = named.partition("::")
    found = Path(__file__).parents[1] / path
    assert found.exists(), f"docs/{page} names tests/{path}"
    assert not function or f"def {function}(" in found.read_text(encoding="utf-8")
