"""What is recorded, and what is not (Section 3.1), path by path."""

from __future__ import annotations

import pytest

from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.port import LogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.unit.lineage.flows import Flow, Op, pairs_of


def recorded(flow: Flow) -> set[tuple[str, int, str]]:
    """(port, event_id, Input Set) of every row of EVENT_LINEAGE."""
    with flow.store.lineage(flow.run) as log:
        return {
            (str(port), event_id, inset)
            for name in flow.ops
            for port in flow.graph.outputs_of(name)
            for event_id, inset in log.input_sets_of(port, range(1, log.sent(port) + 1))
        }


def test_the_papers_figure(log_store: LogStore) -> None:
    """Scope (R2.out, OP3.out): c_1, made from events of OP2.in1 only, has no lineage; c_2, made from OP2.in2, has."""
    flow = Flow(
        log_store,
        {
            "R1": Op(events=2),
            "R2": Op(events=2),
            "OP1": Op(("R2.out",), ("out1", "out2"), emits={"out1": 1, "out2": 1}),
            "OP2": Op(("R1.out", "OP1.out1"), window="ports", size=2, emits={"out": 1}),
            "OP3": Op(("OP2.out", "OP1.out2"), window="each", emits={"out": 1}),
            "W": Op(("OP3.out",), (), writes=True),
        },
        [("R2.out", "OP3.out")],
    ).to_the_end()
    of_op2 = {inset: event_id for name, event_id, inset in recorded(flow) if name == "OP2.out"}
    assert list(of_op2) == ["in2:0000"], "two events were made, one of them from R1 alone"
    c_2 = of_op2["in2:0000"]
    c_1 = 3 - c_2
    assert backward(log_store, flow.run, "OP2.out", c_1).edges == {}
    assert pairs_of(backward(log_store, flow.run, "OP2.out", c_2)) == {
        (("OP1.out1", 1), ("OP2.out", c_2)),
        (("OP1.out1", 2), ("OP2.out", c_2)),
        (("R2.out", 1), ("OP1.out1", 1)),
        (("R2.out", 2), ("OP1.out1", 2)),
    }
    ends = {event.event_id for event in forward(log_store, flow.run, "R2.out", 1, to="OP3.out").events("OP3.out")}
    assert len(ends) == 2, "one through OP2, one past it"
    assert not [row for row in recorded(flow) if row[0].startswith(("R1", "R2", "W"))]


def test_nothing_is_recorded_before_the_start_of_a_scope(log_store: LogStore) -> None:
    """Lineage leads back to the events of the start port, which are kept, and not to what they were made from."""
    ops = {"a": Op(events=3), "b": Op(("a.out",), reads=1, emits={"out": 1}), "c": Op(("b.out",), emits={"out": 1})}
    flow = Flow(log_store, ops, [("b.out", "c.out")]).to_the_end()
    assert {row[0] for row in recorded(flow)} == {"c.out"}
    origin = backward(log_store, flow.run, "c.out", 2)
    assert [str(event) for event in origin.events()] == ["b.out 2", "c.out 2"]
    assert origin.reads() == [], "the read action of b served an event before the scope"


def test_a_scope_that_starts_where_another_one_passes(log_store: LogStore) -> None:
    """b.side is a start only, although an Input Set of b holds events of a port in IN."""
    ops = {
        "a": Op(events=3),
        "b": Op(("a.out",), ("out", "side"), reads=1, emits={"out": 1, "side": 1}),
        "c": Op(("b.out",), emits={"out": 1}),
        "d": Op(("b.side",), emits={"out": 1}),
    }
    flow = Flow(log_store, ops, [("a.out", "c.out"), ("b.side", "d.out")]).to_the_end()
    assert {row[0] for row in recorded(flow)} == {"b.out", "c.out", "d.out"}
    assert [str(event) for event in backward(log_store, flow.run, "d.out", 1).events()] == ["b.side 1", "d.out 1"]
    assert [str(event) for event in backward(log_store, flow.run, "c.out", 1).events()] == [
        "a.out 1",
        "b.out 1",
        "c.out 1",
    ]


def test_scopes_that_share_ports_are_recorded_once(log_store: LogStore) -> None:
    ops = {
        "a": Op(events=2),
        "b": Op(("a.out",), emits={"out": 1}),
        "c": Op(("b.out",), emits={"out": 1}),
        "d": Op(("b.out",), emits={"out": 1}),
    }
    flow = Flow(log_store, ops, [("a.out", "c.out"), ("a.out", "d.out"), ("b.out", "d.out")]).to_the_end()
    assert len(recorded(flow)) == 6, "two events on each of three ports"
    assert pairs_of(forward(log_store, flow.run, "a.out", 1)) == {
        (("a.out", 1), ("b.out", 1)),
        (("b.out", 1), ("c.out", 1)),
        (("b.out", 1), ("d.out", 1)),
    }


def test_a_branch_that_leaves_the_path_is_not_recorded(log_store: LogStore) -> None:
    ops = {
        "a": Op(events=2),
        "b": Op(("a.out",), ("out", "off"), emits={"out": 1, "off": 1}),
        "c": Op(("b.out", "b.off"), emits={"out": 1}),
        "d": Op(("b.off",), emits={"out": 1}),
    }
    flow = Flow(log_store, {**ops, "c": Op(("b.out",), emits={"out": 1})}, [("a.out", "c.out")]).to_the_end()
    assert {row[0] for row in recorded(flow)} == {"b.out", "c.out"}
    assert [str(event) for event in forward(log_store, flow.run, "a.out", 1).events()] == [
        "a.out 1",
        "b.out 1",
        "c.out 1",
    ]


def test_output_sets_with_events_inside_and_outside_of_out_and_empty_ones(log_store: LogStore) -> None:
    ops = {
        "a": Op(events=3),
        "b": Op(("a.out",), ("out", "off"), reads=1, emits={"out": 2, "off": 2}),
        "none": Op(("a.out",), reads=1, emits={"out": 0}),
        "only_off": Op(("a.out",), ("out", "off"), reads=1, emits={"off": 2}),
        "job": Op(("a.out",), ("out", "off"), reads=1, emits={"off": 2}, in_jobs=True),
    }
    scopes = [("a.out", f"{name}.out") for name in ("b", "none", "only_off", "job")]
    flow = Flow(log_store, ops, scopes).to_the_end()
    assert sorted(row[:2] for row in recorded(flow)) == [("b.out", number) for number in range(1, 7)]
    with log_store.lineage(flow.run) as log:
        made = {name: len(list(log.headers(name, "read:db", range(1, 10)))) for name in ops}
    assert made == {"a": 0, "b": 3, "none": 0, "only_off": 0, "job": 0}, (
        "no effect is stored for what has no event on OUT"
    )


@pytest.mark.parametrize("seed", range(4))
def test_an_event_outside_of_in_changes_nothing_wherever_it_comes(seed: int) -> None:
    """The last event of the Input Set may be one of a port outside IN."""
    ops = {
        "a": Op(events=2),
        "b": Op(events=2),
        "c": Op(("a.out", "b.out"), window="count", size=4, emits={"out": 1}),
    }
    flow = Flow(MemoryLogStore(), ops, [("a.out", "c.out")], seed=seed).to_the_end()
    assert [str(event) for event in backward(flow.store, flow.run, "c.out", 1).events("a.out")] == [
        "a.out 1",
        "a.out 2",
    ]


def test_an_input_port_of_another_scope_is_not_followed(log_store: LogStore) -> None:
    """s leads to b through y, in two scopes; that it also enters x, on whose way to b only t has a scope, is not recorded."""
    ops = {
        "s": Op(events=2),
        "t": Op(events=2),
        "x": Op(("s.out", "t.out"), window="count", size=4, emits={"out": 1}),
        "y": Op(("s.out", "t.out"), window="count", size=4, emits={"out": 1}),
        "b": Op(("x.out", "y.out"), window="count", size=2, emits={"out": 1}),
    }
    flow = Flow(log_store, ops, [("s.out", "y.out"), ("t.out", "b.out")]).to_the_end()
    through_y = {(("s.out", 1), ("y.out", 1)), (("y.out", 1), ("b.out", 1))}
    assert pairs_of(forward(log_store, flow.run, "s.out", 1)) == through_y
    assert pairs_of(backward(log_store, flow.run, "b.out", 1)) == flow.relationships()
    assert (("s.out", 1), ("x.out", 1)) not in flow.relationships()


def test_an_input_set_of_several_ports_and_an_event_in_several_input_sets(log_store: LogStore) -> None:
    ops = {
        "a": Op(events=4),
        "b": Op(events=4),
        "c": Op(("a.out", "b.out"), window="count", size=8, emits={"out": 1}),
        "d": Op(("a.out",), window="spans", size=2, emits={"out": 1}),
    }
    flow = Flow(log_store, ops, [("a.out", "c.out"), ("a.out", "d.out")]).to_the_end()
    origin = backward(log_store, flow.run, "c.out", 1)
    assert [str(event) for event in origin.events()] == [*(f"a.out {n}" for n in range(1, 5)), "c.out 1"], (
        "b is not in IN"
    )
    assert [event.event_id for event in forward(log_store, flow.run, "a.out", 2).events("d.out")] == [1, 2]
    assert [event.event_id for event in backward(log_store, flow.run, "d.out", 2).events("a.out")] == [2, 3, 4]


def test_a_read_action_of_a_job_belongs_to_each_of_its_input_sets(log_store: LogStore) -> None:
    ops = {"a": Op(events=6), "b": Op(("a.out",), window="count", size=2, emits={"out": 1}, reads=1, in_jobs=True)}
    flow = Flow(log_store, ops, [("a.out", "b.out")], seed=3).to_the_end()
    assert len(flow.effects) < 3, "some job had several Input Sets"
    assert {read.is_source for read in backward(log_store, flow.run, "b.out", 1).reads("b")} == {False}
    assert pairs_of(backward(log_store, flow.run, "b.out", [1, 2, 3])) == flow.relationships()


def test_a_writer_passes_lineage_on_and_a_target_may_have_no_receiver(log_store: LogStore) -> None:
    ops = {
        "a": Op(events=3),
        "w": Op(("a.out",), writes=True, emits={"out": 1}),
        "b": Op(("w.out",), window="count", size=3, emits={"out": 1}),
    }
    flow = Flow(log_store, ops, [("a.out", "b.out")]).to_the_end()
    origin = backward(log_store, flow.run, "b.out", 1, to="a.out")
    assert [event.event_id for event in origin.events("a.out")] == [1, 2, 3]
    assert [event.event_id for event in origin.events("w.out")] == [1, 2, 3]


def test_fused_operators_are_recorded_like_others(log_store: LogStore) -> None:
    ops = {
        "a": Op(events=5),
        "b": Op(("a.out",), window="spans", size=2, emits={"out": 2}),
        "c": Op(("b.out",), window="count", size=3, emits={"out": 1}, reads=1),
    }
    apart = Flow(log_store, ops, [("a.out", "c.out")]).to_the_end()
    fused = Flow(log_store, ops, [("a.out", "c.out")], [("a", "b", "c")]).to_the_end()
    assert recorded(fused) == recorded(apart)
    ids = range(1, 4)
    assert pairs_of(backward(log_store, fused.run, "c.out", ids)) == pairs_of(
        backward(log_store, apart.run, "c.out", ids)
    )
