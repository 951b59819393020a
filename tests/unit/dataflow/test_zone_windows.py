"""Windows of a zone: its days and hours across the changes of its clock, compared with Python's and PostgreSQL's own."""

from __future__ import annotations

import datetime as dt
import random
from contextlib import closing
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import psycopg2
import pyarrow as pa
import pytest

from airflow_logio.dataflow import DatasetWriter, FolderSource, ParquetSource, Pipeline, Tumbling, generate
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.pipeline.validation import check_session_zone
from airflow_logio.dataflow.windows import zones
from airflow_logio.dataflow.windows.zones import SESSION_ZONE
from airflow_logio.errors import ConfigurationError, OperatorFailed, PipelineDefinitionError
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import group_properties

DAY = 86_400
HARD = (
    "Australia/Lord_Howe",
    "America/Havana",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "Antarctica/Troll",
)
BERLIN, KOLKATA = "Europe/Berlin", "Asia/Kolkata"


def at(text: str, zone: str = "UTC") -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


DAYS_OF_CHANGES = [
    at(day) for day in ("2024-03-31", "2024-10-27", "2024-04-07", "2024-11-03", "2024-04-14", "2024-09-29")
]


def shown(seconds: int, zone: str) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).astimezone(ZoneInfo(zone))


def hours(zone: str, length: int, first: str, windows: int, origin: int = 0) -> list[float]:
    begun = zones.number(zone, length, origin, at(first, zone))
    found = []
    for _ in range(windows):
        ended = zones.end(zone, length, origin, begun)
        assert zones.number(zone, length, origin, ended) == ended
        assert zones.number(zone, length, origin, ended - 1) == begun
        found.append((ended - begun) / 3600)
        begun = ended
    return found


def test_a_day_lasts_as_long_as_its_zone_says() -> None:
    assert hours(BERLIN, DAY, "2024-03-30T12:00", 3) == [24, 23, 24]
    assert hours(BERLIN, DAY, "2024-10-26T12:00", 3) == [24, 25, 24]
    assert hours("Australia/Lord_Howe", DAY, "2024-04-07T12:00", 2) == [24.5, 24], "half an hour"
    assert hours("America/Havana", DAY, "2024-11-03T12:00", 2) == [25, 24], "midnight comes twice"
    assert hours("America/Sao_Paulo", DAY, "2018-11-04T12:00", 2) == [23, 24], "there is no midnight"
    assert hours("Pacific/Apia", DAY, "2011-12-29T12:00", 2) == [24, 24]
    assert shown(zones.end("Pacific/Apia", DAY, 0, at("2011-12-29", "Pacific/Apia")), "Pacific/Apia").day == 31


def test_hours_across_the_changes() -> None:
    assert hours(BERLIN, 3600, "2024-10-27T00:30", 25) == [1] * 25, "two from 2 to 3"
    assert hours(BERLIN, 6 * 3600, "2024-10-27T00:00", 2) == [7, 6]
    assert hours(BERLIN, 6 * 3600, "2024-03-31T00:00", 2) == [5, 6]
    assert hours(BERLIN, 2 * 3600, "2024-03-31T00:00", 2) == [2, 1], "the clock jumps over 2"
    assert hours(BERLIN, 2 * 3600, "2024-10-27T00:00", 3) == [2, 1, 2], "the clock shows 2 twice"
    assert hours(KOLKATA, 3600, "2024-03-31T00:00", 2) == [1, 1]
    assert zones.number(KOLKATA, 3600, 0, at("2024-03-31T10:15", KOLKATA)) == at("2024-03-31T10:00", KOLKATA)


def test_weeks_begin_on_the_zones_monday() -> None:
    week = Tumbling("1w", on="t", zone=BERLIN).grid()
    assert week.number(at("2024-03-31T23:30", BERLIN)) == at("2024-03-25", BERLIN)
    assert (week.end(at("2024-03-25", BERLIN)) - at("2024-03-25", BERLIN)) / 3600 == 7 * 24 - 1
    assert hours("Australia/Lord_Howe", 7 * DAY, "2024-04-02T00:00", 1, week.origin) == [7 * 24 + 0.5]


@pytest.mark.parametrize("length", [900, 3600, DAY, 7 * DAY])
def test_python_agrees(length: int) -> None:
    """On the local date of a day, and on the clock at the start of any window; columns as single times."""
    luck = random.Random(length)
    for zone in (*luck.sample(sorted(available_timezones()), 25), *HARD):
        days = [at(f"{luck.randrange(2012, 2040)}-01-01"), *DAYS_OF_CHANGES]
        times = np.array([luck.choice(days) + luck.randrange(-DAY, 2 * DAY) for _ in range(30)], np.int64)
        found = zones.numbers(zone, length, 0, times)
        assert found.tolist() == [zones.number(zone, length, 0, one) for one in times.tolist()]
        for one, begun in zip(times.tolist(), found.tolist(), strict=True):
            assert begun <= one < zones.end(zone, length, 0, begun), zone
            clock = shown(begun, zone)
            if length == DAY:
                assert clock.date() == shown(one, zone).date(), zone
            elif length < DAY:
                changed = zones.offset_at(zone, begun) != zones.offset_at(zone, begun - 1)
                assert changed or (clock.hour * 3600 + clock.minute * 60 + clock.second) % length == 0, zone


@pytest.mark.postgres
@pytest.mark.parametrize("unit", ["day", "hour", "week"])
def test_postgresql_agrees(unit: str, postgres_url: str) -> None:
    length = {"hour": "1h", "day": "1d", "week": "1w"}[unit]
    luck = random.Random(7)
    near = [at("2024-03-31"), at("2024-10-27"), at("2021-04-04"), at("2019-02-17")]
    times = [luck.choice(near) + luck.randrange(-3 * DAY, 3 * DAY) for _ in range(400)]
    with closing(psycopg2.connect(postgres_url)) as connection, connection.cursor() as cursor:
        for zone in (BERLIN, "America/New_York", "Australia/Sydney", KOLKATA, "America/Sao_Paulo", "Asia/Kathmandu"):
            asked = "SELECT extract(epoch FROM date_trunc(%s, to_timestamp(t), %s))::bigint FROM unnest(%s) AS t"
            cursor.execute(asked, (unit, zone, times))
            grid = Tumbling(length, on="t", zone=zone).grid()
            assert [grid.number(one) for one in times] == [row[0] for row in cursor.fetchall()], zone


def event(*texts: str, kind: Any = None, number: int = 1) -> InputEvent:
    times = [dt.datetime.fromisoformat(text) for text in texts]
    return InputEvent("in", number, pa.table({"t": pa.array(times, kind or pa.timestamp("us"))}))


def test_an_event_is_cut_at_the_zones_midnight() -> None:
    window = Tumbling("1d", on="t", zone=BERLIN)
    records = event("2024-03-30T22:59:59.999999", "2024-03-30T23:00", "2024-03-31T21:59:59.999999", "2024-03-31T22:00")
    state = window.initial_state()
    found = window.assign(records, state)
    assert {name: part.num_rows for name, part in found.items()} == {
        "2024-03-29T23:00": 1,
        "2024-03-30T23:00": 2,
        "2024-03-31T22:00": 1,
    }
    for name, part in found.items():
        assert window.part(records, name).equals(part)
    assert window.triggered(state, list(found)) == ["2024-03-29T23:00", "2024-03-30T23:00"]
    starts = window.tags(["2024-03-30T23:00"])["window_start"]
    assert starts[0].as_py().date() == dt.date(2024, 3, 31)
    assert starts.cast(pa.timestamp("us", "UTC"))[0].as_py() == dt.datetime(2024, 3, 30, 23, tzinfo=dt.UTC)
    assert window.progress(records) == "2024-03-31T22:00"
    aware = event("2024-03-30T23:00", kind=pa.timestamp("ms", "America/New_York"))
    assert list(window.assign(aware, window.initial_state())) == ["2024-03-30T23:00"]
    with pytest.raises(OperatorFailed, match="late record"):
        window.assign(event("2024-03-30T22:00", number=2), state)


@pytest.mark.parametrize(
    ("zone", "before"), [("Africa/Monrovia", 1972), (BERLIN, 1893), ("Europe/Amsterdam", 1937), ("America/Nuuk", 1916)]
)
def test_a_clock_of_old_with_seconds_begins_windows_at_seconds(zone: str, before: int) -> None:
    """Liberia's was 44:30 behind until 1972, and all were by the sun once. A name is the start, and finds its records."""
    luck = random.Random(before)
    times = sorted(at(f"{before - 30}-06-01") + luck.randrange(40 * 365 * DAY) for _ in range(200))
    for length in ("15m", "1d", "1w"):
        window = Tumbling(length, on="t", zone=zone)
        grid = window.grid()
        begun = [grid.number(one) for one in times]
        begun = sorted({*begun, *(grid.end(one) for one in begun)})
        names = [grid.name(one) for one in begun]
        assert [window.number(name) for name in names] == begun
        assert sorted(names) == names
        records = event(*(shown(one + shift, "UTC").isoformat()[:19] for one in begun for shift in (-1, 0, 1)))
        found = window.assign(records, window.initial_state())
        assert sum(part.num_rows for part in found.values()) == 3 * len(begun)
        assert all(window.part(records, name).equals(part) for name, part in found.items())
        assert window.tags([names[7]])["window_start"].cast(pa.int64())[0].as_py() == begun[7] * 1_000_000


def test_what_a_run_remembers() -> None:
    """Windows without a zone are what they were; with one, the rules that a host has are part of the pipeline."""
    plain, zoned = Tumbling("1d", on="t"), Tumbling("1d", on="t", zone=BERLIN)
    assert plain.describe() == {"window": "Tumbling", "seconds": DAY, "on": "t"}
    assert zoned.describe() == plain.describe() | {"zone": BERLIN, "rules": zones.rules_of(BERLIN)}
    assert zones.rules_of(BERLIN) != zones.rules_of("Europe/London")
    assert zoned.progress_name() != plain.progress_name() and zoned.record_part() is None


@pytest.mark.parametrize("zone", ["Europe/Berlim", "", "+01:00", "../etc/passwd", 1])
def test_an_unknown_zone_is_refused_when_it_is_defined(zone: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match="is unknown: give the name"):
        Tumbling("1d", on="t", zone=zone)


def test_dates_have_no_moment() -> None:
    window = Tumbling("1d", on="t", zone=BERLIN)
    records = InputEvent("in", 1, pa.table({"t": pa.array([dt.date(2024, 3, 31)])}))
    with pytest.raises(OperatorFailed, match="which is no moment"):
        window.assign(records, window.initial_state())
    with pytest.raises(OperatorFailed, match="outside the years 1 to 9999"):
        window.assign(event("0001-01-01T00:00"), window.initial_state())


# --- and the zone of Spark's sessions ---------------------------------------------------------------------------------

MODES = ("executors", "dataframe")


def pipeline(mode: str, window_zone: str | None, zone: str | None = None, alone: str = "") -> Pipeline:
    @generate(mode=mode, columns=("t",))
    def same(rows: Any) -> Any:
        return rows

    p = Pipeline("p", connections=["lake"], zone=zone)
    p.source("orders", FolderSource("/nowhere") if mode == "dataframe" else ParquetSource("/nowhere.parquet"))
    daily = p.operator("daily", same, "orders", window=Tumbling("1d", on="t", zone=window_zone))
    if alone:
        p.group("alone", daily, spark={SESSION_ZONE: alone})
    p.writer("save", DatasetWriter("lake", "days"), daily)
    return p


@pytest.mark.parametrize("mode", MODES)
def test_sessions_and_windows_have_one_zone(mode: str) -> None:
    """Else a window_start that is cast to a date would be another day than its window."""
    for window_zone, session in ((None, None), (BERLIN, BERLIN), ("Etc/UTC", None), (None, "Etc/UTC")):
        p = pipeline(mode, window_zone, session)
        group = next(one for one in p.groups.values() if "daily" in one.operators)
        check_session_zone(group, p.operators, group.spark.get(SESSION_ZONE, "UTC"))
        assert group.spark == ({} if session is None else {SESSION_ZONE: session})
        assert group_properties(SparkSettings(), p, group.name)[SESSION_ZONE] == (session or "UTC")
    for window_zone, session in ((BERLIN, None), (None, BERLIN), (BERLIN, "Europe/Paris")):
        p = pipeline(mode, window_zone, session)
        group = next(one for one in p.groups.values() if "daily" in one.operators)
        with pytest.raises(PipelineDefinitionError, match=r"operator 'daily' .* another day than its window"):
            check_session_zone(group, p.operators, group.spark.get(SESSION_ZONE, "UTC"))
    p = pipeline(mode, BERLIN, BERLIN)
    launch = SparkSettings(conf={SESSION_ZONE: "America/New_York"})
    with pytest.raises(ConfigurationError, match="session has the zone 'America/New_York'"):
        group_properties(launch, p, next(one.name for one in p.groups.values() if "daily" in one.operators))


def test_a_group_may_say_another_zone_than_its_pipeline() -> None:
    p = pipeline("dataframe", BERLIN, "Asia/Tokyo", alone=BERLIN)
    assert p.groups["alone"].spark[SESSION_ZONE] == BERLIN
    assert p.describe()["zone"] == "Asia/Tokyo"
    assert "zone" not in pipeline("executors", None).describe()
    with pytest.raises(PipelineDefinitionError, match="is unknown"):
        Pipeline("p", zone="Europe/Berlim")
