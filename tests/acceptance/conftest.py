"""Whole runs on real processes: a warehouse with `products`, a slice of the data, a folder for drivers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.store.sql import migrate
from tests.support.grocery import load_products, write_slice
from tests.support.owned_day import OwnedDay
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def small_transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 transactions: 80 events of the plain pipeline, a hundred-odd hours."""
    return write_slice(tmp_path_factory.mktemp("data") / "transactions.parquet", 20_000)


@pytest.fixture(scope="session")
def sqlite_warehouse_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("warehouse") / "warehouse.db"
    load_products(f"sqlite:///{path}")
    return path


@pytest.fixture
def warehouse_url(sqlite_warehouse_template: Path, tmp_path: Path) -> str:
    """An SQLite warehouse of this test's own."""
    path = shutil.copy(sqlite_warehouse_template, tmp_path / "warehouse.db")
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_warehouse_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A PostgreSQL warehouse of this test's own."""
    url = postgres_server.copy_of("warehouse_template", _with_products)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def tables_url(log_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database like that of the log, without tables of a pipeline."""
    if log_url.startswith("postgresql"):
        return str(request.getfixturevalue("postgres_warehouse_url"))
    return f"sqlite:///{tmp_path}/tables.db"


@pytest.fixture
def day(log_url: str, tables_url: str, tmp_path: Path) -> OwnedDay:
    """A day that runs own, with log and tables in one kind of database."""
    made = OwnedDay(log_url, tables_url, tmp_path)
    made.begin()
    return made


def _with_products(url: str) -> None:
    """The tables of the log as well: some tests keep both in one database."""
    migrate.upgrade(url)
    load_products(url)
