"""One step of lineage: as much of the whole answer as one generation has used or made, however much that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_logio.errors import LineageUnknown
from airflow_logio.store.lineage.queries import backward, forward, step
from airflow_logio.store.lineage.result import Direction, EventNode, Lineage
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import ReplicatedShape
from tests.unit.lineage.flows import Flow, Op
from tests.unit.lineage.test_authored import SLOTS, replicated

WIDE = {
    "a": Op(events=30),
    "b": Op(("a.out",), window="count", size=15, emits={"out": 4}, reads=1),
    "c": Op(("b.out",), emits={"out": 1}),
}


def wide_flow(store: LogStore) -> Flow:
    return Flow(store, WIDE, [("a.out", "c.out")]).to_the_end()


def parted_flow(store: LogStore) -> Flow:
    one = Flow(store, replicated(), [("a.out", "x.out")], groups=[("a", "dispatch(v)"), ("merge(w)", "x")])
    one.run = replace(one.run, spec=replace(one.run.spec, replicated={"v": ReplicatedShape(("v.1",), len(SLOTS), 1)}))
    return one.to_the_end()


@pytest.fixture
def wide(log_store: LogStore) -> Flow:
    return wide_flow(log_store)


@pytest.fixture
def parted(log_store: LogStore) -> Flow:
    return parted_flow(log_store)


def unfolded(flow: Flow, direction: Direction, port: str, event_id: int) -> set[tuple[object, object]]:
    """The relationships that a person finds by clicking on everything."""
    found: set[tuple[object, object]] = set()
    todo, met = [(port, event_id)], {(port, event_id)}
    while todo:
        result, is_cut = step(flow.store, flow.run, direction, *todo.pop(), most_rows=1_000)
        assert not is_cut
        found |= result.relationships()
        for event in result.events():
            name = str(event).rpartition(" ")[0], event.event_id
            if name not in met:
                met.add(name)
                todo.append(name)
    return found


@pytest.mark.parametrize(("made", "end"), [(wide_flow, "c.out"), (parted_flow, "x.out")])
def test_steps_add_up_to_the_whole_answer(log_store: LogStore, made: Callable[[LogStore], Flow], end: str) -> None:
    flow = made(log_store)
    for number in (1, 2):
        whole = backward(flow.store, flow.run, end, number)
        assert whole.relationships()
        assert unfolded(flow, Direction.BACKWARD, end, number) == whole.relationships()
        assert (
            unfolded(flow, Direction.FORWARD, "a.out", number)
            == forward(flow.store, flow.run, "a.out", number).relationships()
        )


def ports(result: Lineage) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in result.events():
        if event not in result.roots:
            found[str(event.port)] = found.get(str(event.port), 0) + 1
    return found


def test_a_step_goes_no_further_than_to_the_next_port_of_the_author(wide: Flow, parted: Flow) -> None:
    assert ports(step(wide.store, wide.run, Direction.BACKWARD, "c.out", 1, most_rows=99)[0]) == {"b.out": 1}
    assert ports(step(wide.store, wide.run, Direction.FORWARD, "a.out", 1, most_rows=99)[0]) == {"b.out": 4}
    into, _ = step(parted.store, parted.run, Direction.BACKWARD, "w.out", 1, most_rows=99)
    assert set(ports(into)) == {"v.out"} and into.reads()
    assert all(event.slot is not None for event in into.events("v.out"))
    assert set(ports(step(parted.store, parted.run, Direction.FORWARD, "a.out", 1, most_rows=99)[0])) == {"v.out"}


def test_a_step_is_bounded_and_says_so(wide: Flow) -> None:
    result, is_cut = step(wide.store, wide.run, Direction.BACKWARD, "b.out", 1, most_rows=5)
    assert is_cut and ports(result) == {"a.out": 5}
    result, is_cut = step(wide.store, wide.run, Direction.FORWARD, "a.out", range(1, 31), most_rows=7)
    assert is_cut and 0 < sum(ports(result).values()) <= 7
    whole, is_cut = step(wide.store, wide.run, Direction.BACKWARD, "b.out", 1, most_rows=1_000)
    assert not is_cut and ports(whole) == {"a.out": 15}
    assert all(isinstance(one, EventNode) for one in whole.roots)


def test_events_outside_of_the_lineage_take_no_room_from_those_inside(log_store: LogStore) -> None:
    """Of two inputs one is captured. Whatever is left out is said, also if it would not have been shown."""
    joined = {
        "a": Op(events=6),
        "z": Op(events=30),
        "j": Op(("a.out", "z.out"), window="count", size=18, emits={"out": 1}),
    }
    flow = Flow(log_store, joined, [("a.out", "j.out")]).to_the_end()
    whole = backward(flow.store, flow.run, "j.out", 1)
    captured = len(whole.events("a.out"))
    assert captured > 1 and whole.events() != [] and not [one for one in whole.events() if str(one.port) == "z.out"]
    for most_rows in range(1, 40):
        found, is_cut = step(flow.store, flow.run, Direction.BACKWARD, "j.out", 1, most_rows=most_rows)
        assert len(found.events("a.out")) == min(captured, most_rows)
        assert is_cut or len(found.events("a.out")) == captured


def test_a_step_from_what_is_not_there(wide: Flow) -> None:
    with pytest.raises(LineageUnknown, match=r"has no event 99 of b\.out"):
        step(wide.store, wide.run, Direction.BACKWARD, "b.out", 99, most_rows=5)
    with pytest.raises(LineageUnknown, match="has no port"):
        step(wide.store, wide.run, Direction.BACKWARD, "z.out", 1, most_rows=5)
