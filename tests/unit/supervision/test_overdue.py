"""Which days are not there when they are due, and why: also those that no run has begun for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_logio import Days, Hours
from airflow_logio.dataflow.pipeline.days import Partitioning, partitioning_due
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.protocol import effects as fx
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.overdue import overdue
from tests.support.logs import assigned, sent, spec, start_driver

BERLIN = Days("day", zone="Europe/Berlin", due="08:00")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def begin(
    store: LogStore, day: str, *, again: int = 0, partition: Partitioning = BERLIN, pipeline: str = "clicks"
) -> Run:
    plain = spec(dag_run=f"of {day} {again}")
    key = replace(plain.key, pipeline=pipeline)
    return store.start_run(replace(plain, key=key, partition=day, due=partition.promise()))


def finish(store: LogStore, run: Run, *effects: Any) -> Run:
    driver = start_driver(store, run=run)
    driver.session.commit([*effects, fx.FinishGroup()])
    driver.session.close()
    assert store.finish_run(run.run_id)
    return run


def late(store: LogStore, until: str, **options: Any) -> dict[str, str]:
    return {one.partition: one.why for one in overdue(store, until=at(until), **options)}


# --- when a partition is due ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitioning", "key", "due"),
    [
        (BERLIN, "2026-03-01", "2026-03-02T08:00+01:00"),
        (BERLIN, "2026-03-28", "2026-03-29T08:00+02:00"),  # a day of 23 hours begins
        (BERLIN, "2026-10-24", "2026-10-25T08:00+01:00"),
        (Days("day", zone="Europe/Berlin", due="02:30"), "2026-03-28", "2026-03-29T01:30+00:00"),  # a time left out
        (Days("day", due="30h"), "2026-03-01", "2026-03-03T06:00+00:00"),
        (Hours("hour", due="20m"), "2026-10-25T00Z", "2026-10-25T01:20+00:00"),
    ],
)
def test_when_it_is_due(partitioning: Partitioning, key: str, due: str) -> None:
    assert partitioning.due_at(partitioning.key_of(key)) == at(due)
    promise = partitioning.promise()
    assert promise is not None and partitioning_due(promise) == partitioning


def test_what_is_no_time_is_refused_and_what_says_nothing_promises_nothing() -> None:
    for wrong in ("8:00", "24:00", "08:60", "soon", 8, "0h"):
        with pytest.raises(PipelineDefinitionError, match=r"due .* is not understood: write '08:00', by the clock"):
            Days("day", due=wrong)  # type: ignore[arg-type]
    with pytest.raises(PipelineDefinitionError, match="write '2h' or '30m', from its end"):
        Hours("hour", due="08:00")
    assert Days("day").promise() is None and Days("day").due_at(Days("day").key_of("2026-03-01")) is None
    assert Days("day").describe() == replace(BERLIN, zone="UTC").describe(), "it is no part of the graph"
    with pytest.raises(ConfigurationError, match="when partitions are due cannot be read"):
        partitioning_due({"partition": "Weeks", "name": "week", "zone": "UTC", "due": "1d"})


# --- which are late ---------------------------------------------------------------------------------------------------


def test_a_day_that_no_run_has_begun_for_is_late_from_its_time_on(log_store: LogStore) -> None:
    finish(log_store, begin(log_store, "2026-03-01"))
    assert late(log_store, "2026-03-03T07:59+01:00") == {}
    (found,) = overdue(log_store, until=at("2026-03-03T08:00+01:00"))
    told = "day 2026-03-02 of pipeline clicks is not there, and was due at 2026-03-03 07:00 UTC: no run of it has begun"
    assert str(found).startswith(told) and "`logio run --partition 2026-03-02` begins one" in str(found)
    assert list(late(log_store, "2026-03-05T09:00+01:00")) == ["2026-03-02", "2026-03-03", "2026-03-04"]
    assert list(late(log_store, "2026-03-05T09:00+01:00", since=at("2026-03-05T08:00+01:00"))) == []
    assert list(late(log_store, "2026-03-05T09:00+01:00", since=at("2026-03-05T07:59+01:00"))) == ["2026-03-04"]
    assert late(log_store, "2026-03-05T09:00+01:00", pipeline="other") == {}


def test_what_keeps_a_day_away_is_said(log_store: LogStore) -> None:
    finish(log_store, begin(log_store, "2026-03-01"))
    unfinished = begin(log_store, "2026-03-02")
    given_up = begin(log_store, "2026-03-03")
    log_store.supersede(given_up.run_id)
    aside = fx.SetAside("receiver", "A", 1, "a test")
    quarantined = finish(log_store, begin(log_store, "2026-03-04"), sent(1), assigned(1, "A"), aside)
    removed = begin(log_store, "2026-03-05")
    begin(log_store, "2026-04-01", pipeline="other", partition=Days("day"))
    while log_store.remove_run(removed.run_id, 100, unfinished=True).more:
        pass
    found = late(log_store, "2026-03-06T09:00+01:00")
    assert found == {
        "2026-03-02": f"run {unfinished.uid[:8]} of it has not finished: `logio status {unfinished.uid[:8]}`",
        "2026-03-03": f"run {given_up.uid[:8]} of it was given up, and none has begun in its place",
        "2026-03-04": f"run {quarantined.uid[:8]} of it has finished with quarantine: `logio status {quarantined.uid[:8]}`",
        "2026-03-05": found["2026-03-05"],
    }
    assert f"since run {removed.uid[:8]} of it, which had not finished, was removed" in found["2026-03-05"]


def test_a_day_that_is_computed_again_is_there_and_so_is_one_whose_run_was_removed(log_store: LogStore) -> None:
    first, second = (finish(log_store, begin(log_store, day)) for day in ("2026-03-01", "2026-03-02"))
    log_store.supersede(first.run_id)
    assert late(log_store, "2026-03-03T09:00+01:00") == {}, "given up when it had finished: its rows are there"
    begin(log_store, "2026-03-01", again=1)
    while log_store.remove_run(second.run_id, 100).more:
        pass
    assert late(log_store, "2026-03-03T09:00+01:00") == {}


def test_the_youngest_run_says_when_and_old_ones_are_left_alone(log_store: LogStore) -> None:
    hours = Hours("hour", due="20m")
    finish(log_store, begin(log_store, "2020-01-01T00Z", partition=hours))
    found = list(late(log_store, "2026-03-08T00:30+00:00"))
    assert (len(found), found[0], found[-1]) == (7 * 24, "2026-03-01T00Z", "2026-03-07T23Z")
    begin(log_store, "2020-01-01T01Z", partition=Hours("hour"))
    assert late(log_store, "2026-03-08T00:30+00:00") == {}
    assert log_store.pipelines_due() == {}


def test_what_is_still_to_come_is_not_late(log_store: LogStore) -> None:
    now = datetime.now(UTC)
    finish(
        log_store, begin(log_store, (now - timedelta(days=1)).date().isoformat(), partition=Days("day", due="23:59"))
    )
    assert overdue(log_store, until=now + timedelta(days=3)) == []


def test_a_pipeline_that_was_divided_otherwise_before_is_asked_for_what_it_has_now(log_store: LogStore) -> None:
    finish(log_store, begin(log_store, "2026-03-01"))
    hours = Hours("hour", due="20m")
    finish(log_store, begin(log_store, "2026-03-05T08Z", partition=hours))
    assert list(late(log_store, "2026-03-05T11:00+00:00")) == ["2026-03-05T09Z"]
