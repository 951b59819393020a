"""What a source waits for: how it is said, and when what lies in a file system is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import (
    Count,
    FolderSource,
    ParquetSource,
    Pipeline,
    QuerySource,
    SourceBatch,
    SourceOperator,
    SparkSource,
    TableSource,
)
from airflow_logio.dataflow.sources.arrival import Awaited, InputArrival, awaited_by
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, PipelineDefinitionError
from airflow_logio.systems.payloads import Payloads
from tests.support.object_store import ObjectStore
from tests.support.publishers import DayPublisher, Publisher


def written(path: Path, *numbers: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": list(numbers)}), path)
    return path


class Unknowing(SourceOperator):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from ()


class Knowing(Unknowing):
    def missing(self, params: Mapping[str, Any]) -> str | None:
        return "the till is open"


def declared(source: SourceOperator, **said: Any) -> InputArrival | None:
    pipeline = Pipeline("p", params={"data": str, "day": str}, connections=["shop"])
    pipeline.sink("done", Count(), pipeline.source("read", source, **said))
    return pipeline.arrivals.get("read")


FILE, FOLDER = ParquetSource("{data}/{day}.parquet"), FolderSource("{data}/{day}")
QUERY = QuerySource("shop", "SELECT 1 AS n", columns={"n": "bigint"})
TABLE = TableSource("shop", "sale", append_only=True)
SPARK = SparkSource(lambda spark: spark.range(1))


@pytest.mark.parametrize("source", [FILE, FOLDER, QUERY, TABLE, Knowing()])
def test_sources_that_find_out_wait_for_what_they_read(source: SourceOperator) -> None:
    assert declared(source) is None and declared(source, on_empty="finish") is None
    assert declared(source, wait="6h") == InputArrival("6h")


@pytest.mark.parametrize("source", [FILE, FOLDER, QUERY, TABLE, SPARK, Unknowing(), Knowing()])
def test_any_source_waits_for_a_path_that_its_author_names(source: SourceOperator) -> None:
    found = declared(source, wait="30m", ready="{data}/dt={day}/_SUCCESS")
    assert found is not None and (found.seconds, found.query) == (1800.0, None)
    (place,) = awaited_by(source, found, {"data": "/d", "day": "2026-03-01"})
    assert place == Awaited("path", "/d/dt=2026-03-01/_SUCCESS")


@pytest.mark.parametrize("source", [QUERY, TABLE])
def test_a_source_of_a_database_waits_for_a_row_of_a_query(source: SourceOperator) -> None:
    found = declared(source, wait="1d", ready="\n select 1 FROM loads WHERE day = :day")
    assert found is not None and found.query is not None and found.placeholders() == {"day"}
    assert awaited_by(source, found, {"day": "x"}) == []


@pytest.mark.parametrize(
    ("source", "said", "why"),
    [
        (FILE, {"wait": "6"}, "source 'read': wait '6' is not understood: write '30m', '6h' or '1d'"),
        (FILE, {"wait": 6}, "wait 6 is not understood"),
        (FILE, {"wait": "999999999w"}, "wait '999999999w' is more than a year"),
        (FILE, {"ready": "x"}, "ready=.* is what wait= waits for"),
        (FILE, {"wait": "6h", "ready": ""}, "ready is ''; give a string"),
        (FILE, {"wait": "6h", "ready": "{{ ds }}/x"}, "ready .* has the template"),
        (
            FILE,
            {"wait": "6h", "ready": "{dai}/x"},
            "ready of source 'read' refers to parameter 'dai'.*Did you mean 'day'",
        ),
        (QUERY, {"wait": "6h", "ready": "SELECT :dy"}, "refers to parameter 'dy'.*Did you mean 'day'"),
        (QUERY, {"wait": "6h", "ready": "SELECT 1; DELETE FROM loads"}, "one SELECT"),
        (FILE, {"wait": "6h", "ready": "SELECT 1"}, "a ParquetSource has no SQL connection to ask"),
        (SPARK, {"wait": "6h"}, "a SparkSource cannot tell before a run .*ready="),
        (Unknowing(), {"wait": "6h"}, r"or define missing\(\) in its class"),
        (FILE, {"on_empty": "fial"}, "on_empty 'fial' is neither 'finish' nor 'fail'. Did you mean 'fail'"),
        (SPARK, {"on_empty": "fail"}, "whether a SparkSource has rows is not known before a run"),
        (Knowing(), {"on_empty": "fail"}, "whether a Knowing has rows"),
        (FolderSource("x", unbounded=True), {"on_empty": "fail"}, "unbounded"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_by_source(source: SourceOperator, said: dict[str, Any], why: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=why):
        declared(source, **said)


def test_how_long_is_waited_makes_no_other_pipeline() -> None:
    def fingerprint(**said: Any) -> dict[str, str]:
        pipeline = Pipeline("p", params={"data": str, "day": str})
        pipeline.sink("done", Count(), pipeline.source("read", FILE, **said))
        return pipeline.fingerprint()

    assert fingerprint() == fingerprint(wait="6h", ready="{data}/_SUCCESS", on_empty="fail")


# --- files and folders ------------------------------------------------------------------------------------------------


def test_a_file_is_there_when_all_of_it_is(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.parquet", 1, 2).read_bytes()
    path = tmp_path / "in" / "a.parquet"
    place = Awaited("parquet", str(path))
    assert place.missing() == f"{path} is not there", "nor is its folder"
    path.parent.mkdir()
    assert place.missing() == f"{path} is not there"
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert f"{path} is not there as a whole" in str(place.missing()), size
    path.write_bytes(whole)
    assert place.missing() is None and place.has_rows()


def test_a_pattern_is_there_when_a_file_matches_and_each_is_whole(tmp_path: Path) -> None:
    place = Awaited("parquet", f"{tmp_path}/in/*.parquet")
    assert place.missing() == f"no file matches {tmp_path}/in/*.parquet"
    written(tmp_path / "in" / "a.parquet")
    written(tmp_path / "in" / ".b.parquet", 1)
    assert place.missing() is None
    assert not place.has_rows(), "what a pattern does not match does not count"
    (tmp_path / "in" / "c.parquet").write_bytes(b"PAR1")
    assert f"{tmp_path}/in/c.parquet is not there as a whole" in str(place.missing())
    written(tmp_path / "in" / "c.parquet", 1)
    assert place.missing() is None and place.has_rows()


def test_a_folder_is_there_when_it_has_a_file_and_each_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (place,) = awaited_by(FolderSource(str(folder)), InputArrival("1h"), {})
    assert place.missing() == f"the folder {folder} is not there"
    folder.mkdir()
    (endless,) = awaited_by(FolderSource(str(folder), unbounded=True), InputArrival("1h"), {})
    assert endless.missing() is None, "its files come while it runs"
    assert place.missing() == f"the folder {folder} has no file yet"
    written(folder / "_a.parquet", 1)
    assert place.missing() == f"the folder {folder} has no file yet"
    (folder / "a.parquet").write_bytes(b"PAR1")
    assert f"{folder}/a.parquet is not there as a whole" in str(place.missing())
    written(folder / "a.parquet")
    assert place.missing() is None and not place.has_rows()
    written(folder / "b.parquet", 1)
    assert place.has_rows()
    (folder / "dt=1").mkdir()
    with pytest.raises(ConfigurationError, match="name one partition"):
        place.missing()


def test_a_published_folder_is_there_when_a_run_has_published_into_it(tmp_path: Path) -> None:
    payloads, lake = Payloads(str(tmp_path / "payloads")), tmp_path / "lake"
    lake.mkdir()
    place = Awaited("published", f"{lake}/orders")
    assert place.missing() == f"no run has published into {lake}/orders yet"
    run = Publisher(lake, payloads, 1)
    run.publish(*run.opening())
    assert place.missing() == f"no run has published into {lake}/orders yet", "it has begun, and published nothing"
    run.publish(run.action(2, [(1, 7)]))
    assert place.missing() is None and place.has_rows()
    other = Awaited("published", f"{lake}/orders/store=8")
    assert other.missing() == f"no run has published into {lake}/orders/store=8 yet"


def test_a_closed_day_is_there_as_a_whole_also_without_rows(tmp_path: Path) -> None:
    payloads, lake = Payloads(str(tmp_path / "payloads")), tmp_path / "lake"
    lake.mkdir()
    day = DayPublisher(lake, payloads, 1, may_be_empty=True)
    (place,) = awaited_by(FolderSource(f"{lake}/orders/store=1", published=True), InputArrival("1h"), {})
    day.open_day()
    assert place.missing() is not None, "what a day has is held until all of it is there"
    day.close_day()
    assert place.missing() is None and not place.has_rows()
    again = DayPublisher(lake, payloads, 2)
    again.open_day()
    again.close_day(again.action(2, [(1, 1)]))
    assert place.missing() is None and place.has_rows()


def test_a_marker_is_a_file_a_folder_or_a_pattern(tmp_path: Path) -> None:
    for name, path in (("_SUCCESS", "_SUCCESS"), ("part.done", "*.done"), ("folder", "folder")):
        place = Awaited("path", f"{tmp_path}/in/{path}")
        assert place.missing() is not None
        (tmp_path / "in").mkdir(exist_ok=True)
        assert place.missing() is not None
        (tmp_path / "in" / name).touch() if "." in name or name.isupper() else (tmp_path / "in" / name).mkdir()
        if name != "_SUCCESS":
            assert place.missing() is None
    assert Awaited("path", f"{tmp_path}/in/_SUCCESS").missing() is None


@pytest.mark.parametrize("break_it", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"")])
def test_what_time_does_not_mend_is_refused_at_once(tmp_path: Path, break_it: Callable[[Path], object]) -> None:
    path = tmp_path / "a.parquet"
    break_it(path)
    if path.is_dir():
        with pytest.raises(ConfigurationError, match=f"{path} cannot be read: .*[Ii]s a directory"):
            Awaited("parquet", str(path)).missing()
        return
    if os.getuid():
        path.chmod(0)
        with pytest.raises(ConfigurationError, match=f"{path} cannot be read: .*Permission denied"):
            Awaited("parquet", str(path)).missing()
    with pytest.raises(ConfigurationError, match="no file can have the name"):
        Awaited("path", f"{path}\0").missing()


def test_a_bucket_is_looked_into(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in objects.variables.items():
        monkeypatch.setenv(name, value)
    bucket, files = objects.new_bucket(), objects.files()
    marker, file, pattern = (f"s3://{bucket}/dt=1/{name}" for name in ("_SUCCESS", "a.parquet", "*.parquet"))
    assert Awaited("path", marker).missing() == f"{marker} is not there"
    assert Awaited("parquet", file).missing() == f"{file} is not there"
    assert Awaited("parquet", pattern).missing() == f"no file matches {pattern}"
    pq.write_table(pa.table({"n": [1]}), f"{bucket}/dt=1/a.parquet", filesystem=files)
    with files.open_output_stream(f"{bucket}/dt=1/_SUCCESS"):
        pass
    assert Awaited("path", marker).missing() is None
    for path in (file, pattern):
        assert Awaited("parquet", path).missing() is None and Awaited("parquet", path).has_rows()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for kind, path in (("path", marker), ("parquet", file), ("parquet", pattern)):
        with pytest.raises(ExternalUnavailable, match="cannot be looked for"):
            Awaited(kind, path).missing()
