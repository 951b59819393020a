"""Which partition a DAG run is for: what Airflow's own timetables give it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.timetables.base import DagRunInfo, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import CronPartitionTimetable, CronTriggerTimetable

from airflow_logio import Count, Days, Hours, ParquetSource, Pipeline
from airflow_logio.dataflow.pipeline.days import Partitioning
from airflow_logio.errors import ConfigurationError
from airflow_logio.operators._task.partition_start import partition_of

BERLIN = Days("day", zone="Europe/Berlin")
HOURS = Hours("hour", zone="Europe/Berlin")


def pipeline_of(partition: Partitioning | None) -> Pipeline:
    pipeline = Pipeline("clicks", partition=partition)
    pipeline.sink("count", Count(), pipeline.source("read", ParquetSource("x.parquet")))
    return pipeline


def scheduled(timetable: Any, begin: str, number: int) -> Iterator[Any]:
    """The first DAG runs that the scheduler makes from `begin` on, with catch-up, as a task sees them."""
    restriction = TimeRestriction(earliest=pendulum.parse(begin), latest=None, catchup=True)
    last: DagRunInfo | None = None
    for _ in range(number):
        last = timetable.next_dagrun_info_v2(last_dagrun_info=last, restriction=restriction)
        assert last is not None
        yield of(last)


def of(info: DagRunInfo) -> Any:
    interval = info.data_interval
    return SimpleNamespace(
        partition_key=info.partition_key,
        partition_date=info.partition_date,
        data_interval_start=None if interval is None else interval.start,
        data_interval_end=None if interval is None else interval.end,
        run_after=info.run_after,
    )


def keys(partitioning: Partitioning, dag_runs: Iterator[Any]) -> list[str]:
    found = [partition_of(pipeline_of(partitioning), dag_run) for dag_run in dag_runs]
    return [key.text for key in found if key is not None]


WEEK_OF_CHANGE = ["2026-10-23", "2026-10-24", "2026-10-25", "2026-10-26"]


@pytest.mark.parametrize(
    "timetable",
    [
        CronDataIntervalTimetable("0 0 * * *", timezone="Europe/Berlin"),
        CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin"),
        CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", key_format="%Y-%m-%d"),
        CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", key_format="%Y-%m-%dT%H:%M%z"),
    ],
)
def test_a_daily_schedule_gives_each_run_its_day(timetable: Any) -> None:
    assert keys(BERLIN, scheduled(timetable, "2026-10-23T00:00:00+02:00", 4)) == WEEK_OF_CHANGE


def test_a_schedule_that_runs_in_the_morning_names_the_day_that_has_ended() -> None:
    morning = CronPartitionTimetable("0 6 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%Y-%m-%d")
    assert keys(BERLIN, scheduled(morning, "2026-10-24T06:00:00+02:00", 4)) == WEEK_OF_CHANGE
    as_it_comes = CronPartitionTimetable("0 6 * * *", timezone="Europe/Berlin", run_offset=-1)
    with pytest.raises(
        ConfigurationError, match=r"2026-10-23T06:00:00' is a time within a day .*key_format='%Y-%m-%d'"
    ):
        keys(BERLIN, scheduled(as_it_comes, "2026-10-24T06:00:00+02:00", 1))


@pytest.mark.parametrize("key", ["2026-10-23", "2026-10-23T22:00:00"])
@pytest.mark.parametrize("kind", ["scheduled", "backfill", "asset_triggered"])
def test_a_key_that_airflow_3_2_has_named_by_utc_is_refused_in_another_zone(kind: str, key: str) -> None:
    """It means 24 October of Berlin, and does not say so; later versions say which instant they mean (`partition_date`)."""
    made = SimpleNamespace(partition_key=key, data_interval_start=None, data_interval_end=None, run_type=kind)
    for partitioning in (BERLIN, HOURS):
        with pytest.raises(
            ConfigurationError, match=r"by the clock of UTC, as it does below 3\.3, .* of Europe/Berlin\. Give"
        ):
            keys(partitioning, iter([made]))
    instant = SimpleNamespace(**{**vars(made), "partition_key": "2026-10-23T22:00+0000"})
    assert keys(BERLIN, iter([instant])) == ["2026-10-24"]
    by_hand = SimpleNamespace(**{**vars(made), "run_type": "manual", "partition_key": "2026-10-24"})
    assert keys(BERLIN, iter([by_hand])) == ["2026-10-24"]
    if key == "2026-10-23":
        assert keys(Days("day"), iter([made])) == ["2026-10-23"], "of UTC it says what it means"


def test_the_hours_of_a_long_day_have_a_run_each() -> None:
    with_offset = CronPartitionTimetable("0 * * * *", timezone="Europe/Berlin", key_format="%Y-%m-%dT%H:%M%z")
    found = keys(HOURS, scheduled(with_offset, "2026-10-25T00:00:00+02:00", 25))
    assert found == [f"2026-10-24T{hour}Z" for hour in (22, 23)] + [f"2026-10-25T{hour:02}Z" for hour in range(23)]
    as_it_comes = CronPartitionTimetable("0 * * * *", timezone="Europe/Berlin")
    with pytest.raises(ConfigurationError, match="shows twice"):
        keys(HOURS, scheduled(as_it_comes, "2026-10-25T02:00:00+02:00", 1))


def test_a_schedule_without_intervals_is_refused_with_those_that_have_them() -> None:
    """Airflow 3's `@daily`: the interval of a run begins and ends when it runs."""
    daily = CronTriggerTimetable("@daily", timezone="UTC")
    with pytest.raises(
        ConfigurationError, match=r"has no length, as that of a schedule such as '@daily'.*run_offset=-1"
    ):
        keys(Days("day"), scheduled(daily, "2026-10-23T00:00:00Z", 1))


def test_a_schedule_of_another_zone_is_refused() -> None:
    intervals = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
    with pytest.raises(ConfigurationError, match="is not exactly one day of Europe/Berlin"):
        keys(BERLIN, scheduled(intervals, "2026-10-23T00:00:00Z", 1))
    partitions = CronPartitionTimetable("0 0 * * *", timezone="UTC")
    with pytest.raises(ConfigurationError, match=r"means 2026-10-23T00:00:00\+00:00.*zone of the pipeline"):
        keys(BERLIN, scheduled(partitions, "2026-10-23T00:00:00Z", 1))
    hourly = CronPartitionTimetable("0 * * * *", timezone="UTC")
    with pytest.raises(ConfigurationError, match=r"means 2026-10-23T05:00:00\+00:00"):
        keys(HOURS, scheduled(hourly, "2026-10-23T05:00:00Z", 1))


def test_a_backfill_names_the_days_that_a_schedule_does() -> None:
    timetable = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1)
    infos = timetable.iter_partition_dagrun_infos(
        earliest=datetime(2026, 10, 23, tzinfo=UTC), latest=datetime(2026, 10, 26, tzinfo=UTC)
    )
    assert keys(BERLIN, map(of, infos)) == WEEK_OF_CHANGE


def test_a_backfill_of_a_schedule_in_the_morning_ends_at_its_last_run() -> None:
    """So its last day is given with that time, as the page of days says."""
    morning = CronPartitionTimetable("0 6 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%Y-%m-%d")
    first = datetime(2026, 10, 23, tzinfo=UTC)
    for hour, days in ((0, WEEK_OF_CHANGE[:3]), (6, WEEK_OF_CHANGE)):
        last = datetime(2026, 10, 26, hour, tzinfo=UTC)
        assert keys(BERLIN, map(of, morning.iter_partition_dagrun_infos(earliest=first, latest=last))) == days


ENDED = [
    CronDataIntervalTimetable("0 0 * * *", timezone="Europe/Berlin"),
    CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1),
]


@pytest.mark.parametrize("timetable", ENDED)
def test_a_day_has_ended_when_its_run_is_let_begin_whatever_the_clock_here_says(timetable: Any) -> None:
    for dag_run in scheduled(timetable, "2031-10-23T00:00:00+02:00", 4):
        key = partition_of(pipeline_of(BERLIN), dag_run)
        assert key is not None
        BERLIN.check_ended(key, datetime(2026, 3, 1, tzinfo=UTC), dag_run.run_after)


def test_a_schedule_that_names_the_day_that_begins_is_refused() -> None:
    for dag_run in scheduled(
        CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin"), "2026-10-23T00:00:00+02:00", 4
    ):
        key = partition_of(pipeline_of(BERLIN), dag_run)
        assert key is not None
        with pytest.raises(ConfigurationError, match=r"still to come.*run_offset=-1"):
            BERLIN.check_ended(key, dag_run.run_after, dag_run.run_after)


@pytest.mark.parametrize("timetable", ENDED)
def test_a_run_by_hand_of_a_schedule_has_its_day_or_is_refused(timetable: Any) -> None:
    """What Airflow gives a manual run: the interval before it, or a key only if a person gives one."""
    at = pendulum.parse("2026-10-26T10:00:00+01:00")
    interval = timetable.infer_manual_data_interval(run_after=at)
    begin, end = (None, None) if interval is None else (interval.start, interval.end)
    key = by_hand(partition_key="2026-10-24", run_after=at)
    assert partition_of(pipeline_of(BERLIN), key) == BERLIN.key_of("2026-10-24")
    without = by_hand(data_interval_start=begin, data_interval_end=end, run_after=at)
    if isinstance(timetable, CronDataIntervalTimetable):
        assert partition_of(pipeline_of(BERLIN), without) == BERLIN.key_of("2026-10-25")
        return
    with pytest.raises(ConfigurationError, match=r"has no length|this run has none"):
        pipeline_of(BERLIN).check_params({}, partition_of(pipeline_of(BERLIN), without))


def by_hand(**given: Any) -> Any:
    none: dict[str, Any] = dict.fromkeys(
        ("partition_key", "partition_date", "data_interval_start", "data_interval_end")
    )
    return SimpleNamespace(**none | given)


def test_a_run_by_hand_has_a_key_or_none() -> None:
    pipeline = pipeline_of(BERLIN)
    key = partition_of(pipeline, by_hand(partition_key="2026-03-01"))
    assert key == BERLIN.key_of("2026-03-01")
    assert partition_of(pipeline, by_hand()) is None, "refused with the parameters of the run"
    assert partition_of(pipeline_of(None), by_hand(partition_key="eu-west")) is None, "keys of other things"


def test_a_key_and_an_interval_must_be_one_partition() -> None:
    begin, end = datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 1, 23, tzinfo=UTC)
    both = by_hand(partition_key="2026-03-01", data_interval_start=begin, data_interval_end=end)
    assert partition_of(pipeline_of(BERLIN), both) == BERLIN.key_of("2026-03-01")
    both.partition_key = "2026-03-02"
    with pytest.raises(
        ConfigurationError, match=r"2026-03-02 of Europe/Berlin, and a data interval that is 2026-03-01"
    ):
        partition_of(pipeline_of(BERLIN), both)
    both.data_interval_end = begin
    assert partition_of(pipeline_of(BERLIN), both) == BERLIN.key_of("2026-03-02"), "no interval"
