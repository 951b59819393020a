"""A day in a lake, a folder or a bucket, on real driver processes that die, stop, are slow and wake up: the old day or the
new one, by DuckDB.

In a folder with the log in SQLite, each driver is a spark-submit with its JVM; else all share a Spark Connect server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.day_records import PartitionBounds
from airflow_logio.store.records.run_records import Allowed
from airflow_logio.store.sql import migrate
from airflow_logio.systems.payloads import Payloads
from tests.support.commands import Terminal
from tests.support.crash_sites import IN_CLEARINGS, IN_CLOSINGS
from tests.support.day_lakes import (
    DAY,
    NEXT_DAY,
    Bucket,
    DayLake,
    Folder,
    pipeline,
    shared_server,
    take_for_dead,
    until_stopped,
    wake,
)
from tests.support.frame_groups import orders_at
from tests.support.logs import open_sql_store
from tests.support.object_store import ObjectStore
from tests.support.postgres import PostgresServer
from tests.support.relay import HELD_PAGE, relay
from tests.support.running import Running, has_ended
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

OLD = (orders_at(1, 2, 3, 25), orders_at(4, 5, first=10))
NEW = (orders_at(7, 8, 30, first=50), orders_at(5, 9, first=100))
LATER = (orders_at(7, 33, first=200), orders_at(30, 31, 32, 8, first=300))
MARCH = PartitionBounds("2024-03-01", "2024-03-31")
PLACES = [
    "folder-sqlite",
    pytest.param("folder-postgres", marks=pytest.mark.postgres),
    "bucket-sqlite",
    pytest.param("bucket-postgres", marks=pytest.mark.postgres),
]
anywhere = pytest.mark.parametrize("empty_lake", PLACES, indirect=True)


def here_and_there(kind: str, other: str) -> pytest.MarkDecorator:
    """Pipelines of that kind in a folder, of the other one in a bucket."""
    cases = [pytest.param(PLACES[0], kind), pytest.param("bucket-postgres", other, marks=pytest.mark.postgres)]
    return pytest.mark.parametrize(("empty_lake", "kind"), cases, indirect=["empty_lake"])


@pytest.fixture(scope="module")
def server(objects: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSettings]:
    """Its executors, drivers and this process find credentials at home."""
    folder = tmp_path_factory.mktemp("server")
    objects.let_in(folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        with shared_server(folder) as settings:
            yield settings


@pytest.fixture(params=[PLACES[0], PLACES[3]])
def empty_lake(request: pytest.FixtureRequest, tmp_path: Path) -> DayLake:
    """By place and log."""
    place, _, database = str(request.param).partition("-")
    log_url = str(request.getfixturevalue(f"{database}_url"))
    settings = SparkSettings() if request.param == PLACES[0] else request.getfixturevalue("server")
    if place == "folder":
        return DayLake(tmp_path, log_url, Folder(tmp_path / "lake", settings))
    return DayLake(tmp_path, log_url, Bucket(request.getfixturevalue("objects"), tmp_path, settings))


@pytest.fixture
def lake(empty_lake: DayLake) -> DayLake:
    """Its day is that of a run which has finished."""
    with empty_lake.run("old", OLD) as run:
        run.finish()
    empty_lake.assert_is("old")
    return empty_lake


def give_up(run: Running) -> None:
    """A person has: its first driver is taken for dead, and a fresh run may take its place."""
    take_for_dead(run)
    assert run.store.supersede(run.run.run_id)


def assert_nothing_is_left(
    lake: DayLake, run: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But what the log names; and where that is removed, only the lake."""
    records = [name for name in lake.place.names() if "/_logio/" in name]
    seen = [name for name in records if "/." not in name]  # a zombie may have been ended while it wrote its receipt
    assert {name.rpartition(".")[2] for name in seen} == {"claim", "json"} and len(records) <= len(seen) + 1
    monkeypatch.setenv("LOGIO_PAYLOADS", str(lake.payloads))
    logio = Terminal(run, monkeypatch, capsys).logio
    assert logio("gc")[0] == 0
    store, payloads, left = open_sql_store(lake.log_url), Payloads(str(lake.payloads)), set()
    for one in store.list_runs():
        for ref in store.references(one.run_id, f"{one.uid}/"):
            left |= {str(lake.payloads / ref.partition("#")[0]), *payloads.dataset("a row", ref).paths()}
    store.dispose()
    assert {str(path) for path in lake.payloads.rglob("*") if path.is_file()} == left

    def nothing() -> bool:
        code, _, said = logio("gc", "--older-than", "1s", "--unfinished")
        assert code == 0, said
        return not any(path.is_file() for path in lake.payloads.rglob("*"))

    eventually(nothing, what="what the runs have put into the payload store is removed with them", every=0.5)


BEFORE_THE_RECEIPT = (
    f"{CrashPoint.BEFORE_WRITE}:1",
    f"{CrashPoint.AFTER_WRITE}:1",
    *(f"{point}:1" for point in IN_CLOSINGS),
    f"{CrashPoint.IN_PLACING}:2",
    f"{CrashPoint.IN_PUBLICATION}:1",
    f"{CrashPoint.BEFORE_RECEIPT}:1",
)
"""Where drivers stand still, one incarnation after the other: around the opening, around the question whether all is there,
between links, behind them, and behind the last look at who else is there."""
BEHIND_THE_RECEIPT = (f"{CrashPoint.IN_CLEARING}:1", f"{CrashPoint.IN_CLEARING}:2", f"{CrashPoint.AFTER_WRITE}:1")


@anywhere
def test_whatever_dies_the_day_is_the_old_one_or_the_new_one(
    lake: DayLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drivers stand still at each step, readers look, and the drivers are killed. One of them is only taken for dead, with
    the receipt in its hands: it wakes up when its successors have published."""
    points = (*BEFORE_THE_RECEIPT, *BEHIND_THE_RECEIPT)
    assert {point.partition(":")[0] for point in points} >= set(map(str, IN_CLEARINGS))
    armed = {number: f"{point}:stop" for number, point in enumerate(points, 1)}
    with lake.run("new", NEW, armed, end_old_drivers=False) as run:
        for number, point in enumerate(points, 1):
            process = until_stopped(run, number)
            assert lake.counted() == lake.expected("old" if number <= len(BEFORE_THE_RECEIPT) else "new"), point
            if point.startswith(CrashPoint.BEFORE_RECEIPT):
                zombie = process
                take_for_dead(run, number)
            else:
                process.kill()
        run.finish()
        assert run.status("all").incarnation == len(points) + 1
        lake.assert_is("new")
        wake(zombie)
        lake.assert_is("new")
    assert_nothing_is_left(lake, run, monkeypatch, capsys)


@here_and_there("late", "days")
def test_a_receipt_that_comes_late_brings_nothing_back(empty_lake: DayLake, kind: str) -> None:
    """Drivers of two runs stand still with theirs in their hands, and the runs are given up, one after the other. One comes
    before that of the youngest run, and counts until then; the other one comes behind it."""
    lake, day = empty_lake, DAY.text
    given: dict[str, Any] = {"ref": pipeline(kind), "end_old_drivers": False}
    stops = {1: f"{CrashPoint.BEFORE_RECEIPT}:1:stop"}
    with lake.run("old", OLD, ref=pipeline(kind)) as run:
        run.finish()
    with lake.run("first", NEW, stops, **given) as run:
        first = until_stopped(run)
        give_up(run)
        with lake.run("second", LATER, stops, **given) as next_run:
            second = until_stopped(next_run)
            give_up(next_run)
            with lake.run("young", OLD[::-1], {1: f"{CrashPoint.IN_PUBLICATION}:1:stop"}, **given) as young:
                process = until_stopped(young)
                wake(second)
                found = {"kept": lake.counted(), "late": lake.late()}
                old = {"kept": lake.expected("old"), "late": lake.expected_late(old=day)}
                its = {"kept": lake.expected("second"), "late": lake.expected_late(second=day)}
                if kind == "days":
                    assert found == {"kept": its["kept"], "late": []}
                else:
                    assert found in ({**old, "late": its["late"]}, {**old, "kept": its["kept"]}), "one of its writers"
                process.resume()
                young.finish()
                lake.assert_is("young")
                wake(first)
    lake.assert_is("young")
    assert lake.late() == lake.late_listed() == (lake.expected_late(young=day) if kind == "late" else [])


@here_and_there("audited_late", "audited")
def test_a_slow_driver_of_the_replaced_run_puts_files_that_never_count(empty_lake: DayLake, kind: str) -> None:
    """It is in an audit while a younger run has the day; then it puts files, and looks once more."""
    lake, plain = empty_lake, pipeline("late" if kind == "audited_late" else "days")
    slow, reached, allowed = (lake.orders("old").with_suffix(f".{one}") for one in ("slow", "reached", "allowed"))
    slow.touch()
    allowed.touch()
    with lake.run("old", NEW, ref=pipeline(kind), end_old_drivers=False) as old:
        old.until(reached.exists, "it is in its audit", timeout=300)
        zombie = old.process("all")
        give_up(old)
        with lake.run("young", OLD, ref=plain) as young:
            young.finish()
        slow.unlink()
        eventually(lambda: has_ended(zombie), what="it has ended", timeout=120)
    for name, orders in (("young", None), ("next", LATER)):
        if orders is not None:  # the next run of the day removes what the zombie may have left
            with lake.run(name, orders, ref=plain) as run:
                run.finish()
            lake.assert_is(name)
            assert lake.late() == lake.late_listed()
        assert lake.counted() == lake.expected(name) != []
        assert lake.late() == (lake.expected_late(**{name: DAY.text}) if kind == "audited_late" else [])


def test_a_stopped_driver_of_a_run_that_fills_the_day_at_once(lake: DayLake) -> None:
    """It is between the files of a write action when a younger run has the day."""
    given: dict[str, Any] = {"ref": pipeline("filled"), "end_old_drivers": False}
    with lake.run("zombie", NEW, {1: f"{CrashPoint.IN_PLACING}:1:stop"}, **given) as run:
        zombie = until_stopped(run)
        give_up(run)
        with lake.run("young", LATER, ref=pipeline("filled")) as young:
            young.finish()
        assert lake.counted() == lake.expected("young") != []
        wake(zombie)
    assert lake.counted() == lake.expected("young")
    with lake.run("next", OLD) as run:
        run.finish()
    lake.assert_is("next")


def test_an_audit_that_refuses_keeps_the_old_day_until_a_person_asks_again(lake: DayLake) -> None:
    """Drivers die in its function, behind its query, behind both, and with files in the folder: each next one asks again.
    Once the receipt is there, none does."""
    fault, allows = (Path(f"{lake.orders('new')}.{name}") for name in ("fault", "allowed"))
    fault.touch()
    armed = {
        2: f"{CrashPoint.IN_AUDIT}:1",
        4: f"{CrashPoint.IN_AUDIT}:2",
        5: f"{CrashPoint.IN_PUBLICATION}:1:stop",
        7: f"{CrashPoint.IN_CLEARING}:1:stop",
    }
    with lake.run("new", NEW, armed, ref=pipeline("audited")) as run:

        def refused_to(incarnation: int) -> None:
            run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked", timeout=300)
            assert run.status("all").incarnation == incarnation
            said = str(run.status("all").error)
            assert "audit 'allowed' refuses the rows of run" in said, said
            assert "2 orders of store 2. The day stays as it is" in said
            assert lake.counted() == lake.expected("old")

        refused_to(3)
        assert lake.listed() == lake.expected("old") and not fault.exists()
        allows.touch()
        run.relaunch("all")
        process = until_stopped(run, 5)
        allows.unlink()
        process.kill()
        refused_to(6)
        allows.touch()
        run.relaunch("all")
        process = until_stopped(run, 7)
        assert lake.counted() == lake.expected("new")
        allows.unlink()
        process.kill()
        run.finish()
        assert run.status("all").incarnation == 8
    lake.assert_is("new")


def test_a_day_that_is_filled_at_once_is_whole_in_the_end(lake: DayLake) -> None:
    """Drivers die while the old day is removed, and around files and receipts; readers see what of the new one is there."""
    points = (
        f"{CrashPoint.BEFORE_WRITE}:1",
        f"{CrashPoint.BEFORE_RECEIPT}:1",
        f"{CrashPoint.IN_CLEARING}:2",
        f"{CrashPoint.IN_PUBLICATION}:1",
        f"{CrashPoint.BEFORE_RECEIPT}:1",
        f"{CrashPoint.AFTER_WRITE}:1",
    )
    armed = {number: f"{point}:stop" for number, point in enumerate(points, 1)}
    with lake.run("new", NEW, armed, ref=pipeline("filled")) as run:
        for number in armed:
            process = until_stopped(run, number)
            if number <= 2:
                assert lake.counted() == lake.expected("old")
            else:
                assert set(lake.counted()) <= set(lake.expected("new")), "the old day is hidden"
            process.kill()
        run.finish(timeout=400)
        assert run.status("all").incarnation == len(points) + 1, "every one of them was passed"
    lake.assert_is("new")


@pytest.mark.postgres
@pytest.mark.parametrize("empty_lake", ["bucket-postgres"], indirect=True)
def test_log_and_store_go_away_in_the_closing(
    lake: DayLake, objects: ObjectStore, postgres_server: PostgresServer
) -> None:
    """While what is held is read, and before the receipt is put: the driver waits, and does it again."""
    port = urlsplit(objects.endpoint).port
    assert port is not None
    with lake.run("new", NEW) as run, relay(postgres_server.port) as to_log, relay(port) as to_store:
        log_url = sa.make_url(lake.log_url).set(port=to_log.port).render_as_string(hide_password=False)
        url = lake.place.url.replace(f":{port}", f":{to_store.port}")
        run.context = replace(run.context, log_url=log_url, connections={"lake": url})
        to_log.cut, to_store.cut = HELD_PAGE, re.compile(rb"(PUT|POST) /\S*/_logio/days/\S*\.json")
        run.until(lambda: to_log.cuts >= 2, "the log has gone away twice", timeout=300)
        assert to_store.cuts == 0
        to_log.cut = None
        run.until(lambda: to_store.cuts >= 2, "the store has gone away twice", timeout=300)
        assert lake.counted() == lake.expected("old")
        to_store.cut = None
        run.finish(timeout=400)
        assert run.status("all").incarnation == 1, "nothing was recovered"
    lake.assert_is("new")


@anywhere
def test_late_orders_are_superseded_by_those_of_the_next_run_of_their_day(empty_lake: DayLake) -> None:
    """Drivers die around files, receipts and removal. Those that the next day has for the same stores stay."""
    lake = empty_lake
    for name, orders, day in (("old", OLD, DAY), ("next", OLD[::-1], NEXT_DAY)):
        with lake.run(name, orders, ref=pipeline("late"), partition=day) as run:
            run.finish(timeout=400)
    before = lake.expected_late(old=DAY.text, next=NEXT_DAY.text)
    assert lake.late() == lake.late_listed() == before != []
    points = (
        f"{CrashPoint.BEFORE_WRITE}:1",
        f"{CrashPoint.AFTER_WRITE}:1",
        f"{CrashPoint.AFTER_CLOSING}:1",
        f"{CrashPoint.BEFORE_RECEIPT}:1",
        f"{CrashPoint.IN_PUBLICATION}:2",
        f"{CrashPoint.IN_CLEARING}:1",
        f"{CrashPoint.AFTER_WRITE}:1",
    )  # of either writer
    with lake.run("new", LATER, dict(enumerate(points, 1)), ref=pipeline("late")) as run:
        run.until(lambda: run.is_running("all", len(points) + 1), "all of them were passed", timeout=400)
        run.finish(timeout=400)
        counted = run.store.late_arrivals("lake_days", MARCH, MARCH, {"own"})
    after = lake.expected_late(new=DAY.text, next=NEXT_DAY.text)
    assert lake.late() == lake.late_listed() == after != before
    assert sum(one.records for one in counted if one.stands) == len(after), "as the log has counted them"
    assert lake.counted() == lake.expected("new")


def test_a_run_without_records_keeps_the_old_day(lake: DayLake) -> None:
    with lake.run("empty", (orders_at(30),)) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked")
        assert "has none to put in their place" in str(run.status("all").error)
    lake.assert_is("old")


def test_another_log_replaces_the_day_only_by_a_persons_word(lake: DayLake, tmp_path: Path) -> None:
    """It is killed before it claims the day, and before its receipt; a run of the first log sleeps before its own."""
    laptop = f"sqlite:///{tmp_path}/laptop.db"
    migrate.upgrade(laptop)
    with lake.run("refused", NEW, log_url=laptop) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked", timeout=300)
        assert f"`logio again --pipeline lake_days --partition {DAY.text} --take-over`" in str(run.status("all").error)
        assert run.store.supersede(run.run.run_id)
    lake.assert_is("old")  # and no claim of it is left
    with lake.run("zombie", NEW, {1: f"{CrashPoint.IN_PUBLICATION}:1:stop"}) as old:
        zombie = until_stopped(old)
        armed = {1: f"{CrashPoint.BEFORE_WRITE}:1", 2: f"{CrashPoint.IN_PUBLICATION}:1"}
        with lake.run("taken", OLD, armed, log_url=laptop, allowed={Allowed.TAKE_OVER}) as run:
            run.finish()
            assert run.status("all").incarnation == 3, "both were passed"
        assert lake.counted() == lake.expected("taken") != []
        zombie.resume()
        old.until(lambda: old.status("all").state is GroupState.PARKED, "the zombie is parked", timeout=300)
        assert "was taken over by run" in str(old.status("all").error)
    lake.assert_is("taken")  # its files are gone, and never counted
    with lake.run("next", NEW, log_url=laptop) as run:
        run.finish()
    lake.assert_is("next")  # the day is of that log: it needs no word any more
