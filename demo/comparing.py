"""For the independent checks: two tables of DuckDB compared as bags of rows, one of them from the warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.databases import told
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
class Difference:
    """Rows of one key, as they must be and as they are. A doubled row is found once too often."""

    key: tuple[Any, ...]
    expected: tuple[tuple[Any, ...], ...]
    found: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        return f"{_words(self.key)}: expected {_values(self.expected)}, found {_values(self.found)}"


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
