"""The page of `logio ui` in a real browser, on a run whose drivers are real, killed and recovered: no Airflow, no JVM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.airflow_browser import picture
from tests.support.chromium import browsed
from tests.support.logs import start_driver
from tests.support.page_server import page_of
from tests.support.running import PlainLauncher, Running, running
from tests.unit.lineage.test_records import filled

pytestmark = pytest.mark.acceptance


@pytest.fixture
def run(sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path) -> Iterator[Running]:
    """`publish` is not launched yet, so events wait for it, and back-pressure holds `hourly`."""
    launcher, backlog = PlainLauncher(tmp_path / "drivers"), BacklogBound(events=8)
    with running(sqlite_url, warehouse_url, small_transactions, launcher, backlog=backlog) as started:
        started.until(
            lambda: started.count("hourly.out", "out") >= 8, "events wait for publish", "ingest", "totals", "hourly"
        )
        yield started


def kill(run: Running, group: str) -> None:
    identity = run.status(group).identity
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    run.until(
        lambda: run.status(group).incarnation > 1 and run.status(group).state is GroupState.RUNNING,
        f"{group} is recovered",
        group,
    )


def test_a_driver_that_is_killed_dies_and_comes_back_before_ones_eyes(run: Running) -> None:
    with page_of(run.context.log_url) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        assert "token" not in page.url, "it leaves the address at once"
        page.get_by_role("button", name="run", exact=True).click()
        graph = page.get_by_label("Graph", exact=True)
        for group in ("ingest", "totals", "hourly", "publish"):
            expect(graph.get_by_role("button", name=group)).to_be_visible()
        expect(graph.get_by_text("8 behind").first).to_be_visible()
        assert browser.faults() == []
        # A person without a mouse opens a group, and closes it again.
        graph.get_by_role("button", name="hourly").focus()
        page.keyboard.press("Enter")
        panel = page.get_by_label("Group hourly", exact=True)
        expect(panel.get_by_role("heading", name="hourly", exact=True)).to_be_focused()
        expect(panel.get_by_text("hourly/1")).to_be_visible()
        kill(run, "hourly")
        expect(panel.get_by_text("hourly/2")).to_be_visible()
        history = page.get_by_label("History", exact=True)
        expect(history.locator("li.death")).to_contain_text("hourly/1")
        expect(history.locator("li.recovery")).to_contain_text("hourly/2")
        assert browser.faults() == []
        picture(browser, "page-light")
        page.keyboard.press("Escape")
        expect(panel).to_have_count(0)
        expect(graph.get_by_role("button", name="hourly")).to_be_focused()
        graph.get_by_role("button", name="totals").click()
        panel = page.get_by_label("Group totals", exact=True)
        expect(panel).to_be_visible()
        # A group is stopped by click, once a person has read what will happen; Escape changes nothing.
        stop = panel.get_by_role("button", name="Stop ...")
        stop.click()
        dialog = page.get_by_role("dialog", name="Stop group totals?")
        expect(dialog).to_contain_text("Its driver commits what it has, and ends.")
        text, ground = browser.colours(dialog.get_by_role("button", name="Stop it"))
        assert text != ground
        assert browser.faults() == []
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(stop).to_be_focused()
        assert run.status("totals").desired is GroupState.RUNNING
        page.keyboard.press("Enter")
        dialog.get_by_role("button", name="Stop it").click()
        expect(dialog.locator(".said")).to_have_text("totals halted")
        assert run.status("totals").state is GroupState.HALTED
        assert browser.faults() == []
        dialog.get_by_role("button", name="Close").click()
        expect(panel.get_by_role("button", name="Retry ...")).to_be_visible()
        run.relaunch("totals")
        run.finish()
        expect(graph.get_by_text("finished").nth(3)).to_be_visible()
        assert browser.complaints == []


def test_it_is_dark_where_the_person_wants_that_and_keeps_its_place(run: Running) -> None:
    with page_of(run.context.log_url, run.run.uid[:8]) as address, browsed("dark") as browser:
        page = browser.page
        page.goto(address)
        heading = page.get_by_role("heading", name="sales")
        expect(heading).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 30)"
        page.get_by_label("Groups", exact=True).get_by_role("button", name="totals").click()
        expect(page.get_by_label("Group totals", exact=True)).to_be_visible()
        assert browser.faults() == []
        picture(browser, "page-dark")
        page.reload()
        expect(page.get_by_label("Group totals", exact=True)).to_be_visible()
        page.keyboard.press("Escape")
        # An event is found, and what it was made from unfolds by keyboard, down to the records.
        lineage = page.get_by_label("Lineage", exact=True)
        lineage.get_by_label("Port").select_option("hourly.out")
        lineage.get_by_label("What to look for").fill("1")
        page.keyboard.press("Enter")
        lineage.get_by_role("button", name="hourly.out 1", exact=True).click()
        graph = page.get_by_label("Lineage graph")
        before = graph.get_by_role("button", name="What it was made from:")
        expect(before).to_have_count(2)
        expect(graph.get_by_role("button", name="What it was made from: hourly.out 1")).to_be_disabled()
        details = lineage.locator("aside")
        details.get_by_role("button", name="Show records").click()
        expect(details.get_by_role("region", name="Records").get_by_role("row").nth(1)).to_be_visible()
        assert browser.faults() == []
        # A record leads to those that it was made from, operator by operator, until a source has read them.
        details.get_by_role("button", name="What record 1 was made from").focus()
        page.keyboard.press("Enter")
        behind = details.get_by_label("What the record was made from")
        expect(behind).to_contain_text("ingest.out")
        expect(behind).to_contain_text("hourly may use only some of the records with these values")
        expect(behind).to_contain_text("Read by hourly from warehouse")
        assert browser.faults() == []
        behind.get_by_role("button", name="What record 1 was made from").first.click()
        expect(behind).to_contain_text("Nothing is recorded of what it was made from")
        behind.get_by_role("button", name="hourly.out 1, record 0").click()
        expect(behind.get_by_role("region", name="Records of ingest.out")).to_be_visible()
        graph.get_by_role("button", name="What it was made from: ingest.out").focus()
        page.keyboard.press("Enter")
        expect(graph.get_by_role("button", name="read ingest")).to_have_count(1)
        assert browser.faults() == []
        assert "port=hourly.out&event=1" in page.url
        page.reload()
        expect(graph.get_by_role("button", name="What it was made from: hourly.out 1")).to_be_visible()
        page.get_by_role("button", name="All runs").click()
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        assert browser.faults() == []
        assert browser.complaints == []


def test_a_search_by_values_is_continued_what_is_cut_is_said_and_errors_leave_the_form(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    sales = filled(store, events=240)
    with page_of(sqlite_url, sales.run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.route("**/lineage", lambda route: route.abort())
        page.goto(address)
        lineage = page.get_by_label("Lineage", exact=True)
        expect(lineage.get_by_role("alert")).to_contain_text("the server does not answer")
        page.unroute("**/lineage")
        again = lineage.get_by_role("button", name="Try again")
        sought, said = lineage.get_by_label("What to look for"), lineage.get_by_role("status")
        lineage.get_by_label("by", exact=False).select_option("where")
        sought.fill("quantity")
        page.keyboard.press("Enter")
        expect(lineage.get_by_role("alert")).to_contain_text("Write column=value")
        page.route("**/lineage/find", lambda route: route.abort())
        sought.fill('quantity = "1"')
        page.keyboard.press("Enter")
        expect(lineage.get_by_role("alert")).to_contain_text("the server does not answer")
        page.unroute("**/lineage/find")
        again.click()
        expect(said).to_contain_text("100 found; searched the newest 100 of 240 events of the port in")
        further = lineage.get_by_role("button", name="Search further")
        further.click()
        expect(said).to_contain_text("200 found; searched the newest 200 of 240 events of the port in")
        assert browser.faults() == []
        further.click()
        expect(said).to_contain_text("240 found; searched all 240 events of the port in")
        expect(further).to_have_count(0)
        found = lineage.get_by_label("Found events").get_by_role("button")
        expect(found).to_have_count(240)
        assert "quantity" not in page.url
        # A box has more events than are followed, and says so.
        lineage.get_by_label("Port").select_option("hourly.out")
        lineage.get_by_label("by", exact=False).select_option("event")
        sought.fill("1")
        page.keyboard.press("Enter")
        found.get_by_text("hourly.out 1").click()
        graph, details = page.get_by_label("Lineage graph"), lineage.locator("aside")
        box = graph.get_by_role("button", name="ingest.out 228 events from 1")
        box.click()
        expect(details).to_contain_text("100 of 228 events")
        graph.get_by_role("button", name="What it was made from (of its first 100 events): ingest.out").click()
        expect(details).to_contain_text("(of its first 100 events)")
        graph.get_by_role("button", name="read hourly.warehouse 1").click()
        details.get_by_role("button", name="Show records").click()
        expect(details).to_contain_text("50 of 100 records")
        assert browser.faults() == []
    store.dispose()


def test_what_the_log_says_is_text_and_a_log_that_is_away_is_said(sqlite_url: str) -> None:
    """Names and errors come from people and data: a browser shows them, and does nothing with them."""
    hostile = "<img src=x onerror=alert(1)>"
    store = open_store(sqlite_url)
    driver = start_driver(store, group=hostile)
    store.declare_dead(driver.ref, f"KeyError: {hostile}")
    uid = driver.run.uid
    with page_of(sqlite_url) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        row = page.get_by_role("row").filter(has_text="run-1")
        expect(row).to_contain_text(f"{hostile} dead: KeyError: {hostile}")
        row.get_by_role("button", name="run-1").click()
        page.get_by_label("Groups", exact=True).get_by_role("button", name=hostile).click()
        expect(page.locator(".panel pre.error")).to_have_text(f"KeyError: {hostile}")
        assert page.locator("img").count() == 0
        assert f"run={uid}" in page.url and "token" not in page.url
        assert browser.complaints == []
        away = {"status": 503, "json": {"detail": "the log cannot be read: connection refused"}}
        page.route("**/api/**", lambda route: route.fulfill(**away))
        alert = page.get_by_role("alert").filter(has_text="the log cannot be read: connection refused").first
        expect(alert).not_to_contain_text("What is shown is")  # it changes, and would be announced each time
        expect(page.locator(".problem").first).to_contain_text("What is shown is")
        assert page.locator(".panel pre.error").count() == 1, "what it knew stays"
        page.unroute("**/api/**")
        expect(alert).to_have_count(0)
    store.dispose()


def test_an_empty_log_and_another_token(sqlite_url: str) -> None:
    with page_of(sqlite_url) as address, browsed() as browser:
        browser.page.goto(address)
        expect(browser.page.get_by_text("There are no runs yet.")).to_be_visible()
        assert browser.faults() == browser.complaints == []
        browser.page.goto(address.replace("token=", "token=x"))  # into the open tab: only the fragment is another one
        expect(browser.page.get_by_role("alert")).to_contain_text("open the address that `logio ui` has printed")
