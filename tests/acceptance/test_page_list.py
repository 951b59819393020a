"""The list of all runs in a real browser: a run that is older than those of the list is found by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from airflow_logio.ui.run_list import MOST_RUNS
from tests.support.chromium import browsed
from tests.support.logs import spec, start_driver
from tests.support.page_server import page_of

pytestmark = pytest.mark.acceptance


def test_an_older_run_is_found_by_a_part_of_its_name(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    for name in ["the-oldest", *(f"run-{number}" for number in range(MOST_RUNS))]:
        store.start_run(spec("g", dag_run=name))
    with page_of(sqlite_url) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        said, runs = page.get_by_role("status"), page.get_by_role("row").filter(has=page.get_by_role("button"))
        expect(said).to_contain_text(f"These are {MOST_RUNS} runs, unfinished ones first, then the newest")
        expect(runs).to_have_count(MOST_RUNS)
        wanted = page.get_by_label("Show runs with")
        wanted.fill("OLDEST")
        expect(page.get_by_role("button", name="the-oldest")).to_be_visible()
        expect(runs).to_have_count(1)
        expect(said).to_contain_text("By name, all runs were searched")
        assert browser.faults() == []
        wanted.fill("nothing of that name")
        expect(said).to_contain_text("By name, all runs were searched")
        expect(runs).to_have_count(0)
        wanted.fill("")
        expect(runs).to_have_count(MOST_RUNS)
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_a_day_is_computed_again_by_click(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    of_day = replace(spec("g"), partition="2026-03-01")
    day = store.start_run(of_day)
    start_driver(store, run=day).session.commit([fx.FinishGroup()])
    assert store.finish_run(day.run_id)
    noted: list[str] = []
    with page_of(sqlite_url, noted=noted) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        row = page.get_by_role("row").filter(has_text="partition 2026-03-01")
        row.get_by_role("button").click()
        actions, dialog = page.get_by_label("What can be done with the run"), page.get_by_role("dialog")
        actions.get_by_role("button", name="Compute again ...").click()
        expect(dialog).to_contain_text("stays until the next run of 2026-03-01 replaces it")
        assert browser.faults() == []
        dialog.get_by_label("Why, for those who read the list").fill("a late file")
        dialog.get_by_role("button", name="Give it up for the next run").click()
        expect(dialog.locator(".said")).to_contain_text(f"uid {day.uid[:8]}, is given up")
        dialog.get_by_role("button", name="Close").click()
        assert store.find_run(day.uid).state is RunState.SUPERSEDED
        following = store.start_run(of_day)
        expect(page.get_by_text(f"replaced by run {following.uid[:8]}: a late file")).to_be_visible()
        page.get_by_role("button", name="All runs").click()
        expect(row).to_have_count(2)
        expect(row.filter(has_text=f"replaced by run {following.uid[:8]}: a late file")).to_have_count(1)
        assert browser.faults() == browser.complaints == []
    assert "asks on the page: again run" in noted[0] and "a late file" in noted[0]
    store.dispose()
