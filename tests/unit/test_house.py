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
CORRECTNESS = Path(__file__).parents[2] / "docs" / "correctness.md"


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


NAMED = re.findall(
    r"`((?:unit|store|acceptance|e2e)(?:/[\w/]+)?(?:\.py)?(?:::\w+)?)`", CORRECTNESS.read_text(encoding="utf-8")
)


def test_the_page_on_correctness_names_tests() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize("named", sorted(set(NAMED)))
def test_what_the_page_on_correctness_names_is_there(named: str) -> None:
    path, _, function = named.partition("::")
    found = Path(__file__).parents[1] / path
    assert found.exists(), f"docs/correctness.md names tests/{path}"
    assert not function or f"def {function}(" in found.read_text(encoding="utf-8")
