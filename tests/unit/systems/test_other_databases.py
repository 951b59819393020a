"""Databases that are neither PostgreSQL nor SQLite: read from, and refused for tables. On a real MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow import QuerySource
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.warehouse import Warehouse
from tests.support.mariadb import mariadb

pytestmark = pytest.mark.postgres  # it starts a server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mariadb() as found:
        engine = sa.create_engine(found)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE product (id BIGINT PRIMARY KEY, price DECIMAL(9,2), name TEXT)"))
            connection.execute(sa.text("INSERT INTO product VALUES (1, 0.10, 'tea'), (2, NULL, 'it''s'), (3, 7, NULL)"))
        engine.dispose()
        yield found


def test_its_tables_are_read(url: str) -> None:
    with closing(Warehouse("wh", url)) as warehouse:
        found = warehouse.read(TableRead("wh", "product", key="id"), pa.array([1, 2, 9]))
        assert found.sort_by("id").to_pydict() == {
            "id": [1, 2],
            "price": [Decimal("0.10"), None],
            "name": ["tea", "it's"],
        }
        assert warehouse.read(TableRead("wh", "shop.product")).num_rows == 3


def test_its_queries_are_sources(url: str) -> None:
    source = QuerySource("wh", "SELECT * FROM product WHERE id < 3", columns={"id": "bigint", "price": "decimal(9,2)"})
    connections = Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)
    (batch,) = source.read_from(connections.source("wh"), {}, source.action({}), 0)
    assert batch.table.to_pydict() == {"id": [1, 2], "price": [Decimal("0.10"), None]}
    connections.close()


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        ("AVG(id)", "bigint", 2),
        ("AVG(id) + 0.5", "bigint", None),
        ("MAX(price)", "double", 7.0),
        ("MIN(price)", "double", None),
        ("TIMESTAMP('2024-02-29 00:00:00')", "date", date(2024, 2, 29)),
        ("TIMESTAMP('2024-02-29 12:00:00')", "date", None),
        ("TIME('12:00:00')", "text", None),
        ("MAX(id)", "text", None),
        ("MAX(name)", "bigint", None),
    ],
)
def test_its_values_are_read_as_they_are_or_refused(url: str, value: str, declared: str, expected: object) -> None:
    source = QuerySource("wh", f"SELECT 7 AS id, {value} AS v FROM product", columns={"id": "bigint", "v": declared})
    with closing(Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)) as connections:
        read = source.read_from(connections.source("wh", "raw"), {}, source.action({}), 0)
        if expected is None:
            says = (
                rf"source 'raw', column 'v', row 0 of those read \(counted from 0\), where id = 7: .* is no {declared}"
            )
            with pytest.raises(ConfigurationError, match=says):
                list(read)
        else:
            (batch,) = read
            assert set(batch.table.column("v").to_pylist()) == {expected}


def test_a_driver_writes_nothing_into_it(url: str) -> None:
    """Its connection may have been changed since the run was started."""
    writer = TableWriter("wh", "sales", {"a": "bigint"}, on_new_run="replace")
    begin = WriteAction("run", "save", "wh", 1, 1, pa.table({}), {"action": "begin"})
    with closing(Warehouse("wh", url)) as warehouse:
        with pytest.raises(
            ConfigurationError, match="kind 'mysql': TableWriter writes exactly once to PostgreSQL and SQLite"
        ):
            warehouse.apply(Marker("run", "save", "wh", 0, 1, 1.0), writer, [begin])
        assert sa.inspect(warehouse.engine).get_table_names() == ["product"]
