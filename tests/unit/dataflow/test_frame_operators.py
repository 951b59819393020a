"""Operators of mode `dataframe`, sources of ranges and writers of datasets: what is refused when they are declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import (
    DatasetWriter,
    EveryEvents,
    FolderSource,
    ParquetSource,
    Pipeline,
    RangeSource,
    RoundRobin,
    generate,
    stateless,
)
from airflow_logio.dataflow.frame_operators import FrameFunctionOperator
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError


def pipeline() -> Pipeline:
    return Pipeline("p", params={"path": str}, connections=["lake"])


def same(orders: Any) -> Any:
    return orders


class Counter(RangeSource):
    """Ranges of at most 10 numbers, up to 25."""

    found = 25

    def first(self, params: Mapping[str, Any]) -> int:
        return 0

    def last(self, params: Mapping[str, Any]) -> int | None:
        return 25

    def latest(self, params: Mapping[str, Any], start: int, limit: int | None) -> int:
        return min(start + 10, self.found, self.found if limit is None else limit)

    def frame(self, spark: Any, params: Mapping[str, Any], start: int, end: int) -> Any:
        return spark.range(start, end)


# --- functions --------------------------------------------------------------------------------------------------------


class DataFrame:
    """What `is_spark_frame` takes for one of Spark: its module says so."""

    __module__ = "pyspark.sql.classic.dataframe"

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def select(self, *columns: str) -> DataFrame:
        return DataFrame(*columns)


def operator_of(function: Callable[..., Any], **settings: Any) -> FrameFunctionOperator:
    return FrameFunctionOperator(stateless(mode="dataframe", **settings)(function))


def test_a_function_gets_its_columns_its_port_and_the_parameters() -> None:
    def seen(orders: Any, port: str, params: Mapping[str, Any]) -> Any:
        return DataFrame(port, params["path"], *orders.columns)

    operator = operator_of(seen, columns=["id"])
    assert operator.frames("in", DataFrame("id", "price"), {"path": "x"})["out"].columns == ("in", "x", "id")


@pytest.mark.parametrize(
    ("returned", "settings", "says"),
    [
        (None, {}, r"function 'made' returned NoneType for output port 'out'.* return a DataFrame of Spark"),
        (pa.table({}), {}, r"returned pyarrow\.Table for output port 'out'"),
        ({"out": DataFrame(), "more": DataFrame()}, {}, r"has output ports 'out' and returned ports 'out' and 'more'"),
        (
            {"good": DataFrame()},
            {"outputs": ("good", "bad")},
            r"returned ports 'good'.*one for every port \(an empty one",
        ),
        (DataFrame(), {"outputs": ("good", "bad")}, r"return \{output port: DataFrame\}"),
    ],
)
def test_anything_but_a_dataframe_for_every_port_is_refused(returned: Any, settings: Any, says: str) -> None:
    def made(_: Any) -> Any:
        return returned

    with pytest.raises(OperatorFailed, match=says):
        operator_of(made, **settings).frames("in", DataFrame("id"), {})


# --- pipelines --------------------------------------------------------------------------------------------------------


def test_windows_quarantine_and_event_ids_are_refused_with_the_way_out() -> None:
    with pytest.raises(PipelineDefinitionError, match="has mode 'dataframe', which only stateless"):
        generate(mode="dataframe")(same)
    made = pipeline()
    read = made.source("read", FolderSource("{path}"))
    with pytest.raises(
        PipelineDefinitionError, match=r"'kept' runs in mode 'dataframe' with on_error='quarantine'.*Leave"
    ):
        made.operator("kept", stateless(mode="dataframe", on_error="quarantine")(same), read)


def test_a_class_that_is_no_frame_operator_is_refused() -> None:
    from airflow_logio.dataflow.operators import StatelessOperator
    from airflow_logio.protocol.values import ExecutionMode

    class Mine(StatelessOperator):
        mode = ExecutionMode.DATAFRAME
        inputs, outputs = ("in",), ("out",)

        def process(self, event: Any, external: Any) -> Any:
            return ()

    made = pipeline()
    read = made.source("read", ParquetSource("{path}", records_per_event=1))
    with pytest.raises(
        PipelineDefinitionError, match=r"'mine' runs in mode 'dataframe', so its class must be a FrameOperator"
    ):
        made.operator("mine", Mine(), read)


def test_a_replicated_group_has_no_chains() -> None:
    made = pipeline()
    read = made.source("read", FolderSource("{path}"))
    mapped = made.operator("mapped", stateless(mode="dataframe")(same), read)
    made.writer("save", DatasetWriter("lake"), mapped)
    with pytest.raises(
        PipelineDefinitionError, match="'mapped' runs in mode 'dataframe': executors share its work already"
    ):
        made.replicate(made.group("many", mapped), partition=RoundRobin(), max=3)
        made.freeze()


def test_modes_mix_in_one_pipeline() -> None:
    made = pipeline()
    read = made.source("read", FolderSource("{path}"))
    mapped = made.operator("mapped", stateless(mode="dataframe")(same), read)
    counted = made.operator("counted", generate(same), mapped, window=EveryEvents(2))
    made.writer("save", DatasetWriter("lake", "counts", partition_by=("day",)), counted)
    made.freeze()
    assert made.operators["save"].writes() == {"lake": "idempotent"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"folder": "/abs"}, "give a relative path"),
        ({"folder": "a/../../b"}, "give a relative path"),
        ({"folder": "s3://b/x"}, "give a relative path"),
        ({"partition_by": "day"}, r"write \('day',\)"),
        ({"partition_by": ("day", "day")}, "day"),
    ],
)
def test_a_folder_that_leads_elsewhere_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        DatasetWriter("lake", **settings)


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_ranges_follow_each_other_to_the_end() -> None:
    source = Counter()
    action: dict[str, Any] | None = source.action({})
    ranges = []
    while action is not None:
        ranges.append((action["start"], action["end"]))
        action = source.next_action({}, {**action, "plan": {"limit": 25}})
    assert ranges == [(0, 10), (10, 20), (20, 25)]


def test_a_bounded_source_that_stops_short_of_its_end_is_refused() -> None:
    source = Counter()
    source.found = 7
    with pytest.raises(OperatorFailed, match=r"ends at offset 25 and finds nothing behind 7"):
        source.next_action({}, {"start": 0, "end": 7, "plan": {"limit": 25}})


def test_an_unbounded_source_waits() -> None:
    source = Counter()
    source.found = 10
    assert source.next_action({}, {"start": 0, "end": 10}) == {"start": 10, "end": 10}
