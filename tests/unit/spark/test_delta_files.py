"""Delta tables whose data files executors write: records and sentences are those of the driver's own way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogInconsistent, LogioError, WriteRefused
from airflow_logio.spark import delta_files
from airflow_logio.spark.dataset_jobs import materialized
from airflow_logio.systems.delta import table_place
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.payloads.dataset import Dataset
from tests.support.datasets import dataset_of
from tests.support.delta_files import ByExecutors, Lines
from tests.support.delta_tables import COLUMNS, DeltaRun, day_params, files_of, orders, rows_of
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

DAY = "2026-03-01"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of a dataset is enough for a task."""
    monkeypatch.setattr(delta_files, "TASK_BYTES", 1)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of a dataset is large enough to be copied."""
    monkeypatch.setattr(delta_files, "COPIED_BYTES", 1)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def appending(columns: dict[str, str] | None = None, partition_by: Sequence[str] = ("day",)) -> DeltaWriter:
    return DeltaWriter("lake", "orders", columns or COLUMNS, partition_by=partition_by, on_new_run="append")


def numbers_of_records(folder: Path) -> dict[str, int]:
    """File → records, as the table's log has them."""
    found = {}
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                found[action["add"]["path"]] = json.loads(action["add"]["stats"])["numRecords"]
    return found


def test_tasks_write_what_the_driver_writes(lake: Path, spark: Any, epoch: EpochPayloads) -> None:
    """All types, nulls, several datasets and a small event, in one commit; and what the log says of each file is so."""
    frame = spark.range(0, 20_000, 1, 5).selectExpr(
        "id",
        "cast(id as int) AS small",
        "if(id % 7 = 0, null, id / 3) AS ratio",
        "cast(id as decimal(12, 3)) AS price",
        "concat('é ', id) AS note",
        "id % 2 = 0 AS even",
        "timestamp_ntz '2026-03-01 00:00:00' + make_dt_interval(0, 0, 0, id / 1000) AS at",
        "date_add(date '2026-03-01', cast(id % 3 as int)) AS day",
        "cast(cast(id as string) as binary) AS raw",
    )
    kinds = ("bigint", "int", "double", "decimal(12,3)", "text", "boolean", "timestamp", "date", "binary")
    columns = dict(zip(frame.columns, kinds, strict=True))
    made = materialized(epoch, "event 1", "d/1", frame)
    also = materialized(epoch, "event 2", "d/2", frame.where("id < 100"))
    written = {}
    for way in ("tasks", "driver"):
        writer = DeltaWriter("lake", way, columns, partition_by=["day"], on_new_run="append")
        run = ByExecutors(writer, str(lake)).ready(spark, epoch.root, way)
        run.apply(run.action(1), run.of(2, made), run.action(3, made.table.slice(0, 5)), run.of(4, also))
        run.apply(run.action(1), run.of(2, made), run.action(3, made.table.slice(0, 5)), run.of(4, also))
        assert len(run.jobs) == (way == "tasks")
        table = deltalake.DeltaTable(str(lake / way)).to_pyarrow_table()
        written[way] = table.select(list(columns)).sort_by([("id", "ascending"), ("note", "ascending")])
        counts = numbers_of_records(lake / way)
        assert sum(counts.values()) == 20_105
        for path in files_of(lake / way):
            assert duckdb.execute(f"SELECT count(*) FROM read_parquet('{lake / way / path}')").fetchall() == [
                (counts[path],)
            ]
    assert written["tasks"] == written["driver"]
    assert written["tasks"].column("id").to_pylist() == sorted([*range(20_000), *range(100), *_five(made)])


def _five(made: Dataset) -> Sequence[int]:
    return [int(one) for one in made.table.slice(0, 5).column("id").to_pylist()]


PLAIN = {
    "id": "bigint",
    "small": "int",
    "ratio": "double",
    "note": "text",
    "even": "boolean",
    "at": "timestamp",
    "day": "date",
    "raw": "binary",
}


def plain(spark: Any, first: int = 0) -> Any:
    return spark.range(first, first + 4_000, 1, 2).selectExpr(
        "id",
        "if(id % 5 = 0, null, cast(id as int)) AS small",
        "if(id % 7 = 0, double('NaN'), id / 3) AS ratio",
        "if(id % 3 = 0, null, concat('é ', id)) AS note",
        "id % 2 = 0 AS even",
        "timestamp_ntz '2026-03-01 00:00:00.123456' + make_dt_interval(0, 0, 0, id / 1000) AS at",
        "date_add(date '2026-03-01', cast(id % 3 as int)) AS day",
        "cast(cast(id as string) as binary) AS raw",
    )


@pytest.mark.parametrize("by", ["spark", "arrow"])
def test_a_file_that_is_what_the_table_would_get_is_copied(
    by: str, lake: Path, spark: Any, epoch: EpochPayloads, copies: None
) -> None:
    """And the log says of it what it says of one that was decoded; a vacuum behind the commit costs nothing."""
    frame = plain(spark)
    made = materialized(epoch, "event 1", "d/1", frame)
    if by == "arrow":
        table = made.table
        made = dataset_of(epoch, table.slice(0, 1_000), table.slice(1_000), purpose="d/2")
    said, rows = {}, {}
    for way in ("tasks", "driver"):
        run = ByExecutors(DeltaWriter("lake", way, PLAIN, on_new_run="append"), str(lake)).ready(spark, epoch.root, way)
        run.apply(run.action(1), run.of(2, made))
        said[way] = summed(lake / way)
        rows[way] = deltalake.DeltaTable(str(lake / way)).to_pyarrow_table().select(list(PLAIN)).sort_by("id")
    assert rows["tasks"].to_pylist().__repr__() == rows["driver"].to_pylist().__repr__()
    assert said["tasks"] == said["driver"]
    sources = sorted(Path(path).read_bytes() for path in made.file_paths())
    paths = [lake / "tasks" / path for path in files_of(lake / "tasks")]
    assert sorted(path.read_bytes() for path in paths) == sources
    assert all(path.stat().st_nlink == 1 for path in paths)

    run = ByExecutors(DeltaWriter("lake", "tasks", PLAIN, on_new_run="append"), str(lake)).ready(spark, epoch.root)
    target = run.target
    with target.connect(run.url) as log:
        commit = log.commit

        def behind(*arguments: Any) -> None:
            commit(*arguments)
            for path in set(files_of(lake / "tasks")) - {str(one.relative_to(lake / "tasks")) for one in paths}:
                (lake / "tasks" / path).unlink()

        log.commit = behind
        target.apply(log, run.marker(), [run.of(3, made)])
    assert len(rows_of(lake / "tasks", "id")) == 8_000, "what was removed is copied again"


def summed(folder: Path) -> dict[str, Any]:
    """What the log says of all files together."""
    stats = []
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        stats += [
            json.loads(one["add"]["stats"]) for one in map(json.loads, commit.read_text().splitlines()) if "add" in one
        ]
    names = {name for one in stats for name in one["minValues"]}
    return {
        "numRecords": sum(one["numRecords"] for one in stats),
        "nullCount": {name: sum(one["nullCount"][name] for one in stats) for name in PLAIN},
        "minValues": {name: min(one["minValues"][name] for one in stats) for name in names},
        "maxValues": {name: max(one["maxValues"][name] for one in stats) for name in names},
    }


@pytest.mark.parametrize(
    ("columns", "partition_by", "expression"),
    [
        ({"id": "bigint", "at": "timestamp"}, (), "timestamp '2026-03-01 00:00:00' AS at"),
        ({"id": "bigint", "price": "decimal(9,2)"}, (), "cast(id as decimal(9, 2)) AS price"),
        ({"id": "bigint", "small": "bigint"}, (), "cast(id as int) AS small"),
        ({"id": "bigint", "day": "date"}, ("day",), "date '2026-03-01' AS day"),
    ],
)
def test_any_other_file_is_decoded(
    columns: dict[str, str],
    partition_by: Sequence[str],
    expression: str,
    lake: Path,
    spark: Any,
    epoch: EpochPayloads,
    copies: None,
) -> None:
    """An instant, for a column without a zone; a decimal that Spark writes as an integer; a smaller type; partitions."""
    made = materialized(epoch, "event 1", "d/1", spark.range(0, 100, 1, 1).selectExpr("id", expression))
    run = ByExecutors(appending(columns, partition_by), str(lake)).ready(spark, epoch.root)
    run.apply(run.action(1), run.of(2, made))
    assert len(run.jobs) == 1
    (path,) = files_of(lake / "orders")
    assert (lake / "orders" / path).read_bytes() != Path(made.file_paths()[0]).read_bytes()
    assert rows_of(lake / "orders", "id") == sorted([(one,) for one in range(100)], key=repr)
    name = next(name for name in columns if name != "id")
    found = deltalake.DeltaTable(str(lake / "orders")).to_pyarrow_table().sort_by("id").column(name).to_pylist()
    assert found == made.table.sort_by("id").column(name).to_pylist()


def test_nulls_where_a_table_has_none_are_refused_in_a_copy_as_well(
    lake: Path, spark: Any, epoch: EpochPayloads, copies: None
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    deltalake.DeltaTable.create(str(lake / "orders"), schema)
    made = dataset_of(epoch, pa.table({"id": [1]}), pa.table({"id": pa.array([None], pa.int64())}))
    run = ByExecutors(DeltaWriter("lake", "orders", on_new_run="append"), str(lake)).ready(spark, epoch.root)
    with pytest.raises(WriteRefused, match=r"column 'id' may not be null, and 1 records of write action 2 .* are"):
        run.apply(run.action(1), run.of(2, made))
    assert files_of(lake / "orders") == {}
    good = dataset_of(epoch, pa.table({"id": [1]}), purpose="d/2")
    run.apply(run.action(1), run.of(2, good))
    assert [row for row in rows_of(lake / "orders", "id")] == [(1,)]


def test_many_partitions_are_a_file_for_each_task(lake: Path, spark: Any, epoch: EpochPayloads) -> None:
    frame = spark.range(0, 60_000, 1, 3).selectExpr(
        "date_add(date '2026-01-01', cast(id % 200 as int)) AS day", "id", "id * 2 AS amount"
    )
    made = materialized(epoch, "event 1", "d/1", frame)
    run = ByExecutors(appending(), str(lake)).ready(spark, epoch.root)
    run.apply(run.action(1), run.of(2, made))
    paths = files_of(lake / "orders")
    assert len(paths) == 200 * 3
    query = "SELECT date '2026-01-01' + CAST(id % 200 AS int), id, id * 2 FROM range(60000) AS t(id)"
    wanted = sorted(((str(day)[:10], *more) for day, *more in duckdb.execute(query).fetchall()), key=repr)
    assert rows_of(lake / "orders", "day", "id", "amount") == wanted
    assert set(numbers_of_records(lake / "orders").values()) == {100}


def test_a_day_of_datasets_is_replaced_by_one_job_and_one_commit(lake: Path, spark: Any, epoch: EpochPayloads) -> None:
    by_day = DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="overwrite", by=["day"])
    old = DeltaRun(by_day.for_run(day_params(DAY)), str(lake), "old")
    old.open()
    old.close(orders(-1))
    run = ByExecutors(by_day.for_run(day_params(DAY)), str(lake), "new", ordinal=2).ready(spark, epoch.root)
    run.open()
    made = [
        materialized(epoch, f"event {number}", f"d/{number}", frame)
        for number in range(3)
        for frame in [
            spark.range(number * 100, number * 100 + 100, 1, 2).selectExpr(f"date '{DAY}' AS day", "id", "id AS amount")
        ]
    ]
    run.close_datasets(*made)
    run.close_datasets(*made)
    assert len(run.jobs) == 1
    assert [row[0] for row in rows_of(lake / "orders", "id")] == sorted(range(300), key=lambda one: repr((one,)))
    late = ByExecutors(by_day.for_run(day_params(DAY)), str(lake), "late", ordinal=3).ready(spark, epoch.root)
    late.open()
    other = spark.range(5).selectExpr("if(id = 3, date '2026-03-02', date '2026-03-01') AS day", "id", "id AS amount")
    with pytest.raises(WriteRefused, match=r"1 of \d records are not of day=2026-03-01, .*: they have 2026-03-02"):
        late.close_datasets(materialized(epoch, "event 9", "d/9", other))
    assert len(rows_of(lake / "orders", "id")) == 300


@pytest.mark.parametrize(
    ("columns", "records"),
    [
        ({"id": "int"}, pa.table({"id": pa.array([1, 2**40], pa.int64())})),
        ({"id": "bigint"}, pa.table({"id": ["a text"]})),
        ({"id": "bigint", "price": "decimal(4,2)"}, pa.table({"id": [1], "price": [Decimal("123.456")]})),
        ({"id": "bigint", "note": "text"}, pa.table({"id": [1, 2], "note": ["a", ""]})),
        ({"id": "bigint"}, pa.table({"id": [1], "more": [1]})),
    ],
)
def test_what_does_not_fit_is_refused_in_the_same_words(
    lake: Path, spark: Any, epoch: EpochPayloads, columns: dict[str, str], records: pa.Table
) -> None:
    """In one of many files."""
    partition_by = ["note"] if "note" in columns else ()
    kept = pa.table({name: records.column(name).slice(0, 1) for name in records.column_names})
    made = dataset_of(epoch, kept, records)
    said = set()
    for way in ("tasks", "driver"):
        run = ByExecutors(appending(columns, partition_by), str(lake)).ready(spark, epoch.root, way)
        with pytest.raises(LogioError) as refused:
            run.apply(run.action(1), run.of(2, made))
        said.add((type(refused.value), str(refused.value)))
    assert len(said) == 1, said
    assert files_of(lake / "orders") == {}


def test_a_damaged_dataset_and_an_executor_without_the_table_change_nothing(
    lake: Path, spark: Any, epoch: EpochPayloads
) -> None:
    made = dataset_of(epoch, orders(1), orders(2))
    run = ByExecutors(appending(), str(lake)).ready(spark, epoch.root)
    run.open()
    path = Path(list(made.file_paths())[1])
    kept = path.read_bytes()
    path.write_bytes(kept[:-1])
    with pytest.raises(LogInconsistent, match="is damaged"):
        run.apply(run.of(2, made))
    path.write_bytes(kept)

    def hidden(start: Lines, spark: Any) -> pa.Table:
        lake.rename(lake.with_name("elsewhere"))
        try:
            return start(spark)
        finally:
            lake.with_name("elsewhere").rename(lake)

    run.around = hidden
    with pytest.raises(ConfigurationError, match="an executor does not see the table; driver and all executors need"):
        run.apply(run.of(2, made))
    assert not lake.with_name("elsewhere").exists()
    run.around = lambda start, spark: start(spark)
    run.apply(run.of(2, made))
    assert rows_of(lake / "orders", "id") == [(1,), (2,)]


def test_files_of_attempts_that_do_not_count_are_never_named_and_a_vacuum_removes_them(
    lake: Path, spark: Any, epoch: EpochPayloads
) -> None:
    """A job is done twice, and an answer is lost; files vanish before the commit; a zombie writes behind its successor."""
    made = dataset_of(epoch, orders(*range(10)), orders(*range(10, 20), day="2026-03-02"))
    run = ByExecutors(appending(), str(lake)).ready(spark, epoch.root)
    run.open()

    def twice(start: Lines, spark: Any) -> pa.Table:
        start(spark)
        return start(spark)

    def lost(start: Lines, spark: Any) -> pa.Table:
        lines = start(spark)
        return lines.slice(0, lines.num_rows - 1)

    def vacuumed(start: Lines, spark: Any) -> pa.Table:
        lines = start(spark)
        vacuum(lake / "orders")
        return lines

    for around in (lost, vacuumed):
        run.around = around
        with pytest.raises((ExternalUnavailable, ConfigurationError), match=r"written again|does not see"):
            run.apply(run.of(2, made))
    run.around = twice
    run.apply(run.of(2, made))
    zombie = ByExecutors(appending(), str(lake)).ready(spark, epoch.root)
    zombie.apply(zombie.of(2, made))
    assert not zombie.jobs, "what is applied is not written again"

    def overtaken(start: Lines, spark: Any) -> pa.Table:
        lines = start(spark)
        run.around = lambda start, spark: start(spark)
        run.apply(run.of(3, made))
        return lines

    zombie.around = overtaken
    zombie.apply(zombie.of(3, made))
    assert len(zombie.jobs) == 1
    wanted = sorted([(one,) for one in range(20)] * 2, key=repr)
    assert rows_of(lake / "orders", "id") == wanted
    named = set(files_of(lake / "orders"))
    there = {str(path.relative_to(lake / "orders")) for path in (lake / "orders").rglob("*.parquet")}
    assert there > named and len(there - named) >= 4
    vacuum(lake / "orders")
    left = {str(path.relative_to(lake / "orders")) for path in (lake / "orders").rglob("*.parquet")}
    assert left == named
    assert rows_of(lake / "orders", "id") == wanted


def vacuum(folder: Path) -> None:
    table = deltalake.DeltaTable(str(folder))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def test_few_bytes_and_drivers_without_spark_need_no_job(
    lake: Path, spark: Any, epoch: EpochPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_files, "TASK_BYTES", 2**20)
    made = [dataset_of(epoch, orders(number), purpose=f"d/{number}") for number in range(20)]
    run = ByExecutors(appending(), str(lake)).ready(spark, epoch.root)
    run.apply(run.action(1), *(run.of(number, one) for number, one in enumerate(made, 2)))
    assert not run.jobs
    assert len(files_of(lake / "orders")) == 1, "many small events are one file"
    assert rows_of(lake / "orders", "id") == sorted([(number,) for number in range(20)], key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["objects", "proxied_objects"])
def test_payloads_and_table_in_buckets(
    store: str, spark: Any, request: pytest.FixtureRequest, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials are those of the environment of tasks, and in no job."""
    monkeypatch.setattr(table_place, "_AT_ONCE", 1)  # moto, on a busy machine, lets two of several commits succeed
    objects: ObjectStore = request.getfixturevalue("objects")
    payloads: ObjectStore = request.getfixturevalue(store)  # S3Proxy does not refuse a second put, so it has no table
    with reached(objects):
        url = objects.new_url("lake")
        epoch = Payloads(payloads.new_url("payloads")).epoch("run", "g", 1, 0)
        days = pa.table(
            {
                "day": [date(2026, 3, 1 + number % 3) for number in range(3_000)],
                "id": pa.array(range(3_000), pa.int64()),
                "amount": pa.array([1] * 3_000, pa.int64()),
            }
        )
        made = dataset_of(epoch, days.slice(0, 1_000), days.slice(1_000))
        run = ByExecutors(appending(), url).ready(spark, epoch.root)
        variables = objects.variables

        def with_credentials(start: Lines, spark: Any) -> pa.Table:
            return start(_Reaching(spark, variables))

        run.around = with_credentials
        run.apply(run.action(1), run.of(2, made))
        run.apply(run.action(1), run.of(2, made))
        assert len(run.jobs) == 1
        options = {"aws_endpoint_url": objects.endpoint, "aws_allow_http": "true", "aws_region": "us-east-1"}
        table = deltalake.DeltaTable(url.partition("?")[0] + "/orders", storage_options=options)
        assert table.to_pyarrow_table().sort_by("id").select(days.column_names) == days
        assert len(table.file_uris()) == 6

        plain_days = DeltaWriter("lake", "copied", COLUMNS, on_new_run="append")
        copying = ByExecutors(plain_days, url).ready(spark, epoch.root)
        copying.around = with_credentials
        copying.apply(copying.action(1), copying.of(2, made))
        table = deltalake.DeltaTable(url.partition("?")[0] + "/copied", storage_options=options)
        assert table.to_pyarrow_table().sort_by("id").select(days.column_names) == days
        sizes = sorted(file.size for file in made.manifest.files)
        assert sorted(pa.table(table.get_add_actions()).column("size_bytes").to_pylist()) == sizes, "copies"


class _Reaching:
    """A session whose Python workers have more variables: those of an executor are set when it is launched."""

    def __init__(self, spark: Any, variables: Any) -> None:
        self._spark, self._variables = spark, variables

    def range(self, *bounds: int) -> Any:
        frame = self._spark.range(*bounds)
        variables = dict(self._variables)
        made = frame.mapInArrow

        class Frame:
            def mapInArrow(self, task: Any, schema: str) -> Any:
                def reached(batches: Any) -> Any:
                    import os

                    os.environ.update(variables)
                    yield from task(batches)

                return made(reached, schema)

        return Frame()
