"""The log in memory and on SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.unit.contrib.paper_api.support import Bench


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> Iterator[LogStore]:
    memory = request.param == "memory"
    opened: LogStore = MemoryLogStore() if memory else open_store(str(request.getfixturevalue("sqlite_url")))
    yield opened
    opened.dispose()


@pytest.fixture
def bench(store: LogStore) -> Bench:
    return Bench(store)
