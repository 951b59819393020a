"""`by=` of a `DatasetWriter`: what it is, and which pipelines are refused with it, or without it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio import DatasetWriter, Days, FolderSource, Hours, OwnPartition, Pipeline, RoundRobin
from airflow_logio.dataflow.writers.run_shapes import writer_shapes
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.run_writers import Repeats, Together

DAY = Days("day", zone="Europe/Berlin")
OWNS = {"partition_by": ("day", "store"), "on_new_run": "overwrite", "by": ("day",)}


def writer(folder: str = "clicks", **changed: Any) -> DatasetWriter:
    return DatasetWriter("lake", folder, **{**OWNS, **changed})


def pipeline(*writers: DatasetWriter, partition: Any = DAY) -> Pipeline:
    made = Pipeline("clicks", partition=partition, connections=["lake"])
    web = made.source("web", FolderSource("/data/web"))
    for number, one in enumerate(writers):
        made.writer(f"keep{number or ''}", one, web)
    return made


def test_a_run_owns_the_folder_of_its_day() -> None:
    made = pipeline(writer("clicks"))
    run = made.for_run(made.check_params({}, DAY.key_of("2026-03-01")))
    kept = run.operators["keep"]
    assert isinstance(kept, DatasetWriter) and kept.closes and kept.scope == "day=2026-03-01"
    assert kept.opening() == {"mode": "overwrite", "scope": "day=2026-03-01"}
    assert writer().scope == "" and not DatasetWriter("lake").closes
    hourly = pipeline(writer(partition_by=("hour",), by=("hour",)), partition=Hours("hour"))
    hour = hourly.for_run(hourly.check_params({}, Hours("hour").key_of("2026-10-25T00Z"))).operators["keep"]
    assert isinstance(hour, DatasetWriter) and hour.scope == "hour=2026-10-25T00Z"


def test_runs_of_an_earlier_version_have_the_settings_that_they_had() -> None:
    assert DatasetWriter("lake", "clicks").settings() == {"connection": "lake", "folder": "clicks", "partition_by": []}
    overwriting = DatasetWriter("lake", "clicks", partition_by=("store",), on_new_run="overwrite").settings()
    assert not {"by", "empty", "closes"} & overwriting.keys()
    assert writer().settings()["by"] == ["day"] and writer(empty="replace").settings()["empty"] == "replace"


def test_runs_of_two_days_may_live_at_once_and_a_day_computed_again_is_replaced() -> None:
    (shape,) = writer_shapes({"keep": writer()}, {"lake": "lake_default"}, ("day", "day_start", "day_end"))
    assert (shape.together, shape.repeats) == (Together.BY_PARTITION, Repeats.REPLACED)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"by": "day"}, r"by is the single string 'day': write by=\('day',\)"),
        ({"on_new_run": "append"}, "on_new_run='append' replaces nothing: say on_new_run='overwrite'"),
        ({"on_new_run": "replace"}, "on_new_run='replace' replaces the whole folder"),
        ({"partition_by": ("store", "day")}, "come first in partition_by"),
        ({"partition_by": ("store",)}, "come first in partition_by"),
        ({"partition_by": ()}, "come first in partition_by"),
        ({"empty": "keep"}, "is none of 'refuse' and 'replace'"),
        ({"by": (), "empty": "replace"}, "is for writers with by, or with on_new_run=.supersede."),
    ],
)
def test_a_writer_that_could_own_no_day_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        writer(**changed)


def test_what_a_run_owns_is_what_its_partition_names() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"no partition: define it with partition=Days\('day', zone"):
        pipeline(writer(), partition=None).freeze()
    with pytest.raises(PipelineDefinitionError, match=r"pipeline is Days\('tag'\): write by=\('tag',\)"):
        pipeline(writer(), partition=Days("tag")).freeze()
    with pytest.raises(PipelineDefinitionError, match="names 2 columns; name one"):
        writer(by=("day", "store"))


def test_a_day_is_not_overwritten_by_late_records_of_it() -> None:
    """It lost 650 of 39,721 records of the day before, without a word."""
    with pytest.raises(
        PipelineDefinitionError, match=r"late records of another day would replace all of that. Say by="
    ):
        pipeline(writer(by=())).freeze()
    with pytest.raises(PipelineDefinitionError, match=r"Say by=\('day',\)"):
        pipeline(writer(by=(), partition_by=("store", "day"))).freeze()
    pipeline(writer(by=(), partition_by=("store",))).freeze()
    pipeline(writer(by=()), partition=None).freeze()
    pipeline(writer(by=(), on_new_run="append")).freeze()


def test_two_writers_do_not_own_one_folder() -> None:
    for other in (writer(), writer(by=(), partition_by=("store",)), DatasetWriter("lake", "clicks")):
        with pytest.raises(
            PipelineDefinitionError, match=r"'keep' and 'keep1' both write folder 'clicks'.*owns days of it"
        ):
            pipeline(writer(), other).freeze()
    pipeline(writer(), writer("others")).freeze()


def test_a_writer_in_a_replicated_group_owns_no_day() -> None:
    made = pipeline(writer())
    made.group("work", "keep")
    made.replicate("work", partition=RoundRobin(), max=2)
    with pytest.raises(PipelineDefinitionError, match="'work' is replicated, but its operator 'keep' closes"):
        made.freeze()


def test_the_example_of_the_design_is_a_pipeline() -> None:
    made = Pipeline("clicks", partition=DAY, connections=["lake"])
    web = made.source("web", FolderSource("/data/web/dt={day}"))
    own = made.operator("own", OwnPartition("day", on="ts", mode="dataframe"), web)
    made.writer("keep", writer(), own.port("own"))
    made.writer("late", DatasetWriter("lake", "late_clicks"), own.port("other"))
    made.freeze()
