"""Delta tables that others change under a writer, and values and places that delta-rs or Python do not take as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LogInconsistent,
    PipelineDefinitionError,
    WriteRefused,
)
from airflow_logio.systems.delta.table_log import Commit, LoadedTable, TableLog
from tests.support.delta_tables import COLUMNS, DeltaRun, day_params, files_of, orders, rows_of, version_of

Before = Callable[[], None]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Before], None]:
    """Something happens once, after an attempt has decided, and before its commit."""
    plain, waiting = TableLog.commit, list[Before]()

    def commit(self: TableLog, loaded: LoadedTable, commit: Commit) -> None:
        if waiting:
            waiting.pop()()
        plain(self, loaded, commit)

    monkeypatch.setattr(TableLog, "commit", commit)
    return waiting.append


def appending(**more: Any) -> DeltaWriter:
    return DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="append", **more)


def ids(lake: str) -> list[Any]:
    return [row[0] for row in rows_of(f"{lake}/orders", "id")]


# --- another table, or another state of it, in the place ---------------------------------------------------------------


@pytest.mark.parametrize("is_copy", [True, False], ids=["an older copy", "another table"])
def test_a_driver_that_lives_on_believes_no_version_that_it_has_read_before(lake: str, is_copy: bool) -> None:
    """Both have more versions than the driver knows. Their markers say that its writes are lost: it adds nothing."""
    uri, run = f"{lake}/orders", DeltaRun(appending(), lake)
    with run.target.connect(lake) as log:
        run.target.apply(log, run.marker(), [run.action(1), run.action(2, orders(1))])
        shutil.copytree(uri, f"{lake}/copy")
        run.target.apply(log, run.marker(), [run.action(3, orders(2))])
        shutil.rmtree(uri)
        if is_copy:
            shutil.copytree(f"{lake}/copy", uri)
        for number in range(50, 54):
            deltalake.write_deltalake(uri, orders(number), mode="append", partition_by=["day"])
        version = version_of(uri)
        with pytest.raises(LogInconsistent, match="was the external system restored from an older copy"):
            run.target.apply(log, run.marker(), [run.action(4, orders(3))])
    assert (ids(lake), version_of(uri)) == ([*([1] if is_copy else []), 50, 51, 52, 53], version)


@pytest.mark.parametrize("change", ["partitions", "types"])
def test_files_that_were_written_for_other_columns_are_not_committed(
    lake: str, before_commit: Callable[[Before], None], change: str
) -> None:
    """Another program gives the table other partitions, or types, between files and commit. A file of the old ones in it
    would let no reader open the table again."""
    uri = f"{lake}/orders"
    deltalake.write_deltalake(uri, orders(1), partition_by=["day"])
    run = DeltaRun(DeltaWriter("lake", "orders", on_new_run="append"), lake)
    run.begin(orders(2))

    def rewrite() -> None:
        new = orders(5) if change == "partitions" else orders(5).set_column(2, "amount", pa.array(["x"]))
        by = ["id"] if change == "partitions" else ["day"]
        deltalake.write_deltalake(uri, new, mode="overwrite", schema_mode="overwrite", partition_by=by)

    before_commit(rewrite)
    if change == "partitions":
        run.write(3, orders(3))
        assert sorted(map(str, files_of(uri).values())) == ["{'id': '3'}", "{'id': '5'}"]
    else:
        with pytest.raises(WriteRefused, match="column 'amount' is string"):
            run.write(3, orders(3))
    read = sorted(deltalake.DeltaTable(uri).to_pyarrow_table().column("id").to_pylist())
    assert read == ([3, 5] if change == "partitions" else [5])


def test_a_version_that_is_free_again_is_not_taken(lake: str, before_commit: Callable[[Before], None]) -> None:
    """Others have committed, made a checkpoint, and removed the commits before it: the next version is one of the past."""
    uri, run = f"{lake}/orders", DeltaRun(appending(), lake)
    run.begin(orders(1))

    def clean() -> None:
        for number in (50, 51):
            deltalake.write_deltalake(uri, orders(number), mode="append")
        deltalake.DeltaTable(uri).create_checkpoint()
        for version in range(version_of(uri)):
            (Path(uri) / "_delta_log" / f"{version:020}.json").unlink()

    before_commit(clean)
    run.write(3, orders(2))
    left = sorted(path.name[18:] for path in (Path(uri) / "_delta_log").glob("*.json"))
    assert left == ["03.json", "04.json"]
    read = deltalake.DeltaTable(uri).to_pyarrow_table().column("id").to_pylist()
    assert sorted(read) == [1, 2, 50, 51]


# --- values ------------------------------------------------------------------------------------------------------------

_LAST = 253_402_300_799_999_999
"""Microsecond at the end of the year 9999."""


@pytest.mark.parametrize("micros", [_LAST, _LAST + 10**15, -(2**62), 2**62], ids=["9999", "later", "before 1", "far"])
def test_times_that_python_lacks_are_written_without_bounds(lake: str, micros: int) -> None:
    kinds = {"t": "timestamp", "z": "timestamptz", "d": "date", "i": "bigint"}
    instants = pa.array([micros, 0], pa.int64())
    days = pa.array([4_000_000 if micros > 0 else -4_000_000, 0], pa.int32()).cast(pa.date32())
    records = pa.table({"t": instants.cast("timestamp[us]"), "z": instants.cast(pa.timestamp("us", "UTC")), "d": days})
    run = DeltaRun(DeltaWriter("lake", "orders", kinds, on_new_run="append"), lake)
    run.begin(records.append_column("i", pa.array([1, 2], pa.int64())))
    ((path, _),) = files_of(f"{lake}/orders").items()
    query = "SELECT epoch_us(t), epoch_us(z), d - DATE '1970-01-01' FROM read_parquet(?) ORDER BY i LIMIT 1"
    assert duckdb.execute(query, [f"{lake}/orders/{path}"]).fetchall() == [
        (micros, micros, days.cast("int32")[0].as_py())
    ]
    lines = (Path(lake) / "orders/_delta_log" / f"{1:020}.json").read_text().splitlines()
    (stats,) = [json.loads(one["add"]["stats"]) for one in map(json.loads, lines) if "add" in one]
    assert stats["minValues"] == {"i": 1}, "a bound of one side says nothing"


def test_a_date_that_names_no_partition_is_refused(lake: str) -> None:
    days = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    with pytest.raises(WriteRefused, match="after 9999"):
        DeltaRun(appending(), lake).begin(orders(1).set_column(0, "day", days))


_STRUCT = pa.schema([("a", pa.struct([("x", pa.int64()), ("y", pa.float64())]))])
_LOSSY: list[tuple[str, pa.Schema, pa.Array]] = [
    ("a field more", _STRUCT, pa.array([{"x": 1, "y": 1.0, "z": 3}])),
    ("a field less", _STRUCT, pa.array([{"x": 1}])),
    ("text in a field", _STRUCT, pa.array([{"x": "7", "y": 1.0}])),
    ("a list of another kind", pa.schema([("a", pa.list_(pa.int64()))]), pa.array([[1.0]])),
    ("double in float", pa.schema([("a", pa.float32())]), pa.array([0.1])),
]


@pytest.mark.parametrize(("schema", "values"), [one[1:] for one in _LOSSY], ids=[one[0] for one in _LOSSY])
def test_what_arrow_would_drop_or_round_is_refused(lake: str, schema: pa.Schema, values: pa.Array) -> None:
    deltalake.DeltaTable.create(f"{lake}/orders", schema)
    with pytest.raises(WriteRefused, match="do not fit without loss"):
        DeltaRun(DeltaWriter("lake", "orders", on_new_run="append"), lake).begin(pa.table({"a": values}))


def test_nested_columns_arrive_as_they_are(lake: str) -> None:
    """Fields in another order, dictionaries of texts, maps, and lists of lists."""
    kinds = {"s": _STRUCT.field("a").type, "m": pa.map_(pa.string(), pa.int64()), "l": pa.list_(pa.list_(pa.int64()))}
    deltalake.DeltaTable.create(f"{lake}/orders", pa.schema([*kinds.items(), ("t", pa.string())]))
    struct = pa.array([{"y": 0.5, "x": 7}], pa.struct([("y", pa.float64()), ("x", pa.int32())]))
    lists = pa.array([[[1], None]], pa.large_list(pa.list_(pa.int32())))
    text = pa.array(["é"]).dictionary_encode()
    records = pa.table({"s": struct, "m": pa.array([[("k", 1)]], kinds["m"]), "l": lists, "t": text})
    DeltaRun(DeltaWriter("lake", "orders", on_new_run="append"), lake).begin(records)
    (row,) = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table().to_pylist()
    assert row == {"s": {"x": 7, "y": 0.5}, "m": [("k", 1)], "l": [[1], None], "t": "é"}


def test_a_row_with_nan_that_comes_again_is_the_same_row(lake: str) -> None:
    kinds = {"k": "bigint", "v": "bigint", "f": "double", "d": "date"}
    run = DeltaRun(DeltaWriter("lake", "orders", kinds, mode="upsert", primary_key=["k"], version="v"), lake)
    far = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    row = pa.table({"k": [1], "v": [1], "f": [float("nan")], "d": far})
    run.begin(pa.concat_tables([row, row]))
    run.write(3, row)
    assert len(rows_of(f"{lake}/orders", "k")) == 1
    with pytest.raises(WriteRefused, match="have the version 1, and differ"):
        run.write(4, row.set_column(3, "d", pa.array([4_000_001], pa.int32()).cast(pa.date32())))


@pytest.mark.parametrize("value", [pa.scalar(20260301), pa.scalar(0, pa.timestamp("us"))], ids=["number", "timestamp"])
def test_a_day_that_is_told_by_no_text_or_date_is_refused(lake: str, value: pa.Scalar) -> None:
    """Else a run without rows would say that its day is empty, and leave it as it is."""
    old = pa.table({"day": pa.repeat(value, 1), "id": [1]})
    deltalake.write_deltalake(f"{lake}/orders", old, partition_by=["day"])
    writer = DeltaWriter("lake", "orders", on_new_run="overwrite", by=["day"], empty="replace")
    run = DeltaRun(writer.for_run(day_params("2026-03-01")), lake)
    with pytest.raises(WriteRefused, match="own its rows by the name of their day"):
        run.open()
    with pytest.raises(PipelineDefinitionError, match="days are date or text"):
        DeltaWriter("lake", "t", {"day": "int", "id": "int"}, partition_by=["day"], on_new_run="overwrite", by=["day"])


def test_columns_that_differ_by_case_are_refused() -> None:
    with pytest.raises(PipelineDefinitionError, match="columns 'id' and 'ID' differ by case only"):
        DeltaWriter("lake", "orders", {"id": "bigint", "ID": "bigint"})


@pytest.mark.parametrize(
    ("name", "value", "mode", "said"),
    [
        ("delta.appendonly", "True", "replace", "is append-only"),
        ("DELTA.settransactionRetentionDuration", "interval 1 day", "append", "forgets the markers"),
    ],
)
def test_properties_are_read_as_spark_reads_them(lake: str, name: str, value: str, mode: str, said: str) -> None:
    """Whatever their case."""
    deltalake.DeltaTable.create(f"{lake}/orders", orders(1).schema)
    first = Path(lake) / "orders/_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = {name: value}
    first.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(WriteRefused, match=said):
        DeltaRun(DeltaWriter("lake", "orders", on_new_run=mode), lake).begin(orders(1))


# --- what delta-rs does not take ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a%20b", "a%", "a\\b", "a[b]", "a^b", "a?b", "a#b", "a\tb"])
def test_a_path_that_delta_rs_reads_as_another_one_is_refused_before_a_run(lake: str, name: str) -> None:
    (Path(lake) / name).mkdir()
    run = DeltaRun(appending(), f"{lake}/{name}")
    for ask in (partial(run.target.inspect, run.url), partial(run.begin, orders(1))):
        with pytest.raises(ConfigurationError, match="which delta-rs does not take as it is"):
            ask()
    assert [path.name for path in Path(lake).rglob("*")] == [name]


@pytest.mark.parametrize("name", ["a b", "a{b}", "ü", "日本", "a'b", 'a"b', "a:b", "a+b", "a&b=c", "$a", "~"])
def test_other_paths_are_taken_as_they_are(lake: str, name: str) -> None:
    (Path(lake) / name).mkdir()
    run = DeltaRun(appending(), f"{lake}/{name}")
    run.begin(orders(1))
    run.write(3, orders(2))
    assert (ids(f"{lake}/{name}"), [path.name for path in Path(lake).iterdir()]) == ([1, 2], [name])


@pytest.fixture(scope="module")
def panic() -> type[BaseException]:
    """What a panic of delta-rs raises: it is no Exception."""
    table = pa.table({"a": [1]})
    try:
        deltalake.write_deltalake("memory:///a[b", table)
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            return type(error)
    pytest.skip("this version of delta-rs does not panic there")


@pytest.mark.parametrize("call", ["update_incremental", "get_add_actions", "schema", "create_write_transaction"])
def test_a_panic_of_delta_rs_parks_a_group_and_ends_no_driver(
    lake: str, call: str, panic: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake.write_deltalake(f"{lake}/orders", orders(1), partition_by=["day"])
    run = DeltaRun(DeltaWriter("lake", "orders", on_new_run="replace"), lake)

    def broken(*_: Any, **__: Any) -> None:
        raise panic("index out of bounds")

    monkeypatch.setattr(deltalake.DeltaTable, call, broken)
    with pytest.raises((WriteRefused, ExternalUnavailable), match="PanicException"):
        run.begin(orders(2))
    monkeypatch.undo()
    run.begin(orders(2))
    assert ids(lake) == [2]


@pytest.mark.parametrize("call", ["transaction_version", "get_add_actions"])
def test_a_store_that_fails_while_the_table_is_read_is_unavailable(
    lake: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs reads most of a table when it is asked, and not when it is opened."""
    deltalake.write_deltalake(f"{lake}/orders", orders(1), partition_by=["day"])

    def broken(*_: Any, **__: Any) -> None:
        raise deltalake.exceptions.DeltaError("Generic S3 error: 503 Slow Down")

    monkeypatch.setattr(deltalake.DeltaTable, call, broken)
    with pytest.raises(ExternalUnavailable, match="503 Slow Down"):
        DeltaRun(DeltaWriter("lake", "orders", on_new_run="replace"), lake).begin(orders(2))
