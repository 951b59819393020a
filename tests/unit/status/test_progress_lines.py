"""Lines for a task log: what they say, and when."""

from __future__ import annotations

from msgspec import structs

from airflow_logio.protocol.states import GroupState
from airflow_logio.status.snapshot import Amount, GroupView, ProgressLines, progress_line
from airflow_logio.store.records.status_records import GroupStatus

STATUS = GroupStatus(
    "hourly", GroupState.RUNNING, GroupState.RUNNING, 2, 9, 0.0, True, 1, None, 0.0, rss_bytes=312 << 20, commits=56
)
HOURLY = GroupView(
    status=STATUS,
    is_source=False,
    measured=Amount(1_234, 45_678),
    rate=0.0,
    done=None,
    total_records=None,
    received=Amount(1_234, 45_678),
    sent=Amount(120, 4_000),
    writes=0,
    pending_writes=0,
    undone=12,
    lag=Amount(12, 600),
    lag_seconds=None,
    recovered_seconds_ago=None,
)


def test_a_line_tells_events_records_lag_commits_and_incarnation() -> None:
    assert progress_line(HOURLY) == (
        "hourly, incarnation 2: in 1,234 events (45,678 records), out 120 events, lag 12 events, 56 commits, 312 MB"
    )


def test_a_source_tells_what_it_has_read() -> None:
    status = structs.replace(STATUS, group="ingest", incarnation=1, rss_bytes=0)
    view = structs.replace(HOURLY, status=status, is_source=True, received=Amount(), lag=Amount(), done=0.25)
    assert progress_line(view) == (
        "ingest, incarnation 1: read 1,234 events (45,678 records), 25% of the input, out 120 events, 56 commits"
    )


def test_what_a_group_does_not_do_is_left_out() -> None:
    view = structs.replace(HOURLY, sent=Amount(), lag=Amount(), writes=1_500)
    assert "in 1,234 events (45,678 records), 1,500 writes, 56 commits, 312 MB" in progress_line(view)


def test_a_line_is_due_every_few_seconds_and_only_if_something_has_changed() -> None:
    now = 0.0
    lines = ProgressLines(10, clock=lambda: now)
    assert lines.is_due(), "the first one at once"
    assert lines.line(HOURLY) == progress_line(HOURLY)
    now = 9.0
    assert not lines.is_due()
    now = 10.0
    assert lines.is_due()
    bigger = structs.replace(HOURLY, rate=5.0, status=structs.replace(STATUS, rss_bytes=1 << 30, beat=10))
    assert lines.line(bigger) is None, "memory and heartbeats are no progress"
    assert not lines.is_due(), "it was looked at"
    now = 20.0
    moved = structs.replace(HOURLY, status=structs.replace(STATUS, incarnation=3))
    assert lines.is_due() and lines.line(moved) == progress_line(moved)
