"""Lineage on the page in a real browser: why a record is not there, and links that show the same again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from playwright.sync_api import Page, Route, expect

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.payload_roots import payload_root
from airflow_logio.systems.payloads import Payloads
from airflow_logio.ui.alone import PageServer, alone_app
from airflow_logio.ui.looks import LogSource
from tests.support.chromium import browsed
from tests.support.gates import Gate
from tests.support.logs import start_driver
from tests.support.page_readers import Retries
from tests.support.page_server import page_of
from tests.support.served import served
from tests.support.stored_bodies import store_dataset
from tests.support.streams import ends
from tests.support.waiting import eventually
from tests.unit.lineage.test_records import INGEST, filled, sold
from tests.unit.lineage.test_why_not import SALES
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
        quarantine = page.get_by_label("Quarantine", exact=True)
        expect(quarantine).to_contain_text("1 Input Set is set aside")
        expect(quarantine.locator("pre")).to_be_hidden()
        quarantine.locator("summary").filter(has_text="ValueError: no price").click()
        expect(quarantine.locator("pre")).to_be_visible()
        answer.get_by_role("button", name="source.out 6").first.click()
        graph = page.get_by_label("Lineage graph")
        expect(graph.get_by_role("button", name="What it was made from: source.out 6")).to_be_disabled()
        assert re.search("port=source.out&event=6", page.url)
        assert browser.faults() == browser.complaints == []
    store.dispose()


@contextmanager
def held_up(url: str) -> Iterator[tuple[str, Gate]]:
    """The page of a run with losses, in this process; a search gets through `hourly.out`, and waits in `clean.out`."""
    store = open_store(url)
    run = with_losses(store).run
    newest = {event: SALES[event] for event in (4, 5)}
    gate = Gate.before(store, run, "clean.out", newest, Payloads(payload_root(url, None) or ""))
    app = alone_app(LogSource(lambda: store, None), "secret", Retries().retrying(), lambda: gate)
    with served(PageServer(uvicorn.Config(app, log_level="warning"), app.state.streams)) as address:
        yield f"{address}/#token=secret&run={run.uid}", gate
        gate.open()
    store.dispose()


def ask_for_what_is_aside(page: Page) -> None:
    lineage = page.get_by_label("Lineage", exact=True)
    lineage.get_by_label("Port").select_option("hourly.out")
    lineage.get_by_label("by", exact=False).select_option("where")
    lineage.get_by_label("What to look for").fill("shop=aside")
    lineage.get_by_role("button", name="Why is it not there?").click()


def test_why_it_is_not_there_is_told_while_it_is_found_and_can_be_stopped(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = ends(monkeypatch)
    with held_up(sqlite_url) as (address, gate), browsed() as browser:
        page = browser.page
        page.goto(address)
        ask_for_what_is_aside(page)
        lineage = page.get_by_label("Lineage", exact=True)
        answer, said = lineage.get_by_label("Why it is not there"), lineage.get_by_role("status")
        stop = lineage.get_by_role("button", name="Stop")
        expect(said).to_have_text("Searching clean.out:")
        expect(lineage.get_by_text("0 of 5 events")).to_be_visible()
        expect(answer).to_contain_text("hourly.out: no record has shop=aside (1 event searched)")
        assert browser.faults() == []
        stop.focus()
        page.keyboard.press("Enter")
        expect(said).to_have_text(
            "The search was stopped at clean.out (0 of 5 events). What it had not come to by then was not searched."
        )
        expect(answer).to_contain_text("hourly.out: no record has shop=aside (1 event searched)")
        expect(answer).not_to_contain_text("clean.out")
        expect(lineage.get_by_role("button", name="Search again")).to_be_focused()
        eventually(lambda: len(ended) == 1, what="the server has ended the search")
        assert browser.faults() == []
        page.keyboard.press("Enter")
        expect(said).to_have_text("Searching clean.out:")
        expect(stop).to_be_focused()
        gate.open()
        expect(said).to_contain_text("Answered in")
        expect(answer).to_contain_text("it is quarantined: ValueError: no price")
        expect(answer).to_be_focused()
        expect(stop).to_have_count(0)
        assert browser.faults() == browser.complaints == []


def test_an_answer_that_a_proxy_holds_back_is_shown_and_one_that_breaks_off_is_not_taken_for_whole(
    sqlite_url: str,
) -> None:
    def held_back(route: Route) -> None:
        route.fulfill(response=route.fetch())

    def broken_off(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().partition("event: answer")[0])

    with held_up(sqlite_url) as (address, gate), browsed() as browser:
        page = browser.page
        gate.open()
        page.route("**/lineage/why_not", held_back)
        page.goto(address)
        ask_for_what_is_aside(page)
        lineage = page.get_by_label("Lineage", exact=True)
        expect(lineage.get_by_role("status")).to_contain_text("Answered in")
        expect(lineage.get_by_label("Why it is not there")).to_contain_text("it is quarantined: ValueError: no price")
        page.unroute("**/lineage/why_not")
        page.route("**/lineage/why_not", broken_off)
        lineage.get_by_role("button", name="Why is it not there?").click()
        expect(lineage.get_by_role("alert")).to_contain_text(
            "the connection to the server has ended before the answer was there"
        )
        expect(lineage.get_by_role("status")).to_contain_text("The search has failed")
        page.unroute("**/lineage/why_not")
        lineage.get_by_role("button", name="Try again").click()
        expect(lineage.get_by_role("status")).to_contain_text("Answered in")
        expect(lineage.get_by_role("alert")).to_have_count(0)
        assert browser.faults() == browser.complaints == []


def test_a_link_shows_what_was_unfolded_and_followed_again_or_says_what_is_missing(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = filled(store).run
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(f"{address}&port=hourly.out&event=2")
        lineage, graph = page.get_by_label("Lineage", exact=True), page.get_by_label("Lineage graph")
        box = "ingest.out 2 events from 3 to 4"
        graph.get_by_role("button", name="What it was made from: ingest.out").click()
        read = graph.get_by_role("button", name="read ingest.")
        expect(read.first).to_be_visible()
        details = lineage.locator("aside")
        details.get_by_role("button", name="Show records").click()
        details.get_by_role("button", name="What record 1 was made from").click()
        behind = details.get_by_label("What the record was made from")
        behind.get_by_role("button", name="What record 1 was made from").first.click()
        expect(behind.get_by_role("button", name="← perhaps ingest.out 3, record 0")).to_be_visible()
        link, reads = page.url, read.count()
        assert "record=hourly.out+2+0" in link and "unfolded=backward+ingest.out+2+" in link
        assert browser.faults() == []

        def is_shown() -> None:
            expect(read).to_have_count(reads)
            expect(graph.get_by_role("button", name=box)).to_be_visible()
            expect(details.get_by_role("region", name="Records").first).to_be_visible()
            expect(behind.get_by_role("button", name="hourly.out 2, record 0")).to_be_visible()
            expect(behind.get_by_role("button", name="← perhaps ingest.out 3, record 0")).to_have_attribute(
                "aria-current", "step"
            )
            assert page.url == link

        page.reload()
        is_shown()
        # Another group beside it changes nothing of that, and neither does a way back.
        page.get_by_label("Groups", exact=True).get_by_role("button", name="g", exact=True).click()
        assert page.url.replace("group=g&", "") == link
        page.go_back()
        is_shown()
        # A box that is not there any more is said to be missing, and the rest is shown.
        page.goto(re.sub(r"(unfolded=backward\+ingest.out\+2\+)\w+", r"\1gone", link))
        expect(lineage.get_by_text("1 step of this address cannot be shown")).to_be_visible()
        expect(graph.get_by_role("button", name=box)).to_be_visible()
        expect(behind.get_by_role("button", name="hourly.out 2, record 0")).to_be_visible()
        assert browser.faults() == browser.complaints == []
        # What was begun anew has no trail.
        graph.get_by_role("button", name=box).click()
        details.get_by_role("button", name="ingest.out 4").click()
        expect(graph.get_by_role("button", name="What it was made from: ingest.out 4")).to_be_disabled()
        assert "record=" not in page.url and "unfolded=" not in page.url
    store.dispose()


def test_a_search_by_values_shows_how_far_it_is_and_can_be_stopped(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    sales = filled(store, events=240)

    asked: list[Route] = []

    def two_steps_of_one_event(route: Route) -> None:
        """The third step is not answered: the search is under way until it is stopped."""
        asked.append(route)
        if len(asked) <= 2:
            route.continue_(post_data=json.dumps({**(route.request.post_data_json or {}), "most": 1}))

    with page_of(sqlite_url, sales.run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.route("**/lineage/find", two_steps_of_one_event)
        page.goto(address)
        lineage = page.get_by_label("Lineage", exact=True)
        lineage.get_by_label("by", exact=False).select_option("where")
        lineage.get_by_label("What to look for").fill('quantity = "1"')
        page.keyboard.press("Enter")
        expect(lineage.get_by_text("2 found; searched the newest 2 of 240 events")).to_be_visible()
        expect(lineage.get_by_role("status")).to_have_text("Searching ...")
        lineage.get_by_role("button", name="Stop").click()
        expect(lineage.get_by_role("status")).to_contain_text("2 found; searched the newest 2 of 240 events")
        further = lineage.get_by_role("button", name="Search further")
        expect(further).to_be_focused()
        page.unroute("**/lineage/find")
        later = Event(INGEST, 241, Kind.DATA, 2, None, encode(sold(241)))
        assert store.declare_dead(GroupRef(sales.run.run_id, "g", 1), "killed")
        start_driver(store, run=sales.run, expected=1).session.commit(
            [fx.LogEvent(later, (), kept=True), fx.CountEvents(INGEST, "out", 1, 2)]
        )
        further.click()
        expect(lineage.get_by_role("status")).to_contain_text("102 found; searched the newest 102 of 240 events")
        further.click()
        further.click()
        expect(lineage.get_by_role("status")).to_contain_text(
            re.compile("240 found; searched all 240 events of the port in .*; 1 more were sent since it began")
        )
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_an_event_is_found_by_input_set_by_time_and_by_a_value_that_is_only_text(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    hostile = "<img src=x onerror=alert(1)>"
    sales = filled(store, hour=hostile)
    with page_of(sqlite_url, sales.run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        lineage = page.get_by_label("Lineage", exact=True)
        sought, said = lineage.get_by_label("What to look for"), lineage.get_by_role("status")
        found = lineage.get_by_label("Found events").get_by_role("button")

        def look(port: str, by: str, text: str) -> None:
            lineage.get_by_label("Port").select_option(port)
            lineage.get_by_label("by", exact=False).select_option(by)
            sought.fill(text)
            page.keyboard.press("Enter")

        look("hourly.out", "input_set", "small")
        expect(found).to_have_text(["hourly.out 2"])
        look("hourly.out", "input_set", "unknown")
        expect(said).to_have_text("0 found")
        look("ingest.out", "at", "2020-01-01T00:00")
        expect(said).to_have_text("20 found: the first of more")
        expect(found.first).to_have_text("ingest.out 1")
        look("ingest.out", "at", "2120-01-01T00:00")
        expect(said).to_have_text("0 found")
        look("hourly.out", "where", f'hour="{hostile}"')
        expect(found).to_have_count(2)
        found.first.click()
        details = lineage.locator("aside")
        details.get_by_role("button", name="Show records").click()
        expect(details.get_by_role("cell", name=hostile)).to_be_visible()
        assert page.locator("img").count() == 0
        assert "onerror" not in page.url
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_where_nothing_was_made_of_an_event_it_says_what_became_of_it(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = with_losses(store).run
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        lineage, graph = page.get_by_label("Lineage", exact=True), page.get_by_label("Lineage graph")
        expected = {
            2: "It waits in 1 Input Set of hourly: 2024-01-01T11:00",
            3: "hourly has not processed it yet",
            4: "No Input Set of hourly uses it",
            5: "It is in 1 Input Set of hourly in quarantine: 2024-01-01T12:00",
        }
        for event, said in expected.items():
            page.goto(f"{address}&port=clean.out&event={event}")
            graph.get_by_role("button", name=f"What was made from it: clean.out {event}").click()
            expect(lineage.get_by_label("Where nothing was made from it")).to_have_text(said)
            expect(lineage.locator("aside")).not_to_contain_text("Went into")
        expect(graph.get_by_text("1 Input Set in quarantine")).to_be_visible()
        page.goto(f"{address}&port=source.out&event=6")
        graph.get_by_role("button", name="What was made from it: source.out 6").click()
        said = "It is in 1 Input Set of clean, done without an output in lineage: 6"
        expect(lineage.get_by_label("Where nothing was made from it")).to_have_text(said)
        page.goto(f"{address}&port=hourly.out&event=1")
        graph.get_by_role("button", name="What was made from it: hourly.out 1").click()
        expect(lineage.locator("aside")).to_contain_text("Nothing was made from it so far.")
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_it_does_not_say_that_nothing_was_made_where_it_does_not_know(sqlite_url: str) -> None:
    """As if the log had more slots than one click asks for, or retention had removed what was made."""
    store = open_store(sqlite_url)
    run = with_losses(store).run
    unmade: list[dict[str, object]] = []

    def cut(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "unmade": unmade, "unmade_cut": not unmade})

    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.route("**/lineage/step?*", cut)
        aside = page.get_by_label("Lineage", exact=True).locator("aside")
        inset = {"operator": "hourly", "id": "noon"}
        none = {"operator": "hourly", "events": 1, "input_sets": [], "input_sets_in_all": 0}
        expected: dict[str, list[dict[str, object]]] = {
            "What became of it is said of the first part only.": [],
            "It has no records for hourly": [{**none, "use": "no_records"}],
            "done: nothing that was made of it is in the log any more, or nothing was made: noon": [
                {**none, "use": "let_go", "input_sets": [inset], "input_sets_in_all": 1}
            ],
            "Nothing that hourly has made of it is in the log any more": [{**none, "use": "let_go"}],
            "hourly has made nothing of it in lineage": [{**none, "use": "without_output"}],
        }
        for said, some in expected.items():
            unmade[:] = some
            page.goto("about:blank")
            page.goto(f"{address}&port=clean.out&event=3")
            page.get_by_role("button", name="What was made from it: clean.out 3").click()
            expect(aside).to_contain_text(said)
            expect(aside).not_to_contain_text("so far")
            expect(aside).not_to_contain_text("0 Input Sets")
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_records_of_a_dataset_are_shown_with_their_places_and_rows(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    assert isinstance(store, SqlLogStore)
    run = filled(store).run
    payloads = Payloads(payload_root(sqlite_url, None) or "")
    for event in (3, 4):
        store_dataset(store, run, "ingest.out", event, sold(event), payloads)

    def without_a_row(route: Route) -> None:
        """As if the source had not said which rows event 4 has."""
        answer = route.fetch()
        found = answer.json()
        for row in found["ports"][0]["rows"]:
            row["source_row"] = None if row["event"] == 4 else row["source_row"]
        route.fulfill(response=answer, json=found)

    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(f"{address}&port=ingest.out&event=3")
        details = page.get_by_label("Lineage", exact=True).locator("aside")
        details.get_by_role("button", name="Show records").click()
        expect(details.get_by_role("cell", name="1003")).to_be_visible()
        page.route("**/lineage/behind*", without_a_row)
        page.goto(f"{address}&port=hourly.out&event=2&record=hourly.out+2+0")
        behind = details.get_by_label("What the record was made from")
        expect(behind.get_by_role("columnheader").nth(1)).to_be_visible()
        heads = behind.get_by_label("Records of ingest.out").get_by_role("columnheader").all_text_contents()
        assert heads == ["made from", "event", "record", "row", "product_id", "quantity"]
        rows = behind.get_by_label("Records of ingest.out").get_by_role("row").all()[1:]
        cells = [row.get_by_role("cell").all_text_contents()[1:] for row in rows]
        assert cells == [
            ["3", "0", "4", "3", "1"],
            ["3", "1", "5", "1003", "2"],
            ["4", "0", "", "4", "1"],
            ["4", "1", "", "1004", "2"],
        ]
        assert browser.faults() == browser.complaints == []
    store.dispose()


def test_without_an_answer_about_rights_it_says_why_there_are_no_buttons(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = filled(store).run
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.route("**/rights", lambda route: route.fulfill(status=503, json={"detail": "4 requests wait for the log"}))
        page.goto(f"{address}&port=hourly.out&event=2")
        alert = page.get_by_role("alert").filter(has_text="What you may do with this run is not known")
        expect(alert).to_contain_text("so there are no buttons: 4 requests wait for the log.")
        expect(page.get_by_text("You may not read the data")).to_have_count(0)
    store.dispose()
