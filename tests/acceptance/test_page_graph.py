"""The graph of the page in a real browser: connections inside a group, and which connection may hold its sender up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from playwright.sync_api import Locator, expect

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Load
from airflow_logio.store.records.run_records import BacklogBound, OperatorShape, Run
from tests.support.chromium import browsed
from tests.support.logs import spec, start_driver
from tests.support.page_server import page_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

CHAIN = [f"step{number}" for number in range(9)]
"""Operators of group ``work``, each fed by the one before it."""
SENT = {"feed": 200, **dict.fromkeys(CHAIN, 60), "join": 60}
TAKEN = {("slow", "in"): 104, ("quick", "in"): 197, ("step0", "in"): 180, ("step5", "in"): 48, ("join", "late"): 55}
"""Of the others, everything. ``slow`` is 96 events behind, of the 100 that it may be."""


def inner_run(store: LogStore) -> Run:
    """`feed` sends to `slow`, `quick` and `work`, which has many operators, and says that something holds it up."""
    shapes = {"feed": OperatorShape("feed", outputs=("out",))}
    shapes |= {name: OperatorShape(name, {"in": "feed.out"}) for name in ("slow", "quick")}
    for name, before in zip(CHAIN, ["feed", *CHAIN], strict=False):
        shapes[name] = OperatorShape("work", {"in": f"{before}.out"}, ("out",))
    shapes["join"] = OperatorShape("work", {"early": "step1.out", "late": "step8.out"})
    run = store.start_run(
        replace(spec("feed", "slow", "quick", "work"), operators=shapes, backlog=BacklogBound(events=100))
    )
    held_up = Load(10.0, 0.3, 0.1, 0.6, 20, 20, 20, 20)
    for group in run.spec.groups:
        driver = start_driver(store, group=group, run=run)
        mine = {name: shape for name, shape in shapes.items() if shape.group == group}
        driver.session.commit([*_counts(mine)])
        load = held_up if group == "feed" else replace(held_up, idle=0.7, blocked=0.0)
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1, load=load)
        driver.session.close()
    return run


def _counts(shapes: dict[str, OperatorShape]) -> Iterable[fx.CountEvents]:
    for name, shape in shapes.items():
        for port, sender in shape.inputs.items():
            taken = TAKEN.get((name, port), SENT[sender.partition(".")[0]])
            yield fx.CountEvents(Port(name, port), "in", taken, taken, 0)
        for port in shape.outputs:
            yield fx.CountEvents(Port(name, port), "out", SENT[name], SENT[name], 0)


def test_connections_inside_a_group_are_drawn_and_only_the_full_one_is_held_up(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    run = inner_run(store)
    with page_of(sqlite_url, run.uid[:8]) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        graph = page.get_by_label("Graph", exact=True)

        def line(said: str, exact: bool = False) -> Locator:
            return graph.get_by_role("img", name=said, exact=exact)

        expect(line("from feed.out to quick.in: 3 behind").locator(".line.some")).to_have_count(1)
        expect(line("from feed.out to step0.in: 20 behind").locator(".line.some")).to_have_count(1)
        slow = line("from feed.out to slow.in: 96 behind")
        expect(slow.locator(".line.held")).to_have_count(1)
        expect(slow).to_have_accessible_name(re.compile("it may hold its sender up"))
        # Inside the group: without figures, and with them.
        expect(line("from step0.out to step1.in: no lag", exact=True).locator(".line.none")).to_have_count(1)
        expect(line("from step1.out to join.early: no lag", exact=True)).to_have_count(1)
        expect(line("from step4.out to step5.in: 12 behind")).to_have_count(1)
        expect(line("from step8.out to join.late: 5 behind")).to_have_count(1)
        expect(graph.get_by_title("from step4.out to step5.in: 12 behind")).to_be_visible()
        box = graph.locator(".react-flow__node").filter(has_text="step5").bounding_box()
        label = graph.get_by_text("12 behind").bounding_box()
        assert box is not None and label is not None
        assert box["x"] < label["x"] and label["x"] + label["width"] < box["x"] + box["width"]

        def scale() -> float:
            return float(
                graph.locator(".react-flow__viewport").evaluate(
                    "(it) => new DOMMatrix(getComputedStyle(it).transform).a"
                )
            )

        whole = scale()
        zoom = graph.get_by_role("group", name="Zoom")
        zoom.get_by_role("button", name="Zoom in").click()
        eventually(lambda: scale() > whole, what="it is larger")
        zoom.get_by_role("button", name="Show all of it").press("Enter")
        eventually(lambda: scale() == pytest.approx(whole), what="all of it is shown again")
        graph.locator(".react-flow__pane").dblclick(position={"x": 4, "y": 4})
        eventually(lambda: scale() > whole, what="it is larger after a double click")
        assert scale() == pytest.approx(2 * whole, rel=1e-3), "at once"

        assert browser.faults() == browser.complaints == []
    store.dispose()
