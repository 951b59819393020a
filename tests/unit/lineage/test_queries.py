"""Queries on every store: what they answer, what they refuse, how many statements they make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import LineageUnknown, UnknownRun
from airflow_logio.protocol.values import Kind
from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.lineage.result import EventNode, InputSetNode, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.rules.row_forms import encode_header
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.lineage_log import KEYS_PER_STATEMENT
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.unit.lineage.flows import Flow, Op, port

CHAIN = {
    "a": Op(events=6),
    "b": Op(("a.out",), window="count", size=2, emits={"out": 1}, reads=1),
    "c": Op(("b.out",), window="count", size=3, emits={"out": 1}),
    "d": Op(("c.out",), emits={"out": 1}),
}


@pytest.fixture
def flow(log_store: LogStore) -> Flow:
    return Flow(log_store, CHAIN, [("a.out", "c.out")]).to_the_end()


def test_a_result_as_a_graph(flow: Flow) -> None:
    origin = backward(flow.store, flow.run, "c.out", 1)
    (root,) = origin.roots
    assert (root.port, root.event_id, root.records) == (port("c.out"), 1, 1)
    (inset,) = origin.after(root)
    assert inset == InputSetNode("c", "0000")
    assert [str(event) for event in origin.after(inset)] == ["b.out 1", "b.out 2", "b.out 3"]
    assert [event.event_id for event in origin.events("a.out")] == [1, 2, 3, 4, 5, 6]
    assert [event.about["first"] for event in origin.events(port("a.out"))] == [0, 10, 20, 30, 40, 50]
    assert origin.input_sets("b") == [InputSetNode("b", f"000{n}") for n in range(3)]


def test_read_actions_of_generations_and_of_sources(flow: Flow) -> None:
    origin = backward(flow.store, flow.run, "c.out", 1)
    assert [(read.action_id, read.records) for read in origin.reads("b")] == [(1, 1), (2, 1), (3, 1)]
    assert origin.reads("b")[0].description == {"table": "t", "of": "0000"}
    (source,) = origin.reads("a")
    assert (source.is_source, source.description, source.records) == (True, {"path": "a.parquet"}, None)
    assert all(source in origin.after(event) for event in origin.events("a.out"))


def test_only_to_a_port_on_the_way(flow: Flow) -> None:
    near = backward(flow.store, flow.run, "c.out", 1, to="b.out")
    assert {str(event.port) for event in near.events()} == {"c.out", "b.out"}
    assert near.reads() == []
    assert {str(event.port) for event in forward(flow.store, flow.run, "a.out", 3, to="b.out").events()} == {
        "a.out",
        "b.out",
    }


def test_a_walk_shows_a_node_once(log_store: LogStore) -> None:
    """A diamond after a diamond after a diamond: eight ways, ten lines."""
    ops: dict[str, Op] = {"a": Op(events=1)}
    before = "a.out"
    for n in range(3):
        ops[f"fork{n}"] = Op((before,), ("left", "right"), emits={"left": 1, "right": 1})
        ops[f"join{n}"] = Op((f"fork{n}.left", f"fork{n}.right"), window="count", size=2, emits={"out": 1})
        before = f"join{n}.out"
    flow = Flow(log_store, ops, [("a.out", before)]).to_the_end()
    origin = backward(log_store, flow.run, before, 1)
    steps = list(origin.walk())
    expanded = [step.node for step in steps if not step.again]
    assert len(expanded) == len(set(expanded)) == len(list(origin.nodes()))
    assert sum(step.again for step in steps) == 3, "the Input Set of each fork is met once more"
    assert steps[0].depth == 0 and steps[0].node == origin.roots[0]


def test_a_run_by_name_and_several_events_at_once(flow: Flow) -> None:
    by_name = backward(flow.store, flow.run.spec.key.dag_run_id, "b.out", [3, 1])
    assert [event.event_id for event in by_name.roots] == [1, 3]
    assert [event.event_id for event in by_name.events("a.out")] == [1, 2, 5, 6]
    with pytest.raises(UnknownRun, match="no run 'nonsense'"):
        backward(flow.store, "nonsense", "b.out", 1)


@pytest.mark.parametrize(
    ("asked", "event_id", "to", "sentence"),
    [
        (
            "d.out",
            1,
            None,
            r"'d\.out' of run .* is in no lineage scope.*: a\.out, b\.out, c\.out|a\.out, b\.out, c\.out",
        ),
        ("c.in1", 1, None, r"'c\.in1' is an input port; ask for the events of 'b\.out', which it receives"),
        (
            "nobody.out",
            1,
            None,
            r"has no port 'nobody\.out'; the ports in its lineage scopes are a\.out, b\.out, c\.out",
        ),
        ("c", 1, None, r"has no port 'c\.'"),
        ("c.out", 2, None, r"^number 2 of c\.out in run .* is the end of its stream, and no event$"),
        ("c.out", 3, None, r"has no event 3 of c\.out; its events so far have numbers up to 2$"),
        ("c.out", 0, None, r"has no event 0 of c\.out"),
        ("a.out", 1, "c.out", r"no lineage path leads backward from 'a\.out' to 'c\.out'; .* nowhere backward"),
        ("c.out", 1, "c.out", r"no lineage path leads backward from 'c\.out' to 'c\.out'; .* to a\.out, b\.out"),
        ("c.out", 1, "d.out", r"'d\.out' of run .* is in no lineage scope"),
        ("d.out", 1, None, r"For runs to come, declare .*Pipeline\.lineage\('a\.out', 'd\.out'\)"),
    ],
)
def test_what_cannot_be_answered_is_said(flow: Flow, asked: str, event_id: int, to: str | None, sentence: str) -> None:
    with pytest.raises(LineageUnknown, match=sentence):
        backward(flow.store, flow.run, asked, event_id, to=to)


def test_a_run_without_scopes(log_store: LogStore) -> None:
    flow = Flow(log_store, {"a": Op(events=1), "b": Op(("a.out",))}, []).to_the_end()
    sentence = r"in no lineage scope.*it has no lineage scope.*starts there, Pipeline.lineage\('a.out', \.\.\.\)"
    with pytest.raises(LineageUnknown, match=sentence):
        forward(log_store, flow.run, "a.out", 1)


def test_nothing_was_sent_yet(log_store: LogStore) -> None:
    flow = Flow(log_store, CHAIN, [("a.out", "c.out")])
    with pytest.raises(LineageUnknown, match="the port has sent none so far"):
        forward(log_store, flow.run, "a.out", 1)


def test_an_input_set_that_is_still_open_is_no_relationship(log_store: LogStore) -> None:
    """Two of three events have arrived at c; forward, they have not been used for anything."""
    ops = {**CHAIN, "a": Op(events=4), "c": Op(("b.out",), window="count", size=3, emits={"out": 0})}
    flow = Flow(log_store, ops, [("a.out", "c.out")]).to_the_end()
    assert [str(event) for event in forward(log_store, flow.run, "a.out", 1).events()] == ["a.out 1", "b.out 1"]


def test_other_runs_are_other_worlds(log_store: LogStore) -> None:
    one = Flow(log_store, CHAIN, [("a.out", "c.out")], seed=1).to_the_end()
    two = Flow(log_store, {**CHAIN, "a": Op(events=2)}, [("a.out", "c.out")], seed=2).to_the_end()
    assert len(backward(log_store, one.run, "c.out", 1).events("a.out")) == 6
    assert len(backward(log_store, two.run, "c.out", 1).events("a.out")) == 2


def test_data_that_is_let_go(flow: Flow) -> None:
    """The data of a.out 1 goes, the rows that name it stay: the node says so; asked for itself, it is an error."""
    _let_go(flow, "a.out", 1)
    origin = backward(flow.store, flow.run, "b.out", 1)
    gone, there = origin.events("a.out")
    assert (gone.event_id, gone.records, gone.about) == (1, None, {})
    assert there.records == 2
    with pytest.raises(LineageUnknown, match=r"event 1 of a\.out in run .* is not in the log any more: retention"):
        forward(flow.store, flow.run, "a.out", 1)


def _let_go(flow: Flow, name: str, event_id: int) -> None:
    if isinstance(flow.store, MemoryLogStore):
        tables = flow.store.tables
        for key in [k for k in tables.bodies if (k.operator, k.channel, k.event_id) == (*port(name), event_id)]:
            del tables.bodies[key]
        return
    assert isinstance(flow.store, SqlLogStore)
    data = schema.event_data
    with flow.store.engine.begin() as connection:
        connection.execute(
            sa.delete(data).where(
                data.c.send_op == port(name).operator, data.c.channel == port(name).name, data.c.event_id == event_id
            )
        )


# --- statements -------------------------------------------------------------------------------------------------------


@contextmanager
def statements(store: SqlLogStore) -> Iterator[list[tuple[str, Any]]]:
    """Every statement with its parameters, but those of transactions."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if text.lstrip().upper().startswith("SELECT"):
            seen.append((text, parameters))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", note)


@pytest.fixture
def large(log_url: str) -> Iterator[tuple[SqlLogStore, Flow]]:
    """Two hops of 12,000 events each; with a run of other events before it."""
    store = SqlLogStore.at(log_url)
    Flow(store, CHAIN, [("a.out", "c.out")]).to_the_end()
    flow = Flow(store, CHAIN, [("a.out", "c.out")])
    run = flow.run.run_id
    numbers = range(1, 12_001)
    log, data, lineage = schema.event_log, schema.event_data, schema.event_lineage
    header = encode_header(Kind.DATA, 1, b"")
    with store.engine.begin() as connection:
        for sender, receiver in (("a", "b"), ("b", "c")):
            rows = [
                {"run_id": run, "event_id": n, "status": "done", "send_op": sender, "send_port": "out", "kept": True}
                | {
                    "channel": "out",
                    "rec_op": receiver,
                    "rec_port": "in1",
                    "inset_id": str(n if receiver == "b" else 0),
                }
                for n in numbers
            ]
            connection.execute(sa.insert(log), rows)
            bodies = [
                {
                    "run_id": run,
                    "send_op": sender,
                    "channel": "out",
                    "event_id": n,
                    "header": header,
                    "body": b"x" * 300,
                }
                for n in numbers
            ]
            connection.execute(sa.insert(data), bodies)
        made = [{"run_id": run, "send_op": "b", "send_port": "out", "event_id": n, "inset_id": str(n)} for n in numbers]
        connection.execute(sa.insert(lineage), made)
        connection.execute(
            sa.insert(lineage), {"run_id": run, "send_op": "c", "send_port": "out", "event_id": 1, "inset_id": "0"}
        )
        connection.execute(
            sa.insert(data),
            {"run_id": run, "send_op": "c", "channel": "out", "event_id": 1, "header": header, "body": b""},
        )
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT", logio_writes=False) as connection:
        connection.execute(sa.text("ANALYZE"))
    yield store, flow
    store.dispose()


def test_a_few_statements_however_many_events(large: tuple[SqlLogStore, Flow]) -> None:
    store, flow = large
    with statements(store) as seen:
        origin = backward(store, flow.run, "c.out", 1)
    assert len(origin.events("a.out")) == len(origin.events("b.out")) == 12_000
    chunks = -(-12_000 // KEYS_PER_STATEMENT)
    assert len(seen) <= 8 * chunks + 8
    with statements(store) as seen:
        made = forward(store, flow.run, "a.out", range(1, 12_001))
    assert len(made.events("b.out")) == 12_000 and len(made.events("c.out")) == 1
    assert len(seen) <= 8 * chunks + 8


def test_statements_use_indexes(large: tuple[SqlLogStore, Flow]) -> None:
    """Of one event, where reading whole tables would show."""
    store, flow = large
    with statements(store) as seen:
        backward(store, flow.run, "b.out", 7)
        forward(store, flow.run, "a.out", 7)
        with store.lineage(flow.run) as log:
            list(log.read_actions("b", "db", [1])), list(log.bodies("a", "out", [1])), log.sent(port("a.out"))
            list(log.input_sets_of_read("b", "db", 1))
    is_sqlite = store.engine.dialect.name == "sqlite"
    with store.engine.connect().execution_options(logio_writes=False) as connection:
        for text, parameters in seen:
            plan = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' if is_sqlite else ''}{text}", parameters).all()
            told = "\n".join(str(row[-1]) for row in plan)
            if "logio_read_action" in text or "logio_port_counter" in text:
                continue  # a handful of rows
            assert "SCAN logio_" not in told and "Seq Scan on logio_" not in told, f"{text}\n{told}"


def test_nodes_are_values() -> None:
    event = EventNode(port("a.out"), 1, 5, {"first": 0})
    assert event == EventNode(port("a.out"), 1) and hash(event) == hash(EventNode(port("a.out"), 1))
    assert str(event) == "a.out 1"
    assert str(InputSetNode("b", "7")) == "Input Set 7 of b"
    assert str(ReadNode("b", "db", 2)) == "read action 2 of b on db"
