"""Operators of mode `dataframe`, sources of ranges and writers of datasets: what is refused when they are declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import (
    Count,
    DatasetWriter,
    EveryEvents,
    FolderSource,
    FunctionRead,
    ParquetSource,
    Pipeline,
    RangeSource,
    RoundRobin,
    Tumbling,
    Window,
    generate,
    stateless,
)
from airflow_logio.dataflow.functions.function_operators import FrameFunctionOperator
from airflow_logio.dataflow.functions.several_functions import SeveralFunctions
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator, windowed
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.testing import pipeline_scenario
from airflow_logio.testing.trial import try_events


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


def test_files_first_is_the_word_of_a_function_of_dataframes_and_no_part_of_the_graph() -> None:
    """So a run that was started without it resumes with it."""
    with pytest.raises(
        PipelineDefinitionError, match=r"'same' has materialize_input=True and mode 'driver'.* leave it out"
    ):
        stateless(materialize_input=True)(same)
    lazy, in_files = operator_of(same), operator_of(same, materialize_input=True)
    assert (lazy.materialize_input, in_files.materialize_input) == (False, True)
    assert lazy.describe() == in_files.describe()


# --- pipelines --------------------------------------------------------------------------------------------------------


def of_two(left: Any, right: Any) -> Any:
    return left


def with_read(orders: Any, prices: Any) -> Any:
    return orders


PRICES = FunctionRead("lake", lambda url, keys: pa.table({"id": [1]}), key="id")


class Mine(Window):
    """An author's own window, which looks at the records."""

    def initial_state(self) -> dict[str, Any]:
        return {}

    def assign(self, event: Any, state: dict[str, Any]) -> Mapping[str, Any]:
        return {"1": event.table}

    def part(self, event: Any, inset_id: str) -> Any:
        return event.table

    def triggered(self, state: Any, open_insets: Any) -> Any:
        return []

    def order(self, inset_id: str) -> str:
        return inset_id

    def describe(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: windowed(generate(mode="dataframe")(same), Mine()), "needs the records to say which Input Sets"),
        (
            lambda: generate(mode="dataframe", columns=("ts",), reads={"prices": PRICES})(with_read),
            "read 'prices' is restricted by key 'id', which is not among the columns",
        ),
        (lambda: generate(mode="dataframe", outputs=("a", "b"))(same), r"in mode 'dataframe' .*one output port"),
        (lambda: generate(mode="dataframe", accumulate=same)(same), r"in mode 'dataframe' .*no accumulate="),
        (
            lambda: generate(mode="dataframe", many=True)(lambda orders, inset_id: orders),
            "takes 'inset_id', which nothing fills",
        ),
        (
            lambda: windowed(generate(mode="dataframe", inputs=("left", "right"))(of_two), Tumbling("1h", on="ts")),
            "Tumbling is a window of one port",
        ),
        (
            lambda: SeveralFunctions({"one": windowed(generate(mode="dataframe")(same), EveryEvents(2))}),
            "is one of several of an operator and has mode 'dataframe'",
        ),
        (lambda: Tumbling("1h", on="ts", windows_per_event=0), "windows_per_event is 0; give a whole number"),
    ],
)
def test_windows_that_datasets_do_not_suit_are_refused(made: Callable[[], Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        made()


def test_a_window_has_a_bound_in_mode_dataframe_which_may_change_while_a_run_lasts() -> None:
    window = Tumbling("1h", on="ts")
    operator = windowed(generate(mode="dataframe")(same), window)
    assert isinstance(operator, FrameWindowOperator)
    grid = operator.window.grid()
    assert grid is not None and grid.most == 10_000
    assert window.grid().most is None, "as before in other modes"
    wider = windowed(generate(mode="dataframe")(same), Tumbling("1h", on="ts", windows_per_event=20_000))
    assert wider.describe() == operator.describe()


def test_what_is_returned_from_input_sets_must_be_a_dataframe() -> None:
    operator = windowed(generate(mode="dataframe")(lambda orders: [orders]), EveryEvents(2))
    assert isinstance(operator, FrameWindowOperator)
    with pytest.raises(OperatorFailed, match="returned list; in mode 'dataframe' return a DataFrame of Spark"):
        operator.run_on({"in": DataFrame("id")}, {}, {})


def test_quarantine_and_event_ids_are_refused_with_the_way_out() -> None:
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


def test_windows_over_datasets_are_not_simulated_and_not_tried(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "0.parquet")
    made = pipeline()
    read = made.source("read", ParquetSource("{path}", records_per_event=1))
    made.sink("done", Count(), made.operator("pairs", generate(mode="dataframe")(same), read, window=EveryEvents(2)))
    params = {"path": str(tmp_path / "0.parquet")}
    with pytest.raises(PipelineDefinitionError, match="'pairs' has mode dataframe, which needs a Spark session"):
        pipeline_scenario(made, params=params)
    connections = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0, params=params)
    tried = try_events(made, params, connections, 1)
    assert (tried.left_out, tried.problem) == (["pairs", "done"], None)


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
        ({"on_new_run": "relpace"}, r"on_new_run='relpace' is none of .*Did you mean 'replace'"),
        ({"on_new_run": "overwrite"}, "replaces partitions, and there is no partition_by"),
    ],
)
def test_a_folder_that_leads_elsewhere_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        DatasetWriter("lake", **settings)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (("a", "replace"), ("a", "append"), r"both write folder 'a' of 'lake' with on_new_run 'replace' and 'append'"),
        (("a/b", "append"), ("a", "replace"), r"folders 'a' and 'a/b' of 'lake', one within the other"),
        (("", "error"), ("a", "error"), r"folders '' and 'a' of 'lake', one within the other"),
        (("a", "replace"), ("a", "replace"), None),
        (("a", "replace"), ("ab", "append"), None),
        (("a", "append"), ("a/b", "replace"), None),
    ],
)
def test_folders_of_one_run_must_not_undo_each_other(one: Any, other: Any, says: str | None) -> None:
    made = pipeline()
    read = made.source("read", FolderSource("{path}"))
    for name, (folder, on_new_run) in {"one": one, "other": other}.items():
        made.writer(name, DatasetWriter("lake", folder, on_new_run=on_new_run), read)
    if says is None:
        made.freeze()
        return
    with pytest.raises(PipelineDefinitionError, match=says):
        made.freeze()


def test_a_writer_that_appends_is_that_of_an_earlier_version() -> None:
    """So runs that were started with it resume."""
    assert "on_new_run" not in DatasetWriter("lake", "a").settings()
    assert DatasetWriter("lake", "a").opening() is None
    assert DatasetWriter("lake", "a", on_new_run="replace").settings()["on_new_run"] == "replace"


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
