"""What an author says of the records of an operator, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    ParquetSource,
    ParquetWriter,
    Pipeline,
    StatelessOperator,
    Sums,
    Synchronized,
    Tumbling,
    WindowedOperator,
    from_every,
    from_one,
    generate,
    stateless,
    window_start,
)
from airflow_logio.dataflow.functions.several_functions import SeveralFunctions
from airflow_logio.dataflow.pipeline.lineage import InputColumn
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.protocol.record_rules import WHOLE, Dependence, Part, RecordRules, Uses
from airflow_logio.protocol.values import Port

HOURS = Tumbling("1h", on="at")


def some(records: pa.Table) -> pa.Table:
    return records


def rules_of(depends: Any, window: Any = HOURS, **settings: Any) -> RecordRules:
    return WindowedOperator(generate(depends=depends, **settings)(some), window).record_rules()


def test_columns_and_starts_of_windows() -> None:
    rules = rules_of({"shop": "store_id", "hour": window_start})
    hours = Part("at", 3600)
    assert rules.outputs == {"out": Dependence(Uses.SOME, {"in": {"shop": "store_id"}}, ("hour",), hours)}
    assert rules.parts == {"": Part("at", 3600)}
    assert rules_of(None) == RecordRules({}, {"": Part("at", 3600)})
    assert rules_of(from_every({"a": "b"})).outputs["out"] == Dependence(Uses.EVERY, {"in": {"a": "b"}})
    assert rules_of(from_one(), EveryEvents(2)) == RecordRules({"out": Dependence(Uses.ONE)}, {"": WHOLE})


def test_a_sum_by_columns_that_are_all_named_is_of_every_record() -> None:
    sums = Sums(by=["a", "b"], of=["c"])
    assert rules_of({"x": "a", "y": "b"}, accumulate=sums).outputs["out"].uses is Uses.EVERY
    assert rules_of({"x": "a"}, accumulate=sums).outputs["out"].uses is Uses.SOME, "several sums have the same a"
    own = rules_of({"x": "a", "y": "b"}, accumulate=sums, finish=lambda held: held.tables[0])
    assert own.outputs["out"].uses is Uses.SOME, "what is finished otherwise may be anything"


def test_by_output_port_and_by_input_port() -> None:
    @stateless(outputs=("good", "bad"), depends={"good": from_one(), "bad": {"why": "a"}})
    def split(records: pa.Table) -> dict[str, pa.Table]:
        return {"good": records}

    assert split.depends == {"good": Dependence(Uses.ONE), "bad": Dependence(Uses.SOME, {"in": {"why": "a"}})}

    @generate(inputs=("a", "b"), depends={"key": ["a.key", "b.id"]})
    def met(a: pa.Table, b: pa.Table) -> pa.Table:
        return a

    operator = WindowedOperator(met, Synchronized(a=1, b=1))
    assert operator.record_rules().outputs["out"].columns == {"a": {"key": "key"}, "b": {"key": "id"}}
    several = SeveralFunctions(
        {"one": WindowedOperator(met, Synchronized(a=1, b=1)), "two": WindowedOperator(generate(some), HOURS)}
    )
    assert several.record_rules() == RecordRules(
        {"one": operator.record_rules().outputs["out"]}, {"one": WHOLE, "two": Part("at", 3600)}
    )


def test_a_port_of_which_nothing_is_said() -> None:
    split = stateless(outputs=("good", "bad"), depends={"good": from_one(), "bad": None})(some)
    assert split.depends == {"good": Dependence(Uses.ONE)}


def test_a_window_with_parts_of_its_own_says_itself_which_they_are() -> None:
    class Late(Tumbling):
        def part(self, event: Any, inset_id: str) -> Any:
            return event.table

    class Halves(EveryEvents):
        def part(self, event: Any, inset_id: str) -> Any:
            return event.table.slice(event.table.num_rows // 2)

    assert rules_of({"hour": window_start}, Late("1h", on="at")).parts == {}
    assert rules_of(None, Halves(2)).parts == {}


def test_a_source_depends_on_nothing() -> None:
    source = ParquetSource("{path}")
    source.depends = {"a": "a"}
    one = Pipeline("p", params={"path": str})
    with pytest.raises(PipelineDefinitionError, match=r"it has depends=\.\.\., and no input port"):
        one.source("source", source)


def test_a_writer_sends_on_what_it_gets_unless_its_class_does_otherwise() -> None:
    class Other(ParquetWriter):
        def process(self, event: Any, external: Any) -> Any:
            yield "out", event.table.slice(1)

    assert ParquetWriter("files", "x").record_rules().outputs == {"out": Dependence(Uses.SAME)}
    assert not Other("files", "x").record_rules().outputs


class Own(StatelessOperator):
    def process(self, event: Any, external: Any) -> Any:
        return [("out", event.table)]


def test_an_operator_of_ones_own_says_it_without_becoming_another_one() -> None:
    def pipeline(depends: Any) -> Pipeline:
        own, one = Own(), Pipeline("p", params={"path": str})
        own.depends = depends
        source = one.source("source", ParquetSource("{path}"))
        one.sink("end", Count(), one.operator("own", own, source))
        one.lineage("source.out", "own.out")
        return one.freeze()

    said, silent = pipeline({"a": "a"}), pipeline(None)
    assert said.fingerprint() == silent.fingerprint(), "a run can resume when its author has said more"
    assert operator_shapes(said)["own"].rules == RecordRules(
        {"out": Dependence(Uses.SOME, {"in": {"a": "a"}})}, {"": WHOLE}
    )
    assert not operator_shapes(silent)["own"].rules.outputs
    assert said.declared_columns == {Port("own", "out"): {"a": (InputColumn("in", "a"),)}}
    with pytest.raises(PipelineDefinitionError, match=r"operator of class 'Own': depends\['a'\] names 'x\.b'"):
        pipeline({"a": "x.b"})


@pytest.mark.parametrize(
    ("depends", "sentence"),
    [
        ({}, "depends is {}; give output column → input column"),
        ("store_id", "depends is 'store_id'; give output column"),
        ({"a": 7}, r"depends\['a'\] is 7; give the name of an input column, or window_start"),
        ({"a": "in.b", "c d;": "b"}, "column name 'c d;' is not allowed"),
        ({"a": "inn.b"}, r"there is no input port 'inn'. Did you mean 'in'\?"),
        ({"a": ["b", "c"]}, "names two columns of input port 'in'"),
        ({"ot": from_one()}, r"depends names output port 'ot', and the operator has 'out'. Did you mean 'out'\?"),
        (from_every({}), "depends is {}"),
        (from_every(None), "depends is None"),  # type: ignore[arg-type]  # what a person may write
        (from_every({"a": []}), r"depends\['a'\] is \[\]; give the name of an input column"),
    ],
)
def test_what_is_refused(depends: Any, sentence: str) -> None:
    for decorator in (stateless, generate):
        decorate: Callable[[Any], Any] = decorator(depends=depends)
        with pytest.raises(PipelineDefinitionError, match=sentence):
            decorate(some)


def test_windows_of_time_that_there_are_not() -> None:
    with pytest.raises(
        PipelineDefinitionError, match=r"function 'some': depends\['hour'\] is window_start, and its Input"
    ):
        stateless(depends={"hour": window_start})(some)
    with pytest.raises(PipelineDefinitionError, match="function 'some' depends on 'window_start', which EveryEvents"):
        rules_of({"hour": window_start}, EveryEvents(2))


def test_ports_must_be_told_where_there_are_several() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"names column 'key' of several input ports: write 'a\.key'"):

        @generate(inputs=("a", "b"), depends={"key": "key"})
        def met(a: pa.Table, b: pa.Table) -> pa.Table:
            return a
