"""`logio days`: the calendar of a pipeline in a terminal, and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from airflow_logio.cli.app import main
from airflow_logio.store.port import LogStore
from tests.store.test_calendar import DRIVER, HOURS, count, finished, of, reader
from tests.support.logs import start_driver

Days = Callable[..., tuple[int, str]]


@pytest.fixture
def days(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Days:
    """Exit code, and what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["logio", "days", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return command


@pytest.fixture
def seen(store: LogStore) -> LogStore:
    finished(
        store, of("2026-03-30", function=DRIVER), count("own", "own", "out", 9), count("own", "other", "out", 1_041)
    )
    old = finished(store, of("2026-03-31"))
    store.supersede(old.run_id, because="a late file")
    finished(store, of("2026-03-31"))
    red = start_driver(store, run=store.start_run(of("2026-04-02", function=DRIVER)))
    red.session.park("WriteRefused: day=2026-04-02 has no rows")
    return store


def test_a_calendar_is_one_look(seen: LogStore, days: Days) -> None:
    code, text = days("sales", "--to", "2026-04-02")
    lines = text.splitlines()
    assert (code, lines[0]) == (0, "sales: days of Europe/Berlin, 2026-03-30 to 2026-04-02")
    (march,) = (line for line in lines if line.startswith("2026-03  "))
    assert (march.index("✓"), march.rstrip()[-1]) == (len("2026-03  ") + 2 * 29, "↻")
    assert "2026-04  - ✗" in text
    assert "✓ 1 done   ↻ 1 done, computed again   ✗ 1 red   - 1 missing" in text
    assert "1,041 late records came with it" in text
    assert "1 run before (a late file)" in text
    assert "WriteRefused: day=2026-04-02 has no rows; next: fix the cause, then `logio retry" in text


def test_late_records_are_told_for_the_day_that_they_are_of(store: LogStore, days: Days) -> None:
    finished(store, of("2026-03-01", function=DRIVER))
    for number, records in ((2, 8), (3, 4)):
        finished(store, of(f"2026-03-0{number}", function=DRIVER), count("own", "2026-03-01", "late", records))
    _, text = days("sales", "--to", "2026-03-03")
    said = " ".join(text.split())
    assert "12 late records came for it with 2026-03-02 (8) and 2026-03-03 (4), after its run" in said
    assert "12 late records came for 1 day of these with runs of others." in said
    assert "compute the day again: `logio again --partition 2026-03-01 --pipeline sales`. A lookback does that" in said
    for number in range(4, 8):
        finished(store, of(f"2026-03-0{number}", function=DRIVER), count("own", "2026-03-01", "late", 1))
    _, text = days("sales")
    named = (
        "16 late records came for it with 3 others, 2026-03-05 (1), 2026-03-06 (1) and 2026-03-07 (1), after its run"
    )
    assert named in " ".join(text.split())


def test_a_red_day_is_told_before_late_records_are(store: LogStore, days: Days) -> None:
    red = start_driver(store, run=store.start_run(of("2026-01-01", function=DRIVER)))
    red.session.park("WriteRefused: day=2026-01-01 has no rows")
    for number in range(2, 42):
        key = (date(2026, 1, 1) + timedelta(days=number)).isoformat()
        finished(store, of(key, function=DRIVER), count("own", "other", "out", number))
    _, text = days("sales", "--to", "2026-02-11")
    lines = [line for line in text.splitlines() if line.startswith("2026-") and ("late" in line or "Refused" in line)]
    assert len(lines) == 30 and "2026-01-01" in lines[0] and "41 late records came with it" in lines[-1]


def test_programs_get_the_same(seen: LogStore, days: Days) -> None:
    code, text = days("sales", "--from", "2026-03-31", "--to", "2026-04-02", "--json")
    document = json.loads(text)
    assert (code, document["has_earlier"], document["what"]) == (0, True, "day")
    found = [(cell["key"], cell["state"]) for row in document["rows"] for cell in row["cells"]]
    assert found == [("2026-03-31", "done"), ("2026-04-01", "missing"), ("2026-04-02", "red")]


def test_hours_are_rows_of_days(store: LogStore, days: Days) -> None:
    finished(store, of("2025-10-25T22Z", divided=HOURS))
    finished(store, of("2025-10-26T23Z", divided=HOURS))
    _, text = days("sales")
    assert f"2025-10-26  ✓ {'- ' * 24}".rstrip() in text
    assert "2025-10-27  ✓" in text


def test_what_is_not_there_is_said(seen: LogStore, days: Days) -> None:
    assert days("clicks") == (
        1,
        "logio: no run of a day or hour of pipeline 'clicks' is in the log; `logio status` lists the runs\n",
    )
    code, text = days("sales", "--from", "2027-01-01")
    assert (code, "of 2027-01-01.. there is nothing: the log has runs from 2026-03-30 to 2026-04-02" in text) == (
        1,
        True,
    )


def test_what_was_computed_from_a_day_is_named_and_marked_in_the_list_of_runs(
    store: LogStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., tuple[int, str]]
) -> None:
    """When the day is given up, and until what was computed from it is given up, too."""
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("COLUMNS", "400")
    old = finished(store, of("2026-03-02"))
    read = [finished(store, reader(old.uid, f"2026-03-0{number}")) for number in (5, 6)]
    code, said = typed("again", "--partition", "2026-03-02", "--pipeline", "sales")
    assert (
        code == 0
        and f"2 runs were computed from what run {old.uid[:8]} had left: top@2026-03-05, top@2026-03-06" in said
    )
    new = finished(store, of("2026-03-02"))
    store.supersede(read[1].run_id)
    _, said = typed("again", old.uid[:8])
    assert f"1 run was computed from what run {old.uid[:8]} had left: top@2026-03-05. Compute" in said
    _, said = typed("status")
    marked = [line for line in said.splitlines() if "computed from day=2026-03-02 of /lake/clicks" in line]
    assert len(marked) == 1 and marked[0].split()[0] == read[0].uid[:8] and "which was replaced by" in marked[0]
    _, said = typed("status", "--json")
    listed = {one["uid"]: one["stale"] for one in json.loads(said)}
    (stale,) = listed.pop(read[0].uid)
    assert stale.endswith(f"which was replaced by run {new.uid[:8]}") and not any(listed.values())
    assert "computed from" not in typed("again", new.uid[:8])[1]
