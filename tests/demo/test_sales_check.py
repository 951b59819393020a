"""The independent check sees a row that is missing, doubled, changed or too many, on both kinds of warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa

from airflow_logio.errors import ConfigurationError
from demo.checks import HOURLY_SALES, ITEM_TOTALS, CheckResult, Comparison, check_sales
from demo.data import parquet_file, warehouse_engine
from tests.support.grocery import write_slice

_TYPES: dict[str, Any] = {"TIMESTAMP": sa.DateTime, "BIGINT": sa.BigInteger, "VARCHAR": sa.Text}


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slice(tmp_path_factory.mktemp("data") / "transactions.parquet", 3_000)


@pytest.fixture(params=[pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'warehouse.db'}"


@pytest.fixture
def warehouse(url: str, transactions: Path) -> Iterator[sa.Engine]:
    """A warehouse whose tables are right. They have no keys, so that a doubled row finds its way in."""
    engine = warehouse_engine(url)
    metadata = sa.MetaData()
    with engine.begin() as connection:
        for declared in (HOURLY_SALES, ITEM_TOTALS):
            columns: list[sa.Column[Any]] = [sa.Column(name, _TYPES[kind]) for name, kind in declared.columns.items()]
            table = sa.Table(declared.name, metadata, *columns)
            table.create(connection)
            connection.execute(sa.insert(table), _right(declared.name, transactions))
    yield engine
    engine.dispose()


def _right(table: str, transactions: Path) -> list[dict[str, object]]:
    """The rows as they must be, by SQL of this test's own."""
    amounts = "sum(quantity)::BIGINT AS quantity, sum(round(sales_value * 100)::BIGINT)::BIGINT AS sales_cents"
    if table == "hourly_sales":
        query = f"""SELECT date_trunc('hour', transaction_timestamp)::TIMESTAMP AS hour, store_id,
            coalesce((SELECT min(department) FROM read_parquet('{parquet_file("products")}') p
                      WHERE p.product_id = t.product_id), 'UNKNOWN') AS department, {amounts}
            FROM read_parquet('{transactions}') t GROUP BY 1, 2, 3"""
    else:
        query = f"SELECT 1 AS batch, product_id, {amounts} FROM read_parquet('{transactions}') GROUP BY 1, 2"
    found = duckdb.sql(query)
    assert found is not None
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def checked(url: str, transactions: Path) -> CheckResult:
    return check_sales(url, transactions, parquet_file("products"))


def only_wrong(result: CheckResult, *what: str) -> Comparison:
    """The first of the comparisons that failed, which must be these."""
    wrong = [one for one in result.comparisons if not one.exact]
    assert [one.what for one in wrong] == list(what)
    assert not result.exact
    return wrong[0]


def test_what_is_right_is_exact(url: str, warehouse: sa.Engine, transactions: Path) -> None:
    result = checked(url, transactions)
    assert result.exact, "\n".join(result.lines())
    assert all("exact" in line for line in result.lines())


def test_a_missing_row_is_named(url: str, warehouse: sa.Engine, transactions: Path) -> None:
    with warehouse.begin() as connection:
        first = sa.text("SELECT hour, department FROM hourly_sales ORDER BY hour, department LIMIT 1")
        hour, department = connection.execute(first).one()
        connection.execute(
            sa.text("DELETE FROM hourly_sales WHERE hour = :hour AND department = :department"),
            {"hour": hour, "department": department},
        )
    wrong = only_wrong(checked(url, transactions), "hourly_sales")
    assert wrong.differing == wrong.expected_rows - wrong.found_rows >= 1
    assert all(difference.found == () and len(difference.expected) == 1 for difference in wrong.differences)
    assert department in str(wrong.differences[0]) and "found no row" in str(wrong.differences[0])


def test_a_doubled_row_is_named(url: str, warehouse: sa.Engine, transactions: Path) -> None:
    with warehouse.begin() as connection:
        product = connection.execute(sa.text("SELECT max(product_id) FROM item_totals")).scalar_one()
        connection.execute(
            sa.text("INSERT INTO item_totals SELECT * FROM item_totals WHERE product_id = :id"), {"id": product}
        )
    wrong = only_wrong(checked(url, transactions), "item_totals", "item_totals summed per product")
    (difference,) = wrong.differences
    assert difference.key == (1, product)
    assert difference.found == difference.expected * 2


def test_a_changed_value_is_shown_from_both_sides(url: str, warehouse: sa.Engine, transactions: Path) -> None:
    with warehouse.begin() as connection:
        store = connection.execute(sa.text("SELECT max(store_id) FROM hourly_sales")).scalar_one()
        changed = connection.execute(
            sa.text("UPDATE hourly_sales SET sales_cents = sales_cents + 1 WHERE store_id = :id"), {"id": store}
        ).rowcount
    wrong = only_wrong(checked(url, transactions), "hourly_sales")
    assert wrong.differing == changed
    difference = wrong.differences[0]
    (expected,), (found,) = difference.expected, difference.found
    assert found == (expected[0], expected[1] + 1)


def test_a_row_in_the_wrong_batch_is_found_though_the_sums_agree(
    url: str, warehouse: sa.Engine, transactions: Path
) -> None:
    with warehouse.begin() as connection:
        connection.execute(
            sa.text("UPDATE item_totals SET batch = 2 WHERE product_id = (SELECT min(product_id) FROM item_totals)")
        )
    assert only_wrong(checked(url, transactions), "item_totals").differing == 2


def test_only_the_first_differences_are_shown(url: str, warehouse: sa.Engine, transactions: Path) -> None:
    with warehouse.begin() as connection:
        connection.execute(sa.text("DELETE FROM item_totals"))
    result = checked(url, transactions)
    wrong = only_wrong(result, "item_totals", "item_totals summed per product")
    assert wrong.found_rows == 0 and wrong.differing == wrong.expected_rows
    assert len(wrong.differences) == 20
    assert f"  ... and {wrong.differing - 20:,} more" in result.lines()


def test_a_table_that_is_not_there_is_said_so(url: str, transactions: Path) -> None:
    with pytest.raises(ConfigurationError, match="table hourly_sales of the warehouse cannot be read"):
        checked(url, transactions)
