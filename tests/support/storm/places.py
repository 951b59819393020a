"""Where storms happen: a log in SQLite on a disk that can be filled, or in PostgreSQL, which can be gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_logio.store.sql import migrate
from tests.store.small_disk import small_folder
from tests.support.postgres import PostgresServer
from tests.support.storm.storms import Place
from tests.support.warehouse import warehouse_engine

TABLES = ("results", "picked", "published")
NOISY_TABLES = ("noises", "copies")


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Place]:
    with small_folder(folder) as disk:
        log, warehouse = disk.path / "log.db", folder / "warehouse.db"
        migrate.upgrade(f"sqlite:///{log}")
        make_tables(f"sqlite:///{warehouse}")
        files = (log, warehouse)
        yield Place(folder, f"sqlite:///{log}", f"sqlite:///{warehouse}", disk=disk, files=files)


@contextmanager
def on_postgres(seed: int, server: PostgresServer, folder: Path) -> Iterator[Place]:
    """The warehouse is in the same server, or in SQLite, seed by seed."""
    log = server.new_database()
    warehouse = server.new_database(migrated=False) if seed % 2 else f"sqlite:///{folder / 'warehouse.db'}"
    make_tables(warehouse)
    try:
        files = () if seed % 2 else (folder / "warehouse.db",)
        yield Place(folder, log, warehouse, server=server, files=files)
    finally:
        for url in (log, warehouse) if seed % 2 else (log,):
            server.drop_database(url)


def make_tables(url: str) -> None:
    columns = "id bigint not null, key bigint not null, amount bigint not null"
    engine = warehouse_engine(url)
    with engine.begin() as connection:
        for table in TABLES:
            connection.exec_driver_sql(f"CREATE TABLE {table} ({columns})")
        for table in NOISY_TABLES:
            connection.exec_driver_sql(f"CREATE TABLE {table} ({columns}, noise bigint not null)")
    engine.dispose()
