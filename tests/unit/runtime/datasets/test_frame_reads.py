"""Declared reads of mode ``dataframe`` in a group of this process, compared with plain SQL and with mode ``executors``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import TableRead, Tumbling, generate, stateless
from airflow_logio.runtime.datasets import row_readers
from airflow_logio.runtime.driver import frame_reads
from airflow_logio.runtime.driver.spark_session import SparkSessions
from airflow_logio.runtime.figures.lineage_records import effect
from airflow_logio.runtime.payloads import Payloads
from airflow_logio.runtime.payloads.manifests import is_manifest
from airflow_logio.runtime.systems import table_reads
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.lineage.result import ReadNode
from tests.support.frame_groups import Group, orders_at
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

FILES = [orders_at(1, 5, 23.9), orders_at(24.1, 30, 47, first=3), orders_at(49, 75, 75.5, first=6)]
SHOPS = {
    "sqlite": "CREATE TABLE shops (store INTEGER, name TEXT, opened TIMESTAMP, rate DOUBLE PRECISION)",
    "postgres": "CREATE TABLE shops (store BIGINT, name TEXT, opened TIMESTAMP, rate DOUBLE PRECISION)",
}
FILL = (
    "INSERT INTO shops VALUES (0, 'a', '2001-01-01 10:00:00', 0.5), (1, 'b', NULL, 1.5), (1, 'b2', '1969-12-31 23:59:59', 2),"
    " (2, NULL, '2024-03-31 02:30:00', NULL), (7, 'x', NULL, 7), (NULL, 'nobody', NULL, 0)"
)


def named(orders: Any, shops: Any, everyone: Any) -> Any:
    """By a read with a key, and by one of all rows."""
    joined = orders.join(shops, "store", "left").crossJoin(everyone.groupBy().count())
    return joined.select("inset_id", "id", "name", "opened", "rate", "count")


def group_of(tmp_path: Path, sessions: SparkSessions, url: str) -> Group:
    """The same function in both modes: its two windows differ in a word."""
    group = Group(tmp_path, sessions, orders=FILES)
    group.warehouse = url or group.warehouse
    change(group.warehouse, SHOPS["postgres" if url else "sqlite"])
    change(group.warehouse, FILL)
    reads = {
        "shops": TableRead("warehouse", "shops", ("name", "store", "opened", "rate"), key="store"),
        "everyone": TableRead("warehouse", "shops"),
    }

    @stateless
    def passed(orders: pa.Table) -> pa.Table:
        return orders

    tables = group.operator("tables", passed, "from_orders")
    for mode, source, start in (("dataframe", "from_orders", "from_orders.out"), ("executors", tables, "tables.out")):
        function = generate(mode=mode, columns=("id", "store"), reads=reads)(named)
        group.save(group.operator(mode, function, source, window=Tumbling("1d", on="ts")), mode)
        group.made.lineage(start, f"{mode}.out")
    return group


def used(group: Group, mode: str, output_sets: int) -> dict[tuple[str, Any], Any]:
    """(Input Set, key of a read action) → the rows of it that are for this Input Set, as the log tells."""
    assert group.driver is not None
    found: dict[tuple[str, Any], Any] = {}
    for number in range(1, output_sets + 1):
        origin = backward(group.store, group.driver.run, f"{mode}.out", number)
        (inset,) = origin.input_sets()
        for read in origin.after(inset):
            if isinstance(read, ReadNode):
                table = effect(group.store, group.driver.run, read, inset, Payloads(str(group.payloads)))
                rows = sorted(table.to_pylist(), key=str)
                found[inset.inset_id, read.description["key"]] = (read.records, rows)
                assert read.description["table"] == "shops"
                assert ("keys" in read.description) == (read.description["key"] is not None)
    return found


def manifests(group: Group) -> list[str]:
    """Of reads that the log names."""
    rows = group.store.tables.bodies.items()
    return [
        row.ref
        for key, row in rows
        if row.ref and key.channel.startswith("read:") and is_manifest(row.ref.partition("#")[0])
    ]


@pytest.mark.parametrize(
    ("database", "most_bytes"),
    [("sqlite", 2**20), ("sqlite", 0), pytest.param("postgres", 0, marks=pytest.mark.postgres)],
)
def test_an_operator_moves_to_mode_dataframe_by_changing_one_word(
    tmp_path: Path,
    sessions: SparkSessions,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    most_bytes: int,
) -> None:
    """Records, read actions in the log, and the rows that each Input Set used: whatever the size, and whoever has read."""
    monkeypatch.setattr(frame_reads, "SMALL_BYTES", most_bytes)
    monkeypatch.setattr(table_reads, "KEYS_PER_QUERY", 2)
    monkeypatch.setattr(row_readers, "KEYS_PER_QUERY", 2)
    group = group_of(tmp_path, sessions, request.getfixturevalue("postgres_url") if database == "postgres" else "")
    assert group.run()
    shops = rows_of(group.warehouse, "SELECT store, name, opened, rate FROM shops")
    values = ", ".join(f"({', '.join('NULL' if one is None else repr(str(one)) for one in row)})" for row in shops)
    expected = group.expected(
        "id, name, opened::TIMESTAMP, rate::DOUBLE, 6",
        f"LEFT JOIN (VALUES {values}) AS shops(shop, name, opened, rate) ON store = shop::INT",
    )
    columns = "id, name, opened::TIMESTAMP, rate, count"
    assert group.published(columns, "dataframe") == expected
    assert group.published(columns, "executors") == expected
    by_frames = used(group, "dataframe", 4)
    assert len(by_frames) == 8
    assert by_frames == used(group, "executors", 4)
    assert bool(manifests(group)) == (most_bytes == 0)
