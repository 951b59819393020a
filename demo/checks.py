"""Independent checks of the results: DuckDB computes from the files what the pipelines had to, and compares every row.

They share no code with the pipelines, the protocol or the writers: another engine, other SQL, a reader of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from airflow_logio import published_files
from airflow_logio.databases import told
from airflow_logio.errors import ConfigurationError
from demo.data import warehouse_engine

ROWS_PER_CHUNK = 50_000
MOST_DIFFERENCES = 20


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the warehouse as it must be. The first `key` columns are the key, the others values; types are DuckDB's."""

    name: str
    columns: dict[str, str]
    key: int
    expected: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    comparisons: tuple[Comparison, ...]

    @property
    def exact(self) -> bool:
        return all(comparison.exact for comparison in self.comparisons)

    def lines(self) -> list[str]:
        """For people: ``exact``, or what differs."""
        lines = []
        for one in self.comparisons:
            verdict = "exact" if one.exact else f"{one.differing:,} keys differ (expected {one.expected_rows:,} rows)"
            lines.append(f"{one.what}: {one.found_rows:,} rows, {verdict}")
            lines += [f"  {difference}" for difference in one.differences]
            if one.differing > len(one.differences):
                lines.append(f"  ... and {one.differing - len(one.differences):,} more")
        return lines


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for one table. `differences` are the first of the `differing` keys."""

    what: str
    expected_rows: int
    found_rows: int
    differing: int
    differences: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        return self.differing == 0 and self.expected_rows == self.found_rows


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of one key, as they must be and as they are. A doubled row is found once too often."""

    key: tuple[Any, ...]
    expected: tuple[tuple[Any, ...], ...]
    found: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        return f"{_words(self.key)}: expected {_values(self.expected)}, found {_values(self.found)}"


# --- the sales pipelines ----------------------------------------------------------------------------------------------

RECORDS_PER_EVENT = 1_000
EVENTS_PER_BATCH = 100
_TRANSACTIONS = """
CREATE TABLE transactions AS
SELECT file_row_number AS row_number, transaction_timestamp::TIMESTAMP AS sold_at, store_id, product_id, quantity,
       CAST(round(sales_value * 100) AS BIGINT) AS cents
FROM read_parquet(?, file_row_number = true)
"""
_PRODUCTS = "CREATE TABLE products AS SELECT product_id, department FROM read_parquet(?)"
_HOURLY = """
SELECT date_trunc('hour', sold_at) AS hour, store_id, coalesce(department, 'UNKNOWN') AS department,
       sum(quantity)::BIGINT AS quantity, sum(cents)::BIGINT AS sales_cents
FROM transactions LEFT JOIN products USING (product_id) GROUP BY ALL
"""
_TOTALS = f"""
SELECT 1 + row_number // {RECORDS_PER_EVENT * EVENTS_PER_BATCH} AS batch, product_id,
       sum(quantity)::BIGINT AS quantity, sum(cents)::BIGINT AS sales_cents
FROM transactions GROUP BY ALL
"""
_PER_PRODUCT = """
SELECT product_id, sum(quantity)::BIGINT AS quantity, sum(cents)::BIGINT AS sales_cents FROM transactions GROUP BY ALL
"""
_FOUND_PER_PRODUCT = """
SELECT product_id, sum(quantity)::BIGINT AS quantity, sum(sales_cents)::BIGINT AS sales_cents FROM found GROUP BY ALL
"""
HOURLY_SALES = Table(
    "hourly_sales",
    {"hour": "TIMESTAMP", "store_id": "BIGINT", "department": "VARCHAR", "quantity": "BIGINT", "sales_cents": "BIGINT"},
    3,
    _HOURLY,
)
ITEM_TOTALS = Table(
    "item_totals",
    {"batch": "BIGINT", "product_id": "BIGINT", "quantity": "BIGINT", "sales_cents": "BIGINT"},
    2,
    _TOTALS,
)


def check_sales(warehouse_url: str, transactions: Path, products: Path) -> CheckResult:
    """Recompute both tables from the files and compare every row. Raises `ConfigurationError` if a table cannot be read."""
    with duckdb.connect(":memory:") as database:
        database.execute(_TRANSACTIONS, [str(transactions)])
        database.execute(_PRODUCTS, [str(products)])
        comparisons = []
        for table in (HOURLY_SALES, ITEM_TOTALS):
            database.execute(f"CREATE OR REPLACE TABLE expected AS {table.expected}")
            load(database, warehouse_url, table)
            comparisons.append(compare(database, table.name, list(table.columns), table.key))
        # All batches together, which does not depend on how events were cut and counted.
        database.execute(f"CREATE OR REPLACE TABLE expected AS {_PER_PRODUCT}")
        database.execute(f"CREATE TABLE summed AS {_FOUND_PER_PRODUCT}")
        database.execute("CREATE OR REPLACE TABLE found AS FROM summed")
        comparisons.append(
            compare(database, "item_totals summed per product", ["product_id", "quantity", "sales_cents"], 1)
        )
    return CheckResult(tuple(comparisons))


# --- the lake ---------------------------------------------------------------------------------------------------------

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


# --- a run for each day -----------------------------------------------------------------------------------------------

_ZONE = "Europe/Berlin"
_CLICK = {"id": "BIGINT", "day": "DATE", "ts": "TIMESTAMPTZ", "visitor": "BIGINT", "page": "VARCHAR"}
_CAME = f"""
CREATE TABLE came AS
SELECT id, dt AS came, (ts AT TIME ZONE '{_ZONE}')::DATE AS day, ts, visitor, page
FROM read_parquet(?, hive_partitioning = true, hive_types = {{'dt': DATE}})
"""
_KEPT = "SELECT id, day, ts, visitor, page FROM came WHERE day = came"
_LATE = "SELECT id, came AS day, ts, visitor, page FROM came WHERE day <> came"
_TOP = """
SELECT day, row_number() OVER (PARTITION BY day ORDER BY clicks DESC, page) AS rank, page, clicks
FROM (
    SELECT day, page, count(*) AS clicks FROM came
    WHERE day = came AND NOT (list_contains(?, day) AND starts_with(page, '/coupon')) GROUP BY ALL
) QUALIFY rank <= 10
"""
TOP = Table("top", {"day": "DATE", "rank": "INTEGER", "page": "VARCHAR", "clicks": "BIGINT"}, 2, _TOP)


def check_clicks(lake: Path, warehouse_url: str, data: Path, without_coupons: Collection[date]) -> CheckResult:
    """Compare the folders ``clicks`` and ``late_clicks`` of the lake, as their receipts count files, and table ``top`` with
    the clicks in `data`. The table has no pages of coupons on some days.

    Raises `ConfigurationError` if one of them cannot be read.
    """
    with duckdb.connect(":memory:") as database:
        comparisons = []
        try:
            database.execute(_CAME, [str(data / "web" / "*" / "*.parquet")])
            for folder, expected in (("clicks", _KEPT), ("late_clicks", _LATE)):
                database.execute(f"CREATE OR REPLACE TABLE expected AS {expected}")
                _read(database, [Path(file.path) for file in published_files(lake / folder)], _CLICK)
                comparisons.append(compare(database, f"lake/{folder}", list(_CLICK), 1))
            database.execute(f"CREATE OR REPLACE TABLE expected AS {TOP.expected}", [list(without_coupons)])
        except (duckdb.Error, OSError) as error:
            raise ConfigurationError(f"the lake {lake} cannot be compared with {data}: {error}") from error
        load(database, warehouse_url, TOP)
        comparisons.append(compare(database, TOP.name, list(TOP.columns), TOP.key))
    return CheckResult(tuple(comparisons))


# --- comparing two tables of DuckDB as bags of rows -------------------------------------------------------------------


def load(database: duckdb.DuckDBPyConnection, url: str, table: Table) -> None:
    """Load the table of the warehouse into table `found`, in chunks. Raises `ConfigurationError` if it cannot be read."""
    declared = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
    casts = ", ".join(f"{name}::{kind}" for name, kind in table.columns.items())
    database.execute(f"CREATE OR REPLACE TABLE found ({declared})")
    engine = warehouse_engine(url)
    query = sa.text(f"SELECT {', '.join(table.columns)} FROM {table.name}")
    try:
        with told(f"table {table.name} of the warehouse cannot be read"), engine.connect() as connection:
            rows = connection.execution_options(stream_results=True).execute(query)
            while chunk := rows.fetchmany(ROWS_PER_CHUNK):
                columns = [pa.array(column) for column in zip(*chunk, strict=True)]
                database.register("chunk", pa.table(columns, names=list(table.columns)))
                database.execute(f"INSERT INTO found SELECT {casts} FROM chunk")
                database.unregister("chunk")
    finally:
        engine.dispose()


def compare(database: duckdb.DuckDBPyConnection, what: str, columns: Sequence[str], key: int) -> Comparison:
    """Compare tables `expected` and `found` as bags of rows: doubled, changed and missing rows all count as differences."""
    names, keys = ", ".join(columns), ", ".join(columns[:key])
    database.execute(
        f"""
        CREATE OR REPLACE TABLE differing AS
        SELECT {names} FROM (SELECT {names}, 1 AS times FROM expected UNION ALL SELECT {names}, -1 FROM found)
        GROUP BY ALL HAVING sum(times) <> 0
        """
    )
    wanted = f"SELECT {keys} FROM differing GROUP BY ALL"
    count = _number(database, f"SELECT count(*) FROM ({wanted})")
    shown = database.execute(f"{wanted} ORDER BY ALL LIMIT {MOST_DIFFERENCES}").fetchall()
    return Comparison(
        what,
        expected_rows=_number(database, "SELECT count(*) FROM expected"),
        found_rows=_number(database, "SELECT count(*) FROM found"),
        differing=count,
        differences=tuple(_difference(database, row, columns, key) for row in shown),
    )


def _difference(
    database: duckdb.DuckDBPyConnection, key_values: tuple[Any, ...], columns: Sequence[str], key: int
) -> Difference:
    same = " AND ".join(f"{name} IS NOT DISTINCT FROM ?" for name in columns[:key])
    values = ", ".join(columns[key:])
    sides = [
        tuple(database.execute(f"SELECT {values} FROM {side} WHERE {same} ORDER BY ALL", list(key_values)).fetchall())
        for side in ("expected", "found")
    ]
    return Difference(key_values, sides[0], sides[1])


def _number(database: duckdb.DuckDBPyConnection, query: str) -> int:
    row = database.execute(query).fetchone()
    return int(row[0]) if row else 0


def _words(values: tuple[Any, ...]) -> str:
    return ", ".join(str(value) for value in values)


def _values(rows: tuple[tuple[Any, ...], ...]) -> str:
    return " and ".join(f"({_words(row)})" for row in rows) or "no row"
