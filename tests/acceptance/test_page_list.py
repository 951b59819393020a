"""The list of all runs in a real browser: a run that is older than those of the list is found by its name."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from airflow_logio.store import open_store
from airflow_logio.ui.run_list import MOST_RUNS
from tests.support.chromium import browsed
from tests.support.logs import spec
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
