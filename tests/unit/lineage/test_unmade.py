"""What has become of events where nothing was made from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_logio.errors import LineageUnknown
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.unmade import Unmade, Use, unmade_of
from airflow_logio.store.lineage.queries import step
from airflow_logio.store.lineage.result import Direction, InputSetNode
from airflow_logio.store.memory import MemoryLogStore
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import ReplicatedShape
from tests.unit.lineage.flows import Flow
from tests.unit.lineage.test_authored import SLOTS, replicated
from tests.unit.lineage.test_steps import parted_flow
from tests.unit.lineage.test_why_not import Logged, logged


def hourly(use: Use, event: int, inset: str | None = None) -> Unmade:
    return Unmade("hourly", use, {event}, set() if inset is None else {InputSetNode("hourly", inset)})


def of(run: Logged, port: str, *events: int, most_rows: int = 99) -> list[Unmade]:
    return unmade_of(run.store, run.run, port, events, most_rows=most_rows)[0]


def test_each_use_of_events_of_which_nothing_was_made(log_store: LogStore) -> None:
    run = logged(log_store)
    expected = {
        1: None,
        2: hourly(Use.WAITING, 2, "2024-01-01T11:00"),
        3: hourly(Use.UNUSED_YET, 3),
        4: hourly(Use.IGNORED, 4),
        5: hourly(Use.ASIDE, 5, "2024-01-01T12:00"),
    }
    for event, use in expected.items():
        assert of(run, "clean.out", event) == ([] if use is None else [use])
    together = of(run, "clean.out", *expected)
    assert sorted(together, key=lambda one: min(one.events)) == [one for one in expected.values() if one is not None]
    (dropped,) = of(run, "source.out", 1, 6)
    assert dropped == Unmade("clean", Use.WITHOUT_OUTPUT, {6}, {InputSetNode("clean", "6")})
    assert of(run, "hourly.out", 1) == [], "nobody receives it"


def test_it_is_bounded_and_claims_nothing_of_what_it_has_not_read(log_store: LogStore) -> None:
    run = logged(log_store)
    found, is_cut = unmade_of(run.store, run.run, "source.out", range(1, 7), most_rows=3)
    assert (found, is_cut) == ([], True), "of an Input Set whose outputs were not read, it is not said that it has none"
    found, is_cut = unmade_of(run.store, run.run, "source.out", range(1, 7), most_rows=99)
    assert ([one.use for one in found], is_cut) == ([Use.WITHOUT_OUTPUT], False)
    with pytest.raises(LineageUnknown, match="has no port"):
        of(run, "nothing.out", 1)


def test_behind_a_dispatcher_it_is_what_the_slots_have_done(log_store: LogStore) -> None:
    flow = parted_flow(log_store)
    for port in ("a.out", "w.out"):
        for number in (1, 2, 3):
            unmade, is_cut = unmade_of(flow.store, flow.run, port, [number], most_rows=999)
            assert not is_cut and {one.operator for one in unmade} <= {"v", "x"}
            made = {
                (inset.operator_in_log, inset.inset_id)
                for inset in step(flow.store, flow.run, Direction.FORWARD, port, number, most_rows=999)[0].input_sets()
            }
            for one in unmade:
                assert one.use is Use.WITHOUT_OUTPUT and one.events == {number}
                assert not made & {(inset.operator_in_log, inset.inset_id) for inset in one.input_sets}


def test_what_a_dispatcher_has_not_parted_was_not_processed_by_its_receiver() -> None:
    flow = Flow(MemoryLogStore(), replicated(), [("a.out", "x.out")], groups=[("a", "dispatch(v)"), ("merge(w)", "x")])
    flow.run = replace(
        flow.run, spec=replace(flow.run.spec, replicated={"v": ReplicatedShape(("v.1",), len(SLOTS), 1)})
    )
    flow.to_the_end()
    tables = flow.store.tables  # type: ignore[attr-defined]
    taken = {key: row for key, row in tables.events.rows.items() if row.receiver == "dispatch(v)"}
    key, row = next(iter(taken.items()))
    assert row.send_port is not None
    for other in [one for one in taken if tables.events.rows[one].body == row.body]:
        del tables.events.rows[other]
    tables.events.rows[key] = row._replace(inset_id=None, status="undone")
    sender, number = Port(row.body.operator, row.body.channel), row.body.event_id
    assert unmade_of(flow.store, flow.run, sender, [number], most_rows=999)[0] == [
        Unmade("v", Use.UNUSED_YET, {number})
    ]
