"""Pipelines: what is refused, in which words; and the views of a frozen pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    CheckableWriter,
    Count,
    EveryEvents,
    External,
    InputEvent,
    ParquetSource,
    Pipeline,
    PortTable,
    SourceBatch,
    SourceOperator,
    StatelessOperator,
    TableRead,
    TableWriter,
    WriteAction,
    WriterOperator,
    generate,
    stateless,
)
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode, Port


@stateless
def same(table: pa.Table) -> pa.Table:
    return table


@stateless(inputs=("left", "right"))
def merge(table: pa.Table) -> pa.Table:
    return table


@stateless(outputs=("odd", "even"))
def halves(table: pa.Table) -> Mapping[str, pa.Table]:
    return {"odd": table}


@generate
def total(records: pa.Table) -> pa.Table:
    return records


class Queue(SourceOperator):
    replayable = False

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from ()


class Hope(WriterOperator):
    """A writer that declares no guarantee."""

    connection = "warehouse"

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        external.write("warehouse", event.table)
        return ()


class Checked(CheckableWriter[None]):
    """A writer whose external system remembers nothing, and takes nothing."""

    def __init__(self) -> None:
        super().__init__("warehouse")

    def connect(self, url: str) -> AbstractContextManager[None]:
        return nullcontext()

    def is_applied(self, client: None, action: WriteAction) -> bool:
        return False

    def write(self, client: None, action: WriteAction) -> None:
        pass


def odd(**attributes: Any) -> StatelessOperator:
    """A stateless operator with some class attributes replaced."""

    class Odd(StatelessOperator):
        def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
            return ()

    for name, value in attributes.items():
        setattr(Odd, name, value)
    return Odd()


def pipeline() -> Pipeline:
    """read → same; to be completed."""
    p = Pipeline("p", params={"file": str}, connections=["warehouse"])
    p.operator("same", same, p.source("read", ParquetSource("{file}")))
    return p


def complete() -> Pipeline:
    p = pipeline()
    p.sink("done", Count(), "same")
    return p


Change = Callable[[Pipeline], object]


def refused(build: Change, p: Pipeline | None = None) -> str:
    p = p or pipeline()
    with pytest.raises(PipelineDefinitionError) as caught:
        build(p)
        p.validate()
    return str(caught.value)


EAGER: list[tuple[Change, str]] = [
    # names
    (lambda p: p.operator("Bad", same, "same"), "operator name 'Bad' is not allowed"),
    (lambda p: p.operator("a" * 64, same, "same"), "at most 63"),
    (lambda p: p.operator("same", same, "read"), "operator name 'same' is used twice"),
    (lambda p: p.group("Bad", "same"), "group name 'Bad' is not allowed"),
    (lambda p: p.operator("x", odd(inputs=("In",)), "same"), "port name 'In' is not allowed"),
    (lambda p: p.operator("x", odd(inputs=("a",), outputs=("a",)), "same"), "operator 'x' has two ports named 'a'"),
    (lambda p: p.operator("x", odd(inputs=())), "operator 'x' has no input port; only a source may have none"),
    # upstreams
    (
        lambda p: p.operator("x", same, "read.output"),
        "pipeline 'p': operator 'x' reads port 'read.output', but 'read' has only 'out'. Did you mean 'read.out'?",
    ),
    (lambda p: p.operator("x", same, "raed.out"), "there is no operator 'raed'. Did you mean 'read.out'?"),
    (lambda p: p.operator("x", same, "raed"), "there is no operator 'raed'. Did you mean 'read'?"),
    (
        lambda p: p.operator("x", same, "read", "same"),
        "'x' gets 2 upstreams for 1 input port(s): one input port has one",
    ),
    (lambda p: p.operator("x", merge, "read", up="same"), "but 'x' has 'left' and 'right'"),
    (lambda p: p.operator("x", merge, "read", rihgt="same"), "Did you mean 'x.right'?"),
    (
        lambda p: p.operator("x", same, p.operator("h", halves, "read")),
        "'h', which is ambiguous: 'h' has several output ports. Write 'h.odd' or 'h.even'",
    ),
    (lambda p: p.operator("x", same, p.sink("done", Count(), "read")), "but 'done' has no output port"),
    (lambda p: p.operator("x", same, pipeline().operator("y", same)), "operator 'y' belongs to pipeline 'p'"),
    (lambda p: p.connect("same.out", "nobody.in"), "which is no operator"),
    (lambda p: p.connect("same.out", "same.on"), "but 'same' has only 'in'. Did you mean 'same.in'?"),
    (lambda p: p.connect("same.out", "read.in"), "but 'read' has no such ports at all"),
    (lambda p: p.connect("same", p.operator("m", merge).name), "ambiguous: 'm' has several input ports"),
    (
        lambda p: p.connect("read", "same"),
        "'same.in' is connected to 'read.out' and to 'read.out': one input port has one",
    ),
    # roles
    (lambda p: p.operator("x", Count, "same"), "not the class Count: write Count(...)"),  # type: ignore[arg-type]
    (lambda p: p.operator("x", len, "same"), "plain function 'len'; decorate it"),  # type: ignore[arg-type]
    (lambda p: p.operator("x", 3, "same"), "'x' must be a Operator, not 3"),  # type: ignore[arg-type]
    (lambda p: p.source("x", Count()), "'x' must be a SourceOperator"),  # type: ignore[arg-type]
    (lambda p: p.writer("x", Count(), "same"), "'x' must be a WriterOperator"),  # type: ignore[arg-type]
    (lambda p: p.sink("x", odd(), "same"), "sink 'x' has output port 'out'; add it with .operator(...)"),
    (lambda p: p.operator("x", total, "same"), "operator 'x' generates from Input Sets: give window="),
    (lambda p: p.operator("x", same, "same", window=EveryEvents(1)), "operator 'x' has a window, but"),
    # what an operator needs
    (
        lambda p: p.writer("x", TableWriter("warehose", "t"), "same"),
        "operator 'x' uses connection 'warehose', which the pipeline does not name (it names 'warehouse'). "
        "Did you mean 'warehouse'?",
    ),
    (
        lambda p: p.operator(
            "x", generate(reads={"r": TableRead("crm", "t")})(lambda t, r: t), "same", window=EveryEvents(1)
        ),
        "operator 'x' uses connection 'crm'",
    ),
    (
        lambda p: p.source("x", ParquetSource("{flie}")),
        "'x' refers to parameter 'flie', which the pipeline does not have",
    ),
    (lambda p: p.source("x", ParquetSource("{flie}")), "Did you mean 'file'?"),
    (lambda p: p.writer("x", Hope(), "same"), "write actions of operator 'x' on connection 'warehouse' are neither"),
    (
        lambda p: p.operator("x", odd(mode=ExecutionMode.DATAFRAME), "same"),
        "'x' runs in mode 'dataframe', so its class must be a FrameOperator",
    ),
    (lambda p: p.operator("x", odd(mode=ExecutionMode.EXECUTORS), "same"), "must also be a BatchGenerator"),
    # groups
    (lambda p: p.group("g", "smae"), "group 'g' contains 'smae', which is no operator. Did you mean 'same'?"),
    (lambda p: (p.group("g", "same"), p.group("h", "same")), "operator 'same' is in group 'g' and again in group 'h'"),
    (lambda p: p.group("g", "same", "same"), "operator 'same' is in group 'g' and again in group 'g'"),
    (lambda p: (p.group("g", "same"), p.group("g", "read")), "group name 'g' is used twice"),
    (lambda p: p.group("g"), "group 'g' has no operators"),
    (lambda p: p.group("g", "same", spark={"driver.memory": "1g"}), "Did you mean 'spark.driver.memory'?"),
    (lambda p: p.group("g", "same", spark={"spark.cores": 1}), "write it as a string"),  # type: ignore[dict-item]
    (lambda p: p.group("g", "same", jobs_at_once=0), "group 'g': jobs_at_once is 0; give a number from 1 to 64"),
    (lambda p: p.group("g", "same", jobs_at_once=True), "jobs_at_once is True; give a number"),
    (lambda p: p.group("g", "same", jobs_at_once=4), "group 'g' has jobs_at_once, and no operator of mode 'dataframe'"),
    (lambda p: p.group("g", "same", standby=2), "group 'g': standby is 2; give 1, or leave it out"),
    (lambda p: p.group("g", "same", standby=True), "group 'g': standby is True"),
    # lineage
    (lambda p: p.lineage("read.out", "same.ot"), "lineage scope names port 'same.ot', but 'same' has only 'out'"),
    (lambda p: p.lineage("read.out", "smae.out"), "Did you mean 'same.out'?"),
]


@pytest.mark.parametrize(("build", "words"), EAGER)
def test_refused_at_once_and_nothing_changed(build: Change, words: str) -> None:
    p = pipeline()
    message = refused(build, p)
    assert words in message
    with pytest.raises(PipelineDefinitionError, match=r"output port '\w+\.\w+' is connected to nothing|input port"):
        p.validate()  # the one defect that was there before: the refused call has left no half of itself


def cyclic(p: Pipeline) -> None:
    p.operator("a", merge, left="same")
    p.operator("b", same, "a")
    p.connect("b.out", "a.right")


def same_table(first: str, second: str) -> Change:
    def build(p: Pipeline) -> None:
        p.writer("w1", TableWriter("warehouse", "t", on_new_run=first), "same")
        p.writer("w2", TableWriter("warehouse", "t", on_new_run=second), "same")

    return build


WHOLE: list[tuple[Change, str]] = [
    (cyclic, "operators form a cycle: a → b → a. Remove one of these connections"),
    (lambda p: p.operator("m", merge, "same"), "input port 'm.right' is connected to nothing"),
    (lambda p: p.operator("x", same, "read"), "output port 'same.out' is connected to nothing"),
    (
        lambda p: (p.writer("w", Checked(), "same"), p.group("w", "read")),
        "operator 'w' is in no group, so a group may get its name, but group 'w' exists",
    ),
    (
        lambda p: (p.writer("w", Checked(), "same"), p.lineage("same.out", "read.out")),
        "lineage scope (same.out, read.out) has no path: no events of 'same.out' reach 'read.out'",
    ),
    (same_table("replace", "append"), "operators 'w1' and 'w2' both write table 't' of 'warehouse'"),
    (same_table("error", "error"), "both write table 't'"),
]


@pytest.mark.parametrize(("build", "words"), WHOLE)
def test_refused_as_a_whole(build: Change, words: str) -> None:
    message = refused(build)
    assert message.startswith("pipeline 'p': ")
    assert words in message


def test_cycle_is_named_as_events_flow() -> None:
    assert "a → b → a" in refused(cyclic) or "b → a → b" in refused(cyclic)


def test_first_use_validates_too() -> None:
    uses: list[Change] = [lambda p: p.groups, lambda p: p.operators, lambda p: p.fingerprint(), lambda p: p.freeze()]
    for use in uses:
        with pytest.raises(PipelineDefinitionError, match=r"'same\.out' is connected to nothing"):
            use(pipeline())
    with pytest.raises(PipelineDefinitionError, match="it has no operators"):
        Pipeline("p").validate()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Pipeline("Sales"), "pipeline name 'Sales' is not allowed"),
        (lambda: Pipeline("sales", params={"a-b": str}), "parameter name 'a-b' is not allowed"),
        (lambda: Pipeline("sales", params={"a": list}), "parameter 'a' has type"),
        (lambda: Pipeline("sales", connections=["sqlite:///x"]), "connection name 'sqlite:///x' is not allowed"),
        (lambda: Pipeline("sales", connections="warehouse"), "connections is the single string 'warehouse'"),
        (lambda: Pipeline("sales", connections=["a", "a"]), "a connection is named twice"),
    ],
)
def test_pipeline_itself(build: Callable[[], Pipeline], words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        build()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "may_be_one"),
    [("t", "T", True), ("t", "public.t", True), ("A.t", "a.T", True), ("a.t", "b.t", False), ("t", "u", False)],
)
def test_names_that_a_database_may_take_for_one_table(first: str, second: str, may_be_one: bool) -> None:
    """An author's word on what a new run does must then be the same for both."""

    def with_modes(one: str, other: str) -> Pipeline:
        p = pipeline()
        p.writer("w1", TableWriter("warehouse", first, on_new_run=one), "same")
        p.writer("w2", TableWriter("warehouse", second, on_new_run=other), "same")
        return p

    with_modes("replace", "replace").validate()
    with_modes("append", "append").validate()
    mixed = with_modes("replace", "append")
    if not may_be_one:
        mixed.validate()
        return
    with pytest.raises(PipelineDefinitionError, match="A database may take both names for one table"):
        mixed.validate()


def test_two_appending_writers_may_share_a_table() -> None:
    p = pipeline()
    same_table("append", "append")(p)
    p.validate()


def test_validate_does_not_freeze_and_use_does() -> None:
    p = complete()
    assert p.validate() is p
    p.sink("also", Count(), "same")
    assert list(p.groups) == ["read"] and p.groups["read"].operators == ("read", "same", "done", "also")
    changes: list[Change] = [
        lambda p: p.sink("more", Count(), "same"),
        lambda p: p.group("g", "same"),
        lambda p: p.lineage("read.out", "same.out"),
        lambda p: p.connect("read", "same"),
    ]
    for change in changes:
        assert "it is in use and cannot be changed" in refused(change, p)


def test_ports_and_connections() -> None:
    p = Pipeline("p")
    read = p.source("read", ParquetSource("f"))
    split = p.operator("split", halves, read)
    join = p.operator("join", merge, split.port("odd"), right="split.even")
    p.sink("done", Count(), join.out)
    p.sink("also", Count(), "join.out")
    assert read.out == read.port() == Port("read", "out")
    assert p.receivers(Port("join", "out")) == (Port("done", "in"), Port("also", "in"))
    assert p.receivers(Port("split", "odd")) == (Port("join", "left"),)
    assert p.sender(Port("join", "right")) == Port("split", "even")
    with pytest.raises(PipelineDefinitionError, match="ambiguous"):
        _ = split.out
    with pytest.raises(KeyError):
        p.receivers(Port("done", "out"))


def test_operators_are_in_topological_order_then_of_definition() -> None:
    p = Pipeline("p")
    last = p.sink("last", Count())
    p.operator("middle", same)
    p.source("read", ParquetSource("f"))
    p.source("other", ParquetSource("f"))
    p.sink("drain", Count(), "other")
    p.connect("middle", last.name)
    p.connect("read", "middle")
    p.group("fused", "last", "middle", spark={"spark.driver.memory": "1g"})
    assert list(p.operators) == ["read", "middle", "last", "other", "drain"]
    assert {name: group.operators for name, group in p.groups.items()} == {
        "read": ("read",),
        "fused": ("middle", "last"),
        "other": ("other", "drain"),
    }
    assert p.groups["fused"].spark == {"spark.driver.memory": "1g"}


def test_groups_that_wait_for_each_other_are_refused() -> None:
    p = Pipeline("p")
    first = p.source("first", ParquetSource("f"))
    middle = p.operator("middle", same, first)
    last = p.sink("last", Count(), middle)
    p.group("outer", first, last)
    with pytest.raises(PipelineDefinitionError, match=r"groups form a cycle: (outer → middle|middle → outer)"):
        p.validate()


def test_a_read_beside_a_write_of_the_same_connection_is_refused() -> None:
    p = Pipeline("p", connections=["warehouse"])
    reads = {"names": TableRead("warehouse", "names", key="id")}
    function = generate(reads=reads)(lambda sales, names: sales)
    node = p.operator("named", function, p.source("read", ParquetSource("f")), window=EveryEvents(2))
    p.writer("save", TableWriter("warehouse", "t"), node)
    p.validate()
    p.group("both", "named", "save")
    with pytest.raises(PipelineDefinitionError, match="'named' reads connection 'warehouse', which 'save' writes"):
        p.validate()


class Idle(StatelessOperator):
    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        return ()


def beside(*, downstream: bool, sends_after_writes: bool) -> Pipeline:
    """A reader in the group of a writer of the same connection; behind it, or on another branch."""
    p = Pipeline("p", connections=["warehouse"])
    reading = generate(reads={"names": TableRead("warehouse", "names", key="id")})(lambda sales, names: sales)
    source = p.source("read", ParquetSource("f"))
    save = p.writer("save", TableWriter("warehouse", "t", sends_after_writes=sends_after_writes), source)
    between = p.operator("between", same, save if downstream else source)
    named = p.operator("named", reading, between, window=EveryEvents(2))
    p.sink("last", Count(), named)
    p.group("both", save, between, named)
    return p


def test_a_read_of_what_is_written_for_its_events() -> None:
    beside(downstream=True, sends_after_writes=True).validate()
    with pytest.raises(PipelineDefinitionError, match=r"let 'save' send after its writes \(sends_after_writes=True\)"):
        beside(downstream=True, sends_after_writes=False).validate()
    with pytest.raises(PipelineDefinitionError, match="'save' writes in the same group for other events than those"):
        beside(downstream=False, sends_after_writes=True).validate()


def test_every_writer_before_a_read_must_send_after_its_writes() -> None:
    p = beside(downstream=True, sends_after_writes=True)
    more = p.writer("more", TableWriter("warehouse", "u"), "save")
    p.group("alone", more)
    p.validate()
    p = beside(downstream=True, sends_after_writes=True)
    p._definition.groups.clear()
    p.writer("more", TableWriter("warehouse", "u"), "save")
    p.group("both", "save", "more", "between", "named")
    with pytest.raises(PipelineDefinitionError, match="reads connection 'warehouse', which 'more' writes"):
        p.validate()


def test_only_who_writes_can_send_after_its_writes() -> None:
    class Waiting(Idle):
        sends_after_writes = True

    p = Pipeline("p")
    with pytest.raises(PipelineDefinitionError, match="'op' says sends_after_writes=True and has no write actions"):
        p.operator("op", Waiting(), p.source("read", ParquetSource("f")))


@pytest.mark.parametrize(
    ("inputs", "order", "words"),
    [
        (("a", "b"), ("a", "a"), "input port 'b' of operator 'op' is not in its port_order"),
        (("apples", "b"), ("appels", "b"), "names 'appels', which is no input port of it .* Did you mean 'apples'"),
    ],
)
def test_a_port_order_names_every_input_port_and_nothing_else(
    inputs: tuple[str, ...], order: tuple[str, ...], words: str
) -> None:
    class InOrder(Idle):
        def __init__(self) -> None:
            self.inputs = inputs
            self.port_order = order

    p = Pipeline("p")
    with pytest.raises(PipelineDefinitionError, match=words):
        p.operator("op", InOrder())


def test_lineage_views() -> None:
    p = complete()
    scope = p.lineage("read.out", "same.out")
    p.lineage("read", "same")
    assert p.scopes == (scope,)
    assert p.lineage_ports("read") == (frozenset(), frozenset({"out"}))
    assert p.lineage_ports("same") == (frozenset({"in"}), frozenset({"out"}))
    assert p.lineage_ports("done") == (frozenset(), frozenset())


def build(version: int = 1, memory: str = "1g", count: int = 3, function: Any = total, scope: bool = False) -> Pipeline:
    p = pipeline()
    generator = generate(state_version=version)(function.fn)
    p.sink("done", Count(), p.operator("sums", generator, "same", window=EveryEvents(count)))
    p.group("sums", "sums", spark={"spark.driver.memory": memory})
    if scope:
        p.lineage("read.out", "sums.out")
    return p


def test_fingerprint_is_stable_and_tells_what_matters() -> None:
    base = build().fingerprint()
    assert base == build().fingerprint()
    assert base == build(memory="2g").fingerprint(), "more memory makes no other pipeline"
    for other in (build(version=2), build(count=4), build(scope=True)):
        assert other.fingerprint()["graph"] != base["graph"]
        assert other.fingerprint()["code"] == base["code"]

    def total(records: pa.Table) -> pa.Table:
        return records.slice(1)

    total.__qualname__ = "total"
    changed = build(function=generate(total)).fingerprint()
    assert changed["graph"] == base["graph"]
    assert changed["code"] != base["code"]
    assert json.loads(json.dumps(build().describe())) == build().describe()


def test_params() -> None:
    p = Pipeline("p", params={"file": str, "count": int, "ratio": float, "dry": bool})
    given = {"file": "f", "count": 3, "ratio": 1, "dry": False}
    assert p.check_params(given) == {"file": "f", "count": 3, "ratio": 1.0, "dry": False}
    assert p.check_params({"file": "f", "count": "3", "ratio": "0.5", "dry": "True"}) == {
        "file": "f",
        "count": 3,
        "ratio": 0.5,
        "dry": True,
    }
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"count": "x"}, "parameter 'count' of pipeline 'p' is 'x'; it must be int"),
        ({"count": True}, "it must be int"),
        ({"count": 1.0}, "it must be int"),
        ({"dry": "perhaps"}, "it must be bool"),
        ({"file": 3}, "it must be str"),
        ({"file": None}, "needs parameter 'file' (str), which has no value"),
        ({"fiel": 1}, "has no parameter 'fiel', only 'file', 'count', 'ratio' and 'dry'. Did you mean 'file'?"),
    ]
    for change, words in wrong:
        with pytest.raises(ConfigurationError) as caught:
            p.check_params(given | change)
        assert words in str(caught.value)
    with pytest.raises(ConfigurationError, match="which has no value"):
        p.check_params({})
