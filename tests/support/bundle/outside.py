"""Functions that need what comes from outside: run parameters, and an environment variable that is a secret."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless

AT_IMPORT = "SHOP_TOKEN" in os.environ


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@stateless
def priced(sales: pa.Table, params: Mapping[str, Any]) -> pa.Table:
    """Whether the token is where it must not be: on the command line of the driver or of its spark-submit."""
    token = os.environ["SHOP_TOKEN"]
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ("self", os.getppid())]
    count = sales.num_rows
    return pa.table(
        {
            "price": [params["rate"] * n for n in sales["n"].to_pylist()],
            "token": [digest(token)] * count,
            "at_import": [AT_IMPORT] * count,
            "shown": [any(token.encode() in line for line in lines)] * count,
        }
    )


COLUMNS = {"price": "double", "token": "text", "at_import": "boolean", "shown": "boolean"}

outside = Pipeline(
    "outside", params={"numbers": str, "rate": float}, connections=["warehouse"], environment=["SHOP_TOKEN"]
)
read = outside.source("read", ParquetSource("{numbers}"))
work = outside.operator("work", priced, read)
save = outside.writer("save", TableWriter("warehouse", "prices", COLUMNS, on_new_run="replace"), work)
outside.group("all", read, work, save)
