"""Starting a run: what must be configured for it is said before the log knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import (
    Count,
    DatasetWriter,
    Days,
    FolderSource,
    ParquetSource,
    Pipeline,
    RoundRobin,
    SourceBatch,
    SourceOperator,
    TableWriter,
)
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch import bundle
from airflow_logio.launch.start_run import run_spec

EXCHANGE = bundle.parse_ref(f"{Path(__file__).parents[2] / 'support' / 'bundle' / 'exchange.py'}:exchange")


def start(payloads: str | None) -> dict[str, object]:
    spec = run_spec(
        bundle.load(EXCHANGE),
        EXCHANGE,
        dag_id="tests",
        dag_run_id="run",
        params={"padding": 0},
        connections={"exchange": "exchange", "warehouse": "warehouse"},
        payloads=payloads,
    )
    return dict(spec.actions)


def test_a_source_that_cannot_be_replayed_needs_a_payload_store() -> None:
    with pytest.raises(ConfigurationError) as caught:
        start(None)
    for words in (
        "source 'feed' of pipeline 'exchange'",
        "no payload store",
        "`payloads`",
        "[payloads]",
        "s3://bucket/folder",
    ):
        assert words in str(caught.value)


def test_the_first_read_action_is_asked_for_when_the_run_starts() -> None:
    assert start("/somewhere") == {"feed": {"part": 0}}


@pytest.mark.parametrize(
    ("payloads", "says"),
    [
        (None, r"mode 'dataframe': .* has no payload store"),
        (
            "s3a://bucket/folder",
            r"s3a://\.\.\. is refused: write s3://bucket/path.* where datasets \(mode 'dataframe'\)",
        ),
        ("s3://a:geheim@bucket/folder", r"has no bucket, or a user, a password or a port"),
        ("sftp://host/folder", r"is no place for datasets"),
        ("/data/run[1]/{x}", r"/data/run\[1\]/\{x\} has \[ \] \{ \} in its path, which Spark takes for a pattern"),
    ],
)
def test_a_group_of_data_frames_needs_a_folder_or_a_bucket_that_spark_reads(payloads: str | None, says: str) -> None:
    ref = bundle.parse_ref(f"{Path(__file__).parents[2] / 'bench' / 'pipelines' / 'orders.py'}:windows")
    with pytest.raises(ConfigurationError, match=says):
        run_spec(
            bundle.load(ref),
            ref,
            dag_id="tests",
            dag_run_id="run",
            params={"orders": "/orders", "products": "/products"},
            connections={"lake": "lake"},
            payloads=payloads,
        )


class Late(SourceOperator):
    """Looks at its file when a run is started."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"bytes": Path(params["path"]).stat().st_size}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from ()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Late(), r"source 'late' cannot say what it reads: FileNotFoundError.*/today.*not there yet"),
        (ParquetSource("{path}"), r"source 'late': cannot read Parquet file '.*/today'.*No such file"),
        (ParquetSource("{path}/*.parquet"), r"source 'late': no file matches .*/today/\*\.parquet"),
        (FolderSource("{path}"), r"source 'late': the folder .*/today cannot be read.*No such file"),
    ],
)
def test_input_that_is_not_there_is_told_by_source_and_path_before_a_run_and_found_when_it_is(
    source: SourceOperator, says: str, tmp_path: Path
) -> None:
    """By `start_run` in Airflow, whose retries ask again, and before any driver is launched."""
    pipeline = Pipeline("waiting", params={"path": str})
    pipeline.sink("done", Count(), pipeline.source("late", source))
    today = tmp_path / "today"

    def begin() -> object:
        settings: dict[str, Any] = {
            "dag_id": "tests",
            "dag_run_id": "run",
            "connections": {},
            "payloads": str(tmp_path),
        }
        return run_spec(pipeline, EXCHANGE, params={"path": str(today)}, **settings).actions["late"]

    with pytest.raises(ConfigurationError, match=f"(?s){says}"):
        begin()
    if isinstance(source, FolderSource) or "*" in str(getattr(source, "path", "")):
        today.mkdir()
        pq.write_table(pa.table({"n": [1]}), today / "a.parquet")
    else:
        pq.write_table(pa.table({"n": [1]}), today)
    assert begin()


def test_a_run_keeps_what_other_runs_see_of_its_writers_and_how_many_drivers_there_may_be(tmp_path: Path) -> None:
    """Once for a writer that has replicas. None of it is part of the graph: runs of earlier versions resume."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "day.parquet")

    def pipeline(bound: int | None, keep: str | None = None) -> Pipeline:
        partition, connections = Days("day"), ["lake", "crm"]
        made = Pipeline("daily", partition=partition, connections=connections, drivers_at_once=bound, keep_runs=keep)
        read = made.source("read", ParquetSource(str(tmp_path / "day.parquet")))
        made.writer("save", DatasetWriter("lake", "sales/dt={day}", on_new_run="replace"), read)
        made.writer("each", TableWriter("crm", "each", on_new_run="append"), read)
        made.group("slots", "each")
        made.replicate("slots", partition=RoundRobin(slots=4), max=2)
        return made

    spec = run_spec(
        pipeline(3, "90d"),
        EXCHANGE,
        dag_id="tests",
        dag_run_id="run",
        params={},
        partition=Days("day").key_of("2026-03-01"),
        connections={"lake": "lake_id", "crm": "crm_id"},
        payloads=str(tmp_path),
    )
    assert spec.writers is not None
    assert {(one.writer, one.place, str(one.together), str(one.repeats)) for one in spec.writers} == {
        ("save", ("lake_id", "sales", "dt=2026-03-01"), "never", "replaced"),
        ("each", ("crm_id", "each"), "always", "added"),
    }
    assert len(spec.writers) == 2 and spec.drivers_at_once == 3
    assert spec.keep_seconds == 90 * 86_400 and pipeline(None).keep_seconds is None
    assert pipeline(None).fingerprint() == pipeline(3, "1h").fingerprint() and pipeline(None).drivers_at_once is None
    with pytest.raises(PipelineDefinitionError, match=r"keep_runs is '59m': give at least '1h'"):
        pipeline(None, "59m")
    for wrong in ("0d", "90", "never", 90, "-1d"):
        with pytest.raises(
            PipelineDefinitionError, match=r"keep_runs .* is not understood: write '90d', '12h' or '26w'"
        ):
            pipeline(None, wrong)  # type: ignore[arg-type]
    for wrong in (0, -1, True, "4"):
        with pytest.raises(PipelineDefinitionError, match="drivers_at_once is"):
            pipeline(wrong)  # type: ignore[arg-type]
