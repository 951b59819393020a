"""The independent check of the lake: DuckDB makes of the files what the pipeline had to, and compares every record.

As that of the sales pipelines, it shares no code with the pipeline, the protocol or the writers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb

from airflow_logio.errors import ConfigurationError
from demo.comparing import MOST_DIFFERENCES, CheckResult, Comparison, Table, compare, load

FILES_AT_ONCE = 7
"""Days whose sales are compared in memory: a few million records."""
MEMORY = "2GB"

SALES = "sales"
_SALE = {
    "sale_id": "BIGINT",
    "day": "DATE",
    "sold_at": "TIMESTAMP",
    "city": "BIGINT",
    "store_id": "BIGINT",
    "household_id": "BIGINT",
    "product_id": "BIGINT",
    "department": "VARCHAR",
    "quantity": "BIGINT",
    "sales_cents": "BIGINT",
}
_GOOD = """
SELECT sale_id, sold_at::DATE AS day, sold_at, city, store_id, household_id, sold.product_id,
       coalesce(department, 'UNKNOWN') AS department, quantity,
       CAST(round(sales_value * 100) AS BIGINT) AS sales_cents
FROM read_parquet({files}) sold LEFT JOIN products ON products.product_id = sold.product_id
WHERE quantity > 0
"""
DEPARTMENT_HOURS = Table(
    "department_hours",
    {
        "day": "DATE",
        "hour": "INTEGER",
        "department": "VARCHAR",
        "sales": "BIGINT",
        "quantity": "BIGINT",
        "sales_cents": "BIGINT",
    },
    3,
    f"""
SELECT day, hour(sold_at) AS hour, department, count(*) AS sales, sum(quantity)::BIGINT AS quantity,
       sum(sales_cents)::BIGINT AS sales_cents
FROM ({_GOOD}) GROUP BY ALL
""",
)


def check_lake(lake: Path, warehouse_url: str, sales: Path, products: Path) -> CheckResult:
    """Compare the folders ``sales`` and ``department_hours`` of the lake, and the table, with the files of `sales`.

    Raises `ConfigurationError` if one of them cannot be read.
    """
    with duckdb.connect(":memory:") as database:
        database.execute(f"SET memory_limit = '{MEMORY}'")
        database.execute("CREATE TABLE products AS SELECT product_id, department FROM read_parquet(?)", [str(products)])
        try:
            every_sale = _compare_sales(database, lake / SALES, sales)
            hours = DEPARTMENT_HOURS
            files = _listed([sales / "*.parquet"])
            database.execute(f"CREATE OR REPLACE TABLE expected AS {hours.expected.format(files=files)}")
            _read(database, sorted((lake / hours.name).rglob("*.parquet")), hours.columns)
            in_lake = compare(database, f"lake/{hours.name}", list(hours.columns), hours.key)
        except duckdb.Error as error:
            raise ConfigurationError(f"the lake {lake} cannot be compared with {sales}: {error}") from error
        load(database, warehouse_url, hours)
        return CheckResult((every_sale, in_lake, compare(database, hours.name, list(hours.columns), hours.key)))


def _compare_sales(database: duckdb.DuckDBPyConnection, published: Path, sales: Path) -> Comparison:
    """Some days at a time; files that are in no folder of one of these days are counted as well."""
    parts = []
    found = defaultdict(list)
    for file in published.rglob("*.parquet"):
        found[file.parent.name].append(file)
    for days in _days_at_once(sales):
        database.execute(f"CREATE OR REPLACE TABLE expected AS {_GOOD.format(files=_listed(days.values()))}")
        _read(database, [file for day in days for file in found.pop(f"day={day}", ())], _SALE)
        parts.append(compare(database, SALES, list(_SALE), 1))
    _read(database, [file for files in found.values() for file in files], _SALE)
    database.execute("DELETE FROM expected")
    parts.append(compare(database, SALES, list(_SALE), 1))
    return Comparison(
        f"lake/{SALES}",
        expected_rows=sum(part.expected_rows for part in parts),
        found_rows=sum(part.found_rows for part in parts),
        differing=sum(part.differing for part in parts),
        differences=tuple(one for part in parts for one in part.differences)[:MOST_DIFFERENCES],
    )


def _days_at_once(sales: Path) -> Iterator[dict[str, Path]]:
    """Day → its file, by their names."""
    files = sorted(sales.glob("sales-*.parquet"))
    if not files:
        raise ConfigurationError(f"there are no sales in {sales}")
    for begin in range(0, len(files), FILES_AT_ONCE):
        yield {file.stem.removeprefix("sales-"): file for file in files[begin : begin + FILES_AT_ONCE]}


def _read(database: duckdb.DuckDBPyConnection, files: Sequence[Path], columns: dict[str, str]) -> None:
    """Load files of a folder that is partitioned by day into table `found`."""
    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    database.execute(f"CREATE OR REPLACE TABLE found ({declared})")
    if files:
        casts = ", ".join(f"{name}::{kind}" for name, kind in columns.items())
        options = "hive_partitioning = true, hive_types = {'day': DATE}"
        database.execute(f"INSERT INTO found SELECT {casts} FROM read_parquet({_listed(files)}, {options})")


def _listed(paths: Iterable[Path]) -> str:
    """Paths as a list of DuckDB's SQL."""
    quoted = ("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"[{', '.join(quoted)}]"
