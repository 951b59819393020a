"""Recoveries, told from drivers' records: pure, except for the last test, which reads real ones."""

from __future__ import annotations

import pytest
from msgspec import structs

from airflow_logio.status.recoveries import RecoveryNews, recoveries
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import DriverRecord
from tests.support.two_groups import TwoGroups

FIRST = DriverRecord(
    group="hourly",
    incarnation=1,
    reason="first launch",
    is_recovery=False,
    claimed_at=100.0,
    submitted_at=100.5,
    registered_at=104.0,
    first_commit_at=105.0,
    ended_at=None,
    error=None,
    log_path="/logs/1",
    host="here",
    pid=4711,
)
DEAD = structs.replace(FIRST, ended_at=200.0, error="killed", last_beat_at=199.25)
CLAIMED = DriverRecord("hourly", 2, "killed", True, 200.5, None, None, None, None, None, None, None, None)
RUNNING = structs.replace(CLAIMED, submitted_at=201.0, registered_at=204.5)
COMMITTED = structs.replace(RUNNING, first_commit_at=206.0)
RETRIED = structs.replace(COMMITTED, incarnation=3, is_recovery=False, claimed_at=900.0, first_commit_at=903.0)


def test_the_steps_of_a_recovery() -> None:
    (one,) = recoveries([COMMITTED, DEAD])
    assert (one.group, one.incarnation, one.cause) == ("hourly", 2, "killed")
    assert dict(one.steps) == {
        "detected": 200.0, "fenced": 200.5, "launched": 201.0, "running": 204.5, "first commit": 206.0
    }  # fmt: skip
    assert one.seconds_of_steps == {"fenced": 0.5, "launched": 0.5, "running": 3.5, "first commit": 1.5}
    assert one.detection_seconds == 0.75
    assert one.seconds == 6.0


def test_steps_that_were_not_reached_are_left_out() -> None:
    (one,) = recoveries([structs.replace(DEAD, last_beat_at=None), RUNNING])
    assert list(one.seconds_of_steps) == ["fenced", "launched", "running"]
    assert (one.detection_seconds, one.seconds) == (None, None)


def test_a_driver_that_is_quicker_than_the_note_of_its_launch() -> None:
    (one,) = recoveries([DEAD, structs.replace(COMMITTED, submitted_at=205.0)])
    assert one.seconds_of_steps == {"fenced": 0.5, "launched": 4.5, "running": 0.0, "first commit": 1.0}
    assert sum(one.seconds_of_steps.values()) == one.seconds


def test_a_persons_retry_is_no_recovery() -> None:
    assert [one.incarnation for one in recoveries([DEAD, structs.replace(COMMITTED, ended_at=300.0), RETRIED])] == [2]


def test_groups_do_not_mix() -> None:
    other = structs.replace(FIRST, group="totals", claimed_at=200.2)
    assert [one.group for one in recoveries([DEAD, other, COMMITTED])] == ["hourly"]


def test_news_tell_each_beginning_and_each_first_commit_once() -> None:
    news = RecoveryNews()
    assert news.of([FIRST]) == ([], [])
    assert news.of([DEAD]) == ([], [])
    begun, committed = news.of([DEAD, CLAIMED])
    assert ([one.incarnation for one in begun], committed) == ([2], [])
    assert news.of([DEAD, RUNNING]) == ([], [])
    begun, committed = news.of([DEAD, COMMITTED])
    assert (begun, [one.seconds for one in committed]) == ([], [6.0])
    assert news.of([DEAD, COMMITTED]) == ([], [])


def test_news_leave_out_what_was_there_before() -> None:
    news = RecoveryNews()
    assert news.of([DEAD, COMMITTED]) == ([], [])
    under_way = RecoveryNews()
    assert under_way.of([DEAD, RUNNING]) == ([], [])
    assert [one.incarnation for one in under_way.of([DEAD, COMMITTED])[1]] == [2]


def test_a_watcher_that_begins_behind_a_launch_names_the_incarnation_before() -> None:
    begun, committed = RecoveryNews(after={"hourly": 1}).of([DEAD, COMMITTED])
    assert ([one.incarnation for one in begun], [one.incarnation for one in committed]) == ([2], [2])
    assert RecoveryNews(after={"hourly": 2, "totals": 0}).of([DEAD, COMMITTED]) == ([], [])


def test_of_a_recovery_that_failed_only_the_next_one_commits() -> None:
    again = structs.replace(COMMITTED, incarnation=3, claimed_at=210.0, registered_at=214.0, first_commit_at=215.0)
    news = RecoveryNews(after={"hourly": 1})
    begun, committed = news.of([DEAD, structs.replace(RUNNING, ended_at=209.0, error="killed again"), again])
    assert [one.incarnation for one in begun] == [2, 3]
    assert [(one.incarnation, one.seconds) for one in committed] == [(3, 6.0)]


def test_records_of_real_drivers(log_url: str) -> None:
    store = open_store(log_url)
    flow = TwoGroups(store)
    flow.send(1, 1)
    assert recoveries(store.drivers(flow.run.run_id)) == []
    store.heartbeat(flow.drivers["ingest"].ref, 1, ready=True, rss_bytes=1)
    flow.recover("ingest")
    flow.send(1, 1)
    (one,) = recoveries(store.drivers(flow.run.run_id))
    store.dispose()
    assert (one.group, one.incarnation, one.launched_at) == ("ingest", 2, None)
    assert one.last_beat_at is not None and one.first_commit_at is not None and one.running_at is not None
    assert one.last_beat_at <= one.detected_at <= one.fenced_at <= one.running_at <= one.first_commit_at
    assert one.seconds == pytest.approx(one.first_commit_at - one.detected_at)
