"""A run in an SQLite log, and the page's web application over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.ui.log_source import LogSource
from airflow_logio.ui.web_app import create_app
from tests.support.page_readers import Reader, Readers
from tests.support.two_groups import TwoGroups


@pytest.fixture
def store(sqlite_url: str) -> Iterator[LogStore]:
    opened = open_store(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def flow(store: LogStore) -> TwoGroups:
    """A run of DAG ``dag``; 10 events sent, 7 used."""
    run = TwoGroups(store)
    run.send(10, 500)
    run.use(7, 350, output_sets=2)
    return run


@pytest.fixture
def client(store: LogStore) -> TestClient:
    """`owner` reads DAG ``dag``, `quiet` without the logs of its tasks, `stranger` another one."""
    readers = Readers(
        owner=Reader(frozenset({"dag"})),
        quiet=Reader(frozenset({"dag"}), output=False),
        stranger=Reader(frozenset({"other"})),
    )
    return TestClient(create_app(LogSource(lambda: store, "logio_default"), readers))


OWNER = {"x-reader": "owner"}
STRANGER = {"x-reader": "stranger"}
