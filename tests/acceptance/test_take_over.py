"""What one run of a day does only at a person's word, which its drivers keep when they are killed: it replaces the day of
another log, as a laptop that of production; it leaves its day empty."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.store.records.run_records import Allowed
from airflow_logio.store.sql import migrate
from tests.support.commands import Terminal
from tests.support.owned_day import DAY, LEASE, OwnedDay, parked, until_stopped
from tests.support.running import Running

pytestmark = pytest.mark.acceptance

MAY, NOTHING = {Allowed.TAKE_OVER}, set[Allowed]()
BETWEEN_CLOSINGS = f"{CrashPoint.BEFORE_WRITE}:4"
"""Behind the openings of both writers and the closing of one, before the closing of the other."""


@pytest.fixture
def laptop(day: OwnedDay, tmp_path: Path) -> OwnedDay:
    """With a folder and a log of its own, and the warehouse of day."""
    url = f"sqlite:///{tmp_path}/laptop.db"
    migrate.upgrade(url)
    (tmp_path / "laptop").mkdir()
    return OwnedDay(url, day.warehouse_url, tmp_path / "laptop")


def word_of(said: str, option: str = "--take-over") -> list[str]:
    """The command that a refusal names, as a person copies it."""
    (command,) = re.findall(rf"`logio (again --pipeline [^`]* {option})`", said)
    return shlex.split(command)


def refused(run: Running) -> str:
    said = parked(run)
    assert f"day={DAY} of table" in said and "of another log" in said
    return said


def test_a_laptop_replaces_the_day_of_production_only_at_a_persons_word(
    day: OwnedDay, laptop: OwnedDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = day.reads(0)
    with day.run("nightly") as run:
        run.finish()
    day.assert_is(first)
    mine = laptop.reads(20_000)
    with laptop.run("mine", lease=LEASE) as run:
        said = refused(run)
        day.assert_is(first)
        logio = Terminal(run, monkeypatch, capsys).logio
        code, out, err = logio(*word_of(said))
        assert code == 0 and f"The next run of {DAY} has --take-over, no later one" in out, out + err

    # Production computes the day again meanwhile, and its driver stands still between the closings of two tables.
    day.reads(5_000)
    with day.run("again", {("replacing", 1): f"{BETWEEN_CLOSINGS}:stop"}, lease=LEASE) as slow:
        zombie = until_stopped(slow)
        armed = {
            ("replacing", 1): f"{CrashPoint.BEFORE_WRITE}:1",
            ("replacing", 2): f"{CrashPoint.AFTER_WRITE}:1",
            ("replacing", 3): f"{CrashPoint.IN_DAY_SWITCH}:1",
        }
        with laptop.run("mine", armed) as run:
            run.finish()
            assert run.status("replacing").incarnation == 4, "each of them was passed"
            uid, kept = run.run.uid, run.run.spec.allowed
        assert (kept, set(laptop.live().values())) == (MAY, {(uid, uid)})
        laptop.assert_is(mine)
        zombie.send_signal(signal.SIGCONT)
        assert f"was claimed by run {uid} of pipeline 'owned_day' since run {slow.run.uid} began" in parked(slow)
    laptop.assert_is(mine)

    mine = laptop.reads(30_000)
    with laptop.run("next") as run:
        run.finish()
        assert run.run.spec.allowed == NOTHING, "the day is the laptop's: its next run needs no word"
    laptop.assert_is(mine)
    with day.run("last") as run:
        refused(run)
    laptop.assert_is(mine)


def test_a_day_becomes_empty_only_at_a_persons_word(
    day: OwnedDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = day.reads(0)
    with day.run("nightly") as run:
        run.finish()
    nothing = day.reads(0, 0)
    with day.run("none", lease=LEASE) as run:
        said = parked(run)
        day.assert_is(first)
        logio = Terminal(run, monkeypatch, capsys).logio
        code, out, err = logio(*word_of(said, "--empty"))
        assert code == 0 and f"The next run of {DAY} has --empty, no later one" in out, out + err
    armed = {("replacing", 1): f"{CrashPoint.BEFORE_WRITE}:1", ("replacing", 2): f"{CrashPoint.IN_DAY_SWITCH}:1"}
    with day.run("none", armed) as run:
        run.finish()
        assert run.status("replacing").incarnation == 3, "both were passed"
    day.assert_is(nothing)
    second = day.reads(5_000)
    with day.run("later") as run:
        run.finish()
    day.assert_is(second)
