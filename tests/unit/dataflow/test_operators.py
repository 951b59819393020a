"""Operator base classes, writers and sinks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    BatchGenerator,
    Count,
    EveryEvents,
    External,
    FunctionOperator,
    InputEvent,
    InputSet,
    Operator,
    PortTable,
    StatefulOperator,
    TableRead,
    TableWriter,
    WindowedOperator,
    selected,
    summed,
)
from airflow_logio.dataflow.describing import stable_name
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode
from tests.unit.dataflow.conftest import FakeExternal

ROW = pa.table({"a": [1], "b": ["x"]})


class Sessions(StatefulOperator):
    """An author's own operator, with settings of every kind."""

    inputs = ("clicks", "logins")
    outputs = ("sessions",)

    def __init__(self) -> None:
        self.gap = 30
        self.names = ("a", "b")
        self.window = EveryEvents(3)
        self.read = TableRead("crm", "users")
        self.opaque = object()
        self._secret = "s"

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        return {"1": event.table}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return event.table

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return ()

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        yield "sessions", pa.concat_tables(input_set.held)


class Batched(Sessions, BatchGenerator):
    mode = ExecutionMode.EXECUTORS
    many = True

    def run(self, tagged: Any, reads: Mapping[str, Any]) -> Any:
        return tagged


def test_describe_is_json_without_addresses_or_secrets() -> None:
    described = Sessions().describe()
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "class": "Sessions",
        "inputs": ["clicks", "logins"],
        "outputs": ["sessions"],
        "mode": "driver",
        "state_version": 1,
        "reads_state": False,
        "port_order": [],
        "sends_after_writes": False,
        "on_error": "fail",
        "connections": [],
        "settings": {
            "gap": 30,
            "names": ["a", "b"],
            "read": {"connection": "crm", "table": "users", "columns": [], "key": None},
            "window": {"window": "EveryEvents", "count": 3},
        },
    }


RECORDED = {
    "dataset_writer.DatasetWriter",
    "frame_operators.FrameFunctionOperator",
    "function_operators.BatchOperator",
    "function_operators.FrameWindowOperator",
    "function_operators.FunctionOperator",
    "function_operators.WindowedOperator",
    "parquet_writer.ParquetWriter",
    "replication.dispatcher.Dispatcher",
    "replication.merger.Merger",
    "replication.merger.OrderedMerger",
    "several_functions.SeveralFunctions",
    "sinks.Count",
    "sources.delta.DeltaSource",
    "sources.folder.FolderSource",
    "sources.parquet.ParquetSource",
    "sources.query.QuerySource",
    "sources.spark.SparkSource",
    "sources.table.TableSource",
    "sources.table._Connected",
    "table_writer.TableWriter",
    "writers.delta_writer.DeltaWriter",
}
"""Names in the graphs of runs that were started with version 0.1.0, below ``airflow_logio.dataflow``."""


def test_an_operator_of_ours_keeps_the_name_that_runs_have_recorded() -> None:
    """Otherwise no run could resume after an upgrade that moves its module."""
    found: set[type[Operator]] = set()
    todo: list[type[Operator]] = [Operator]
    while todo:
        for one in todo.pop().__subclasses__():
            todo.append(one)
            if one.__module__.startswith("airflow_logio.dataflow.") and not inspect.isabstract(one):
                found.add(one)
    below = "airflow_logio.dataflow."
    assert {stable_name(one).removeprefix(below) for one in found - {ActionWriter, OwningWriter}} == RECORDED
    sums = WindowedOperator(summed(["a"], ["b"]), EveryEvents(1))
    assert FunctionOperator(selected(["a"])).settings()["function"] == f"{below}ready_made._Selected"
    assert sums.settings()["function"] == f"{below}ready_made._Summed"
    assert Count().describe()["class"] == f"{below}sinks.Count"


def test_code_is_the_authors_and_not_ours() -> None:
    assert "class Sessions" in Sessions().code()
    assert "class Sessions" in Batched().code(), "a base class of the author counts"
    assert "class StatefulOperator" not in Sessions().code()
    assert Count().code() == ""


def test_event_state_is_a_list_of_parts_and_flush_is_deterministic() -> None:
    operator = Sessions()
    held = operator.accumulate(operator.accumulate(None, 1), 2)
    assert held == [1, 2]
    assert operator.order("x") is None
    assert operator.flush({}, ["b", "a"]) == operator.flush({}, ["a", "b"]) == ["a", "b"]


def test_batch_generator_suits_an_authors_operator() -> None:
    operator = Batched()
    sets = [InputSet("a", [ROW]), InputSet("b", [ROW, ROW])]
    tagged = operator.tagged(sets)
    assert tagged["inset_id"].to_pylist() == [0, 1, 1]
    outs = operator.split(tagged, 3)
    assert [[(port, table.num_rows) for port, table in out] for out in outs] == [
        [("sessions", 1)],
        [("sessions", 2)],
        [],
    ]


def test_count() -> None:
    count = Count()
    state = count.initial_state()
    assert count.outputs == ()
    assert count.assign(InputEvent("in", 1, ROW), state) == {}
    assert count.assign(InputEvent("in", 2, pa.concat_tables([ROW, ROW])), state) == {}
    assert state == {"events": 2, "records": 3}
    assert list(count.triggered(state, [])) == []
    with pytest.raises(OperatorFailed, match="assigns no Input Sets"):
        count.part(InputEvent("in", 1, ROW), "1")
    with pytest.raises(OperatorFailed, match="generates nothing"):
        count.generate(InputSet("1", []), state, FakeExternal())


def test_table_writer_writes_and_passes_on() -> None:
    writer = TableWriter("warehouse", "totals", columns={"b": "text", "a": "bigint"}, primary_key=["b"])
    external = FakeExternal()
    assert list(writer.process(InputEvent("in", 1, ROW), external)) == [("out", ROW)]
    ((connection, written),) = external.writes
    assert connection == "warehouse"
    assert written.column_names == ["b", "a"], "in declared order"
    assert writer.connections() == ("warehouse",)
    assert writer.writes() == {"warehouse": "conditional"}
    assert writer.primary_key == ("b",)
    assert writer.on_new_run == "error", "what destroys nothing is the default"
    assert json.loads(json.dumps(writer.describe()))["settings"] == {
        "connection": "warehouse",
        "table": "totals",
        "columns": {"a": "bigint", "b": "text"},
        "primary_key": ["b"],
        "on_new_run": "error",
        "sends_after_writes": False,
    }


def test_table_writer_without_columns_takes_any() -> None:
    external = FakeExternal()
    assert list(TableWriter("warehouse", "public.totals").process(InputEvent("in", 1, ROW), external)) == [("out", ROW)]
    assert external.writes == [("warehouse", ROW)]


def test_table_writer_refuses_other_columns() -> None:
    writer = TableWriter("warehouse", "totals", columns={"a": "bigint"})
    with pytest.raises(OperatorFailed, match=r"table 'totals' has columns \['a'\], but the records have \['a', 'b'\]"):
        list(writer.process(InputEvent("in", 1, ROW), FakeExternal()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"connection": "postgresql://u:p@h/db"}, "connection name 'postgresql://u:p@h/db' is not allowed"),
        ({"table": "a.b.c"}, "table name 'a.b.c' is not allowed"),
        ({"table": 'x"; drop table y'}, "is not allowed: write 'table' or 'schema.table'"),
        ({"columns": {"a\n": "text"}}, "column name 'a\\n' is not allowed"),
        ({"columns": {"a": "txt"}}, "column 'a' has type 'txt', which is not one of"),
        ({"columns": {"a": "txt"}}, "Did you mean 'text'?"),
        ({"columns": {}}, "columns is empty"),
        ({"columns": {"a": "text"}, "primary_key": ("aa",)}, "primary key column 'aa' is not among its columns"),
        ({"primary_key": "id"}, "columns is the single string 'id'"),
        (
            {"on_new_run": "replce"},
            "on_new_run='replce' is none of 'replace', 'append', 'error', 'overwrite' and 'supersede'",
        ),
        ({"on_new_run": "replce"}, "Did you mean 'replace'?"),
    ],
)
def test_table_writer_refused_at_definition(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        TableWriter(**({"connection": "warehouse", "table": "t"} | arguments))
    assert words in str(caught.value)


def test_an_operator_writes_nothing_unless_it_says_so() -> None:
    class Plain(Operator):
        pass

    assert Plain().writes() == {}
    assert Plain().connections() == ()
    assert Plain().placeholders() == frozenset()
