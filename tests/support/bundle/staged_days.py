"""Orders of a day with pictures, more bytes than a driver takes: a chain in one group, in another one a table that a run owns
by its day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio import Days, FolderSource, Pipeline, TableWriter, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@stateless(mode="dataframe")
def signed(orders: DataFrame) -> DataFrame:
    """With the hash of each picture, and a value that is another one each time it is computed."""
    return orders.selectExpr("day", "id", "picture", "md5(picture) AS signature", "uuid() AS drawn")


def whole(records: Iterator[pa.Table], params: Any) -> str | None:
    days = {str(day) for table in records for day in table.column("day").unique().to_pylist()}
    return None if days == {params["day"]} else f"days {days}"


columns = {"day": "date", "id": "bigint", "picture": "binary", "signature": "text", "drawn": "uuid"}
audit = {"whole": whole, "signed": "SELECT id FROM orders WHERE day = :day AND signature <> md5(picture)"}


def made(**options: Any) -> Pipeline:
    """With a table that replaces the day as the options say."""
    staged = Pipeline(
        "staged_days", partition=Days("day", zone="UTC"), params={"orders": str}, connections=["warehouse"]
    )
    raw = staged.source("raw", FolderSource("{orders}/dt={day}"))
    signing = staged.operator("signed", signed, raw)
    owns: dict[str, Any] = {"primary_key": ["day", "id"], "on_new_run": "overwrite", "by": ("day",), **options}
    staged.writer("save", TableWriter("warehouse", "orders", columns, **owns), signing)
    staged.group("front", "raw", "signed")
    staged.group("back", "save")
    return staged


staged = made(audit=audit)
filled = made(switch="at once")
superseded = made(on_new_run="supersede", by=())
