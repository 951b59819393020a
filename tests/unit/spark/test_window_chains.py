"""Windows of mode ``dataframe`` in a group of this process, compared with what DuckDB makes of the files."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import (
    EveryEvents,
    FunctionRead,
    Synchronized,
    TableWriter,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, OperatorFailed
from airflow_logio.systems.payloads import Payloads, sweep_run
from tests.store.small_disk import small_folder
from tests.support.frame_groups import Group, orders_at
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


_FULL = (
    r"payload store .*, or a local disk of an executor: No space left on device, told by a task of Spark while it evaluated "
    r"a Spark job of 2 Input Sets of operator 'daily': "
)


@generate(mode="dataframe", columns=("store", "cents"), many=True)
def per_store(orders: Any) -> Any:
    grouped = orders.groupBy("inset_id", "window_start", "store")
    return grouped.agg({"cents": "sum", "*": "count"}).toDF("inset_id", "day", "store", "cents", "orders")


@stateless(mode="dataframe")
def unchanged(orders: Any) -> Any:
    return orders


@stateless
def counted(orders: pa.Table) -> pa.Table:
    """Of mode ``driver``."""
    return pa.table({"records": [orders.num_rows]})


FILES = [
    orders_at(1, 5, 23.9, 24, 30),
    orders_at(24.1, 47, first=5),
    orders_at(first=7),
    orders_at(26, 49, 75, 75.5, first=7),
    orders_at(200, first=11),
]
"""Days overlap from one file to the next, one file has no records, and between the last ones are days without any."""
PER_DAY = "date_trunc('day', ts)::DATE, store, sum(cents)::BIGINT, count(*)"


def test_days_are_exact_and_go_on_in_all_directions(tmp_path: Path, sessions: SparkSessions) -> None:
    """In one group: chain, window, writer; an operator of mode driver; another window; the session is in Tokyo."""
    group = Group(tmp_path, sessions, orders=FILES)
    daily = group.operator(
        "daily", per_store, group.operator("copy", unchanged, "from_orders"), window=Tumbling("1d", on="ts")
    )
    group.save(daily)
    counts = group.operator("counts", counted, daily)
    group.names.append("table")
    group.made.writer("table", TableWriter("warehouse", "counts", {"records": "bigint"}), counts)
    weekly = group.operator("weekly", per_week, daily, window=Tumbling("1w", on="day"))
    group.save(weekly, "weekly")
    assert group.run()
    expected = group.expected(PER_DAY, "GROUP BY ALL")
    assert group.published("day::DATE, store, cents, orders") == expected
    days = sorted({row[0] for row in expected})
    assert sum(number for (number,) in rows_of(group.warehouse, "SELECT records FROM counts")) == len(expected)
    assert len(rows_of(group.warehouse, "SELECT records FROM counts")) == len(days) == 5, (
        "none for a day without records"
    )
    per_week_expected = group.expected("date_trunc('week', ts)::DATE, sum(cents)::BIGINT", "GROUP BY ALL")
    assert group.published("week::DATE, cents", "weekly") == per_week_expected


@generate(mode="dataframe")
def per_week(days: Any, window_start: dt.datetime) -> Any:
    """With an action, which is allowed: what a window gets is files."""
    from pyspark.sql import functions as F

    days = days.limit(days.count())
    return (
        days.groupBy()
        .agg({"cents": "sum"})
        .select(F.lit(window_start).alias("week"), F.col("sum(cents)").alias("cents"))
    )


def test_a_successor_generates_what_was_open_and_what_was_triggered(tmp_path: Path, sessions: SparkSessions) -> None:
    """Without evaluating what is in the log: the state of the window is rebuilt from references."""
    broken = [True]

    @generate(mode="dataframe", columns=("store", "cents"), many=True)
    def fails_at_first(orders: Any) -> Any:
        if broken:
            raise ValueError("not yet")
        return per_store.fn(orders)

    group = Group(tmp_path, sessions, orders=FILES)
    daily = group.operator("daily", fails_at_first, "from_orders", window=Tumbling("1d", on="ts"))
    group.save(daily)
    says = (
        r"(?s)^pipeline 'work', operator 'daily', Input Set '2024-03-09T00:00', port 'in', event 1: ValueError: not yet"
        r".*raise ValueError"
    )
    with pytest.raises(OperatorFailed, match=says):
        group.run()
    broken.clear()
    assert group.driver is not None
    held = {(row.event.event_id, row.inset_id) for row in group.driver.session.recover(["daily"]).acknowledged}
    assert held, "something was open"
    assert group.run()
    assert group.published("day::DATE, store, cents, orders") == group.expected(PER_DAY, "GROUP BY ALL")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            [orders_at(30), orders_at(30, 1, 2, first=1)],
            r"operator 'daily', port 'in', event 2 of from_orders.out: event 2 .* brings 2 late record\(s\), the earliest "
            r"for window 2024-03-09T00:00: a record of window 2024-03-10T00:00",
        ),
        (
            [orders_at(30), orders_at(30, None, first=1)],
            r"source 'from_orders', read action 2 after 0 records: operator 'daily': column 'ts' has 1 null\(s\): a record",
        ),
        (
            [orders_at(*range(0, 24 * 5, 20))],
            r"'ts' are in 5 windows, from 2024-03-09T00:00 to 2024-03-13T00:00, and one ",
        ),
    ],
    ids=["late", "null", "too many"],
)
def test_events_that_fit_no_window_are_refused(
    tmp_path: Path, sessions: SparkSessions, files: Sequence[pa.Table], says: str
) -> None:
    group = Group(tmp_path, sessions, orders=files)
    window = Tumbling("1d", on="ts", windows_per_event=4)
    group.save(group.operator("daily", per_store, "from_orders", window=window))
    with pytest.raises(OperatorFailed, match=f"(?s){says}"):
        group.run()


@pytest.mark.parametrize("other", ["missing", "more"])
def test_files_of_other_columns_are_refused_before_there_is_an_event(
    tmp_path: Path, sessions: SparkSessions, other: str
) -> None:
    second = orders_at(30, first=1)
    second = second.drop_columns(["ts"]) if other == "missing" else second.append_column("note", pa.array(["x"]))
    group = Group(tmp_path, sessions, orders=[orders_at(30), second])
    group.save(group.operator("daily", per_store, "from_orders", window=Tumbling("1d", on="ts")))
    with pytest.raises(ConfigurationError, match=r"1\.parquet has the columns .*; the first file of the folder"):
        group.run()


def test_an_input_set_that_fails_is_set_aside_alone(tmp_path: Path, sessions: SparkSessions) -> None:
    """In a task of a job of many; the others are published, and so is it when a person has put it back."""
    bad = tmp_path / "bad"
    bad.touch()

    @generate(mode="dataframe", on_error="quarantine", order_insensitive=True)
    def picky(orders: Any) -> Any:
        def checked(batches: Any) -> Any:
            for batch in batches:
                if bad.exists() and 6 in batch.column("id").to_pylist():
                    raise ValueError("6 is no order")
                yield batch

        return orders.select("id").mapInArrow(checked, "id long")

    group = Group(tmp_path, sessions, orders=FILES)
    daily = group.operator("daily", picky, "from_orders", window=Tumbling("1d", on="ts"))
    group.save(daily)
    assert group.run()
    tenth = [(id,) for id in (3, 4, 5, 6, 7)]
    assert group.published("id") == [(id,) for id in range(12) if (id,) not in tenth]
    assert group.driver is not None
    (aside,) = group.store.quarantined(group.driver.run.run_id)
    assert (aside.operator, aside.inset_id) == ("daily", "2024-03-10T00:00")
    assert "6 is no order" in aside.error and "port 'in', events 1 to 4" in aside.error
    bad.unlink()
    assert group.store.retry_quarantined(group.driver.run.run_id).input_sets == (aside,)
    assert group.run()
    assert group.published("id") == [(id,) for id in range(12)]


def test_a_sweep_leaves_what_was_set_aside_until_a_person_has_put_it_back(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """Events are datasets, whose files belong to rows of two Input Sets. A file that belongs to no row goes."""
    broken = [True]

    @generate(mode="dataframe", on_error="quarantine", order_insensitive=True)
    def fails_at_first(orders: Any) -> Any:
        if broken:
            raise ValueError("not yet")
        return orders.select("id")

    group = Group(tmp_path, sessions, orders=FILES[:2])
    group.save(group.operator("daily", fails_at_first, "from_orders", window=Tumbling("1d", on="ts")))
    assert group.run()
    assert group.driver is not None
    run, payloads = group.driver.run, Payloads(str(group.payloads))
    garbage = group.payloads / run.uid / "all" / str(group.driver.ref.incarnation) / "0" / "garbage.parquet"
    garbage.touch()
    held = [payloads.dataset("a row", ref) for ref in group.store.references(run.run_id, run.uid)]
    files = [path for dataset in held for path in dataset.paths()]
    assert sorted(dataset.num_rows for dataset in held) == [2, 5]
    assert sweep_run(payloads, group.store, run) == 1
    assert not garbage.exists()
    assert not [path for path in files if not Path(path).exists()]
    broken.clear()
    assert len(group.store.retry_quarantined(run.run_id).input_sets) == 2
    assert group.run()
    assert group.published("id") == [(id,) for id in range(7)]


def test_the_columns_of_an_output_port_stay_the_same_from_job_to_job_and_from_driver_to_driver(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """What is once in the log cannot be mended by its author any more. A job takes sixteen Input Sets at first."""
    calls: list[int] = []
    mended: list[bool] = []

    @generate(mode="dataframe", on_error="quarantine", order_insensitive=True)
    def changing(orders: Any) -> Any:
        calls.append(1)
        if len(calls) <= 16 or mended:
            return orders.select("id")
        if len(calls) == 17:
            eventually(lambda: list(group.lake.rglob("*.parquet")), what="the first job is in the log", timeout=60)
        return orders.selectExpr("string(id) AS id")

    group = Group(tmp_path, sessions, orders=[orders_at(*(24 * day + 1 for day in range(20)))])
    group.save(group.operator("daily", changing, "from_orders", window=Tumbling("1d", on="ts")))
    says = (
        r"operator 'daily', Input Set '2024-03-25T00:00'.* output port 'out' has had records with the columns id long, and "
        r"now gets id string: they have one schema for the whole run"
    )
    for _ in range(2):
        with pytest.raises(OperatorFailed, match=says):
            group.run()
        assert group.driver is not None and not group.store.quarantined(group.driver.run.run_id)
    assert len(calls) == 16 + 4 + 4, "no Input Set is looked for"
    mended.append(True)
    assert group.run()
    assert group.published("id") == [(id,) for id in range(20)]


def test_a_full_disk_is_no_input_sets_fault(tmp_path: Path, sessions: SparkSessions) -> None:
    """Nothing is set aside; the group gives up when the store has been full for `replay_seconds`, and can resume."""
    with small_folder(tmp_path / "otherwise") as small:
        filled: list[bool] = []

        @generate(mode="dataframe", on_error="quarantine", order_insensitive=True, many=True)
        def wide(orders: Any) -> Any:
            if not filled:
                small.fill()
                filled.append(True)
            several = orders.selectExpr("inset_id", "id", "explode(sequence(1, 5000)) AS n")
            return several.selectExpr("inset_id", "id", "sha2(concat(id, ' ', n), 512) AS noise")

        group = Group(tmp_path, sessions, orders=[orders_at(1, 2, 30)])
        group.payloads = small.path
        group.save(group.operator("daily", wide, "from_orders", window=Tumbling("1d", on="ts")))
        try:
            with pytest.raises(ExternalUnavailable, match=_FULL):
                group.run()
        finally:
            if filled:
                small.make_room()
        assert group.driver is not None
        assert not group.store.quarantined(group.driver.run.run_id)
        assert group.run()
    assert group.published("DISTINCT id") == [(0,), (1,), (2,)]


def test_a_row_of_no_input_set_names_who_made_it(tmp_path: Path, sessions: SparkSessions) -> None:
    @generate(mode="dataframe", many=True)
    def foreign(orders: Any) -> Any:
        return orders.selectExpr("id AS inset_id", "id")

    group = Group(tmp_path, sessions, orders=[orders_at(1, 2)])
    group.save(group.operator("daily", foreign, "from_orders", window=Tumbling("1d", on="ts")))
    says = r"(?s)'daily', Input Set '2024-03-09T00:00'.*function 'foreign'.*'inset_id' of its result is not the one"
    with pytest.raises(OperatorFailed, match=says):
        group.run()


def test_joins_reads_and_parameters(tmp_path: Path, sessions: SparkSessions) -> None:
    """Two ports that are counted; a read, obtained once per job; the last Input Set has only one of the ports."""
    asked = []

    def fetch(url: str, keys: Any) -> pa.Table:
        asked.append(url)
        return pa.table({"store": pa.array([0, 1, 2], pa.int32()), "name": ["a", "b", "c"]})

    @generate(mode="dataframe", inputs=("orders", "paid"), reads={"names": FunctionRead("warehouse", fetch)})
    def joined(orders: Any, paid: Any, names: Any, params: Mapping[str, Any]) -> Any:
        from pyspark.sql import functions as F

        both = orders.join(paid, "id", "left_semi")
        return both.join(names, "store").select("id", "name", F.lit(params["paid"]).alias("said"))

    paid = [pa.table({"id": pa.array(ids, pa.int64())}) for ids in ([0, 3, 99], [2], [4, 5, 6])]
    group = Group(tmp_path, sessions, orders=FILES, paid=paid)
    window = Synchronized(orders=2, paid=1)
    pairs = group.operator("pairs", joined, "from_orders", "from_paid", window=window)
    group.save(pairs)
    assert group.run()
    said = str(tmp_path / "paid")
    # Events 1 and 2 with [0, 3, 99], 3 and 4 with [2], 5 with [4, 5, 6]: only those in the same Input Set meet.
    assert group.published("id, name, said") == [(0, "a", said), (3, "a", said)]
    assert asked


def test_a_table_from_an_operator_in_the_driver_is_counted_and_grouped(tmp_path: Path, sessions: SparkSessions) -> None:
    """Records that the driver has had already: by time, in every zone, beside windows that count events."""

    @stateless
    def passed(orders: pa.Table) -> pa.Table:
        return orders

    @generate(mode="dataframe")
    def numbered(orders: Any) -> Any:
        return orders.select("id")

    group = Group(tmp_path, sessions, orders=FILES)
    tables = group.operator("tables", passed, "from_orders")
    group.save(group.operator("daily", per_store, tables, window=Tumbling("1d", on="ts")))
    group.save(group.operator("pairs", numbered, tables, window=EveryEvents(2)), "pairs")
    assert group.run()
    assert group.published("day::DATE, store, cents, orders") == group.expected(PER_DAY, "GROUP BY ALL")
    assert group.published("id", "pairs") == [(id,) for id in range(12)]


def test_windows_count_an_event_that_a_filter_has_left_nothing_of(tmp_path: Path, sessions: SparkSessions) -> None:
    """As they count those of which it has left something: Input Sets are not those of the events that have records."""

    @stateless(mode="dataframe")
    def without_the_second(orders: Any) -> Any:
        return orders.where("id NOT IN (5, 6)")

    @generate(mode="dataframe")
    def listed(orders: Any) -> Any:
        return orders.groupBy().agg({"id": "collect_list"}).toDF("ids")

    group = Group(tmp_path, sessions, orders=[FILES[0], FILES[1], FILES[3], FILES[4]])
    some = group.operator("some", without_the_second, "from_orders")
    group.save(group.operator("pairs", listed, some, window=EveryEvents(2)))
    assert group.run()
    assert group.published("list_sort(ids)") == [([0, 1, 2, 3, 4],), ([7, 8, 9, 10, 11],)]


def test_a_group_that_halts_does_not_wait_for_its_generation(
    tmp_path: Path, sessions: SparkSessions, spark: Any
) -> None:
    @generate(mode="dataframe")
    def slow(orders: Any) -> Any:
        def sleep(batches: Any) -> Any:
            time.sleep(60)
            yield from batches

        return orders.select("id").mapInArrow(sleep, "id long")

    group = Group(tmp_path, sessions, orders=FILES)
    group.save(group.operator("daily", slow, "from_orders", window=Tumbling("1d", on="ts")))
    tracker = spark.sparkContext.statusTracker()

    def stop_when_it_runs() -> None:
        since = time.monotonic()
        while time.monotonic() - since < 3 and not group.stop.wait(0.1):  # longer than any other job here
            since = since if tracker.getActiveJobsIds() else time.monotonic()
        group.stop.set()

    stopping = threading.Thread(target=stop_when_it_runs, daemon=True)
    started = time.monotonic()
    stopping.start()
    assert not group.run()
    stopping.join()
    assert time.monotonic() - started < 45
    assert not tracker.getActiveJobsIds(), "it was cancelled"
