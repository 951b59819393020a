"""Run parameters in names: substituted in every path and query, refused anywhere else, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.dataflow import (
    Count,
    DatasetWriter,
    FolderSource,
    Operator,
    ParquetSource,
    ParquetWriter,
    Pipeline,
    QuerySource,
    RoundRobin,
    TableRead,
    TableSource,
    TableWriter,
    stateless,
)
from airflow_logio.dataflow.placeholders import resolved
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError

PARAMS = {"day": str, "part": int, "out": str}


def pipeline_of(*operators: Operator) -> Pipeline:
    pipeline = Pipeline("daily", params=PARAMS, connections=["lake", "shop"])
    read = pipeline.source("read", ParquetSource("/data/{day}.parquet"))
    for number, operator in enumerate(operators):
        if operator.inputs:
            pipeline.writer(f"save_{number}", operator, read)  # type: ignore[arg-type]
        else:
            pipeline.sink(f"done_{number}", Count(), pipeline.source(f"read_{number}", operator))  # type: ignore[arg-type]
    pipeline.sink("done", Count(), read)
    return pipeline


def folder_of_run(writer: Any, **params: Any) -> str:
    run = pipeline_of(writer).for_run({"day": "2024-05-17", "part": 7, "out": "sales", **params})
    found = run.operators["save_0"]
    assert isinstance(found, DatasetWriter | ParquetWriter)
    return found.folder


WRITERS: list[Callable[..., Any]] = [DatasetWriter, ParquetWriter]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_s_folder_has_the_parameters_of_the_run_and_its_description_their_names(writer: Any) -> None:
    own = writer("lake", "x/dt={day}/{part}")
    pipeline = pipeline_of(own)
    run = pipeline.for_run({"day": "2024-05-17", "part": 7, "out": "-"})
    assert run.operators["save_0"].folder == "x/dt=2024-05-17/7"  # type: ignore[attr-defined]
    assert own.folder == "x/dt={day}/{part}" == pipeline.describe()["operators"]["save_0"]["settings"]["folder"]
    assert (run.describe(), run.fingerprint()) == (pipeline.describe(), pipeline.fingerprint())
    assert run.groups == pipeline.groups and run.operators["done"] is pipeline.operators["done"]
    assert folder_of_run(writer("lake", "{out}/dt={day}"), out="sales/daily") == "sales/daily/dt=2024-05-17"
    assert folder_of_run(writer("lake", "plain")) == "plain"
    assert folder_of_run(writer("lake", "{{x}}/{day}")) == "{x}/2024-05-17"
    assert folder_of_run(writer("lake", "{{x}}")) == "{x}", "as in the path of a source"


def test_without_parameters_in_names_a_run_has_the_pipeline_itself() -> None:
    pipeline = pipeline_of(DatasetWriter("lake", "x"))
    assert pipeline.for_run({"day": "a", "part": 1, "out": "b"}) is pipeline


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("folder", "params", "sentence"),
    [
        ("x/dt={day}", {"day": "2024/05/17"}, "has a '/', which would make several folders of one"),
        ("x/dt={day}", {"day": " "}, "is empty"),
        ("x/{day}", {"day": ".."}, "has a part that names no folder"),
        ("x/{day}", {"day": "a/../b"}, "has a part that names no folder"),
        ("x/{day}", {"day": "/etc"}, "has a part that names no folder"),
        ("{day}", {"day": "s3://other/place"}, "has a part that names no folder"),
        ("x/{day}", {"day": "a\nb"}, "has characters that cannot be printed"),
    ],
)
def test_a_value_that_would_make_another_folder_than_it_looks_is_refused_by_name(
    writer: Any, folder: str, params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        folder_of_run(writer("lake", folder), **params)
    assert repr(folder) in str(refused.value) and "'day'" in str(refused.value)


def test_a_parameter_without_a_value_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"folder 'x/\{day\}' needs run parameter 'day', which has no value"):
        pipeline_of(ParquetWriter("lake", "x/{day}")).for_run({})


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: DatasetWriter("lake", "x/{days}"), r"parameter 'days'.*Did you mean 'day'\?"),
        (lambda: ParquetWriter("lake", "x/{days}"), r"parameter 'days'.*Did you mean 'day'\?"),
        (lambda: FolderSource("/x/{days}"), r"parameter 'days'.*Did you mean 'day'\?"),
        (lambda: QuerySource("shop", "SELECT 1 AS a WHERE :days", columns={"a": "int"}), "parameter 'days'"),
        (lambda: DatasetWriter("lake", "x/{day:>8}"), "without format or conversion"),
        (lambda: ParquetWriter("lake", "x/{day"), "expected '}'"),
        (lambda: DatasetWriter("lake", "x/dt={{ ds }}"), r"template \{\{ ds \}\}, which Airflow fills in arguments"),
        (lambda: ParquetSource("/x/{{ params.day }}"), r"template \{\{ params.day \}\}"),
        (lambda: QuerySource("shop", "SELECT '{{ds}}' AS a", columns={"a": "text"}), r"template \{\{ds\}\}"),
        (lambda: DatasetWriter("lake", "x/dt=:day"), r"a path .* has :day, as queries name .* names it \{day\}"),
        (lambda: FolderSource("/x/:day"), r"has :day, as queries name a parameter"),
        (lambda: ParquetSource(["/a", "/x/:day"]), r"has :day, as queries name a parameter"),
        (lambda: QuerySource("shop", "SELECT '{day}' AS a", columns={"a": "text"}), r"has \{day\}.* names it :day"),
        (
            lambda: TableWriter("shop", "sales_{day}"),
            r"'sales_\{day\}' is not allowed: run parameters are for paths and",
        ),
        (lambda: TableSource("shop", "sales_{day}", append_only=True), "run parameters are for paths and queries"),
        (lambda: QuerySource("shop", table="sales_{day}"), "run parameters are for paths and queries"),
        (lambda: TableRead("shop", "sales_{day}"), "run parameters are for paths and queries"),
        (lambda: ParquetWriter("la{day}"), "connection name"),
        (lambda: DatasetWriter("lake", "x", partition_by=["{day}"]), "column name"),
    ],
)
def test_anywhere_else_a_parameter_is_refused_when_the_pipeline_is_defined(
    made: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(PipelineDefinitionError, match=sentence):
        pipeline_of(made())


def test_text_that_only_looks_like_a_parameter_stays() -> None:
    array = QuerySource("shop", "SELECT '{1,2}'::int[] AS a -- {day}", columns={"a": "text"})
    pipeline_of(array, FolderSource("/x/{{left}}/:other"))


def test_writers_that_meet_in_one_folder_of_a_run_are_refused() -> None:
    pipeline = pipeline_of(
        DatasetWriter("lake", "{out}", on_new_run="replace"), DatasetWriter("lake", "x/{day}", on_new_run="append")
    )
    with pytest.raises(PipelineDefinitionError, match=r"folders 'x' and 'x/y'.*one within the other"):
        pipeline.for_run({"day": "y", "part": 1, "out": "x"})
    pipeline.for_run({"day": "y", "part": 1, "out": "z"})


def test_beside_replicas_a_writer_has_the_folder_of_the_run(tmp_path: Path) -> None:
    pipeline = Pipeline("daily", params={"day": str}, connections=["lake"])
    read = pipeline.source("read", ParquetSource(str(tmp_path)))
    same = pipeline.operator("same", stateless(lambda rows: rows), read)
    pipeline.writer("save", ParquetWriter("lake", "x/{day}"), same)
    pipeline.replicate(pipeline.group("many", same), partition=RoundRobin(), max=2)
    run = pipeline.for_run({"day": "monday"})
    assert run.operators["save"].folder == "x/monday"  # type: ignore[attr-defined]
    assert list(run.operators) == list(pipeline.operators) and run.applications == pipeline.applications


def test_local_defaults_name_one_place_for_all_runs() -> None:
    with pytest.raises(PipelineDefinitionError, match="same for all runs"):
        pipeline_of().local_defaults(connections={"lake": "out/{day}"})


@pytest.mark.parametrize(
    "uri",
    [
        "s3://anna:gehe!m@bucket/x.parquet",
        "s3://anna:gehe!m/x@bucket/{day}",
        "s3://bucket/x?region=eu&secret_key=gehe!m",
        "hdfs://anna:gehe!m@namenode:8020/x",
        "abfs://account:gehe!m@container/x",
    ],
)
def test_a_path_with_a_secret_is_refused_before_anything_starts_and_not_repeated(uri: str) -> None:
    for source in (ParquetSource(uri), ParquetSource("{root}/x")):
        with pytest.raises(ConfigurationError, match="has a password or a key in it") as refused:
            source.action({"day": "monday", "root": uri.replace("{day}", "monday")})
        assert "gehe" not in str(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a:b@c?.parquet",
        "s3://bucket/x?endpoint_override=minio:9000&region=eu",
        "hdfs://anna@namenode:8020/a@b",
        "s3://bucket/keys?a.parquet",
    ],
)
def test_a_path_without_a_secret_stays(uri: str) -> None:
    assert resolved(uri, (), {}) == uri
