"""A snapshot that sessions share: what holds it, and what it does not hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.databases import kept_open
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.systems import shared_snapshots
from airflow_logio.systems.databases.table_names import table_name
from airflow_logio.systems.shared_snapshots import (
    StoredAs,
    check_stored_as,
    exported_snapshot,
    imported_snapshot,
    stored_as,
)
from airflow_logio.systems.warehouse import Warehouse
from tests.support.warehouse import change

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]

ROWS: sa.Select[Any] = sa.select(sa.literal_column("count(*)")).select_from(sa.table("t"))


@pytest.fixture
def warehouse(postgres_url: str) -> Iterator[Warehouse]:
    change(postgres_url, "CREATE TABLE t AS SELECT generate_series(1, 1000) AS id")
    made = Warehouse("wh", postgres_url)
    yield made
    made.close()


def planned(warehouse: Warehouse, connection: sa.Connection) -> StoredAs:
    with warehouse.translated():
        return stored_as(
            connection, "t", table_name(connection, "t"), sa.select(sa.column("id")).select_from(sa.table("t"))
        )


@pytest.mark.parametrize("anew", ["VACUUM FULL t", "TRUNCATE t", "ALTER TABLE t ALTER id TYPE bigint"])
def test_a_table_that_is_written_anew_between_import_and_read_is_noticed(
    warehouse: Warehouse, postgres_url: str, anew: str
) -> None:
    """The session that has exported ends in between, and its lock with it."""
    with exported_snapshot(warehouse) as (connection, snapshot):
        stored = planned(warehouse, connection)
        reader = imported_snapshot(warehouse, snapshot, "t")
        reading = reader.__enter__()
    engine = sa.create_engine(warehouse.engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as owner:
        owner.exec_driver_sql(anew)
    reading.execute(ROWS)
    with pytest.raises(ExternalUnavailable, match="t: the table was written anew"):
        check_stored_as(reading, "t", stored)
    reader.__exit__(None, None, None)


def test_a_session_that_is_silent_is_ended_and_one_that_runs_is_kept(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_snapshots, "HELD_SECONDS", 3)
    monkeypatch.setattr(databases, "PING_SECONDS", 0.2)
    with exported_snapshot(warehouse) as (connection, snapshot):
        with kept_open(connection):
            time.sleep(4)
            with imported_snapshot(warehouse, snapshot, "t") as reading:
                check_stored_as(reading, "t", planned(warehouse, reading))
                assert reading.execute(ROWS).scalar() == 1000
        time.sleep(3.5)  # as a driver that has stopped
        with (
            pytest.raises(ExternalUnavailable, match="t: the snapshot in which all of it is read is gone"),
            imported_snapshot(warehouse, snapshot, "t"),
        ):
            pass
