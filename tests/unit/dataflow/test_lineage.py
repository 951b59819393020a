"""Section 3.1: lineage paths, and IN and OUT of each operator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.lineage import LineageScope, has_path, lineage_paths, lineage_ports, lineage_starts
from airflow_logio.protocol.values import Port

NONE: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


def port(text: str) -> Port:
    return Port(*text.split("."))


def graph(inputs: dict[str, str], outputs: dict[str, str], links: dict[str, str]) -> Graph:
    names = {**inputs, **outputs}
    return Graph(
        {name: tuple(inputs.get(name, "").split()) for name in names},
        {name: tuple(outputs.get(name, "").split()) for name in names},
        {port(receiver): port(sender) for receiver, sender in links.items()},
    )


@pytest.fixture
def figure() -> Graph:
    """The paper's figure "Data lineage paths"."""
    return graph(
        {"OP1": "in", "OP2": "in1 in2", "OP3": "in1 in2", "W": "in"},
        {"R1": "out", "R2": "out", "OP1": "out1 out2", "OP2": "out", "OP3": "out"},
        {
            "OP1.in": "R2.out",
            "OP2.in1": "R1.out",
            "OP2.in2": "OP1.out1",
            "OP3.in1": "OP2.out",
            "OP3.in2": "OP1.out2",
            "W.in": "OP3.out",
        },
    )


def test_paths_of_the_papers_example(figure: Graph) -> None:
    scope = LineageScope(port("R2.out"), port("OP3.out"))
    paths = [" ".join(map(str, path)) for path in lineage_paths(figure, scope)]
    assert paths == [
        "R2.out OP1.in OP1.out1 OP2.in2 OP2.out OP3.in1 OP3.out",
        "R2.out OP1.in OP1.out2 OP3.in2 OP3.out",
    ]


def test_ports_of_the_papers_example(figure: Graph) -> None:
    ports = lineage_ports(figure, [LineageScope(port("R2.out"), port("OP3.out"))])
    assert ports == {
        "OP1": (frozenset({"in"}), frozenset({"out1", "out2"})),
        "OP2": (frozenset({"in2"}), frozenset({"out"})),
        "OP3": (frozenset({"in1", "in2"}), frozenset({"out"})),
        "R2": (frozenset(), frozenset({"out"})),
        "R1": NONE,
        "W": NONE,
    }


def test_only_the_start_port_of_the_start_operator_counts(figure: Graph) -> None:
    ports = lineage_ports(figure, [LineageScope(port("OP1.out2"), port("OP3.out"))])
    assert ports["OP1"] == (frozenset(), frozenset({"out2"}))
    assert ports["OP2"] == NONE
    assert ports["OP3"] == (frozenset({"in2"}), frozenset({"out"}))


def test_a_start_is_only_that_unless_another_path_passes_it(figure: Graph) -> None:
    """Section 3.1 enables capture for (OP.in, OP.out) on a path: no path has an input port before its start."""
    late, early = LineageScope(port("OP1.out2"), port("OP3.out")), LineageScope(port("R2.out"), port("OP1.out1"))
    assert lineage_starts(figure, [late])["OP1"] == {"out2"}
    both = lineage_starts(figure, [late, early])
    assert both["OP1"] == {"out2"}, "the other path passes OP1 to another port"
    assert both["R2"] == {"out"}
    assert not any(both[name] for name in ("OP2", "OP3", "R1", "W"))
    passing = LineageScope(port("R2.out"), port("OP3.out"))
    assert lineage_starts(figure, [late, passing])["OP1"] == frozenset()


def test_scopes_add_up(figure: Graph) -> None:
    one, two = LineageScope(port("R1.out"), port("OP2.out")), LineageScope(port("R2.out"), port("OP1.out2"))
    ports = lineage_ports(figure, [one, two])
    assert ports["OP2"] == (frozenset({"in1"}), frozenset({"out"}))
    assert ports["OP1"] == (frozenset({"in"}), frozenset({"out2"}))
    assert ports["OP3"] == NONE


@pytest.mark.parametrize(("start", "target"), [("OP3.out", "R2.out"), ("R1.out", "OP1.out1"), ("R1.out", "R1.out")])
def test_no_path(figure: Graph, start: str, target: str) -> None:
    scope = LineageScope(port(start), port(target))
    assert not has_path(figure, scope)
    assert list(lineage_paths(figure, scope)) == []


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Graphs without cycles: operator i receives from operators before it only."""
    count = draw(st.integers(2, 6))
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    links: dict[str, str] = {}
    for i in range(count):
        outputs[f"o{i}"] = " ".join(f"out{p}" for p in range(draw(st.integers(1, 2))))
        senders = [f"o{j}.{out}" for j in range(i) for out in outputs[f"o{j}"].split()]
        chosen = draw(st.lists(st.sampled_from(senders), max_size=3)) if senders else []
        inputs[f"o{i}"] = " ".join(f"in{p}" for p in range(len(chosen)))
        links |= {f"o{i}.in{p}": sender for p, sender in enumerate(chosen)}
    return graph(inputs, outputs, links)


@settings(deadline=None)
@given(random_graphs(), st.data())
def test_reachability_says_what_enumerating_the_paths_says(drawn: Graph, data: st.DataObject) -> None:
    ports = [port for name in drawn.outputs for port in drawn.outputs_of(name)]
    pairs = st.builds(LineageScope, st.sampled_from(ports), st.sampled_from(ports))
    drawn_scopes = data.draw(st.lists(pairs, min_size=1, max_size=3))
    scopes = [scope for scope in drawn_scopes if has_path(drawn, scope)]
    paths = [path for scope in scopes for path in lineage_paths(drawn, scope)]
    computed, starts = lineage_ports(drawn, scopes), lineage_starts(drawn, scopes)
    assert {Port(name, p) for name, (ins, outs) in computed.items() for p in ins | outs} == {
        port for path in paths for port in path
    }
    left = {port for path in paths for port in path[2::2]}
    assert {Port(name, p) for name, (_, outs) in computed.items() for p in outs - starts[name]} == left
