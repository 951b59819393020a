"""`logio status RUN` of a run with a replicated group: replicas, slots, load and requests, and the author's ports."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from airflow_logio.cli import run_tables
from airflow_logio.cli.run_tables import ranges
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.run_report.as_json import document
from airflow_logio.run_report.report import Report, Reporter
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Load
from airflow_logio.store.records.run_records import OperatorShape, RunSpec
from airflow_logio.store.records.upkeep_records import QuarantinedInputSet
from tests.support.logs import Driver, start_driver
from tests.support.replicated import GROUP, A, B, launch, replicated_spec

SLOTS = 4
SENT = 10


def whole_spec() -> RunSpec:
    """As a pipeline has it: ``feed`` → Dispatcher → ``work`` in slots → Merger → ``end``."""
    slots = range(SLOTS)
    shapes = {
        "feed": OperatorShape("feed", {}, ("out",)),
        "dispatch(work)": OperatorShape("feed", {"in": "feed.out"}, tuple(f"slot{n}" for n in slots)),
        **{f"work[{n}]": OperatorShape(GROUP, {"in": f"dispatch(work).slot{n}"}, ("out",)) for n in slots},
        "merge(work)": OperatorShape("end", {f"slot{n}": f"work[{n}].out" for n in slots}, ("out",)),
        "end": OperatorShape("end", {"in": "merge(work).out"}),
    }
    return replace(replicated_spec(slots=SLOTS), operators=shapes)


LOAD = Load(10.0, 0.6, 0.3, 0.1, 9, 1200, 8, 50, 3, 1.5)


@pytest.fixture
def report(store: LogStore) -> Report:
    """Of ten events per slot seven were taken; two replicas work, the third one was never needed."""
    run = store.start_run(whole_spec())
    drivers = {name: start_driver(store, group=name, run=run) for name in ("feed", "end")}
    drivers |= {name: launch(store, run, name) for name in (A, B)}
    store.heartbeat(drivers[A].ref, 1, ready=True, rss_bytes=1 << 20, load=LOAD)
    for state in (ScalingState.ACCEPTED, ScalingState.DONE):
        asked = store.request_scaling(run.run_id, GROUP, 2, by="a person", reason="because", key="one")
        store.settle_scaling(asked.request_id, state, "2 replicas of work: 2 slots moved")
    store.request_scaling(run.run_id, GROUP, 3, by="controller", reason="DS2: 900 records/s arrive [and] wait")
    count(drivers["feed"], ("feed.out", "out", SENT * SLOTS), ("dispatch(work).in", "in", SENT * SLOTS))
    for n in range(SLOTS):
        count(drivers["feed"], (f"dispatch(work).slot{n}", "out", SENT))
        owner = next(slot.owner for slot in store.slots(run.run_id, GROUP) if slot.number == n)
        count(drivers[str(owner)], (f"work[{n}].in", "in", 7), (f"work[{n}].out", "out", 5))
        count(drivers["end"], (f"merge(work).slot{n}", "in", 4))
    count(drivers["end"], ("merge(work).out", "out", 16), ("end.in", "in", 16))
    return Reporter(store, run.uid).look()


def count(driver: Driver, *counted: tuple[str, str, int]) -> None:
    """Records are ten times the events."""
    counts: fx.Effects = [
        fx.CountEvents(Port(*port.split(".")), way, many, many * 10, many) for port, way, many in counted
    ]
    driver.session.commit(counts)


def printed(what: RenderableType) -> list[list[str]]:
    """Lines, parted where two blanks or more are."""
    console = Console(file=io.StringIO(), width=300)
    console.print(what)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in lines]


def test_replicas_their_slots_and_load(report: Report) -> None:
    lines = printed(run_tables.whole(report))
    whole = next(line for line in lines if line[:1] == ["work"])
    assert (whole[1], whole[-2:]) == ("running", ["28 events, 20 out", "lag 12 events"])
    assert [line[0] for line in lines if line[:1] in ([A], [B])][:2] == [A, B], "its replicas come behind it"
    assert ["work", "2 of 3 in use", "4"] in lines
    owned = {A: "0-1", B: "2-3"}
    assert [A, "running", owned[A], "60%", "30%", "10%", "120", "5", "3 events", "1.5 s"] in lines
    assert [B, "running", owned[B]] in lines
    assert not any(line[:1] == ["work.3"] for line in lines), "a person need not see a replica that is not in use"


def test_requests_with_their_reasons_the_newest_first(report: Report) -> None:
    lines = [line for line in printed(run_tables.page(report)) if line[:1] and line[0].startswith("work #")]
    assert [(line[0], *line[2:]) for line in lines] == [
        ("work #2", "3", "requested", "controller", "DS2: 900 records/s arrive [and] wait"),
        ("work #1", "2", "done", "a person", "because", "2 replicas of work: 2 slots moved"),
    ]


def test_connections_and_ports_are_the_authors(report: Report) -> None:
    lines = printed(run_tables.whole(report))
    assert ["feed.out → work.in", "40", "28", "12", "12", "120"] in lines
    assert ["work.out → end.in", "20", "16", "4", "4", "40"] in lines
    ports = {(line[0], line[1]): line[2:4] for line in lines if len(line) > 4}
    assert ports["work.in", "in"] == ["28", "280"]
    assert ports["work.out", "out"] == ["20", "200"]
    text = "\n".join(map(str, lines))
    assert not [name for name in ("dispatch(", "merge(", "work[") if name in text]


def test_the_same_for_programs(report: Report) -> None:
    told: dict[str, Any] = json.loads(json.dumps(document(report)))
    work = told["replicated"][GROUP]
    assert (work["replicas_in_use"], work["least"], work["most"]) == (2, 0, 3)
    assert (work["lag"], work["sent"]) == ({"events": 12, "records": 120}, {"events": 20, "records": 200})
    assert [(slot["number"], slot["owner"], slot["done"]) for slot in work["slots"]][:3] == [
        (0, A, False),
        (1, A, False),
        (2, B, False),
    ]
    assert work["replicas"][A]["slots"] == [0, 1]
    assert work["replicas"][A]["load"]["busy"] == 0.6
    assert (work["replicas"]["work.3"]["state"], work["replicas"]["work.3"]["load"]) == ("retired", None)
    assert [(one["request"], one["state"], one["by"]) for one in work["requests"]] == [
        (2, "requested", "controller"),
        (1, "done", "a person"),
    ]
    assert [(one["from"], one["to"], one["from_group"], one["to_group"]) for one in told["connections"]] == [
        ("feed.out", "work.in", "feed", "work"),
        ("work.out", "end.in", "work", "end"),
    ]
    assert told["connections"][0]["lag"] == {"events": 12, "records": 120}


def test_what_is_quarantined_is_the_authors(report: Report) -> None:
    aside = QuarantinedInputSet(GROUP, "work[2]", "7", "KeyError: 7", 1.0)
    quarantining = replace(report, quarantined=[aside])
    assert ["work", "7", "1970-01-01 00:00:01", "KeyError: 7"] in printed(run_tables.whole(quarantining))
    (told,) = document(quarantining)["quarantined"]
    assert (told["operator"], told["slot"], told["input_set"]) == ("work", 2, "7")


def test_ranges() -> None:
    assert [ranges(numbers) for numbers in ([], [4], [0, 1, 2, 3], [7, 0, 1, 5, 6, 9])] == [
        "",
        "4",
        "0-3",
        "0-1, 5-7, 9",
    ]
