"""What a random pipeline finds: files of several writers, tables with names that need quotes, rows for its keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from tests.support.frame_storm.keys import Keys
from tests.support.frame_storm.shape import AMOUNT, DECOY, Files, Kind, Record, Shape
from tests.support.postgres import PostgresServer
from tests.support.warehouse import warehouse_engine

EPOCH = dt.date(1970, 1, 1)
LEGACY = {
    "org.apache.spark.version": "3.5.0",
    "org.apache.spark.legacyDateTime": "",
    "org.apache.spark.timeZone": "UTC",
}
FILE_NAMES = "{:02}-größe.parquet"
ORDERS, SHOPS, LABEL = "order", "select", "label"
"""Tables of the shop, and what the second one says of a key."""
DATABASE_ZONE = "Asia/Kolkata"


@dataclass(frozen=True, slots=True)
class Place:
    """Below `folder` is all that belongs to one run, but for databases of a server."""

    folder: Path
    shop: str
    warehouse: str

    @property
    def connections(self) -> dict[str, str]:
        return {"lake": str(self.folder / "lake"), "shop": self.shop, "warehouse": self.warehouse}

    def params(self, shape: Shape) -> dict[str, str]:
        return {"root": str(self.folder / "in"), "place": shape.place, "over": str(self.folder / "over")}


@contextmanager
def place_of(shape: Shape, server: PostgresServer, folder: Path) -> Iterator[Place]:
    """With all that the pipeline reads."""
    with ExitStack() as stack:
        urls = []
        for name, on_server in zip(("shop", "warehouse"), shape.on_server, strict=True):
            if on_server:
                url = server.new_database(migrated=False)
                stack.callback(server.drop_database, url)
                _execute(url, f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET TimeZone = '{DATABASE_ZONE}'")
            else:
                url = f"sqlite:///{folder / name}.db"
            urls.append(url)
        place = Place(folder, *urls)
        (folder / "lake").mkdir()
        if shape.source in (Kind.FOLDER, Kind.PARQUET):
            write_files(shape, folder / "in" / shape.place)
        else:
            _fill_orders(shape, place.shop)
        _fill_shops(shape.keys, shape.name, place.shop)
        yield place


# --- files ------------------------------------------------------------------------------------------------------------


def write_files(shape: Shape, folder: Path) -> None:
    folder.mkdir(parents=True)
    records, count = shape.records, len(shape.files)
    size = -(-len(records) // count)
    for number, writer in enumerate(shape.files):
        part = columns_of(shape, records[number * size : (number + 1) * size])
        WRITERS[writer](part, folder / FILE_NAMES.format(number))


def columns_of(shape: Shape, records: Sequence[Record]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([one.id for one in records], pa.int64()),
            "at": pa.array([one.at for one in records], pa.timestamp("us", "UTC")),
            "kind": pa.array([one.kind for one in records], pa.string()),
            shape.name: pa.array([one.key for one in records], shape.keys.arrow),
            AMOUNT: pa.array([one.amount for one in records], pa.decimal128(38, 9)),
            "big": pa.array([one.big for one in records], pa.int64()),
            "ratio": pa.array([one.ratio for one in records], pa.float64()),
            "born": pa.array([one.born for one in records], pa.date32()),
            "note": pa.array([one.note for one in records], pa.string()),
        }
    )


def _by_pandas(table: pa.Table, path: Path) -> None:
    """As its users have columns; nulls beside NaN, and decimals, need the types of Arrow."""
    frame = pd.DataFrame({name: _series(table.column(name)) for name in table.column_names})
    frame.astype({"kind": "category"}).to_parquet(path)


def _series(column: pa.ChunkedArray) -> Any:
    if pa.types.is_integer(column.type):
        return pd.array(column.to_pylist(), dtype="Int64")
    if pa.types.is_decimal(column.type) or pa.types.is_floating(column.type):
        return pd.Series(column.combine_chunks(), dtype=pd.ArrowDtype(column.type))
    return column.to_pandas()


def _by_polars(table: pa.Table, path: Path) -> None:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.with_columns(pl.col("kind").cast(pl.Categorical)).write_parquet(path)


def _by_old_spark(table: pa.Table, path: Path) -> None:
    days = [None if day is None else _days_of_julian(day) for day in table.column("born").to_pylist()]
    place = table.column_names.index("born")
    old = table.set_column(place, "born", pa.array(days, pa.int32()).cast(pa.date32()))
    pq.write_table(old.replace_schema_metadata(LEGACY), path)


def _days_of_julian(day: dt.date) -> int:
    """Days since 1970 as a calendar has them that is Julian before 1582-10-15."""
    if day >= dt.date(1582, 10, 15):
        return (day - EPOCH).days
    year, month = (day.year, day.month) if day.month > 2 else (day.year - 1, day.month + 12)
    julian = (1461 * (year + 4716)) // 4 + (306001 * (month + 1)) // 10000 + day.day - 1524
    return julian - 2_440_588


WRITERS: dict[Files, Callable[[pa.Table, Path], None]] = {
    Files.ARROW: pq.write_table,
    Files.PANDAS: _by_pandas,
    Files.POLARS: _by_polars,
    Files.LEGACY: _by_old_spark,
}

# --- tables -----------------------------------------------------------------------------------------------------------

ON_SERVER = {
    "id": "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "at": "timestamptz",
    "kind": "varchar",
    AMOUNT: "numeric(38,9)",
    DECOY: "numeric(38,9)",
    "big": "bigint",
    "ratio": "double precision",
    "born": "date",
    "note": "text",
}
IN_FILE = ON_SERVER | {
    "id": "INTEGER PRIMARY KEY",
    "at": "DATETIME",
    AMOUNT: "DECIMAL_TEXT(38, 9)",
    "big": "BIGINT",
    "ratio": "DOUBLE",
}
"""SQLite takes `DECOY` for the same name."""


def sql_type(kind: pa.DataType, on_server: bool) -> str:
    """Of a column that has the keys of the records."""
    if pa.types.is_decimal(kind):
        return f"{'numeric' if on_server else 'DECIMAL_TEXT'}({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if on_server else "DATETIME"
    return "double precision" if pa.types.is_floating(kind) else "text"


def _fill_orders(shape: Shape, url: str) -> None:
    on_server, name = shape.on_server[0], shape.name
    declared = ON_SERVER if on_server else {key: kind for key, kind in IN_FILE.items() if key != DECOY}
    declared = declared | {name: sql_type(shape.keys.arrow, on_server)}
    _execute(
        url, f"CREATE TABLE {_quoted(ORDERS)} ({', '.join(f'{_quoted(c)} {kind}' for c, kind in declared.items())})"
    )
    # The database numbers the rows, from 1 on as the records are.
    columns = [column for column in declared if column != "id"]
    rows = []
    for one in shape.records:
        values: dict[str, Any] = {
            "at": one.at, "kind": one.kind, name: one.key, AMOUNT: one.amount, DECOY: one.big,
            "big": one.big, "ratio": one.ratio, "born": one.born, "note": one.note,
        }  # fmt: skip
        rows.append([_cell(values[column], on_server) for column in columns])
    _insert(url, ORDERS, columns, rows)


def _fill_shops(keys: Keys, name: str, url: str) -> None:
    if keys.before:
        _execute(url, keys.before)
    _execute(url, f"CREATE TABLE {_quoted(SHOPS)} ({_quoted(LABEL)} text, {_quoted(name)} {keys.column})")
    rows = [[f"{number} 'é\" 🤷", key] for number, key in enumerate([*keys.stored, None])]
    _insert(url, SHOPS, (LABEL, name), rows)


def labels(shape: Shape, place: Place) -> list[tuple[int, str]]:
    """Number of a record and a label, as SQL's own join finds them."""
    keys, on_server = shape.keys, shape.on_server[0]
    asked = [[one.id, _cell(one.key, on_server)] for one in shape.records]
    with warehouse_engine(place.shop).begin() as connection:
        if not on_server:  # or SQLite loses rows by keys with blanks, in some versions
            connection.exec_driver_sql("PRAGMA automatic_index = OFF")
        connection.exec_driver_sql(f"CREATE TEMPORARY TABLE asked (id bigint, k {keys.asked_type})")
        sign = "%s" if on_server else "?"
        for row in asked:
            connection.exec_driver_sql(f"INSERT INTO asked VALUES ({sign}, {sign})", tuple(row))
        query = (
            f"SELECT asked.id, found.l FROM asked JOIN "
            f"(SELECT {_quoted(shape.name)} AS k, {_quoted(LABEL)} AS l FROM {_quoted(SHOPS)}) AS found ON {keys.found}"
        )
        found = connection.execute(sa.text(query.replace(":", r"\:"))).all()
        connection.exec_driver_sql("DROP TABLE asked")
    return sorted((id, label) for id, label in found)


def _cell(value: Any, on_server: bool) -> Any:
    """As a client has it: psycopg2 writes -0.0 as a number without a sign, SQLite knows no decimals and no times."""
    if on_server and isinstance(value, float):
        return repr(value)
    if on_server or value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _execute(url: str, statement: str) -> None:
    """As it is: no sign means anything to SQLAlchemy."""
    engine = warehouse_engine(url)
    with engine.begin() as connection:
        connection.connection.cursor().execute(statement)


def _insert(url: str, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    signs = ", ".join(["?" if url.startswith("sqlite") else "%s"] * len(columns))
    into = f"{_quoted(table)} ({', '.join(map(_quoted, columns))})"
    with warehouse_engine(url).begin() as connection:
        connection.connection.cursor().executemany(f"INSERT INTO {into} VALUES ({signs})", rows)
