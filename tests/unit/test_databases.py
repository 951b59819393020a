"""URLs of databases, in the forms in which people and Airflow write them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_logio.databases import parse_url, read_url
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.warehouse import Warehouse

FORMS = ("postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg")


@pytest.mark.parametrize("scheme", FORMS)
@pytest.mark.parametrize("read", [read_url, parse_url])
def test_every_postgres_is_reached_with_the_driver_that_is_installed(scheme: str, read: object) -> None:
    """SQLAlchemy 2.1 takes `postgresql://` for psycopg 3, and knows no `postgres://` at all."""
    url = read(f"{scheme}://me:secret@host:5433/sales?sslmode=require")  # type: ignore[operator]

    assert sa.create_engine(url).dialect.driver == "psycopg2"
    assert (url.password, url.port, url.query) == ("secret", 5433, {"sslmode": "require"})


def test_other_databases_are_left_as_they_are() -> None:
    assert read_url("mysql+pymysql://me@host/sales").drivername == "mysql+pymysql"


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("postgresql://me@host/sales", "postgresql+psycopg2://me@host/sales"),
        ("postgres://me@host/sales", "postgresql+psycopg2://me@host/sales"),
        ("postgresql+psycopg://me@host/sales", "postgresql+psycopg://me@host/sales"),
        ("https://postgres://x", "https://postgres://x"),
        ("s3://lake/orders", "s3://lake/orders"),
    ],
)
def test_authors_get_the_same_url_from_a_terminal_as_from_airflow(url: str, given: str) -> None:
    connections = Connections("p", {"db": url}, WriterIdentity("r", 1, 0.0), replay_seconds=1.0)

    assert connections.url("db") == given


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", FORMS[:2])
def test_a_warehouse_is_read_under_every_form(postgres_url: str, scheme: str) -> None:
    plain = sa.create_engine(read_url(postgres_url))
    with plain.begin() as connection:
        connection.execute(sa.text("CREATE TABLE price AS SELECT 7 AS cents"))
    warehouse = Warehouse("db", f"{scheme}://{postgres_url.partition('://')[2]}")

    assert warehouse.read(TableRead("db", "price")).to_pylist() == [{"cents": 7}]

    warehouse.close()
    plain.dispose()
