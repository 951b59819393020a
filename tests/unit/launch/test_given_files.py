"""Jars, files, archives and Python files that are not there are refused before anything starts; the rest is Spark's."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.dataflow import Count, Pipeline, SparkSource
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import spark_submit
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import check, group_properties

ARGUMENTS = {
    "jars": "spark.jars",
    "files": "spark.files",
    "archives": "spark.archives",
    "py_files": "spark.submit.pyFiles",
}


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for afterwards."""
    monkeypatch.setattr(spark_submit, "check_java", lambda: None)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("a.jar", "b c.jar", "d#e.jar"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("connect", [False, True], ids=["driver", "server"])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_missing_file_is_named_with_what_gives_it(argument: str, connect: bool, here: Path) -> None:
    missing = f"{here}/missing.jar"
    for given in (f"{here}/a.jar, {missing}", f"file:{missing}", f"file://{missing}#alias"):
        if connect and argument == "py_files" and ":" in given:
            continue  # refused by its form already
        with pytest.raises(ConfigurationError, match=rf"^{argument} has .*missing.jar.* is not there on this machine"):
            check(SparkSettings(connect=connect, **{argument: given}))  # type: ignore[arg-type]
    named = ARGUMENTS[argument]
    with pytest.raises(ConfigurationError, match=rf"^{named} has .*missing.jar, which is not there on this machine"):
        check(SparkSettings(connect=connect, conf={named: missing}))
    there = {argument: f"{here}/a.jar"}
    check(SparkSettings(connect=connect, conf={named: missing}, **there))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "{here}/b c.jar",
        "file:{here}/b%20c.jar",
        "file://{here}/a.jar",
        "{here}/a.jar#alias",
        "{here}/d#e.jar",
        "{here}/*.jar",
        "{here}/[^b]*.jar#alias",
        "{here}/{{a}}.jar",
        "hdfs://name/missing.jar",
        "https://host/missing.jar",
        "s3a://bucket/*.jar",
        "local:/missing.jar",
        "ivy://org.example:it:1.0",
        "missing.jar",
        " , ",
    ],
)
def test_what_is_there_or_elsewhere_is_not_refused(given: str, here: Path) -> None:
    check(SparkSettings(jars=given.format(here=here)))


@pytest.mark.parametrize("given", ["{here}/*.zip", "{here}/f?lder", "{here}/folder", "{here}/[^abd]*.jar"])
def test_a_pattern_without_a_file_and_a_folder_are_no_jars(given: str, here: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^jars has .* (matches no file|is not a file) on this machine"):
        check(SparkSettings(jars=given.format(here=here)))
    if given.endswith("lder"):
        check(SparkSettings(py_files=given.format(here=here)))


def test_those_of_a_group_are_refused_by_its_name(here: Path) -> None:
    pipeline = Pipeline("work")
    rows = pipeline.source("raw", SparkSource(lambda spark: spark.range(1)))
    pipeline.group("all", rows, pipeline.sink("done", Count(), rows), spark={"spark.jars": f"{here}/missing.jar"})
    with pytest.raises(ConfigurationError, match=r"group 'all' of pipeline 'work': spark.jars has .*missing.jar"):
        group_properties(SparkSettings(), pipeline, "all")
    group_properties(SparkSettings(jars=f"{here}/a.jar"), pipeline, "all")
