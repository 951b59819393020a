"""Stores over SQL, several on one database, as several processes have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.support.logs import open_sql_store

OpenStore = Callable[..., SqlLogStore]


@pytest.fixture
def open_another(log_url: str) -> Iterator[OpenStore]:
    """Opens one more store on the test's database; `application` names its sessions."""
    opened: list[SqlLogStore] = []

    def another(*, application: str = "logio test") -> SqlLogStore:
        opened.append(open_sql_store(log_url, application=application, patience=QUICK))
        return opened[-1]

    yield another
    for store in opened:
        store.dispose()


@pytest.fixture
def sql_store(open_another: OpenStore) -> SqlLogStore:
    """The log on SQLite and on PostgreSQL."""
    return open_another()
