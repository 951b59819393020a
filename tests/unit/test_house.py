"""Rules of the house that no linter checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import airflow_logio

PACKAGE = Path(airflow_logio.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 400


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_modules_stay_small(module: Path) -> None:
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{module.name} has {lines} lines: split it by what it knows, not by length"


@pytest.mark.parametrize("package", ["errors", "protocol.group", "store.opening", "dataflow"])
def test_the_core_loads_neither_airflow_nor_spark(package: str) -> None:
    """In a process of its own: what import-linter says of the source, seen at run time (optional imports included)."""
    program = (
        f"import sys, airflow_logio.{package}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'airflow', 'pyspark'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
