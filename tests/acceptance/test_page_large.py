"""A run of 600 groups of the log in a real browser: it is drawn, can be used, and is looked at again."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from airflow_logio.store import open_store
from tests.support.chromium import browsed
from tests.support.large_runs import large_run
from tests.support.page_server import page_of

pytestmark = pytest.mark.acceptance


def test_a_hundred_groups_and_five_hundred_replicas(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = large_run(store)
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        graph, groups = page.get_by_label("Graph", exact=True), page.get_by_label("Groups", exact=True)
        expect(graph.locator(".box-head")).to_have_count(110)  # all of it is in view
        expect(graph.get_by_text("+10", exact=True)).to_have_count(10)
        expect(groups.get_by_role("row")).to_have_count(1 + 110)
        assert browser.faults() == []
        with page.expect_response(lambda answer: answer.url.endswith(run.uid)) as again:
            pass
        assert again.value.ok
        name = next(name for name in run.spec.replicated)
        groups.get_by_role("button", name=name, exact=True).click()
        panel = page.get_by_label(f"Group {name}", exact=True)
        expect(panel.get_by_role("button", name=f"{name}.50", exact=True)).to_be_visible()
        # No driver of this log beats again: the sixth warning and those after it are folded, so the graph stays in view.
        sixth = page.get_by_text("group g005 is running, no heartbeat for")
        folded = page.locator("summary", has_text="more warning")
        expect(folded).to_be_visible(timeout=60_000)
        expect(sixth).to_be_hidden()
        folded.click()
        expect(sixth).to_be_visible()
        assert browser.complaints == []
    store.dispose()
