"""What can go wrong around a day that is replaced, on real driver processes: the old day stays, or the whole new one comes.

Each day is compared with DuckDB's answer, table by table.
"""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef
from tests.support import impatient
from tests.support.commands import Terminal
from tests.support.owned_day import DAY, LEASE, OwnedDay, parked, until_stopped
from tests.support.postgres import PostgresServer
from tests.support.relay import HELD_PAGE, Relay, relay
from tests.support.running import Running
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.acceptance

ON_SQLITE = pytest.mark.parametrize("log_url", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("log_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


def test_what_is_not_the_whole_day_replaces_nothing(day: OwnedDay) -> None:
    """No rows, a row of another day, one key twice, a drain by an earlier version, which nothing has refused."""
    other_day, twice = "SELECT DATE '2026-03-09', 5000, 'late'", f"SELECT DATE '{DAY}', 1, 'twice'"
    faults = {
        "no rows": (
            0,
            "",
            "has rows, and run .* has none to put in their place.*`logio again .*--partition 2026-03-01`",
        ),
        "another day": (1_000, other_day, "1 .*2026-03-09"),
        "twice": (1_000, twice, "UNIQUE|duplicate key"),
        "drained": (
            1_000,
            "",
            "'keep' replaces nothing, because group 'reading' was drained.*begin the partition again",
        ),
    }
    for name, (count, rows, said) in faults.items():
        day.reads(0, count, rows=rows)
        with day.run(name) as run:
            if name == "drained":
                run.store.request(run.run.run_id, "reading", GroupState.DRAINING)
            assert re.search(said, parked(run), re.DOTALL), run.status("replacing").error
        day.assert_is(day.OLD)
    wanted = day.reads(0)
    with day.run("mended") as run:
        run.finish()
    day.assert_is(wanted)


def test_writers_close_one_by_one(
    day: OwnedDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What one is short of is no matter to another. Its driver dies behind that closing; each is closed once."""
    wanted = day.reads(0)
    day.fault.touch()
    with day.run("run", {("replacing", 1): f"{CrashPoint.AFTER_WRITE}:3"}) as run:
        said = parked(run)
        assert run.status("replacing").incarnation == 2, "it has died"
        assert "'keep' replaces nothing, because 4 Input Sets of 'clean' are set aside" in said and "'save'" not in said
        day.assert_is({"clicks": day.OLD["clicks"], "pages": wanted["pages"]})
        day.fault.unlink()
        code, _, told = Terminal(run, monkeypatch, capsys).logio("retry", run.run.uid[:8])
        assert code == 0, told
    day.assert_is(wanted)


def test_a_retry_that_meets_the_question_brings_the_rows_first(day: OwnedDay) -> None:
    """The driver is about to ask. What it then hears is of an epoch that is void."""
    wanted = day.reads(0)
    day.fault.touch()
    with day.run("run", {("replacing", 1): f"{CrashPoint.BEFORE_CLOSING}:1:stop"}, lease=LEASE) as run:
        process = until_stopped(run)
        day.fault.unlink()
        run.store.retry_quarantined(run.run.run_id)
        run.relaunch("reading")
        process.send_signal(signal.SIGCONT)
        run.finish()
        assert run.status("replacing").incarnation == 1
    day.assert_is(wanted)


@ON_SQLITE
def test_a_file_that_a_stopped_driver_has_locked(day: OwnedDay) -> None:
    """Of the run that was given up, in its closing transaction. The younger run parks, and continues when that is ended."""
    day.reads(0)
    hasty = {("replacing", 1): impatient.variables(0.2)}
    with day.run("old", {("replacing", 1): f"{CrashPoint.IN_DAY_SWITCH}:1:stop"}, lease=LEASE) as old:
        process = until_stopped(old)
        assert old.store.declare_dead(GroupRef(old.run.run_id, "replacing", 1), "test")
        assert old.store.supersede(old.run.run_id)
        wanted = day.reads(5_000)
        with day.run("young", variables=hasty, replay_seconds=2.0) as young:
            said = parked(young)
            assert "another session holds a lock: connection 'warehouse': database is locked" in said, said
            day.assert_is(day.OLD)
            process.kill()
            young.relaunch("replacing")
            young.finish()
    day.assert_is(wanted)


# --- ways to a server -------------------------------------------------------------------------------------------------


@contextmanager
def relayed(day: OwnedDay, run: Running, server: PostgresServer) -> Iterator[tuple[Relay, Relay]]:
    """Drivers reach the log and the tables by these two ways, and the test by none."""
    with relay(server.port) as to_log, relay(server.port) as to_tables:

        def by(way: Relay, url: str) -> str:
            return sa.make_url(url).set(port=way.port).render_as_string(hide_password=False)

        urls = {"warehouse": by(to_tables, day.warehouse_url)}
        run.context = replace(run.context, log_url=by(to_log, day.log_url), connections=urls)
        yield to_log, to_tables


@ON_POSTGRES
def test_the_log_goes_away_in_the_closing_and_answers_of_commits_are_lost(
    day: OwnedDay, postgres_server: PostgresServer
) -> None:
    """Rolled back, and begun again when the log is there; then the database has committed, and the driver does not know."""
    wanted = day.reads(0)
    answer = (re.compile(rb"SET live_ordinal"), re.compile(rb"COMMIT"))
    with day.run("run") as run, relayed(day, run, postgres_server) as (to_log, to_tables):
        to_log.cut, to_tables.lost = HELD_PAGE, [answer, answer]
        run.until(lambda: to_log.cuts >= 2, "the log has gone away twice")
        day.assert_is(day.OLD)
        to_log.cut = None
        run.finish()
        assert not to_tables.lost, "both answers were lost"
        assert run.status("replacing").incarnation == 1, "nothing was recovered"
        uid = run.run.uid
    day.assert_is(wanted)
    assert set(day.live().values()) == {(uid, uid)}


@ON_POSTGRES
def test_a_page_takes_longer_than_a_session_may_stand_still_and_one_cut_comes_late(
    day: OwnedDay, postgres_server: PostgresServer
) -> None:
    """The server ends sessions that do nothing in a transaction for 5 s; this one works. Then the connection is cut, later
    than the run is to be replayed."""
    wanted = day.reads(0)
    with day.run("run", replay_seconds=4.0) as run, relayed(day, run, postgres_server) as (to_log, to_tables):
        to_log.slow = HELD_PAGE
        for number in (1, 2):
            run.until(lambda number=number: to_log.slowed == number, "a page is asked for")
            until = time.monotonic() + 7.0
            run.until(lambda until=until: time.monotonic() > until, "the page takes long")
            if number == 2:
                assert day.there()["clicks"] == wanted["clicks"], "the first table has the day"
                assert "replaying" not in run.log_of("replacing"), "its session was not ended"
                to_log.slow = None
                to_tables.cut_all()
            to_log.quick.release()
        run.finish()
        assert "replaying" in run.log_of("replacing") and run.status("replacing").incarnation == 1
    day.assert_is(wanted)


# --- logs that were restored ------------------------------------------------------------------------------------------


def test_a_log_that_has_lost_commits_closes_nothing(day: OwnedDay) -> None:
    """A table has seen write actions that the log has not given out: which rows they had is not known."""
    wanted = day.reads(0)
    with day.run("run", {("replacing", 1): f"{CrashPoint.BEFORE_WRITE}:4:stop"}) as run:
        process = until_stopped(run)
        change(day.warehouse_url, "UPDATE logio_marker SET last_write = last_write + 100 WHERE operator = 'save'")
        process.kill()
        said = parked(run)
        assert "it has lost commits" in said and "'save'" in said, said
    day.assert_is({"clicks": wanted["clicks"], "pages": day.OLD["pages"]})


def test_a_run_of_a_restored_log_needs_a_greater_number(
    day: OwnedDay,
    another_log_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table has seen a run that the log has lost: as if a copy of it was brought back."""
    first = day.reads(0)
    with day.run("lost") as lost:
        lost.finish()
    ((uid,),) = rows_of(day.log_url, "SELECT uid FROM logio_log")
    day.log_url = another_log_url
    change(day.log_url, f"UPDATE logio_log SET uid = '{uid}'")
    wanted = day.reads(5_000)
    with day.run("run") as run:
        said = parked(run)
        assert f"run {lost.run.uid} has claimed it with the same number, 1, as run {run.run.uid}" in said, said
        assert (
            f"`logio again --pipeline owned_day --partition {DAY} --above 1` begins a run with a greater number" in said
        )
        day.assert_is(first)
        code, _, told = Terminal(run, monkeypatch, capsys).logio("again", "--partition", DAY, "--above", "1")
        assert code == 0, told
    with day.run("run") as run:
        assert run.run.ordinal == 2
        run.finish()
    day.assert_is(wanted)


@pytest.fixture
def another_log_url(
    log_url: str, request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path
) -> Iterator[str]:
    """An empty log in the same kind of database."""
    if not log_url.startswith("postgresql"):
        shutil.copytree(sqlite_template, tmp_path / "restored")
        yield f"sqlite:///{tmp_path}/restored/log.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield url
    server.drop_database(url)
