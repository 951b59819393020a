"""Functions of Spark get one Input Set, as a script gets a day: the result never depends on which others are in the job."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import EveryEvents, FunctionRead, TableRead, TableWriter, Tumbling, generate, stateless
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed
from tests.support.frame_groups import Group, orders_at
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

HOURS = [1, 2, 3, 5, 8, 9, 25, 26, 27, 28, 30, 44, 49, 50, 51, 60, 61, 70]
"""Six orders a day, two of each store, for three days."""
SPLITS: Mapping[str, Sequence[int]] = {"one event": [18], "small ones": [2] * 9, "across midnight": [4, 5, 5, 4]}


def cut(sizes: Sequence[int]) -> list[pa.Table]:
    whole = orders_at(*HOURS)
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [whole.slice(end - size, size) for end, size in zip(ends, sizes, strict=True)]


def largest_by_hand() -> list[tuple[int, int, int]]:
    """Day, store, and the largest amount: nine rows."""
    rows = orders_at(*HOURS).to_pylist()
    days = sorted({row["ts"].day for row in rows})
    return [
        (day, store, max(row["cents"] for row in rows if row["ts"].day == day and row["store"] == store))
        for day in days
        for store in range(3)
    ]


def largest(orders: Any, window_start: dt.datetime) -> Any:
    """What a script says for a day: it knows of no other one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(Window.partitionBy("store").orderBy(F.desc("cents")))
    ranked = orders.withColumn("rank", rank).where("rank = 1")
    return ranked.select(F.lit(window_start).alias("day"), "store", "cents")


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("mode", ["dataframe", "executors"])
def test_a_window_function_that_knows_no_inset_id_is_right_for_every_day(
    tmp_path: Path, sessions: SparkSessions, mode: str, sizes: Sequence[int]
) -> None:
    """Whatever the events are, and after the first driver has died between two days."""
    broken = [True]

    def dies_at_first(orders: Any, window_start: dt.datetime) -> Any:
        if window_start.day == 10 and broken:
            raise ValueError("not yet")
        return largest(orders, window_start)

    group = Group(tmp_path, sessions, orders=cut(sizes))
    rows = "from_orders"
    if mode == "executors":
        rows = group.operator("tables", stateless(lambda orders: orders), rows)
    daily = group.operator("daily", generate(mode=mode)(dies_at_first), rows, window=Tumbling("1d", on="ts"))
    group.names.append("table")
    columns = {"day": "timestamp", "store": "int", "cents": "bigint"}
    group.made.writer("table", TableWriter("warehouse", "best", columns), daily)
    with pytest.raises(OperatorFailed, match=r"'daily', Input Set '2024-03-10T00:00'.*not yet"):
        group.run()
    broken.clear()
    assert group.run()
    found = rows_of(group.warehouse, "SELECT CAST(substr(day, 9, 2) AS INT), store, cents FROM best ORDER BY 1, 2")
    assert [tuple(row) for row in found] == largest_by_hand()


def test_what_one_day_has_in_a_shared_job_is_what_it_has_alone(tmp_path: Path, sessions: SparkSessions) -> None:
    """Limits, joins, deduplication, actions, views, numbers given by tasks, and columns that have the names of ours."""

    def everything(orders: Any, inset_id: str, params: Mapping[str, Any]) -> Any:
        from pyspark.sql import functions as F

        assert orders.columns == ["id", "ts", "store", "cents"] and params
        orders.createOrReplaceTempView("day")
        share = orders.sparkSession.sql("SELECT *, cents * 100 / (SELECT sum(cents) FROM day) AS share FROM day")
        first = orders.orderBy("cents").limit(1).select(F.col("cents").alias("least"))
        stores = orders.select("store").distinct().join(orders.dropDuplicates(["store"]).select("store"), "store")
        return (
            share.crossJoin(first)
            .join(stores, "store")
            .select("store", "cents", "share", "least", F.lit(orders.count()).alias("window_start"))
            .withColumn("inset_id", F.lit(inset_id))
        )

    group = Group(tmp_path, sessions, orders=cut([18]))
    group.save(group.operator("daily", generate(mode="dataframe")(everything), "from_orders", window=DAY))
    group.save(group.operator("numbered", generate(mode="dataframe")(numbered), "from_orders", window=DAY), "numbers")
    assert group.run()
    expected = group.expected(
        "store, cents, cents * 100 / sum(cents) OVER day, min(cents) OVER day, count(*) OVER day, "
        "strftime(date_trunc('day', ts), '%Y-%m-%dT%H:%M')",
        "WINDOW day AS (PARTITION BY date_trunc('day', ts))",
    )
    assert group.published("store, cents, share, least, window_start, inset_id") == expected
    assert group.published("number", "numbers") == sorted([(number,) for number in range(6)] * 3)


DAY = Tumbling("1d", on="ts")


def numbered(orders: Any) -> Any:
    """In a job of many plans, tasks of the second day would begin with another number."""
    from pyspark.sql import functions as F

    return orders.coalesce(1).select(F.monotonically_increasing_id().alias("number"))


WALL_TIMES = ("2024-03-31T02:30:00.000001", "2024-03-31T00:30:00", "0001-01-03T00:00", "9999-12-30T23:59:59.999999")
KEYS: dict[str, tuple[str, str, list[Any], pa.DataType, list[int]]] = {
    "decimals": ("BIGINT", "(1, 'a')", [Decimal("1.0"), Decimal("1.5")], pa.decimal128(20, 1), [0]),
    "zeros": ("DOUBLE", "(0, 'a'), (1, 'b')", [0.0, -0.0, 2.0], pa.float64(), [0, 1]),
    "whole numbers": ("DECIMAL(9,2)", "(1, 'a')", [1, 2], pa.int64(), [0]),
    "days": (
        "TIMESTAMP",
        "('2024-03-31 00:00:00', 'a')",
        [dt.date(2024, 3, 31), dt.date(2024, 3, 30)],
        pa.date32(),
        [0],
    ),
    "wall times": (
        "TIMESTAMP",
        "('2024-03-31 02:30:00.000001', 'a'), ('0001-01-03 00:00:00', 'b'), ('9999-12-30 23:59:59.999999', 'c')",
        [dt.datetime.fromisoformat(text) for text in WALL_TIMES],
        pa.timestamp("us"),
        [0, 2, 3],
    ),
    "midnights": (
        "DATE",
        "('2024-03-31', 'a'), ('1969-12-31', 'b')",
        [dt.datetime(2024, 3, 31, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, tzinfo=dt.UTC)],
        pa.timestamp("us", "UTC"),
        [0, 1],
    ),
}
"""Type in the table, its rows, keys of the records and their type, and the records for which the database finds one."""


@pytest.mark.parametrize(
    ("mode", "query"),
    [
        ("dataframe", "SELECT (SELECT max(day) FROM {file}) AS day FROM {orders} LIMIT 1"),
        ("executors", "SELECT * FROM {file}"),
    ],
)
def test_what_a_function_writes_and_reads_again_is_that_of_its_input_set(
    tmp_path: Path, sessions: SparkSessions, caplog: pytest.LogCaptureFixture, mode: str, query: str
) -> None:
    """Spark reads a file when a job runs: in a shared one, all days would have read what the last one wrote. What a job may
    share has one, with views, subqueries and joins of its own records."""

    def written(orders: Any, window_start: dt.datetime) -> Any:
        (tmp_path / "scratch.csv").write_text(f"day\n{window_start.day}\n")
        spark = orders.sparkSession
        return spark.sql(query, file=spark.read.csv(str(tmp_path / "scratch.csv"), header=True), orders=orders)

    def of_memory(orders: Any) -> Any:
        orders.createOrReplaceTempView("orders")
        with_most = "WITH m AS (SELECT max(cents) AS c FROM orders)"
        return orders.sparkSession.sql(
            f"{with_most} SELECT id, (SELECT c FROM m) AS day FROM orders JOIN m ON c = cents"
        )

    caplog.set_level(logging.INFO)
    group = Group(tmp_path, sessions, orders=cut([18]))
    rows = "from_orders"
    if mode == "executors":
        rows = group.operator("tables", stateless(lambda orders: orders), rows)
    for name, function in (("written", written), ("of_memory", of_memory)):
        group.save(group.operator(name, generate(mode=mode)(function), rows, window=DAY), name)
    assert group.run()
    assert group.published("day", "written") == [("10",), ("11",), ("9",)]
    expected = group.expected("arg_max(id, cents), max(cents)", "GROUP BY date_trunc('day', ts)")
    assert group.published("id, day", "of_memory") == expected
    alone = {one.getMessage().partition(":")[0] for one in caplog.records if "job of its own" in one.getMessage()}
    assert alone == {"written"}


@pytest.mark.parametrize("mode", ["dataframe", "executors"])
def test_views_of_one_name_are_those_of_each_operator(tmp_path: Path, sessions: SparkSessions, mode: str) -> None:
    """Functions of several operators are called one at a time. The first waits for the other one's view, for a while."""
    there = {name: threading.Event() for name in ("one", "two")}

    def of(name: str, other: str) -> Any:
        def made(orders: Any) -> Any:
            orders.selectExpr(f"'{name}' AS whose").createOrReplaceTempView("mine")
            there[name].set()
            there[other].wait(2)
            return orders.sparkSession.sql("SELECT DISTINCT whose FROM mine")

        return made

    group = Group(tmp_path, sessions, orders=cut([18]))
    rows = "from_orders"
    if mode == "executors":
        rows = group.operator("tables", stateless(lambda orders: orders), rows)
    for name, other in (("one", "two"), ("two", "one")):
        group.save(group.operator(name, generate(mode=mode)(of(name, other)), rows, window=DAY), name)
    assert group.run()
    assert [group.published("whose", name) for name in ("one", "two")] == [[("one",)] * 3, [("two",)] * 3]


@pytest.mark.parametrize(("mode", "many"), [("dataframe", False), ("dataframe", True), ("executors", False)])
def test_a_function_that_leaves_another_zone_in_the_session_is_refused(
    tmp_path: Path, sessions: SparkSessions, mode: str, many: bool
) -> None:
    """Other operators of its group would see other days."""

    def moves(orders: Any) -> Any:
        orders.sparkSession.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        return orders

    group = Group(tmp_path, sessions, orders=cut([18]))
    rows = "from_orders"
    if mode == "executors":
        rows = group.operator("tables", stateless(lambda orders: orders), rows)
    group.save(group.operator("daily", generate(mode=mode, many=many)(moves), rows, window=DAY))
    says = (
        r"operator 'daily', Input Set .*: function 'moves' sets spark\.sql.* to 'Europe/Berlin'.*zone='Europe/Berlin'"
    )
    with pytest.raises(OperatorFailed, match=says):
        group.run()
    assert sessions.get().conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


def test_a_read_by_key_is_that_of_the_input_set_alone(tmp_path: Path, sessions: SparkSessions) -> None:
    """All of its rows, and none for a key that only another Input Set of the job has."""

    def fetch(url: str, keys: Any) -> pa.Table:
        return pa.table({"id": keys, "name": [f"order {key}" for key in keys.to_pylist()]})

    @generate(mode="dataframe", reads={"names": FunctionRead("warehouse", fetch, key="id")})
    def counted(orders: Any, names: Any) -> Any:
        return names.groupBy().count()

    group = Group(tmp_path, sessions, orders=cut([5, 5, 8]))
    group.save(group.operator("pairs", counted, "from_orders", window=EveryEvents(1)))
    assert group.run()
    assert group.published("count") == [(5,), (5,), (8,)]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("mode", ["dataframe", "executors"])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_a_join_by_key_finds_what_the_database_finds_once(
    tmp_path: Path,
    sessions: SparkSessions,
    keys: tuple[str, str, list[Any], pa.DataType, list[int]],
    mode: str,
    many: bool,
) -> None:
    """Whatever type the table has: the key is that of the records, and a plan of many Input Sets is known to join by it."""
    column, stored, asked, kind, expected = keys

    @generate(mode=mode, reads={"names": TableRead("warehouse", "names", ("at", "name"), key="at")}, many=many)
    def named(orders: Any, names: Any) -> Any:
        return orders.join(names, "at").select(*(["inset_id"] if many else []), "id", "name")

    orders = orders_at(*range(len(asked))).append_column("at", pa.array(asked, kind))
    group = Group(tmp_path, sessions, orders=[orders])
    change(group.warehouse, f"CREATE TABLE names (at {column}, name TEXT)")
    change(group.warehouse, f"INSERT INTO names VALUES {stored}".replace(":", r"\:"))
    rows = "from_orders"
    if mode == "executors":
        rows = group.operator("tables", stateless(lambda orders: orders), rows)
    group.save(group.operator("named", named, rows, window=EveryEvents(1)))
    session = sessions.get()
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert group.run()
    finally:
        session.conf.set("spark.sql.session.timeZone", before)
    assert group.published("id") == [(id,) for id in expected]


def test_a_function_of_the_other_contract_is_told_what_it_gets(tmp_path: Path, sessions: SparkSessions) -> None:
    @generate(mode="dataframe")
    def older(orders: Any) -> Any:
        return orders.groupBy("inset_id", "window_start").count()

    group = Group(tmp_path, sessions, orders=cut([18]))
    group.save(group.operator("daily", older, "from_orders", window=DAY))
    with pytest.raises(OperatorFailed, match=r"(?s)'inset_id' and 'window_start': leave them out.*write many=True"):
        group.run()


def test_a_run_of_an_earlier_version_calls_functions_as_it_did(tmp_path: Path, sessions: SparkSessions) -> None:
    """Its graph does not say how many Input Sets a function gets: all got many."""

    @generate(mode="dataframe")
    def older(orders: Any) -> Any:
        return orders.groupBy("inset_id", "window_start").count().drop("window_start")

    group = Group(tmp_path, sessions, orders=cut([6, 6, 6]))
    group.recorded = {"operators": {"daily": {"mode": "dataframe"}}}
    group.save(group.operator("daily", older, "from_orders", window=DAY))
    assert group.run()
    assert group.published("count") == [(6,)] * 3


def test_tables_and_datasets_of_one_input_set_are_one(tmp_path: Path, sessions: SparkSessions) -> None:
    """Days begin and end within files."""
    group = Group(tmp_path, sessions, orders=cut([6, 6, 6]))
    group.save(group.operator("daily", generate(mode="dataframe")(listed), "from_orders", window=DAY))
    assert group.run()
    assert sorted(chain(*(ids for (ids,) in group.published("list_sort(ids)")))) == list(range(18))


def listed(orders: Any) -> Any:
    return orders.groupBy().agg({"id": "collect_list"}).toDF("ids")
