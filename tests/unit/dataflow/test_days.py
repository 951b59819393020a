"""`Days` and `Hours`: what names a partition, where it begins and ends, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from airflow_logio.dataflow import (
    Count,
    FolderSource,
    ParquetSource,
    ParquetWriter,
    Pipeline,
    QuerySource,
    RangeSource,
    TableSource,
)
from airflow_logio.dataflow.pipeline.days import MOST_AT_ONCE, Days, Hours, Partitioning, check_partition
from airflow_logio.dataflow.windows import zones
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError

BERLIN = Days("day", zone="Europe/Berlin")
HOURS = Hours("hour", zone="Europe/Berlin")
HARD = (
    "Australia/Lord_Howe",
    "America/Havana",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Antarctica/Troll",
    "Pacific/Apia",
)


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def hours_of(partitioning: Partitioning, text: str) -> float:
    key = partitioning.key_of(text)
    return (key.end - key.start).total_seconds() / 3600


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01",
        " 2026-03-01 ",
        "2026-03-01T00:00:00",
        "2026-03-01 00:00",
        "2026-03-01T00:00:00+01:00",
        "2026-02-28T23:00:00Z",
        "2026-02-28T23:00:00.000000+00:00",
        "2026-03-01T04:30+0530",
    ],
)
def test_all_ways_to_write_a_day_name_the_same_one(text: str) -> None:
    key = BERLIN.key_of(text)
    assert (key.text, key.start, key.end) == ("2026-03-01", at("2026-02-28T23:00Z"), at("2026-03-01T23:00Z"))
    assert BERLIN.parameters(key) == {
        "day": "2026-03-01",
        "day_start": "2026-02-28T23:00:00+00:00",
        "day_end": "2026-03-01T23:00:00+00:00",
    }


@pytest.mark.parametrize("text", ["2026-10-25T01Z", "2026-10-25T01:00Z", "2026-10-25T02:00+01:00", "2026-10-25T02+01"])
def test_all_ways_to_write_an_hour_name_the_same_one(text: str) -> None:
    key = HOURS.key_of(text)
    assert (key.text, key.start, key.end) == ("2026-10-25T01Z", at("2026-10-25T01:00Z"), at("2026-10-25T02:00Z"))


def test_an_hour_of_the_clock_is_understood_where_there_is_one() -> None:
    assert HOURS.key_of("2026-10-25T04:00:00").text == "2026-10-25T03Z"
    assert Hours("hour", zone="Asia/Kolkata").key_of("2026-03-01T10:00").text == "2026-03-01T0430Z"
    assert Hours("hour").key_of("2026-03-01T10").text == "2026-03-01T10Z"


@pytest.mark.parametrize(
    ("partitioning", "text", "said"),
    [
        (BERLIN, "20260301", "is no day"),
        (BERLIN, "2026-W09-7", "is no day"),
        (BERLIN, "2026-3-1", "is no day"),
        (BERLIN, "", "is no day"),
        (BERLIN, None, "is no text"),
        (BERLIN, dt.date(2026, 3, 1), "is no text"),
        (BERLIN, "2026-02-30", "is no day of a calendar"),
        (BERLIN, "2026-13-01T00:00", "is no time"),
        (BERLIN, "0000-01-01", "is no day of a calendar"),
        (BERLIN, "2026-03-01T01:00", "is a time within a day"),
        (BERLIN, "2026-03-01T00:00:00Z", "is not where a day of Europe/Berlin begins"),
        (BERLIN, "2026-03-01T00:00:00.5", "is no day"),
        (Days("day", zone="Pacific/Apia"), "2011-12-30", "is a day that the clock of Pacific/Apia has left out"),
        (HOURS, "2026-10-25", "is no hour"),
        (HOURS, "2026-10-25T02:00", "shows twice, at 2026-10-25T00:00Z and 2026-10-25T01:00Z"),
        (HOURS, "2026-03-29T02:00", "is a time that the clock of Europe/Berlin leaves out"),
        (HOURS, "2026-10-25T02:30+02:00", "is not where an hour of Europe/Berlin begins"),
    ],
)
def test_what_names_no_partition_is_refused_with_what_to_write(
    partitioning: Partitioning, text: object, said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        partitioning.key_of(text)
    for part in (repr(text), said, f"one run for each {partitioning.what} of {partitioning.zone}", "write it"):
        assert part in str(refused.value)


def test_days_and_hours_across_changes_of_the_clock() -> None:
    assert [hours_of(BERLIN, f"2026-{day}") for day in ("03-28", "03-29", "10-25")] == [24, 23, 25]
    assert len(HOURS.range_of("2026-10-24T22Z..2026-10-25T22Z")) == 25
    assert hours_of(Days("day", zone="America/Havana"), "2024-11-03") == 25, "midnight comes twice"
    assert hours_of(Days("day", zone="America/Sao_Paulo"), "2018-11-04T00:00") == 23, "there is no midnight"
    assert hours_of(Days("day", zone="Australia/Lord_Howe"), "2024-04-07") == 24.5


@pytest.mark.parametrize("zone", HARD)
@pytest.mark.parametrize("kind", [Days, Hours])
def test_partitions_are_the_windows_of_the_zone_and_sort_as_they_do(zone: str, kind: type[Partitioning]) -> None:
    """Each begins where the one before has ended, is found by its own text, and Python's clock shows its day."""
    partitioning = kind("part", zone=zone)
    for begin in ("2011-12-27", "2024-03-06", "2024-03-28", "2024-04-04", "2024-10-02", "2024-10-25", "2024-10-31"):
        first = partitioning.key_of(begin if kind is Days else f"{begin}T12:00")
        found = [first]
        for _ in range(40 if kind is Days else 24 * 9):
            found.append(partitioning.following(found[-1]))
        texts = [key.text for key in found]
        assert texts == sorted(set(texts))
        assert [partitioning.key_of(key.text) for key in found] == found
        assert [partitioning.of_interval(key.start, key.end) for key in found] == found
        starts = np.array([key.start.timestamp() for key in found], np.int64)
        assert (zones.numbers(zone, partitioning.seconds, 0, starts) == starts).all()
        assert all(before.end == after.start for before, after in itertools.pairwise(found))
        if kind is Days:
            assert all(key.start.astimezone(ZoneInfo(zone)).date().isoformat() == key.text for key in found)


def test_an_interval_is_exactly_one_partition_or_refused() -> None:
    assert BERLIN.of_interval(at("2026-02-28T23:00Z"), at("2026-03-02T00:00+01:00")).text == "2026-03-01"
    for start, end, said in (
        ("2026-03-01T00:00Z", "2026-03-01T00:00Z", "has no length, as that of a schedule such as '@daily'"),
        ("2026-03-01T00:00Z", "2026-03-02T00:00Z", "is not exactly one day of Europe/Berlin"),
        ("2026-02-28T23:00Z", "2026-03-02T23:00Z", "is not exactly one day"),
        ("2026-02-28T23:00Z", "2026-03-01T22:59Z", "is not exactly one day"),
    ):
        with pytest.raises(ConfigurationError, match="CronPartitionTimetable") as refused:
            BERLIN.of_interval(at(start), at(end))
        assert said in str(refused.value)
        assert "run_offset=-1" in str(refused.value)
        assert start[:10] in str(refused.value)


def test_a_range_has_both_its_ends() -> None:
    assert [key.text for key in BERLIN.range_of("2026-03-28..2026-03-30")] == ["2026-03-28", "2026-03-29", "2026-03-30"]
    assert [key.text for key in BERLIN.range_of("2026-03-28")] == ["2026-03-28"]
    apia = Days("day", zone="Pacific/Apia").range_of("2011-12-29..2011-12-31")
    assert [key.text for key in apia] == ["2011-12-29", "2011-12-31"]
    with pytest.raises(ConfigurationError, match=r"ends before it begins: write 2026-03-28\.\.2026-03-30"):
        BERLIN.range_of("2026-03-30..2026-03-28")
    with pytest.raises(ConfigurationError, match=rf"has 36,524 days, and at most {MOST_AT_ONCE:,} are taken at once"):
        BERLIN.range_of("1926-03-30..2026-03-28")
    with pytest.raises(ConfigurationError, match="has 17,544 hours"):
        Hours("hour").range_of("2023-01-01T00Z..2024-12-31T23Z")
    for text in ("..", "2026-03-28..", "2026-03-28..2026-03-29..2026-03-30"):
        with pytest.raises(ConfigurationError, match="is no day"):
            BERLIN.range_of(text)


@pytest.mark.parametrize(("day", "hours"), [("2026-10-25", 25), ("2026-03-29", 23), ("2026-03-28", 24)])
def test_a_range_of_hours_is_the_whole_day(day: str, hours: int) -> None:
    found = HOURS.range_of(f"{day}T00:00..{day}T23:00")
    assert len(found) == hours == hours_of(BERLIN, day)
    assert (found[0].start, found[-1].end) == (BERLIN.key_of(day).start, BERLIN.key_of(day).end)
    assert [key.end - key.start for key in found] == [dt.timedelta(hours=1)] * hours


def test_a_partition_that_has_not_ended_is_refused_unless_the_author_wants_it() -> None:
    key = BERLIN.key_of("2026-03-01")
    BERLIN.check_ended(key, at("2026-03-01T23:00Z"))
    BERLIN.check_ended(key, at("2026-03-01T22:55Z"))
    BERLIN.check_ended(key, at("2026-03-01T20:00Z"), at("2026-03-01T23:00Z"))
    with pytest.raises(ConfigurationError, match=r"day 2026-03-01 .* still to come.*run_offset=-1.*early=True"):
        BERLIN.check_ended(key, at("2026-03-01T22:54:59Z"))
    with pytest.raises(ConfigurationError, match="still to come"):
        BERLIN.check_ended(key, at("2026-03-01T22:54:59Z"), at("2026-03-01T22:59:59Z"))
    Days("day", zone="Europe/Berlin", early=True).check_ended(key, at("2026-03-01T00:00Z"))


def test_definitions_are_checked() -> None:
    Days("d" * 28)
    for arguments in ({"zone": "Europe/Berln"}, {"name": "my day"}, {"early": 1}, {"name": "d" * 29}):
        wrong: Any = {"name": "day", **arguments}
        with pytest.raises(PipelineDefinitionError):
            Days(**wrong)
    with pytest.raises(PipelineDefinitionError, match=r"give Days\("):
        check_partition("day")
    assert check_partition(BERLIN) is BERLIN
    assert BERLIN.describe()["rules"] != Days("day").describe()["rules"]


# --- pipelines ---------------------------------------------------------------------------------------------------------


def daily(partition: Partitioning | None = BERLIN, params: Mapping[str, type] | None = None) -> Pipeline:
    pipeline = Pipeline("clicks", partition=partition, params=params, connections=["lake"])
    source = pipeline.source("read", ParquetSource("web/dt={day}/*.parquet"))
    pipeline.writer("keep", ParquetWriter("lake", "clicks/dt={day}"), source)
    return pipeline


def test_a_run_has_the_parameters_of_its_partition() -> None:
    pipeline = daily(params={"country": str})
    key = BERLIN.key_of("2026-03-01")
    assert pipeline.params == {"country": str}, "what whatever starts a run has to give"
    params = pipeline.check_params({"country": "de"}, key)
    assert params == {"country": "de", **BERLIN.parameters(key)}
    writer: Any = pipeline.for_run(params).operators["keep"]
    assert writer.folder == "clicks/dt=2026-03-01"


def test_a_partition_is_part_of_the_graph_and_older_graphs_stay() -> None:
    described = daily().describe()
    assert described["partition"] == BERLIN.describe()
    assert described["params"] == {}
    plain = Pipeline("clicks", params={"day": str}, connections=["lake"])
    plain.writer("keep", ParquetWriter("lake", "x"), plain.source("read", ParquetSource("x")))
    assert "partition" not in plain.describe()
    graphs = {daily(Days("day", zone=zone)).fingerprint()["graph"] for zone in ("UTC", "Europe/Berlin", "Asia/Tokyo")}
    assert len(graphs) == 3
    assert daily(Days("day", early=True)).fingerprint() == daily(Days("day")).fingerprint(), (
        "early is of the start alone"
    )


@pytest.mark.parametrize(
    ("given", "day", "said"),
    [
        ({}, None, r"one run for each day of Europe/Berlin, and this run has none.*--partition"),
        ({"day": "2026-03-01"}, None, r"parameter 'day' .* is what the partition of a run gives it"),
        ({"day_end": "x"}, "2026-03-01", r"parameter 'day_end' .* leave the parameter out"),
    ],
)
def test_a_run_without_its_partition_is_refused(given: Mapping[str, str], day: str | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        daily().check_params(given, None if day is None else BERLIN.key_of(day))


def test_a_partition_of_a_pipeline_without_them_is_refused() -> None:
    pipeline = Pipeline("clicks")
    with pytest.raises(ConfigurationError, match=r"'clicks' has no partitions.*partition=Days"):
        pipeline.check_params({}, BERLIN.key_of("2026-03-01"))


def test_a_parameter_of_the_partitions_name_is_refused() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"parameter 'day_start' .*Days\('day'\).*leave it out"):
        daily(params={"day_start": str})


class Endless(RangeSource):
    def first(self, params: Mapping[str, Any]) -> int:
        return 0

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any) -> Any:
        return start

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    "source",
    [
        FolderSource("web/dt={day}", unbounded=True),
        TableSource("lake", "clicks", by="id", columns=("id",), append_only=True, unbounded=True),
        Endless(),
    ],
)
def test_a_source_that_does_not_end_is_refused(source: Any) -> None:
    pipeline = Pipeline("clicks", partition=BERLIN, connections=["lake"])
    pipeline.sink("counted", Count(), pipeline.source("web", source))
    with pytest.raises(PipelineDefinitionError, match=r"source 'web' is unbounded.*Days\('day'\).*unbounded=False"):
        pipeline.validate()


@pytest.mark.parametrize(
    "source", [FolderSource("web/dt={day}"), TableSource("lake", "clicks", by="id", append_only=True)]
)
def test_a_source_that_ends_is_taken(source: Any) -> None:
    pipeline = Pipeline("clicks", partition=BERLIN, connections=["lake"])
    pipeline.sink("counted", Count(), pipeline.source("web", source))
    pipeline.validate()


def test_queries_name_the_instants() -> None:
    pipeline = Pipeline("clicks", partition=BERLIN, connections=["shop"])
    query = QuerySource(
        "shop",
        "SELECT * FROM sales WHERE sold_at >= :day_start AND sold_at < :day_end ORDER BY id",
        columns={"id": "bigint"},
    )
    pipeline.sink("counted", Count(), pipeline.source("sales", query))
    pipeline.validate()
    params = pipeline.check_params({}, BERLIN.key_of("2026-03-01"))
    source: Any = pipeline.operators["sales"]
    action = source.action(params)
    assert action["values"] == {k: params[k] for k in ("day_start", "day_end")}, "texts, for the log"
    assert source.values_of(action) == {"day_start": at("2026-02-28T23:00Z"), "day_end": at("2026-03-01T23:00Z")}
    earlier = {name: value for name, value in action.items() if name != "instants"}
    assert source.values_of(earlier) == action["values"], "as an earlier version has logged it"
    assert query.action(params)["values"] == action["values"], "the author's own object is as it was"
    assert "instants" not in query.action(params)
