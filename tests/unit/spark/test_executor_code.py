"""The code that a driver on a cluster gives to its executors itself, once it has a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.spark.engine import ClassicEngine

FILES = {
    "given_to_tasks/__init__.py": b"",
    "given_to_tasks/deeper/sums.py": b"def twice(number):\n    return 2 * number\n",
    "given_alone.py": b"from given_to_tasks.deeper.sums import twice\n",
}


@pytest.fixture
def own_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def _twice(rows: Any) -> Any:
    from given_alone import twice  # type: ignore[import-not-found]

    return [twice(row) for row in rows]


@pytest.mark.spark
def test_tasks_import_the_code_that_the_driver_has_given(spark: Any, tmp_path: Path, own_path: None) -> None:
    """A namespace package below a package, and a module that stands alone."""
    archive = tmp_path / "bundle.zip"
    archive.write_bytes(CodeBundle(FILES).archive())
    session = ClassicEngine([str(archive)]).made()
    assert session.sparkContext is spark.sparkContext
    assert session.sparkContext.parallelize([1, 2, 3], 1).mapPartitions(_twice).collect() == [2, 4, 6]
