"""Delta tables in tests: runs that write to one, and what it holds, by a reader of our own.

The reader replays the table's log in plain Python and has DuckDB read the files that are left: neither delta-rs nor the
package has a part in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import BEGIN, Marker, WriteAction
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.protocol.external_rules import MarkerRow
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.delta.delta_target import DeltaTarget

STARTED = 1_700_000_000.0


@dataclass
class DeltaRun:
    """A run as a driver with this token executes its write actions, numbered from 1, which is the opening one."""

    writer: DeltaWriter
    url: str
    uid: str = "run1"
    token: int = 1
    started: float = STARTED
    ordinal: int = 1
    pipeline: str = "shop"
    given_up: tuple[str, ...] = ()
    takes_over: bool = False
    held: list[WriteAction] = field(default_factory=list)

    @property
    def target(self) -> DeltaTarget:
        mine = (self.uid, self.token, self.started, self.given_up, self.pipeline, "log", self.ordinal, self.takes_over)
        return DeltaTarget(self.writer, WriterIdentity(*mine))

    def marker(self, look: Callable[[MarkerRow], None] | None = None) -> Marker:
        line = ("log", self.pipeline, self.ordinal)
        return Marker(self.uid, "orders", "lake", 0, self.token, self.started, look, line)

    def action(self, number: int, records: pa.Table | None = None) -> WriteAction:
        given = pa.table({}) if records is None else records
        said = {"action": BEGIN} if records is None else {}
        return WriteAction(self.uid, "orders", "lake", number, self.token, given, said)

    def apply(self, *actions: WriteAction) -> None:
        target = self.target
        with target.connect(self.url) as log:
            target.apply(log, self.marker(), actions)

    def open(self) -> None:
        self.apply(self.action(1))

    def write(self, number: int, records: pa.Table) -> None:
        self.apply(self.action(number, records))

    def begin(self, records: pa.Table) -> None:
        """Opening and first records in one group."""
        self.apply(self.action(1), self.action(2, records))

    def close(self, *tables: pa.Table) -> None:
        """Held write actions from number 2 on, and their closing one."""
        held = [self.action(number, records) for number, records in enumerate(tables, 2)]
        closing = self.action(len(tables) + 2, pa.table({}))
        group = HeldGroup(2, closing.number, sum(one.num_rows for one in tables))
        target = self.target
        with target.connect(self.url) as log:
            target.apply_held(log, self.marker(), group, closing, [held] if held else [])


# --- what a table holds -----------------------------------------------------------------------------------------------


def version_of(folder: str | Path) -> int:
    """The newest one, by the names in its log."""
    return max(int(one.stem) for one in (Path(folder) / "_delta_log").glob("*.json") if one.stem.isdigit())


def files_of(folder: str | Path) -> dict[str, Mapping[str, str | None]]:
    """Path of each data file of the newest version → its partition. The whole log must be there."""
    active: dict[str, Mapping[str, str | None]] = {}
    for version in range(version_of(folder) + 1):
        lines = (Path(folder) / "_delta_log" / f"{version:020}.json").read_text().splitlines()
        actions = [json.loads(line) for line in lines]
        for action in actions:
            if "remove" in action:
                active.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                active[action["add"]["path"]] = action["add"]["partitionValues"]
    return active


def numbers_of(folder: str | Path) -> dict[str, int]:
    """App id → number, as the log has them last."""
    found: dict[str, int] = {}
    for version in range(version_of(folder) + 1):
        for line in (Path(folder) / "_delta_log" / f"{version:020}.json").read_text().splitlines():
            if "txn" in (action := json.loads(line)):
                found[action["txn"]["appId"]] = action["txn"]["version"]
    return found


def rows_of(folder: str | Path, *columns: str) -> list[tuple[Any, ...]]:
    """All rows, sorted; values of partitions as texts."""
    rows: list[tuple[Any, ...]] = []
    for path, partition in files_of(folder).items():
        file = str(Path(folder) / unquote(path))
        names = [name for name in columns if name not in partition]
        chosen = ", ".join(f'"{name}"' for name in names) or "1"
        query = f"SELECT {chosen} FROM read_parquet(?, hive_partitioning = false)"
        found = duckdb.execute(query, [file]).fetchall()
        for row in found:
            values = dict(zip(names, row, strict=False)) | dict(partition)
            rows.append(tuple(values[name] for name in columns))
    return sorted(rows, key=repr)


def orders(*ids: int, day: str = "2026-03-01", amount: int = 1) -> pa.Table:
    """Records of one day."""
    count = len(ids)
    return pa.table(
        {
            "day": pa.array([date.fromisoformat(day)] * count, pa.date32()),
            "id": pa.array(ids, pa.int64()),
            "amount": pa.array([amount] * count, pa.int64()),
        }
    )


COLUMNS = {"day": "date", "id": "bigint", "amount": "bigint"}


def day_params(day: str) -> Mapping[str, str]:
    """Run parameters of a day in UTC."""
    start = datetime.fromisoformat(f"{day}T00:00:00+00:00")
    return {"day": day, "day_start": start.isoformat(), "day_end": (start + timedelta(days=1)).isoformat()}
