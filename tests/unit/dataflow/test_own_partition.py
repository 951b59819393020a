"""`OwnPartition` in mode ``driver``: bounds by the microsecond, days of 23 to 25 hours, and what is refused."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest

from airflow_logio.dataflow import ByKey, Count, InputEvent, OwnPartition, Pipeline, RoundRobin, TableWriter
from airflow_logio.dataflow.functions.function_operators import FunctionOperator
from airflow_logio.dataflow.operators import PortTable
from airflow_logio.dataflow.pipeline.days import Days, Hours, Partitioning
from airflow_logio.dataflow.windows import AllOfRun
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.record_rules import WHOLE, Dependence, Uses
from airflow_logio.testing import ScriptedSource, Simulator, pipeline_scenario
from tests.unit.dataflow.conftest import FakeExternal

CASES: dict[str, tuple[Partitioning, str, float]] = {
    "a day": (Days("day", zone="Europe/Berlin"), "2026-03-01", 24),
    "of 23 hours": (Days("day", zone="Europe/Berlin"), "2026-03-29", 23),
    "of 25 hours": (Days("day", zone="Europe/Berlin"), "2026-10-25", 25),
    "of a half": (Days("day", zone="Australia/Lord_Howe"), "2026-04-05", 24.5),
    "without its midnight": (Days("day", zone="America/Havana"), "2026-03-08", 23),
    "before 1970": (Days("day", zone="Asia/Kolkata"), "1965-02-28", 24),
    "before 1900": (Days("day"), "1582-10-15", 24),
    "an hour twice, first": (Hours("day", zone="Europe/Berlin"), "2026-10-25T00Z", 1),
    "an hour twice, second": (Hours("day", zone="Europe/Berlin"), "2026-10-25T01Z", 1),
    "half an hour off": (Hours("day", zone="Asia/Kolkata"), "2026-03-01T0030Z", 1),
}
MICRO = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def divided(
    partitioning: Partitioning, text: str, *tables: pa.Table, on: str = "ts", **settings: Any
) -> dict[str, list[pa.Table]]:
    """Port → tables that a run of the partition sends there."""
    made = Pipeline("p", partition=partitioning)
    made.operator(
        "own", OwnPartition(partitioning.name, on=on, **settings), made.source("web", ScriptedSource(TABLE, 1))
    )
    operator = made._definition.operators["own"]
    assert isinstance(operator, FunctionOperator)
    external = FakeExternal()
    external.params = made.check_params({}, partitioning.key_of(text))
    sent: list[PortTable] = [
        one
        for number, table in enumerate(tables, 1)
        for one in operator.process(InputEvent("in", number, table), external)
    ]
    return {port: [table for name, table in sent if name == port] for port in operator.outputs}


def of_times(times: list[dt.datetime], unit: str = "us", zone: str | None = None) -> pa.Table:
    ticks = pa.array([(at - EPOCH) // MICRO for at in times], pa.timestamp("us"))
    kind = pa.timestamp(unit, zone)
    column = ticks.cast(pa.timestamp(unit), safe=False).cast(pa.int64()).cast(kind)
    return pa.table({"row": pa.array(range(len(times)), pa.int64()), "ts": column})


TABLE = of_times([EPOCH])


KINDS = [("us", None), ("us", "UTC"), ("us", "America/New_York"), ("ms", None), ("s", "UTC"), ("ns", None)]
TIMES = [(case, *kind) for case in CASES for kind in KINDS if kind[0] != "ns" or case != "before 1900"]
"""Nanoseconds do not reach before 1677."""


@pytest.mark.parametrize(("case", "unit", "zone"), TIMES)
def test_times_are_divided_as_duckdb_divides_them(case: str, unit: str, zone: str | None) -> None:
    partitioning, text, hours = CASES[case]
    key = partitioning.key_of(text)
    assert key.end - key.start == dt.timedelta(hours=hours)
    step = {"us": MICRO, "ns": MICRO, "ms": dt.timedelta(milliseconds=1), "s": dt.timedelta(seconds=1)}[unit]
    chance = random.Random(case)
    edges = [at + shift * step for at in (key.start, key.end) for shift in (-1, 0, 1)]
    times = edges + [key.start + step * chance.randrange(-(10**6), 10**8) for _ in range(60)]
    chance.shuffle(times)
    table = of_times(times, unit, zone)
    sent = divided(partitioning, text, table, table.slice(0, 5))
    with duckdb.connect() as database:
        micros = [(at - EPOCH) // MICRO for at in times]
        database.register("times", pa.table({"number": range(len(times)), "micros": micros}))
        bounds = " AND ".join(
            f"micros {sign} epoch_us(TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}')"
            for sign, at in ((">=", key.start), ("<", key.end))
        )
        own = [
            row for (row,) in database.execute(f"SELECT number FROM times WHERE {bounds} ORDER BY number").fetchall()
        ]
    assert own and sent["own"][0]["row"].to_pylist() == own
    assert sent["other"][0]["row"].to_pylist() == sorted(set(range(len(times))) - set(own))
    assert sent["own"][0].equals(table.take(own)), "records stay as they are, in their order"


def test_what_has_no_records_is_not_sent() -> None:
    days = Days("day")
    inside, outside = of_times([EPOCH]), of_times([EPOCH - MICRO])
    sent = divided(days, "1970-01-01", inside, outside, inside.slice(0, 0))
    assert sent == {"own": [inside], "other": [outside]}


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Kiritimati"])
def test_a_date_is_of_its_day_in_any_zone(kind: Any, zone: str) -> None:
    days = [dt.date(2026, 3, 28), dt.date(2026, 3, 29), dt.date(2026, 3, 30)]
    table = pa.table({"ts": pa.array(days, pa.date32()).cast(kind)})
    sent = divided(Days("day", zone=zone), "2026-03-29", table)
    assert [one["ts"].cast(pa.date32()).to_pylist() for one in sent["own"]] == [days[1:2]]
    assert [one["ts"].cast(pa.date32()).to_pylist() for one in sent["other"]] == [[days[0], days[2]]]


def late_of(partitioning: Partitioning, text: str, table: pa.Table) -> Mapping[str, int]:
    """Partition → how many of the records that go to port `other` the log is to count for it."""
    made = Pipeline("p", partition=partitioning)
    web = made.source("web", ScriptedSource(TABLE, 1))
    made.operator("own", OwnPartition(partitioning.name, on="ts"), web)
    operator = made._definition.operators["own"]
    assert isinstance(operator, FunctionOperator)
    external = FakeExternal()
    external.params = made.check_params({}, partitioning.key_of(text))
    counts = {
        port: operator.late(port, sent, external.params)
        for port, sent in operator.process(InputEvent("in", 1, table), external)
    }
    assert not counts.pop("own", None)
    return counts.get("other", {})


@pytest.mark.parametrize("case", [case for case in CASES if case != "before 1900"])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_late_records_are_counted_by_the_partition_that_they_are_of(case: str, unit: str) -> None:
    """Compared with the calendar of Python, of days and hours that are near, and far away."""
    partitioning, text, _ = CASES[case]
    key, zone, chance = partitioning.key_of(text), ZoneInfo(partitioning.zone), random.Random(case)
    reach = 39 * dt.timedelta(seconds=partitioning.seconds)
    times = [
        key.start + dt.timedelta(seconds=chance.randrange(-10, 10) * reach.total_seconds() // 10) for _ in range(99)
    ]
    times += [at + shift for at in (key.start, key.end) for shift in (-dt.timedelta(seconds=1), dt.timedelta(0))]
    outside = [at for at in times if not key.start <= at < key.end]
    far = dt.timedelta(seconds=500 * partitioning.seconds)
    counted = late_of(partitioning, text, of_times([*times, key.start - far, key.end + far, key.end + far], unit))
    if isinstance(partitioning, Days):
        expected = Counter(str(at.astimezone(zone).date()) for at in outside)
    else:
        half = dt.timedelta(minutes=30) if partitioning.zone == "Asia/Kolkata" else dt.timedelta(0)
        starts = (at - (at - half - EPOCH) % dt.timedelta(hours=1) for at in outside)
        expected = Counter(f"{at:%Y-%m-%dT%H%M}Z".replace("00Z", "Z") for at in starts)
    assert counted == {**expected, "earlier": 1, "later": 2}


def test_a_run_has_few_counters_whatever_comes() -> None:
    """Also at the ends of the calendar, and of times that no calendar has."""
    days = Days("day", zone="Europe/Berlin")
    every = of_times([EPOCH + dt.timedelta(days=day) for day in range(-4_000, 4_000)])
    counted = late_of(days, "1970-06-01", every)
    assert (len(counted), sum(counted.values())) == (400 + 40 + 2, 8_000 - 1)
    ends = pa.array([-(2**63), -(10**12), 0, 10**12, 2**63 - 1], pa.int64()).cast(pa.timestamp("s"))
    assert late_of(days, "1970-01-01", pa.table({"ts": ends})) == {"earlier": 2, "later": 2}
    for first in ("0001-01-05", "9999-12-20"):
        assert set(late_of(days, first, pa.table({"ts": ends}))) == {"earlier", "later"}
    numbers = pa.array([-(2**31), -150, 0, 1, 2**31 - 1], pa.int32()).cast(pa.date32())
    dates = late_of(days, "1970-01-01", pa.table({"ts": numbers}))
    assert dates == {"earlier": 1, "1969-08-04": 1, "1970-01-02": 1, "later": 1}
    assert set(late_of(days, "0001-01-05", pa.table({"ts": numbers}))) == {"earlier", "later"}


REFUSED: Mapping[str, tuple[Partitioning, pa.Table, str]] = {
    "nulls": (
        Days("day"),
        pa.table({"ts": pa.array([0, None, None], pa.timestamp("us"))}),
        r"column 'ts' has 2 null\(s\): a record without a time belongs to no day",
    ),
    "null dates": (Days("day"), pa.table({"ts": pa.array([None], pa.date32())}), r"column 'ts' has 1 null\(s\)"),
    "texts": (
        Days("day"),
        pa.table({"ts": ["2026-03-01"]}),
        "column 'ts' is string, and must be a timestamp or a date",
    ),
    "numbers": (Days("day"), pa.table({"ts": [1]}), "column 'ts' is int64, and must be a timestamp or a date"),
    "times of a day": (Days("day"), pa.table({"ts": pa.array([1], pa.time64("us"))}), r"column 'ts' is time64\[us\]"),
    "nothing": (Days("day"), pa.table({"ts": pa.nulls(1)}), "column 'ts' is null, and must be a timestamp or a date"),
    "another name": (
        Days("day"),
        pa.table({"tss": [1]}),
        r"column 'ts' is needed, once; .*\['tss'\]. Did you mean 'tss'",
    ),
    "a name twice": (Days("day"), pa.table([[1], [2]], names=["ts", "ts"]), "column 'ts' is needed, once"),
    "dates and hours": (
        Hours("day", zone="Europe/Berlin"),
        pa.table({"ts": pa.array([0], pa.date32())}),
        "column 'ts' has dates, which do not say which hour of Europe/Berlin they are in: name a column of timestamps",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_divided_is_refused(case: str) -> None:
    partitioning, table, sentence = REFUSED[case]
    text = "2026-03-01" if isinstance(partitioning, Days) else "2026-03-01T00Z"
    with pytest.raises(OperatorFailed, match=f"OwnPartition: {sentence}"):
        divided(partitioning, text, table)


def added(own: Any, partitioning: Partitioning | None = None, **settings: Any) -> None:
    made = Pipeline("p", partition=partitioning)
    made.operator("own", own, made.source("web", ScriptedSource(TABLE, 1)), **settings)


def test_what_cannot_be_defined() -> None:
    own, day = OwnPartition("day", on="ts"), Days("day")
    with pytest.raises(
        PipelineDefinitionError, match=r"'own' is OwnPartition\(.*no partition: .*partition=Days\('day'"
    ):
        added(own)
    with pytest.raises(
        PipelineDefinitionError, match=r"of the pipeline is Hours\('hour'\): write OwnPartition\('hour'"
    ):
        added(own, Hours("hour"))
    with pytest.raises(PipelineDefinitionError, match="the class OwnPartition: write OwnPartition"):
        added(OwnPartition, day)
    with pytest.raises(PipelineDefinitionError, match="'own' has a window, but OwnPartition"):
        added(own, day, window=AllOfRun())
    with pytest.raises(PipelineDefinitionError, match=r"'own\.part' is one of several functions.*OwnPartition"):
        added({"part": own}, day, window=AllOfRun())
    with pytest.raises(PipelineDefinitionError, match="mode 'executors', which is for the Input Sets of a window"):
        OwnPartition("day", on="ts", mode="executors")
    for wrong in ({"partition": "a b!", "on": "ts"}, {"partition": "day", "on": ""}, {"partition": "day", "on": "a.b"}):
        with pytest.raises(PipelineDefinitionError, match="is not allowed"):
            OwnPartition(**wrong)
    with pytest.raises(PipelineDefinitionError, match="OwnPartition: there is no argument 'column'"):
        OwnPartition("day", column="ts")  # type: ignore[call-arg]


def test_both_ports_must_be_used() -> None:
    """So late rows are not lost by forgetting them."""
    made = Pipeline("p", partition=Days("day"))
    own = made.operator("own", OwnPartition("day", on="ts"), made.source("web", ScriptedSource(TABLE, 1)))
    made.sink("end", Count(), own.port("own"))
    with pytest.raises(PipelineDefinitionError, match=r"output port 'own\.other' is connected to nothing"):
        made.freeze()


def test_it_is_part_of_the_pipeline_and_says_how_records_depend() -> None:
    def fingerprint(on: str, zone: str = "UTC") -> Mapping[str, Any]:
        made = Pipeline("p", partition=Days("day", zone=zone))
        own = made.operator("own", OwnPartition("day", on=on), made.source("web", ScriptedSource(TABLE, 1)))
        made.sink("own_end", Count(), own.port("own"))
        made.sink("other_end", Count(), own.port("other"))
        operator = made._definition.operators["own"]
        assert isinstance(operator, FunctionOperator) and operator.outputs == ("own", "other")
        rules = operator.record_rules()
        assert rules.parts == {"": WHOLE}
        assert rules.outputs == {port: Dependence(Uses.ONE) for port in ("own", "other")}
        return made.fingerprint()

    assert fingerprint("ts") == fingerprint("ts")
    assert fingerprint("ts") != fingerprint("at")
    assert fingerprint("ts")["graph"] != fingerprint("ts", "Europe/Berlin")["graph"]


@pytest.mark.parametrize("partition", [RoundRobin(), ByKey("row")], ids=["any", "by key"])
def test_replicas_divide_as_one_does(partition: Any) -> None:
    """Compared with the same pipeline without replicas, while slots move and replicas die."""
    made = Pipeline("divided", partition=Days("day"), connections=["warehouse"])
    times = [EPOCH + dt.timedelta(hours=hour) for hour in range(-8, 32)]
    web = made.source("web", ScriptedSource(of_times(times), 3))
    own = made.operator("own", OwnPartition("day", on="ts"), web)
    for port in ("own", "other"):
        columns = {"row": "bigint", "ts": "timestamp"}
        made.writer(f"save_{port}", TableWriter("warehouse", port, columns), own.port(port))
    made.group("work", "own")
    made.replicate("work", partition=partition, max=2)
    key = Days("day").key_of("1970-01-01")
    simulator = Simulator(pipeline_scenario(made.freeze(), partition=key))
    written = simulator.reference().observed.writes
    assert {writer for writer, bodies in written.items() if bodies} >= {"save_own>warehouse", "save_other>warehouse"}
    for seed in range(4):
        _, failure = simulator.run(seed)
        assert failure is None, failure


def test_what_is_not_in_the_log_is_divided_again() -> None:
    """With replay=True the records of its events are made again, with the same bounds."""
    made = Pipeline("again", partition=Days("day"), connections=["warehouse"])
    times = [EPOCH + dt.timedelta(hours=hour) for hour in range(-8, 32)]
    own = made.operator(
        "own", OwnPartition("day", on="ts"), made.source("web", ScriptedSource(of_times(times), 3)), replay=True
    )
    for port in ("own", "other"):
        columns = {"row": "bigint", "ts": "timestamp"}
        made.writer(f"save_{port}", TableWriter("warehouse", port, columns), own.port(port))
        made.lineage("web.out", f"own.{port}")
    simulator = Simulator(pipeline_scenario(made.freeze(), partition=Days("day").key_of("1970-01-01")))
    for seed in range(4):
        _, failure = simulator.run(seed)
        assert failure is None, failure
