"""The page of `logio ui` in a real browser, on a run whose drivers are real, killed and recovered: no Airflow, no JVM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records import BacklogBound
from tests.support.chromium import browsed
from tests.support.page_server import page_of
from tests.support.running import PlainLauncher, Running, running

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
        expect(history.get_by_role("listitem").filter(has_text="death").first).to_contain_text("hourly/1")
        expect(history.get_by_role("listitem").filter(has_text="recovered").first).to_contain_text("hourly/2")
        assert browser.faults() == []
        page.keyboard.press("Escape")
        expect(panel).to_have_count(0)
        graph.get_by_role("button", name="totals").click()
        expect(page.get_by_label("Group totals", exact=True)).to_be_visible()
        run.finish()
        expect(graph.get_by_text("finished").nth(3)).to_be_visible()
        assert browser.complaints == []


def test_it_is_dark_where_the_person_wants_that_and_keeps_its_place(run: Running) -> None:
    with page_of(run.context.log_url, run.run.uid[:8]) as address, browsed("dark") as browser:
        page = browser.page
        page.goto(address)
        heading = page.get_by_role("heading", name="sales")
        expect(heading).to_be_visible()
        assert page.evaluate("getComputedStyle(document.querySelector('.logio')).backgroundColor") == "rgb(18, 23, 30)"
        page.get_by_label("Groups", exact=True).get_by_role("button", name="totals").click()
        expect(page.get_by_label("Group totals", exact=True)).to_be_visible()
        assert browser.faults() == []
        page.reload()
        expect(page.get_by_label("Group totals", exact=True)).to_be_visible()
        page.get_by_role("button", name="All runs").click()
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        assert browser.faults() == []
        assert browser.complaints == []
