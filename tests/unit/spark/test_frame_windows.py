"""Which windows of time the records of a dataset are in, compared with plain Python under several zones of the session."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from airflow_logio.dataflow.arrow_tables import schema_text
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.windows import EveryEvents, Tumbling, Window
from airflow_logio.dataflow.windows.timeline import Grid
from airflow_logio.errors import LogInconsistent, OperatorFailed
from airflow_logio.spark import dataset_jobs, dataset_parts
from airflow_logio.spark.dataset_parts import DatasetPart, frame_of_sets
from airflow_logio.systems.payloads import EpochPayloads, task_files
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, in_order

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ZONES = ("America/New_York", "Asia/Kolkata")
"""Clocks change in the first, and the second is half an hour off."""
EPOCH = dt.datetime.fromisoformat("1970-01-01")
MICRO = dt.timedelta(microseconds=1)
TIMES = [
    dt.datetime.fromisoformat(text) + shift
    for text in (
        "0001-01-08T00:00",
        "1582-10-15T00:00",
        "1969-12-31T23:00",
        "1970-01-01T00:00",
        "1970-01-05T00:00",
        "2024-03-10T07:00",  # New York skips an hour
        "2024-11-03T06:00",  # and has one twice
        "2024-02-29T18:30",  # midnight in Kolkata
        "9999-12-31T23:00",
    )
    for shift in (-MICRO, dt.timedelta(0), MICRO, dt.timedelta(minutes=59, seconds=59))
]
LENGTHS = ("30s", "15m", "1h", "1d", "7d", "1w")
COLUMNS = {"instant": "timestamp", "wall": "timestamp_ntz", "day": "date"}


def micros(at: dt.datetime) -> int:
    return (at - EPOCH) // MICRO


def number_by_hand(at: dt.datetime, length: str) -> int:
    """Weeks begin on Mondays, everything else counts from 1970."""
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[length[-1]]
    since = at - (EPOCH + dt.timedelta(days=4) if length[-1] == "w" else EPOCH)
    return since // dt.timedelta(seconds=int(length[:-1]) * unit)


def at_of(row: int, column: str) -> dt.datetime:
    at = TIMES[row]
    return at.replace(hour=0, minute=0, second=0, microsecond=0) if column == "day" else at


def dataset_of(epoch: EpochPayloads, *tables: pa.Table, kinds: dict[str, str]) -> Dataset:
    """A dataset of some tables, each a file, made without Spark."""
    folder = epoch.new_folder("d")
    lines = [
        line
        for table in tables
        for batch in task_files.written(epoch.root, folder, (), table.to_batches())
        for line in batch.to_pylist()
    ]
    files = in_order([DataFile(line["path"], line["size"], line["records"], line["footer"]) for line in lines])
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    schema = json.dumps({"type": "struct", "fields": fields}, sort_keys=True, separators=(",", ":"))
    return epoch.put("event 1 of s.out", "d", Manifest(schema, schema_text(tables[0].schema), files))


def of_times(rows: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "row": pa.array(rows, pa.int64()),
            "instant": pa.array([micros(TIMES[row]) for row in rows], pa.timestamp("us", "UTC")),
            "wall": pa.array([micros(TIMES[row]) for row in rows], pa.timestamp("us")),
            "day": pa.array([TIMES[row].date() for row in rows], pa.date32()),
        }
    )


KINDS = {"row": "long", **COLUMNS}


@contextmanager
def zone(spark: Any, name: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", name)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("name", ZONES)
def test_windows_are_those_of_plain_python_in_every_zone(spark: Any, epoch: EpochPayloads, name: str) -> None:
    """Of instants, wall times and dates; before 1970, where clocks change, and at the ends of the calendar."""
    rows = list(range(len(TIMES)))
    made = dataset_of(epoch, of_times(rows), kinds=KINDS)
    with zone(spark, name):
        frame = dataset_jobs.frame_of(spark, made)
        for column, length in product(COLUMNS, LENGTHS):
            grid = Tumbling(length, on=column).grid()
            assert grid is not None
            expected = [number_by_hand(at_of(row, column), length) for row in rows]
            assert dataset_parts.windows_by_job(frame, grid) == Counter(expected), (column, length)
            # The key of a record is that of the number of its window, and of no other.
            numbers = spark.createDataFrame([(number,) for number in sorted(set(expected))], "number long")
            keys = numbers.select(
                "number", dataset_parts.key_from(numbers["number"], grid, COLUMNS[column]).alias("key")
            )
            keyed = frame.select("row", dataset_parts.key_of(frame, grid).alias("key"))
            found = keyed.join(keys, "key").select("row", "number").toArrow().sort_by("row")
            assert found.column("number").to_pylist() == expected, (column, length)


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("column", COLUMNS)
def test_input_sets_are_the_same_as_of_arrow_tables(spark: Any, epoch: EpochPayloads, column: str, name: str) -> None:
    """The records of each, and its start; many in one job, and each alone."""
    rows = list(range(4, len(TIMES) - 4))
    halves = [rows[::2], rows[1::2]]
    datasets = [dataset_of(epoch, of_times(half), kinds=KINDS) for half in halves]
    for length in ("15m", "1w"):
        window = Tumbling(length, on=column)
        expected: dict[str, set[int]] = {}
        for number, half in enumerate(halves, start=1):
            table = of_times(half).set_column(
                1, "instant", pa.array([micros(TIMES[row]) for row in half], pa.timestamp("us"))
            )
            event = InputEvent("in", number, table)
            for inset_id, part in window.assign(event, window.initial_state()).items():
                expected.setdefault(inset_id, set()).update(part.column("row").to_pylist())
        names = sorted(expected)
        by_hand: dict[int, set[int]] = {}
        for row in rows:
            by_hand.setdefault(number_by_hand(at_of(row, column), length), set()).add(row)
        assert {window.number(one): expected[one] for one in names} == by_hand
        with zone(spark, name):
            counts = [
                dataset_parts.windows_of(one, dataset_jobs.frame_of(spark, one), window.grid()) for one in datasets
            ]
            assert [dict(one) for one in counts] == [
                dict(Counter(number_by_hand(at_of(row, column), length) for row in half)) for half in halves
            ]
            # Every other one, so that there are records between those that belong to the job, in the order of no calendar.
            chosen = names[::2][::-1]
            found = in_sets(spark, window, chosen, datasets)
            assert {chosen[place]: ids for place, (ids, _) in found.items()} == {one: expected[one] for one in chosen}
            for place, (_, starts) in found.items():
                assert starts == {micros(dt.datetime.fromisoformat(chosen[place]))}
            alone = in_sets(spark, window, names[2:3], datasets)
            assert alone == {0: (expected[names[2]], {micros(dt.datetime.fromisoformat(names[2]))})}


def in_sets(
    spark: Any, window: Window, names: Sequence[str], datasets: Sequence[Dataset]
) -> dict[int, tuple[set[int], set[int]]]:
    """Place → rows and starts."""
    held = [[DatasetPart(dataset) for dataset in datasets] for _ in names]
    frame = frame_of_sets(spark, window, names, held, (), datasets[0].manifest.schema)
    assert frame.columns == ["inset_id", "window_start", *KINDS]
    found: dict[int, tuple[set[int], set[int]]] = {}
    for row in frame.selectExpr("inset_id", "unix_micros(window_start) AS start", "row").toArrow().to_pylist():
        ids, starts = found.setdefault(row["inset_id"], (set(), set()))
        assert row["row"] not in ids, "once"
        ids.add(row["row"])
        starts.add(row["start"])
    return found


GRID = Grid("wall", 3600, most=3)


def hours(*values: float | None) -> pa.Table:
    at = [None if value is None else round(value * 3600e6) for value in values]
    return pa.table({"wall": pa.array(at, pa.timestamp("us")), "n": pa.array(range(len(at)), pa.int64())})


HOURS = {"wall": "timestamp_ntz", "n": "long"}


def test_footers_tell_the_windows_if_no_file_crosses_a_border(spark: Any, epoch: EpochPayloads) -> None:
    """They and the job agree; where a file crosses one, or has a null, only the job is asked."""
    told = dataset_of(epoch, hours(-0.5, -1), hours(5, 5.99), hours(5.2), kinds=HOURS)
    assert dataset_parts.windows_by_footers(told, GRID) == {-1: 2, 5: 3}
    assert dataset_parts.windows_by_job(dataset_jobs.frame_of(spark, told), GRID) == {-1: 2, 5: 3}
    crossing = dataset_of(epoch, hours(0.9, 1), hours(5), kinds=HOURS)
    assert dataset_parts.windows_by_footers(crossing, GRID) is None
    assert dataset_parts.windows_of(crossing, dataset_jobs.frame_of(spark, crossing), GRID) == {0: 1, 1: 1, 5: 1}
    empty = dataset_of(epoch, hours(), kinds=HOURS)
    assert dataset_parts.windows_of(empty, dataset_jobs.frame_of(spark, empty), GRID) == {}


@pytest.mark.parametrize(
    ("table", "kinds", "says"),
    [
        (hours(0, None, None), HOURS, r"column 'wall' has 2 null\(s\): a record without a time"),
        (hours(None), HOURS, r"column 'wall' has 1 null\(s\)"),
        (
            hours(-8, 0, 1, 2, 3.5, 3.6),
            HOURS,
            r"'wall' are in 5 windows, from 1969-12-31T16:00 to 1970-01-01T03:00, and one event may be in 3\. Make smaller",
        ),
        (pa.table({"wall": ["x"]}), {"wall": "string"}, r"needs a timestamp or date in column 'wall', which is string"),
        (
            pa.table({"walls": [1]}),
            {"walls": "long"},
            r"needs column 'wall'; the records have \['walls'\]\. Did you mean",
        ),
    ],
    ids=["nulls", "all null", "too many", "type", "missing"],
)
def test_times_that_make_no_window_are_refused(
    spark: Any, epoch: EpochPayloads, table: pa.Table, kinds: dict[str, str], says: str
) -> None:
    made = dataset_of(epoch, table, kinds=kinds)
    with pytest.raises(OperatorFailed, match=says):
        dataset_parts.windows_of(made, dataset_jobs.frame_of(spark, made), GRID)


def test_footers_refuse_too_many_windows_too(spark: Any, epoch: EpochPayloads) -> None:
    made = dataset_of(epoch, *(hours(number) for number in range(4)), kinds=HOURS)
    with pytest.raises(OperatorFailed, match="in 4 windows, from 1970-01-01T00:00 to 1970-01-01T03:00"):
        dataset_parts.windows_by_footers(made, GRID)


def test_events_as_a_whole_and_tables_among_them(spark: Any, epoch: EpochPayloads) -> None:
    """Windows that count events; some events have come as tables, one has no records, and only some columns are wanted."""
    first, second = (dataset_of(epoch, hours(n), hours(n, n), kinds=HOURS) for n in (1, 2))
    empty = dataset_of(epoch, hours(), kinds=HOURS)
    table = pa.table({"wall": pa.array([0], pa.timestamp("us")), "n": pa.array([77], pa.int64())})
    held = [[DatasetPart(first), table.select(["n"])], [DatasetPart(empty)], [DatasetPart(second), DatasetPart(empty)]]
    frame = frame_of_sets(spark, EveryEvents(2), ["1", "2", "3"], held, ("n",), first.manifest.schema)
    found = Counter((row["inset_id"], row["n"]) for row in frame.toArrow().to_pylist())
    assert frame.columns == ["inset_id", "n"]
    assert found == Counter({(0, 0): 2, (0, 1): 1, (0, 77): 1, (2, 0): 2, (2, 1): 1})
    alone = frame_of_sets(spark, EveryEvents(2), ["2"], held[1:2], (), first.manifest.schema)
    assert alone.columns == ["inset_id", "wall", "n"] and alone.count() == 0


def test_columns_of_its_own_and_other_schemas_are_refused(spark: Any, epoch: EpochPayloads) -> None:
    table = pa.table({"Inset_ID": [1]})
    made = dataset_of(epoch, table, kinds={"Inset_ID": "long"})
    with pytest.raises(OperatorFailed, match="have a column 'Inset_ID', which the batch needs for itself"):
        frame_of_sets(spark, EveryEvents(1), ["1"], [[DatasetPart(made)]], (), made.manifest.schema)
    with pytest.raises(LogInconsistent, match="has other columns than those before it"):
        frame_of_sets(spark, EveryEvents(1), ["1"], [[DatasetPart(made)]], (), "{}")


# --- Output Sets ------------------------------------------------------------------------------------------------------


def test_each_output_set_gets_files_of_its_own(spark: Any, epoch: EpochPayloads) -> None:
    """One job for many: small ones in one file each, a large one by several tasks, none for one without records."""
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "64k")
    try:
        frame = spark.sql(
            "SELECT IF(id < 30000, 1, id % 20 + 5) AS inset_id, id, uuid() AS noise FROM range(0, 30080, 1, 8)"
        )
        where = [f"set {place}" for place in range(30)]
        made = dataset_jobs.materialized_sets(epoch, where, "datasets/op.out/1", frame)
    finally:
        spark.conf.unset("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    assert {place: dataset.num_rows for place, dataset in made.items()} == {1: 30_000} | dict.fromkeys(range(5, 25), 4)
    for place, dataset in made.items():
        ids = dataset.table.column("id").to_pylist()
        assert dataset.table.column_names == ["id", "noise"] and dataset.where == f"set {place}"
        assert sorted(ids) == [id for id in range(30_080) if place == (1 if id < 30_000 else id % 20 + 5)]
    files = {place: [file.path for file in dataset.manifest.files] for place, dataset in made.items()}
    named = [path for paths in files.values() for path in paths]
    assert len(set(named)) == len(named), "no file has two owners"
    assert all(not file.partition for dataset in made.values() for file in dataset.manifest.files)
    assert len(files.pop(1)) > 2, "a large one is not squeezed into one task"
    assert {len(paths) for paths in files.values()} == {1}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT id AS inset_id, id FROM range(3)", "'inset_id' of the Spark function's result is 2 somewhere"),
        ("SELECT id - 1 AS inset_id, id FROM range(2)", "is -1 somewhere, but the job has 2 Input Sets"),
        ("SELECT IF(id = 1, NULL, id) AS inset_id, id FROM range(2)", "is null somewhere"),
        ("SELECT 'x' AS inset_id, 1 AS id", "'inset_id' of the Spark function's result is string"),
        ("SELECT 1 AS id", r"has columns \['id'\], but not 'inset_id': keep it"),
        ("SELECT 1L AS inset_id", "has no column beside 'inset_id'"),
    ],
)
def test_rows_that_belong_to_no_input_set_of_the_job_are_refused(
    spark: Any, epoch: EpochPayloads, query: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        dataset_jobs.materialized_sets(epoch, ["a", "b"], "datasets/op.out/1", spark.sql(query))


def test_no_rows_are_no_datasets(spark: Any, epoch: EpochPayloads) -> None:
    nothing = spark.sql("SELECT id AS inset_id, id FROM range(0)")
    assert dataset_jobs.materialized_sets(epoch, ["a", "b"], "datasets/op.out/1", nothing) == {}


def test_files_that_have_two_names_stay_with_their_event(spark: Any, epoch: EpochPayloads) -> None:
    """Names are equal where one is a hard link of the other, in another folder."""
    first = dataset_jobs.materialized(epoch, "event 1", "d/1", spark.range(0, 5, 1, 2))
    second = epoch.own("event 2", "d/2", first)
    other = dataset_jobs.materialized(epoch, "event 3", "d/3", spark.range(5, 9, 1, 1))
    held = [[DatasetPart(first), DatasetPart(other)], [DatasetPart(second)]]
    frame = frame_of_sets(spark, EveryEvents(2), ["0", "1"], held, (), first.manifest.schema)
    rows = sorted((row["inset_id"], row["id"]) for row in frame.collect())
    assert rows == [(0, number) for number in range(9)] + [(1, number) for number in range(5)]


# --- windows of a zone ------------------------------------------------------------------------------------------------

CHANGES = (
    *("1969-12-31T23:30:00", "2024-03-31T00:59:59.999999", "2024-04-06T15:10:00"),
    *("2024-10-27T00:30:00", "2024-11-03T04:30:00"),
)
MOMENTS = [
    dt.datetime.fromisoformat(text) + dt.timedelta(minutes=minutes)
    for text in CHANGES
    for minutes in range(-30 * 60, 30 * 60, 95)
]
"""In UTC."""


def local_date(row: int, name: str) -> dt.date:
    return MOMENTS[row].replace(tzinfo=dt.UTC).astimezone(ZoneInfo(name)).date()


def of_moments(rows: Sequence[int]) -> pa.Table:
    at = pa.array([micros(MOMENTS[row]) for row in rows], pa.timestamp("us", "UTC"))
    return pa.table({"row": pa.array(rows, pa.int64()), "instant": at})


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe"])
def test_windows_of_a_zone_are_those_of_the_other_modes(spark: Any, epoch: EpochPayloads, name: str) -> None:
    """Whatever the zone of the session: Java's rules are not asked. By jobs and footers; many in one job, and each alone."""
    rows = list(range(len(MOMENTS)))
    halves = [rows[::2], rows[1::2]]
    kinds = {"row": "long", "instant": "timestamp"}
    made = [dataset_of(epoch, of_moments(half), kinds=kinds) for half in halves]
    for length in ("1h", "1d"):
        window = Tumbling(length, on="instant", zone=name)
        expected: dict[str, list[int]] = {}
        for inset_id, part in window.assign(InputEvent("in", 1, of_moments(rows)), window.initial_state()).items():
            expected[inset_id] = part.column("row").to_pylist()
        names = sorted(expected)
        if length == "1d":
            for inset_id in names:
                assert len({local_date(row, name) for row in expected[inset_id]}) == 1
            assert len({local_date(expected[inset_id][0], name) for inset_id in names}) == len(names)
        with zone(spark, "America/New_York"):
            counts: Counter[int] = Counter()
            for one in made:
                counts.update(dataset_parts.windows_of(one, dataset_jobs.frame_of(spark, one), window.grid()))
            assert counts == {window.number(inset_id): len(of_one) for inset_id, of_one in expected.items()}
            parts = [[dataset_parts.DatasetPart(one) for one in made] for _ in names]
            frame = dataset_parts.frame_of_sets(spark, window, names, parts, (), made[0].manifest.schema)
            table = frame.toArrow()
        places, starts = table.column("inset_id").to_pylist(), table.column("window_start").cast(pa.int64()).to_pylist()
        found: dict[str, list[int]] = {}
        for place, row, start in zip(places, table.column("row").to_pylist(), starts, strict=True):
            found.setdefault(names[place], []).append(row)
            assert start == window.number(names[place]) * 10**6
        assert {inset_id: sorted(of_one) for inset_id, of_one in found.items()} == expected
        alone = dataset_parts.frame_of_sets(spark, window, names[3:4], parts[3:4], (), made[0].manifest.schema)
        assert sorted(row.row for row in alone.select("row").collect()) == expected[names[3]]


@pytest.mark.parametrize("column", ["wall", "day"])
def test_wall_times_and_dates_have_no_windows_of_a_zone(spark: Any, epoch: EpochPayloads, column: str) -> None:
    made = dataset_of(epoch, of_times([5, 6]), kinds=KINDS)
    grid = Tumbling("1d", on=column, zone="Europe/Berlin").grid()
    with pytest.raises(OperatorFailed, match="which is no moment"):
        dataset_parts.windows_of(made, dataset_jobs.frame_of(spark, made), grid)
