"""`OwnPartition` and `AllOfRun` in mode ``dataframe``: a day as one event, compared with DuckDB."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import (
    AllOfRun,
    Days,
    FolderSource,
    Hours,
    OwnPartition,
    Pipeline,
    TableRead,
    TableWriter,
    generate,
    stateless,
)
from airflow_logio.dataflow.functions.function_operators import FrameFunctionOperator
from airflow_logio.dataflow.pipeline.days import Partitioning, PartitionKey
from airflow_logio.dataflow.windows.zones import SESSION_ZONE
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed
from airflow_logio.spark.dataset_parts import late_in
from airflow_logio.spark.determinism import check_repeatable
from tests.support.frame_groups import Group, query
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

BERLIN = Days("day", zone="Europe/Berlin")
DAY = "2026-03-29"
START, END = BERLIN.key_of(DAY).start, BERLIN.key_of(DAY).end
MICRO = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INSIDE = f"ts >= TIMESTAMPTZ '{START}' AND ts < TIMESTAMPTZ '{END}'"
OF_UTC = "wall >= TIMESTAMP '2026-03-29' AND wall < TIMESTAMP '2026-03-30'"


def orders(*moments: dt.datetime, first: int = 0) -> pa.Table:
    micros = [(at - EPOCH) // MICRO for at in moments]
    ids = range(first, first + len(moments))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array(micros, pa.timestamp("us", "UTC")),
            "wall": pa.array(micros, pa.timestamp("us")),
            "date": pa.array([at.date() for at in moments], pa.date32()),
            "store": pa.array([number % 3 for number in ids], pa.int32()),
            "cents": pa.array([number * 7 % 101 for number in ids], pa.int64()),
        }
    )


def days() -> list[pa.Table]:
    """Files with late rows, rows of the next day, the edges by the microsecond, and a file of late rows alone."""
    edges = [at + shift * MICRO for at in (START, END) for shift in (-1, 0, 1)]
    edges += [dt.datetime(2026, 3, day, tzinfo=dt.UTC) + shift * MICRO for day in (29, 30) for shift in (-1, 0, 1)]
    hours = [START + dt.timedelta(hours=hour) for hour in range(-3, 26)]
    return [
        orders(*edges),
        orders(*hours, first=len(edges)),
        orders(*(START - dt.timedelta(days=n) for n in (1, 2)), first=90),
    ]


def ranked(orders: Any, names: Any, params: Any, inset_id: str) -> Any:
    """As a script would: it sees the whole day."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(Window.partitionBy("store").orderBy(F.desc("cents"), "id"))
    best = orders.withColumn("place", rank).where("place <= 2").join(names, "store")
    return best.select(
        F.lit(inset_id).alias("inset"), F.lit(params["day"]).alias("day"), "name", "place", "id", "cents"
    )


def largest(orders: Any, inset_id: str) -> Any:
    from pyspark.sql import functions as F

    return orders.agg(F.lit(inset_id).alias("inset"), F.max("cents").alias("cents"))


def test_a_day_is_one_input_set_of_its_own_records_also_after_a_driver_has_died(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """With a declared read, several input ports, and many=True; what is late is on the other port."""
    broken = [True]

    def dies_at_first(orders: Any, names: Any, params: Any, inset_id: str) -> Any:
        if broken:
            raise ValueError("not yet")
        return ranked(orders, names, params, inset_id)

    def counted(own: Any, other: Any) -> Any:
        return (
            own.selectExpr("'own' AS port", "id")
            .union(other.selectExpr("'other' AS port", "id"))
            .groupBy("port")
            .count()
        )

    def summed(orders: Any) -> Any:
        return orders.groupBy("inset_id", "store").sum("cents").withColumnRenamed("sum(cents)", "cents")

    group = Group(tmp_path, sessions, day=(BERLIN, DAY), orders=days())
    change(group.warehouse, "CREATE TABLE names (store INT, name TEXT)")
    change(group.warehouse, "INSERT INTO names VALUES (0, 'zero'), (1, 'one'), (2, 'two')")
    own = group.operator("own", OwnPartition("day", on="ts", mode="dataframe"), "from_orders")
    reads = {"names": TableRead("warehouse", "names", key="store")}
    top = generate(mode="dataframe", reads=reads)(dies_at_first)
    group.save(group.operator("top", top, own.port("own"), window=AllOfRun()))
    both = generate(mode="dataframe", inputs=("own", "other"))(counted)
    group.save(group.operator("both", both, own.port("own"), own.port("other"), window=AllOfRun()), "both")
    many = generate(mode="dataframe", many=True)(summed)
    group.save(group.operator("many", many, own.port("own"), window=AllOfRun()), "many")
    group.save(own.port("own"), "kept")
    group.save(own.port("other"), "late")
    with pytest.raises(OperatorFailed, match=r"'top', Input Set 'all'.*not yet"):
        group.run()
    broken.clear()
    assert group.run()
    everything = "id, epoch_us(ts), epoch_us(wall), date, store, cents"
    assert group.published(everything, "kept") == group.expected(everything, f"WHERE {INSIDE}")
    assert group.published(everything, "late") == group.expected(everything, f"WHERE NOT ({INSIDE})")
    rows = group.expected("epoch_us(ts)", f"WHERE NOT ({INSIDE})")
    moments = ((EPOCH + micros * MICRO).astimezone(ZoneInfo(BERLIN.zone)) for (micros,) in rows)
    assert group.late() == Counter(str(at.date()) for at in moments), "once, also after a driver has died"
    ranks = "row_number() OVER (PARTITION BY store ORDER BY cents DESC, id)"
    names = "CASE store WHEN 0 THEN 'zero' WHEN 1 THEN 'one' ELSE 'two' END"
    expected = group.expected(
        f"'all', '{DAY}', {names}, {ranks} AS place, id, cents", f"WHERE {INSIDE} QUALIFY place <= 2"
    )
    assert len(expected) == 6 and group.published("inset, day, name, place, id, cents") == expected
    assert group.published("port, count", "both") == group.expected(
        f"CASE WHEN {INSIDE} THEN 'own' ELSE 'other' END, count(*)", "GROUP BY 1"
    )
    sums = group.expected("store, sum(cents)::BIGINT", f"WHERE {INSIDE} GROUP BY store")
    assert group.published("store, cents", "many") == sums


def test_a_job_of_mode_executors_gets_everything_once(tmp_path: Path, sessions: SparkSessions) -> None:
    group = Group(tmp_path, sessions, day=(BERLIN, DAY), orders=days())
    tables = group.operator("tables", stateless(lambda records: records), "from_orders")
    shipped = group.operator("shipped", generate(mode="executors")(largest), tables, window=AllOfRun())
    group.names.append("table")
    group.made.writer("table", TableWriter("warehouse", "largest", {"inset": "text", "cents": "bigint"}), shipped)
    assert group.run()
    found = rows_of(group.warehouse, "SELECT inset, cents FROM largest")
    assert [tuple(row) for row in found] == group.expected("'all', max(cents)", "")


TYPES: dict[str, tuple[Partitioning, str, str, str]] = {
    "instants": (BERLIN, DAY, "ts", INSIDE),
    "hours": (
        Hours("day", zone="Asia/Kolkata"),
        "2026-03-29T0030Z",
        "ts",
        "ts >= TIMESTAMPTZ '2026-03-29 00:30:00Z' AND ts < TIMESTAMPTZ '2026-03-29 01:30:00Z'",
    ),
    "wall times of UTC": (Days("day"), DAY, "wall", OF_UTC),
    "dates": (BERLIN, DAY, "date", f"date = DATE '{DAY}'"),
}


def divided(spark: Any, partition: Partitioning, text: str, on: str, file: Path, *ports: str) -> dict[str, pa.Table]:
    """Port → the records that a run of the partition sends there; only those of `ports` are evaluated, if there are any."""
    _, outputs, _ = frames_of(spark, partition, text, on, file)
    check_repeatable(outputs)
    return {port: frame.toArrow() for port, frame in outputs.items() if port in (ports or outputs)}


def frames_of(
    spark: Any, partition: Partitioning, text: str, on: str, file: Path
) -> tuple[FrameFunctionOperator, Mapping[str, Any], dict[str, str]]:
    """The operator, port → what it sends there, and the parameters of the run."""
    made = Pipeline("p", partition=partition)
    own = OwnPartition("day", on=on, mode="dataframe")
    made.operator("own", own, made.source("web", FolderSource("days")))
    operator = made._definition.operators["own"]
    assert isinstance(operator, FrameFunctionOperator)
    params = made.check_params({}, partition.key_of(text))
    return operator, operator.frames("in", spark.read.parquet(str(file)), params), params


def counted_late(spark: Any, partition: Partitioning, text: str, on: str, file: Path) -> Mapping[str, int]:
    """As the log counts what goes to port `other`."""
    operator, outputs, params = frames_of(spark, partition, text, on, file)
    own = operator.divides_to("other")
    assert own is not None and operator.divides_to("own") is None
    return late_in(outputs["other"], own, params)


def of_partition(partition: Partitioning, key: PartitionKey, value: dt.datetime | dt.date) -> str:
    """What counts a time, by the calendar of Python."""
    if not isinstance(value, dt.datetime):
        at = dt.datetime.combine(value, dt.time(12), ZoneInfo(partition.zone))
    else:
        at = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    away = (at - key.start).total_seconds() / partition.seconds
    if not -399 < away < 41:
        return "earlier" if away < 0 else "later"
    if isinstance(partition, Days):
        return str(at.astimezone(ZoneInfo(partition.zone)).date())
    return f"{at - (at - key.start) % (key.end - key.start):%Y-%m-%dT%H%M}Z"


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_types_of_times_are_divided_as_duckdb_divides_them(spark: Any, tmp_path: Path, zone: str) -> None:
    """Whatever the zone of Spark's session is."""
    file = tmp_path / "days.parquet"
    far = orders(START - dt.timedelta(days=500), END + dt.timedelta(days=60), first=200)
    pq.write_table(pa.concat_tables([*days(), far]), file)
    before = spark.conf.get(SESSION_ZONE)
    spark.conf.set(SESSION_ZONE, zone)
    try:
        for case, (partition, text, on, inside) in TYPES.items():
            found = divided(spark, partition, text, on, file)
            for port, condition in (("own", inside), ("other", f"NOT ({inside})")):
                wanted = query(f"SELECT id FROM '{file}' WHERE {condition} ORDER BY id")
                assert [(number,) for number in sorted(found[port]["id"].to_pylist())] == wanted != [], (case, port)
            key = partition.key_of(text)
            expected = Counter(of_partition(partition, key, at) for at in found["other"][on].to_pylist())
            assert counted_late(spark, partition, text, on, file) == expected, case
            assert {"earlier", "later"} < expected.keys()
    finally:
        spark.conf.set(SESSION_ZONE, before)


def with_null(name: str) -> pa.Table:
    whole = days()[1]
    column = whole.column(name).combine_chunks()
    place = whole.schema.get_field_index(name)
    return whole.set_column(place, name, pa.concat_arrays([column[:20], pa.nulls(len(column) - 20, column.type)]))


WRONG: dict[str, tuple[Partitioning, str, str]] = {
    "null": (BERLIN, "ts", "column .ts. is null in a record: a record without a time belongs to no day. Drop or fill"),
    "null date": (BERLIN, "date", "column .date. is null in a record"),
    "null of UTC": (Days("day"), "wall", "column .wall. is null in a record"),
    "wall times": (BERLIN, "wall", "'wall' is timestamp_ntz, which is no moment.* zone 'Europe/Berlin'"),
    "dates of hours": (Hours("day"), "date", "column 'date' has dates, which do not say which hour of UTC"),
    "numbers": (BERLIN, "id", "column 'id' is long, and must be a timestamp or a date"),
    "nothing": (BERLIN, "at", "column 'at' is needed, once"),
}


def test_what_cannot_be_divided_is_refused(spark: Any, tmp_path: Path) -> None:
    """A null also if one port alone is evaluated: no record gets lost between two filters."""
    from pyspark.errors import PySparkException

    for case, (partition, on, sentence) in WRONG.items():
        file = tmp_path / f"{case}.parquet"
        pq.write_table(with_null(on) if case.startswith("null") else days()[1], file)
        text = DAY if isinstance(partition, Days) else f"{DAY}T00Z"
        for port in ("own", "other"):
            with pytest.raises((OperatorFailed, PySparkException), match=f"(?s)OwnPartition: .*{sentence}"):
                divided(spark, partition, text, on, file, port)


def test_a_null_ends_the_group_and_is_told(tmp_path: Path, sessions: SparkSessions) -> None:
    group = Group(tmp_path, sessions, day=(BERLIN, DAY), orders=[with_null("ts")])
    own = group.operator("own", OwnPartition("day", on="ts", mode="dataframe"), "from_orders")
    for port in ("own", "other"):
        group.save(own.port(port), port)
    with pytest.raises(OperatorFailed, match=r"(?s)OwnPartition: column .ts. is null in a record"):
        group.run()
    assert not list(group.lake.rglob("*.parquet"))
