"""`SparkSource`: what is refused when it is declared, and where the order of its records must be known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_logio import (
    DatasetWriter,
    EveryEvents,
    ParquetSource,
    Pipeline,
    SparkSource,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.dataflow.quantities import byte_size
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError


class DataFrame:
    """What a DataFrame of Spark looks like from outside."""

    __module__ = "pyspark.sql.classic.dataframe"

    def __init__(self, said: Any = None, *, streaming: bool = False) -> None:
        self.said, self.isStreaming = said, streaming


def orders(spark: Any) -> Any:
    return DataFrame(spark)


# --- the function -----------------------------------------------------------------------------------------------------


def test_a_function_gets_the_session_and_the_parameters_that_it_asks_for() -> None:
    def of_day(spark: Any, params: Mapping[str, Any]) -> Any:
        return DataFrame((spark, params["day"]))

    assert SparkSource(orders).frame("session", {"day": "x"}).said == "session"
    assert SparkSource(of_day).frame("session", {"day": "x"}).said == ("session", "x")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, r"function '.*made' of a SparkSource returned NoneType; return a DataFrame of Spark"),
        ([1], r"returned list; return a DataFrame"),
        (DataFrame(streaming=True), r"a streaming DataFrame, which never ends: use spark\.read"),
    ],
)
def test_anything_but_a_dataframe_that_ends_is_refused(returned: Any, says: str) -> None:
    def made(spark: Any) -> Any:
        return returned

    with pytest.raises(OperatorFailed, match=says):
        SparkSource(made).frame(None, {})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"read": "orders"}, r"read is 'orders'; give a function read\(spark\)"),
        ({"read": DataFrame}, r"give a function read\(spark\)"),
        ({"read": lambda: None}, r"cannot be called as read\(spark\) or read\(spark, params\): too many"),
        ({"read": lambda spark, day: None}, r"cannot be called as .*'day'"),
        ({"ordered_by": "a.b"}, "column name 'a.b' is not allowed"),
        ({"ordered_by": ("ts",)}, "is not allowed"),
        ({"bytes_per_event": "lots"}, r"bytes_per_event is 'lots'; write '256 MB'"),
        ({"bytes_per_event": 1.5}, r"write '256 MB'"),
        ({"bytes_per_event": True}, r"write '256 MB'"),
        ({"bytes_per_event": "0 MB"}, "give at least 1,000 bytes"),
        ({"unavailable": "no"}, "unavailable has 'no'; give classes of errors"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        SparkSource(**{"read": orders, **settings})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256 MB", 256_000_000),
        ("1.5GiB", 3 * 2**29),
        ("64 kB", 64_000),
        ("64 KiB", 65_536),
        (5_000, 5_000),
        ("9999 B", 9_999),
    ],
)
def test_sizes_are_read_as_they_are_written(text: str | int, size: int) -> None:
    assert byte_size("it", text) == size


def test_what_is_logged_and_what_makes_another_pipeline() -> None:
    one = SparkSource(orders, ordered_by="ts", bytes_per_event="32 MB")
    assert one.action({"day": 1}) == {"read": "orders", "ordered_by": "ts"}
    assert one.next_action({}, one.action({})) is None
    assert not one.replayable
    assert one.settings() == {"read": "orders", "ordered_by": "ts", "bytes_per_event": 32_000_000}
    assert SparkSource(orders, unavailable=(LookupError,)).settings() == SparkSource(orders).settings()


# --- the order --------------------------------------------------------------------------------------------------------


def same(records: Any) -> Any:
    return records


def behind(source: Any, *windows: Any) -> Pipeline:
    """A window behind an operator of mode ``dataframe``; several are functions of one operator."""
    made = Pipeline("p", params={"path": str}, connections=["lake"])
    mapped = made.operator("mapped", stateless(mode="dataframe")(same), made.source("read", source))
    if len(windows) == 1:
        counted = made.operator("counted", generate(same), mapped, window=windows[0])
        made.writer("save", DatasetWriter("lake"), counted)
    else:
        made.operator("counted", {f"f{n}": (generate(same), one) for n, one in enumerate(windows)}, mapped)
        for number in range(len(windows)):
            made.writer(f"save{number}", DatasetWriter("lake", str(number)), f"counted.f{number}")
    return made


@pytest.mark.parametrize("windows", [(Tumbling("1d", on="ts"),), (EveryEvents(2), Tumbling("1h", on="ts"))])
def test_windows_of_time_need_an_order(windows: tuple[Any, ...]) -> None:
    says = (
        r"operator 'counted' collects windows by 'ts', which close when a later record comes, and the records of source "
        r"'read' come in any order: write SparkSource\(\.\.\., ordered_by='ts'\)"
    )
    with pytest.raises(PipelineDefinitionError, match=says):
        behind(SparkSource(orders), *windows).freeze()
    behind(SparkSource(orders, ordered_by="ts"), *windows).freeze()
    behind(SparkSource(orders, ordered_by="placed_at"), *windows).freeze()


def test_windows_that_count_need_none() -> None:
    behind(SparkSource(orders), EveryEvents(3)).freeze()
    behind(ParquetSource("{path}", records_per_event=1), Tumbling("1d", on="ts")).freeze()
