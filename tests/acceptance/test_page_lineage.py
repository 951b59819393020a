"""Lineage on the page in a real browser: why a record is not there, and links that show the same again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from airflow_logio.store import open_store
from tests.support.chromium import browsed
from tests.support.page_server import page_of
from tests.unit.lineage.test_why_not import logged as with_losses

pytestmark = pytest.mark.acceptance


def test_why_a_record_is_not_there_is_asked_and_leads_to_the_events_that_are(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = with_losses(store).run
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        lineage = page.get_by_label("Lineage", exact=True)
        why = lineage.get_by_role("button", name="Why is it not there?")
        lineage.get_by_label("Port").select_option("hourly.out")
        expect(why).to_have_count(0)
        lineage.get_by_label("by", exact=False).select_option("where")
        sought, answer = lineage.get_by_label("What to look for"), lineage.get_by_label("Why it is not there")
        why.click()
        expect(lineage.get_by_role("alert")).to_contain_text("Write column=value")
        sought.fill("shop=left_out, hour=2024-01-01T10:00")
        why.focus()
        page.keyboard.press("Enter")
        expect(answer).to_contain_text("hourly.out: no record has shop=left_out and hour=2024-01-01T10:00")
        expect(answer).to_contain_text("without such a record: hourly has left it out")
        assert browser.faults() == []
        sought.fill("shop=aside")
        why.click()
        expect(answer).to_contain_text("it is quarantined: ValueError: no price")
        sought.fill("shop=x")
        why.click()
        expect(answer).to_contain_text("It is there.")
        sought.fill("shop=dropped")
        why.click()
        expect(answer.get_by_role("button", name="source.out 6")).to_have_count(2)
        assert "dropped" not in page.url
        answer.get_by_role("button", name="source.out 6").first.click()
        graph = page.get_by_label("Lineage graph")
        expect(graph.get_by_role("button", name="What it was made from: source.out 6")).to_be_disabled()
        assert re.search("port=source.out&event=6", page.url)
        assert browser.faults() == browser.complaints == []
    store.dispose()
