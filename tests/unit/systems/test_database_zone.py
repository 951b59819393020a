"""Reads have the zone that any client of a PostgreSQL gets; times that this package casts are UTC, whatever that zone is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from airflow_logio.dataflow import QuerySource
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.warehouse import Warehouse
from tests.support.postgres import PostgresServer
from tests.support.warehouse import change

pytestmark = pytest.mark.postgres

QUERY = "SELECT id, sold_at::date AS day, date_trunc('day', sold_at) AS start FROM sale ORDER BY id"
COLUMNS = {"id": "bigint", "day": "date", "start": "timestamptz"}
ZONES = ("America/New_York", "Asia/Kolkata", "Pacific/Kiritimati", "UTC")


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.new_database()
    change(made, "CREATE TABLE sale (id bigint, sold_at timestamptz)")
    times = ("2024-03-30 22:59:59.999999+00", "2024-03-30 23:00+00", "2024-03-31 18:30+00", "1883-11-18 17:00+00")
    for number, at in enumerate(times):
        change(made, f"INSERT INTO sale VALUES ({number}, '{at}')")
    change(made, "CREATE VIEW day_of_sale AS SELECT id, sold_at::date AS day FROM sale")
    yield made
    postgres_server.drop_database(made)


def as_any_client(url: str) -> list[tuple[Any, ...]]:
    """Without a line of this package."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        rows = cursor.fetchall()
    return [(number, day, start.astimezone(dt.UTC).replace(tzinfo=None)) for number, day, start in rows]


def as_sources(url: str) -> list[tuple[Any, ...]]:
    connections = Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)
    source = QuerySource("wh", QUERY, columns=COLUMNS)
    (batch,) = source.read_from(connections.source("wh"), {}, source.action({}), 0)
    connections.close()
    return sorted(tuple(row.values()) for row in batch.table.to_pylist())


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("of", ["the database", "the role", "the url"])
def test_a_query_gets_the_days_that_any_client_gets(url: str, zone: str, of: str) -> None:
    database = url.rpartition("/")[2]
    if of == "the database":
        change(url, f"ALTER DATABASE {database} SET timezone = '{zone}'")
    elif of == "the role":
        change(url, f"ALTER ROLE postgres IN DATABASE {database} SET timezone = '{zone}'")
    else:
        url = f"{url}?options=-ctimezone%3D{zone.replace('/', '%2F')}"
    expected = as_any_client(url)
    assert as_sources(url) == expected
    with closing(Warehouse("wh", url)) as warehouse:
        found = warehouse.read(TableRead("wh", "day_of_sale")).sort_by("id").to_pylist()
        assert [(row["id"], row["day"]) for row in found] == [row[:2] for row in expected]
        times = warehouse.read(TableRead("wh", "sale")).sort_by("id").column("sold_at").to_pylist()
        assert times[1] == dt.datetime.fromisoformat("2024-03-30T23:00"), "instants are as they are"


@pytest.mark.parametrize("zone", ZONES)
def test_what_is_written_and_looked_up_is_in_utc(url: str, zone: str) -> None:
    change(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET timezone = '{zone}'")
    change(url, "CREATE TABLE t (with_zone timestamptz, without timestamp, day timestamptz, several timestamptz[])")
    noon = dt.datetime.fromisoformat("2024-03-31T12:00")
    records = pa.table(
        {
            "with_zone": pa.array([noon], pa.timestamp("us")),
            "without": pa.array([noon], pa.timestamp("us", "UTC")),
            "day": pa.array([noon.date()]),
            "several": pa.array([[noon]], pa.list_(pa.timestamp("us"))),
        }
    )
    writer = TableWriter("wh", "t", on_new_run="append")
    actions = [
        WriteAction("run", "save", "wh", 1, 1, pa.table({}), {"action": "begin"}),
        WriteAction("run", "save", "wh", 2, 1, records, {"action": "insert"}),
    ]
    in_utc = (
        "SELECT with_zone AT TIME ZONE 'UTC', without, day AT TIME ZONE 'UTC', several[1] AT TIME ZONE 'UTC' FROM t"
    )
    with closing(Warehouse("wh", url)) as warehouse:
        warehouse.apply(Marker("run", "save", "wh", 0, 1, 1.0), writer, actions)
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(in_utc)
            assert cursor.fetchall() == [(noon, noon, dt.datetime.combine(noon.date(), dt.time()), noon)]
        for column, keys in {
            "with_zone": records.column("with_zone"),
            "without": records.column("without"),
            "day": records.column("day"),
        }.items():
            read = TableRead("wh", "t", columns=(column,), key=column)
            assert warehouse.read(read, keys.combine_chunks()).num_rows == 1, column
