"""The days of a pipeline in a real browser: walked by keys, read aloud, computed again, and taken over as a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, Run, RunSpec
from tests.store import test_calendar as calendar
from tests.support.chromium import browsed
from tests.support.logs import spec, start_driver
from tests.support.page_server import page_of

pytestmark = pytest.mark.acceptance

GRAPH = {"partition": {"partition": "Days", "name": "day", "zone": "Europe/Berlin", "rules": "r"}}
OWNS = WriterShape("save", "table 'top'", ("warehouse", "top"), Together.BY_PARTITION, Repeats.REPLACED)


def of(day: str) -> RunSpec:
    return replace(spec("g", dag_run=day), partition=day, graph=GRAPH, writers=(OWNS,))


def finished(store: LogStore, day: str) -> Run:
    run = store.start_run(of(day))
    start_driver(store, run=run).session.commit([fx.FinishGroup()])
    assert store.finish_run(run.run_id)
    return run


@pytest.mark.parametrize("width", [1440, 1024])
def test_the_calendar_is_walked_by_keys_and_a_day_is_taken_over_again(sqlite_url: str, width: int) -> None:
    store = open_store(sqlite_url)
    finished(store, "2026-01-31")
    finished(store, "2026-02-02")
    red = store.start_run(of("2026-02-03"))
    start_driver(store, run=red).session.park("WriteRefused: it is of another log: `logio again ... --take-over`")
    last = finished(store, "2026-02-28")
    with page_of(sqlite_url) as address, browsed(width=width) as browser:
        page = browser.page
        page.goto(address)
        calendar = page.get_by_role("grid", name="Calendar of sales")
        cells, runs = calendar.get_by_role("gridcell"), page.locator("table.runs tbody tr")
        expect(cells).to_have_count(29)
        expect(runs).to_have_count(4)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert calendar.locator("[tabindex='0']").count() == 1, "the calendar is one stop of the Tab key"
        cells.last.focus()
        page.keyboard.press("Enter")
        expect(runs).to_have_count(1)
        expect(page.get_by_role("button", name=last.spec.key.dag_run_id, exact=True)).to_be_visible()
        for _ in range(25):
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        chosen = page.get_by_role("status").filter(has_text="2026-02-03: red, parked")
        expect(chosen).to_contain_text("it is of another log")
        expect(page.get_by_role("gridcell", name="2026-02-03: red, parked", selected=True)).to_be_focused()
        expect(runs).to_have_count(1)
        assert browser.faults() == []
        page.get_by_role("button", name="Compute again ...").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Why, for those who read the list").fill("moved here")
        dialog.get_by_label("--take-over").check()
        assert browser.faults() == []
        dialog.get_by_role("button", name="Give it up for the next run").click()
        expect(dialog.locator(".said")).to_contain_text("The next run of 2026-02-03 has --take-over, no later one")
        dialog.get_by_role("button", name="Close").click()
        following = store.start_run(of("2026-02-03"))
        assert following.spec.allowed == {Allowed.TAKE_OVER}
        expect(runs).to_have_count(2)
        again = page.get_by_role("gridcell", name="2026-02-03: running; 1 run before this one (moved here)")
        expect(again).to_be_visible()
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_several_days_are_computed_again_and_what_is_at_work_or_missing_is_left_alone(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    days = [finished(store, f"2026-02-0{number}") for number in (1, 2, 4)]
    at_work = start_driver(store, run=store.start_run(of("2026-02-05"))).run
    store.note_supervisor("the test", run_uid=at_work.uid)
    finished(store, "2026-02-06")
    with page_of(sqlite_url) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        cell = page.get_by_role("gridcell")
        cell.filter(has=page.locator("xpath=self::*[@data-key='2026-02-01']")).click()
        page.locator("[data-key='2026-02-05']").click(modifiers=["Shift"])
        said = page.get_by_role("status").filter(has_text="2026-02-01 to 2026-02-05")
        expect(said).to_contain_text("3 done; 1 running; 1 missing")
        page.get_by_role("button", name="Compute again ...").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Compute 2026-02-01 to 2026-02-04 of sales again?")
        expect(dialog.get_by_role("checkbox")).to_have_count(0)
        dialog.get_by_role("button", name="Give it up for the next run").click()
        expect(dialog.locator(".said")).to_contain_text("3 runs given up")
        dialog.get_by_role("button", name="Close").click()
        expect(page.get_by_role("gridcell", name="2026-02-04: given up, waits for its next run")).to_be_visible()
        assert browser.faults() == browser.complaints == []
    assert {store.find_run(one.uid).state for one in days} == {RunState.SUPERSEDED}
    assert store.find_run(at_work.uid).state is RunState.RUNNING
    store.dispose()


def test_late_records_are_told_for_the_day_that_they_are_of(sqlite_url: str) -> None:
    """On a telephone, too: the name of a row stays in sight."""
    store = open_store(sqlite_url)
    calendar.finished(store, calendar.of("2026-03-01", function=calendar.DRIVER))
    brought = calendar.count("own", "2026-03-01", fx.LATE, 1_200)
    calendar.finished(store, calendar.of("2026-03-31", function=calendar.DRIVER), brought)
    with page_of(sqlite_url) as address, browsed(width=390) as browser:
        page = browser.page
        page.goto(address)
        told = "2026-03-01: done; 1,200 late records came for it with 2026-03-31 (1,200), after its run"
        cell = page.get_by_role("gridcell", name=told, exact=True)
        expect(cell.locator(".came")).to_have_count(1)
        cell.click()
        expect(page.get_by_role("status").filter(has_text=told)).to_contain_text("compute it again")
        page.get_by_role("gridcell", name="2026-03-31: done").focus()
        assert page.evaluate("document.querySelector('.days .scroll').scrollLeft > 0")
        box = page.get_by_role("rowheader", name="2026-03").bounding_box()
        assert box is not None and box["x"] >= 0
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.faults() == browser.complaints == []
    store.dispose()
