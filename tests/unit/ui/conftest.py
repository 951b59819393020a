"""A run in an SQLite log, and the page's web application over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.ui.looks import LogSource
from airflow_logio.ui.web_app import create_app
from tests.support.page_readers import Reader, Readers, Retries
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
def readers() -> Readers:
    """`owner` reads DAG ``dag``, `quiet` without logs of its tasks and without data, `silent` without the logs, `talker`
    without data, `stranger` another one. `boss` changes what runs."""
    return Readers(
        owner=Reader(frozenset({"dag"})),
        quiet=Reader(frozenset({"dag"}), output=False, data=False),
        silent=Reader(frozenset({"dag"}), output=False),
        talker=Reader(frozenset({"dag"}), data=False),
        stranger=Reader(frozenset({"other"}), change=True),
        boss=Reader(frozenset({"dag"}), change=True, name="Grace"),
    )


@pytest.fixture
def retries() -> Retries:
    return Retries()


@pytest.fixture
def client(store: LogStore, readers: Readers, retries: Retries) -> TestClient:
    return TestClient(create_app(LogSource(lambda: store, "logio_default"), readers, retries.retrying()))


OWNER = {"x-reader": "owner"}
STRANGER = {"x-reader": "stranger"}
QUIET = {"x-reader": "quiet"}
SILENT = {"x-reader": "silent"}
TALKER = {"x-reader": "talker"}
BOSS = {"x-reader": "boss"}
