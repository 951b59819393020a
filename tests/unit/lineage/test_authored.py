"""Lineage of a replicated group in its author's words, and where those words are understood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_logio.errors import LineageUnknown
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.lineage.result import InputSetNode
from airflow_logio.store.records.run_records import ConcurrentRuns, ReplicatedShape, Run, RunSpec
from airflow_logio.store.rules.row_forms import read_channel
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.unit.lineage.flows import Flow, Op, Pairs, pairs_of, port

SLOTS = (0, 1, 2)
PARTED = tuple(f"slot{n}" for n in SLOTS)


def replicated() -> dict[str, Op]:
    """``a`` → replicas of (``v`` → ``w``) → ``x``; ``v`` is seen inside of its group only."""
    ops = {"a": Op(events=9), "dispatch(v)": Op(("a.out",), outputs=PARTED)}
    for n in SLOTS:
        ops[f"v[{n}]"] = Op((f"dispatch(v).slot{n}",))
        ops[f"w[{n}]"] = Op((f"v[{n}].out",), window="count", size=2, reads=1)
    ops["merge(w)"] = Op(tuple(f"w[{n}].out" for n in SLOTS), emits={"out": 1})
    ops["x"] = Op(("merge(w).out",), emits={"out": 1})
    return ops


@pytest.fixture(scope="module")
def flow() -> Iterator[Flow]:
    """It was run to its end."""
    store = MemoryLogStore()
    one = Flow(store, replicated(), [("a.out", "x.out")], groups=[("a", "dispatch(v)"), ("merge(w)", "x")])
    one.run = replace(one.run, spec=replace(one.run.spec, replicated={"v": ReplicatedShape(("v.1",), len(SLOTS), 1)}))
    yield one.to_the_end()
    store.dispose()


def seen(pairs: Pairs) -> Pairs:
    """Relationships over slots, Dispatcher and Merger put together by hand, from what the records say."""
    merged = {slot: whole for slot, whole in pairs if whole[0] == "merge(w).out"}
    parted = {part: whole for whole, part in pairs if part[0].startswith("dispatch(v)")}

    def name(key: tuple[str, int]) -> tuple[str, int]:
        key = parted.get(key, merged.get(key, key))
        return ("w.out", key[1]) if key[0] == "merge(w).out" else key

    return {(name(a), name(b)) for a, b in pairs if name(a) != name(b)}


def test_backward_and_forward_are_what_the_records_say(flow: Flow) -> None:
    ends = flow.relationships()
    for number in sorted({b[1] for _, b in ends if b[0] == "x.out"}):
        origin = backward(flow.store, flow.run, "x.out", number)
        assert pairs_of(origin) == seen(flow.closure(("x.out", number), backward=True))
        assert {str(event.port) for event in origin.events()} == {"x.out", "w.out", "v.out", "a.out"}
    for number in range(1, 10):
        used = forward(flow.store, flow.run, "a.out", number)
        assert pairs_of(used) == seen(flow.closure(("a.out", number), backward=False))
        assert {inset.operator for inset in used.input_sets()} <= {"v", "w", "x"}
    assert any(forward(flow.store, flow.run, "a.out", number).events("w.out") for number in range(1, 10))


def test_the_authors_name_of_a_port_is_understood(flow: Flow) -> None:
    origin = backward(flow.store, flow.run, "w.out", 1, to="a.out")
    (root,) = origin.roots
    assert (root.port, root.event_id) == (Port("w", "out"), 1)
    assert root.records == 1
    (inset,) = origin.after(root)
    assert isinstance(inset, InputSetNode) and (inset.operator, inset.slot in SLOTS) == ("w", True)
    assert origin.events("a.out")
    assert all(event.slot in SLOTS for event in origin.events("v.out")), "each slot numbers them on its own"
    assert backward(flow.store, flow.run, "merge(w).out", 1).roots == origin.roots
    onward = forward(flow.store, flow.run, "a.out", 9, to="w.out")
    assert {str(event.port) for event in onward.events()} <= {"a.out", "v.out", "w.out"}


def test_slots_are_in_an_answer_that_is_asked_for_them(flow: Flow) -> None:
    origin = backward(flow.store, flow.run, "w.out", 1, slots=True)
    assert origin.roots[0].port == port("merge(w).out")
    names = {str(event.port) for event in origin.events()}
    assert {"merge(w).out", "a.out"} <= names
    assert any(name.startswith("dispatch(v)") for name in names)
    assert not {event.slot for event in origin.events()} - {None}


def test_a_port_that_the_graph_does_not_have_is_refused(flow: Flow) -> None:
    origin = backward(flow.store, flow.run, "w.out", 1)
    with pytest.raises(LineageUnknown, match=r"no output port 'y.out'; it has a.out, v.out, w.out, x.out$"):
        origin.events("y.out")
    with pytest.raises(LineageUnknown, match=r"ask for 'w.out' instead of 'merge\(w\).out', or query with slots=True"):
        origin.events("merge(w).out")
    with pytest.raises(LineageUnknown, match=r"no operator 'y' with outputs; there are a, v, w, x$"):
        origin.input_sets("y")
    with pytest.raises(LineageUnknown, match="no operator 'hour'"):
        origin.reads("hour")
    assert origin.events("x.out") == [], "it has that port, and none of its events is in this answer"


def test_what_belongs_to_a_slot_is_found_in_the_log(flow: Flow) -> None:
    (read, *_) = backward(flow.store, flow.run, "x.out", 1).reads("w")
    assert read.slot in SLOTS
    with flow.store.lineage(flow.run) as log:
        [(_, stored)] = log.bodies(read.operator_in_log, read_channel(read.connection), [read.action_id])
    assert list(json.loads(stored.body)) == [flow.effects[f"read:{read.operator_in_log}", read.action_id]]


def test_refusals_speak_the_authors_words(flow: Flow) -> None:
    with pytest.raises(LineageUnknown, match=r"each slot numbers its own: ask for 'v\[0\].out' to 'v\[2\].out'"):
        backward(flow.store, flow.run, "v.out", 1)
    with pytest.raises(
        LineageUnknown, match=r"no port 'y.out'; the ports in its lineage scopes are a.out, w.out, x.out$"
    ):
        backward(flow.store, flow.run, "y.out", 1)
    with pytest.raises(LineageUnknown, match=r"from 'w.out' to 'x.out'; from there it leads to a.out$"):
        backward(flow.store, flow.run, "w.out", 1, to="x.out")
    with pytest.raises(LineageUnknown, match=r"no event 9999 of w\.out; its events so far have numbers up to"):
        backward(flow.store, flow.run, "w.out", 9999)


def test_names_of_ports(flow: Flow) -> None:
    ports = AuthoredPorts(flow.run.spec.operators)
    assert ports.seen(port("dispatch(v).slot1")) == port("a.out")
    assert ports.seen(port("w[1].out")) == ports.seen(port("merge(w).out")) == port("w.out")
    assert ports.seen_receivers(port("dispatch(v).in1")) == [Port("v", "in1")]
    assert ports.seen_receivers(port("merge(w).in2")) == [Port("x", "in1")]
    assert ports.seen_receivers(port("v[2].in1")) == [Port("v", "in1")]
    assert ports.in_log(port("w.out")) == port("merge(w).out")
    assert ports.in_log(port("a.out")) == port("a.out")


class TakenInSlots(MemoryLogStore):
    """The groups of slots begin with other code than their run."""

    def start_run(
        self,
        spec: RunSpec,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
        above: int = 0,
    ) -> Run:
        run = super().start_run(spec, concurrent=concurrent, code=code, above=above)
        for name in (name for name in spec.groups if name.startswith(("v[", "w["))):
            self.take_code(run.run_id, name, f"code of {name}", "f", by="a person")
        return run


def test_an_event_that_a_merger_has_passed_on_has_the_code_that_made_it() -> None:
    store = TakenInSlots()
    flow = Flow(store, replicated(), [("a.out", "x.out")], groups=[("a", "dispatch(v)"), ("merge(w)", "x")])
    flow.run = replace(
        flow.run, spec=replace(flow.run.spec, replicated={"v": ReplicatedShape(("v.1",), len(SLOTS), 1)})
    )
    flow.to_the_end()
    number = {change.group: change.number for change in store.code_changes(flow.run.run_id)}
    seen_codes = set()
    for target in sorted({b[1] for _, b in flow.relationships() if b[0] == "x.out"}):
        origin = backward(store, flow.run, "x.out", target)
        assert {event.code for event in (*origin.events("x.out"), *origin.events("a.out"))} == {0}
        for event in origin.events("w.out"):
            (inset,) = origin.after(event)
            assert event.code == number[f"w[{inset.slot}]"]
            seen_codes.add(event.code)
    assert seen_codes <= {number[f"w[{slot}]"] for slot in SLOTS} and seen_codes
    used = forward(store, flow.run, "a.out", list(range(1, 10)))
    assert {event.code for event in used.events("w.out")} <= seen_codes
    raw = backward(store, flow.run, "w.out", 1, slots=True)
    assert raw.roots[0].code == 0, "the Merger's own"
    (root,) = backward(store, flow.run, "w.out", 1).roots
    assert root.code in seen_codes
    store.dispose()
