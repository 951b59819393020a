"""What a pipeline of a shape must leave: DuckDB says it of the records, and SQL's own join of the keys."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio import published_files
from tests.support.frame_storm.pipelines import BEST, COLUMNS_OF_SUMS, SUMS, columns_of_best
from tests.support.frame_storm.places import Place, columns_of, labels
from tests.support.frame_storm.shape import AMOUNT, Shape
from tests.support.warehouse import warehouse_engine

Row = tuple[str, ...]
ZONED = 'SELECT *, CAST(timezone($zone, "at") AS DATE) AS day FROM records'
RANKED = f"""
    SELECT day, kind, row_number() OVER (PARTITION BY day, kind ORDER BY "{AMOUNT}" DESC NULLS LAST, id) AS rank,
        id, key, "{AMOUNT}", big, ratio, born, note, "at"
    FROM ({ZONED})
"""
BEST_QUERY = f"SELECT ranked.*, label FROM ({RANKED}) AS ranked LEFT JOIN pairs USING (id) WHERE rank <= $top"
SUMS_QUERY = f"""
    SELECT day, kind, count(*), sum("{AMOUNT}"), max(big), min(note), sum(found)
    FROM ({ZONED}) LEFT JOIN (SELECT records.id, count(label) AS found FROM records LEFT JOIN pairs USING (id) GROUP BY 1)
    USING (id) GROUP BY day, kind
"""


def check(shape: Shape, place: Place) -> None:
    """Raises AssertionError for the first difference."""
    best, sums = _by_duckdb(shape, place)
    on_server = shape.on_server[1]
    assert_same(_published(shape, place), best, "published")
    names = list(columns_of_best(shape))
    assert_same(_rows(place, BEST, names, columns_of_best(shape)), [_stored(one, on_server) for one in best], BEST)
    assert_same(
        _rows(place, SUMS, list(COLUMNS_OF_SUMS), COLUMNS_OF_SUMS), [_stored(one, on_server) for one in sums], SUMS
    )
    assert best and any(row[-1] is not None for row in best), "nothing was found"


def _by_duckdb(shape: Shape, place: Place) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    names = ["id", "at", "kind", "key", AMOUNT, "big", "ratio", "born", "note"]
    records = columns_of(shape, shape.records).rename_columns(names)
    pairs = pa.Table.from_pylist(
        [{"id": id, "label": label} for id, label in labels(shape, place)],
        pa.schema({"id": pa.int64(), "label": pa.string()}),
    )
    with duckdb.connect() as database:
        database.execute("SET timezone = 'UTC'")
        database.register("records", records)
        database.register("pairs", pairs)
        zone = shape.zone or "UTC"
        best = database.execute(BEST_QUERY, {"zone": zone, "top": shape.top}).fetchall()
        sums = database.execute(SUMS_QUERY, {"zone": zone}).fetchall()
    return best, sums


def _published(shape: Shape, place: Place) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for file in published_files(f"{place.folder}/lake/{shape.place}/best"):
        table = pq.ParquetFile(file.path).read()
        assert table.column_names == list(columns_of_best(shape))
        rows += [tuple(row.values()) for row in table.to_pylist()]
    return rows


def _rows(place: Place, table: str, names: Sequence[str], kinds: dict[str, str]) -> list[tuple[Any, ...]]:
    wanted = ", ".join(f'"{name}"' for name in names)
    with warehouse_engine(place.warehouse).connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(f'SELECT {wanted} FROM "{table}"')
        rows = cursor.fetchall()
    if not place.warehouse.startswith("sqlite"):
        return [tuple(row) for row in rows]
    return [tuple(_of_sqlite(value, kinds[name]) for value, name in zip(row, names, strict=True)) for row in rows]


def _of_sqlite(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind.startswith("decimal"):
        assert isinstance(value, str), value
        return Decimal(value)
    if kind == "date":
        return dt.date.fromisoformat(value)
    return dt.datetime.fromisoformat(value) if kind == "timestamptz" else value


def _stored(row: tuple[Any, ...], on_server: bool) -> tuple[Any, ...]:
    """SQLite keeps 0.0 for -0.0."""
    return tuple(0.0 if value == 0.0 and isinstance(value, float) and not on_server else value for value in row)


def assert_same(found: Iterable[tuple[Any, ...]], wanted: Iterable[tuple[Any, ...]], what: str) -> None:
    one, other = (Counter(tuple(map(_plain, row)) for row in rows) for rows in (found, wanted))
    assert one == other, (
        f"{what}: too many {sorted((one - other).elements())[:3]}, missing {sorted((other - one).elements())[:3]}"
    )


def _plain(value: Any) -> str:
    """One text for each value, whichever way it was read."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, dt.datetime):
        at = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return at.isoformat(timespec="microseconds")
    if isinstance(value, Decimal):
        return "decimal 0" if value == 0 else f"decimal {value.normalize():f}"
    return f"{type(value).__name__} {value!r}"
