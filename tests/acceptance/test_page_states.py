"""What the page says of a run's state in a real browser: why it has stopped, how old that is, all of it in view."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from playwright.sync_api import Page, expect

from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.chromium import browsed
from tests.support.logs import spec, start_driver
from tests.support.page_server import page_of
from tests.support.two_groups import TwoGroups, two_groups
from tests.support.waiting import eventually
from tests.unit.lineage.test_records import filled

pytestmark = pytest.mark.acceptance

CAUSE, LINE = "KeyError: 'department'", "sales_operators.py:41, in hourly_sales"
ERROR = (
    f"OperatorFailed: pipeline 'sales', operator 'total', port 'in', event 212 of read.out: {CAUSE}\n"
    '  File "/drivers/run/totals/2/code/sales_operators.py", line 41, in hourly_sales\n    row["department"]'
)
CUT = """() => {
  const page = document.querySelector(".logio"), edge = page.getBoundingClientRect().right + 1, found = [];
  for (const one of page.querySelectorAll("*")) {
    if (one.closest(".react-flow, .unseen")) continue;
    const { overflowX, overflowY } = getComputedStyle(one);
    const isLarger = one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
    if (isLarger && /auto|scroll/.test(overflowX + overflowY))
      found.push("scrolls: " + one.className);
    const { right, width } = one.getBoundingClientRect();
    if (width > 0 && right > edge) found.push("is cut: " + one.tagName + " " + one.className);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("a word is out of it");
  return found;
}"""
"""What scrolls within the page, or is out of it."""
IN_AIRFLOW = {1440: 1040, 1024: 731}
"""Width of a window → of a tab of Airflow in it."""


def stopped_run(store: LogStore) -> None:
    """`totals` is parked by its author's code, `ingest` was asked to halt."""
    flow = TwoGroups(store)
    flow.send(1_234_567, 61_728_350)
    flow.use(700_000, 35_000_000)
    assert store.park(flow.drivers["totals"].ref, ERROR)
    assert store.request(flow.run.run_id, "ingest", GroupState.HALTED) and store.halted(flow.drivers["ingest"].ref)


def test_why_a_group_has_stopped_is_said_first_and_once_in_graph_and_list(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    stopped_run(store)
    with page_of(sqlite_url) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        row = page.get_by_role("row").filter(has_text="run-1")
        expect(row).to_contain_text(f"totals parked: {CAUSE} {LINE}")
        expect(row).to_contain_text("ingest halted: it was asked to halt")
        assert row.inner_text().count(CAUSE) == 1
        row.get_by_role("button", name="run-1").click()
        first = page.get_by_label("What has stopped")
        expect(first.locator(".problem")).to_have_text(f"totals parked: {CAUSE} {LINE}")
        expect(first.locator(".next")).to_have_text("ingest halted: it was asked to halt")
        for place in ("Graph", "Groups"):
            part = page.get_by_label(place, exact=True)
            expect(part).to_contain_text(CAUSE)
            expect(part).to_contain_text(LINE)
            assert part.inner_text().count(CAUSE) == 1, place
        top = first.bounding_box()
        assert top is not None and top["y"] + top["height"] < 400, "it is in the first screen"
        expect(page.locator("header.heading")).to_contain_text("56 % done")
        # With a panel open nothing is cut and nothing scrolls by itself, in windows of both widths.
        for window, width in IN_AIRFLOW.items():
            for size in (window, width):
                page.set_viewport_size({"width": size, "height": 900})
                first.get_by_role("button", name="totals").click()
                panel = page.get_by_label("Group totals", exact=True)
                expect(panel).to_contain_text("Why it has stopped")
                assert page.evaluate(CUT) == [], size
                assert browser.faults() == []
                page.keyboard.press("Escape")
                expect(panel).to_have_count(0)
        assert browser.complaints == []
    store.dispose()


def test_long_names_and_words_are_broken_and_what_is_not_named_is_counted(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    groups = [f"a_group_of_operators_with_quite_a_long_name_number_{number:02}" for number in range(12)]
    run = store.start_run(spec(*groups))
    parked = start_driver(store, group=groups[-1], run=run)
    for group in groups[:-1]:
        assert store.halted(GroupRef(run.run_id, group, 0))
    assert store.park(parked.ref, f"ValueError: {'x' * 400}")
    parked.session.close()
    with page_of(sqlite_url) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        row = page.get_by_role("row").filter(has_text="run-1")
        expect(row).to_contain_text(f"{groups[-1]} parked: ValueError: xxx")
        expect(row).to_contain_text(f"{groups[4]} and 4 more groups halted: it was asked to halt")
        expect(row).to_contain_text("2 more groups stopped")
        row.get_by_role("button", name="run-1").click()
        first = page.get_by_label("What has stopped")
        expect(first.locator("p").first).to_contain_text(f"{groups[-1]} parked")
        first.get_by_role("button", name=groups[-1]).click()
        expect(page.get_by_label(f"Group {groups[-1]}", exact=True)).to_contain_text("ended: ValueError")
        for width in (*IN_AIRFLOW, *IN_AIRFLOW.values()):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(CUT) == [], width
        assert browser.complaints == []
    store.dispose()


def test_groups_that_were_never_launched_can_be_retried_once_they_should_have_been(sqlite_url: str) -> None:
    """Their tasks may have failed before; a run that has just begun needs no person."""
    store = open_store(sqlite_url)
    run = store.start_run(two_groups())
    assert {one.state for one in store.groups(run.run_id)} == {GroupState.NEW}
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        browser.page.goto(address)
        actions = browser.page.get_by_label("What can be done with the run")
        expect(actions.get_by_role("button", name="Give up ...")).to_be_visible()
        expect(actions.get_by_role("button", name="Retry ...")).to_have_count(0)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as log, log:
        log.execute("UPDATE logio_run SET created_at = created_at - 100")
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        browser.page.goto(address)
        actions = browser.page.get_by_label("What can be done with the run")
        actions.get_by_role("button", name="Retry ...").click()
        expect(browser.page.get_by_role("dialog")).to_contain_text("Not running: ingest, totals.")
        assert browser.complaints == []
    store.dispose()


def marks(page: Page, group: str) -> dict[str, float]:
    """Kind → where its mark is in the lane of the group."""
    lane = page.locator(".lanes g").filter(has=page.get_by_text(group, exact=True))
    found = lane.locator(".mark").all()
    return {(one.get_attribute("class") or "").split()[-1]: float(one.get_attribute("x") or 0) for one in found}


def test_no_mark_hides_a_death_and_a_finished_run_cannot_be_given_up(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    flow = TwoGroups(store)
    flow.send(10, 500)
    flow.recover("totals")
    flow.use(10, 500)
    with page_of(sqlite_url, flow.run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        give_up = page.get_by_role("button", name="Give up ...")
        expect(give_up).to_be_visible()
        expect(page.locator(".mark.death")).to_have_count(1)
        found = marks(page, "totals")
        death = found.pop("death")
        assert found and all(abs(death - other) >= 10 for other in found.values()), found
        last = page.locator(".lanes g").filter(has=page.locator(".mark.death")).locator(".mark").last
        expect(last).to_have_class("mark death")  # on top
        flow.finish()
        expect(page.get_by_label("Graph", exact=True).get_by_text("finished")).to_have_count(2)
        expect(give_up).to_have_count(0)
        assert store.finish_run(flow.run.run_id)
        expect(page.locator("header.heading")).to_contain_text("took ")
        expect(give_up).to_have_count(0)
        assert browser.complaints == []
    store.dispose()


def test_a_page_that_gets_no_answer_says_how_old_its_figures_are_and_goes_on(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = store.start_run(two_groups())
    start_driver(store, group="ingest", run=run)
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        age = page.locator(".age")
        expect(age).to_have_text("seen 0 s ago")
        page.route(f"**/api/runs/{run.uid}", lambda _: None)  # it is neither answered nor refused
        expect(page.locator(".age.late")).to_contain_text("takes long to answer")
        page.unroute(f"**/api/runs/{run.uid}")  # which lets go what was held
        expect(page.locator(".age.late")).to_have_count(0)
        expect(age).to_contain_text("seen ")
        assert browser.faults() == []
    store.dispose()


def test_curves_survive_a_reload_and_ports_are_looked_at_again(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    sales = filled(store, events=3)
    with page_of(sqlite_url, sales.run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        curve = page.get_by_label("Groups", exact=True).locator(".curve polyline").first

        def points() -> int:
            return len((curve.get_attribute("points") or "").split()) if curve.count() else 0

        eventually(lambda: points() >= 3, what="three looks are drawn", timeout=60)
        page.reload()
        expect(page.get_by_role("heading", name="sales")).to_be_visible()
        eventually(lambda: points() >= 4, what="the first look goes behind those before the reload", timeout=60)
        ports = page.get_by_label("Lineage", exact=True).get_by_label("Port")
        expect(ports).to_contain_text("hourly.out")
        later = {"ports": [{"port": "later.out", "sent": 1}], "in_all": 1}
        page.route("**/lineage", lambda route: route.fulfill(json=later))
        expect(ports).to_contain_text("later.out (1 event)")
        assert browser.complaints == []
    store.dispose()
