"""Any graph, any operators, any scopes: queries say what the records themselves say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow.pipeline.lineage import LineageScope, has_path
from airflow_logio.errors import LineageUnknown
from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.port import LogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.unit.lineage.flows import Flow, Op, pairs_of, port


@st.composite
def flows(draw: st.DrawFn, store: LogStore | None = None) -> Flow:
    """Operator i receives from operators before it; groups are runs of neighbours."""
    count = draw(st.integers(2, 7))
    ops: dict[str, Op] = {}
    for i in range(count):
        outputs = tuple(f"out{n}" for n in range(1, draw(st.integers(1, 2)) + 1))
        senders = [f"{name}.{out}" for name, op in ops.items() for out in op.outputs]
        chosen = tuple(draw(st.lists(st.sampled_from(senders), max_size=3))) if senders else ()
        ops[f"o{i}"] = Op(
            chosen,
            outputs,
            window=draw(st.sampled_from(["each", "count", "spans", "ports"])),
            size=draw(st.integers(1, 3)),
            reads=draw(st.sampled_from([0, 0, 1, 2])),
            writes=draw(st.booleans()),
            events=draw(st.integers(1, 5)),
            in_jobs=bool(chosen) and draw(st.integers(0, 4)) == 0,
        )
    cuts = sorted(draw(st.sets(st.integers(1, count - 1)))) if draw(st.booleans()) else range(1, count)
    bounds = [0, *cuts, count]
    groups = [list(ops)[first:last] for first, last in pairwise(bounds)]
    flow = Flow(store or MemoryLogStore(), ops, [], groups, draw(st.integers(0, 1000)))
    ports = [p for name in ops for p in flow.graph.outputs_of(name)]
    pairs = [(str(a), str(b)) for a in ports for b in ports if has_path(flow.graph, LineageScope(a, b))]
    scopes = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=4, unique=True)) if pairs else []
    return Flow(flow.store, ops, scopes, groups, flow.seed, draw(st.booleans())).to_the_end()


def check(flow: Flow, data: st.DataObject) -> None:
    captured = {str(p) for scope in flow.scopes for p in map(port, scope)}
    sent = {name: [n for p, n in flow.bodies if p == name] for name in captured}
    begin = data.draw(st.sampled_from(sorted(name for name, ids in sent.items() if ids)))
    event_id = data.draw(st.sampled_from(sent[begin]))
    to = data.draw(st.sampled_from([None, None, *sorted(captured)]))
    for query, is_backward in ((backward, True), (forward, False)):
        try:
            found = query(flow.store, flow.run, begin, event_id, to=to)
        except LineageUnknown as error:
            assert "no lineage path leads" in str(error)
            assert flow.closure((begin, event_id), backward=is_backward, to=to) == set()
        else:
            assert pairs_of(found) == flow.closure((begin, event_id), backward=is_backward, to=to)
            nodes = list(found.nodes())
            assert len(nodes) == len(set(nodes))
            assert all(event.records for event in found.events()), "what lineage leads to is kept"


def worth_asking(flow: Flow) -> bool:
    return any(name in {p for scope in flow.scopes for p in scope} for name, _ in flow.bodies)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(flows().filter(worth_asking), st.data())
def test_queries_in_memory(flow: Flow, data: st.DataObject) -> None:
    check(flow, data)


@pytest.mark.parametrize("seed", range(3))
def test_queries_on_every_store(log_store: LogStore, seed: int) -> None:
    """One larger graph, every event asked."""
    ops = {
        "a": Op(events=12),
        "b": Op(events=12),
        "c": Op(("a.out", "b.out"), ("out1", "out2"), window="count", size=3, reads=2),
        "d": Op(("c.out1", "a.out"), window="spans", size=2),
        "e": Op(("c.out2", "d.out", "d.out"), window="ports", size=2, reads=1, in_jobs=True),
        "f": Op(("e.out", "b.out"), writes=True),
    }
    scopes = [("a.out", "f.out"), ("c.out1", "e.out"), ("b.out", "c.out2")]
    flow = Flow(log_store, ops, scopes, [("c", "d"), ("e", "f")], seed, collects=seed > 0).to_the_end()
    for name, event_id in flow.bodies:
        if name in ("b.out", "a.out", "d.out", "e.out", "f.out"):
            for query, is_backward in ((backward, True), (forward, False)):
                found = query(log_store, flow.run, name, event_id)
                assert pairs_of(found) == flow.closure((name, event_id), backward=is_backward)
