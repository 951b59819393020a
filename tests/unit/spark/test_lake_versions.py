"""Pinned versions of a Delta table: read again as long as they are kept, and said to have changed when they were vacuumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_logio import DatasetWriter
from airflow_logio.crash import CrashPoint
from airflow_logio.driver import committer
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import SourceChanged
from tests.support.bundle.delta_versions import DeltaVersions
from tests.unit.spark.test_spark_sources import Reading, kill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

VERSIONS, RECORDS = 3, 10


def ids(version: int) -> range:
    return range(version * RECORDS, (version + 1) * RECORDS)


def reading(root: Path, sessions: SparkSessions, source: type[DeltaVersions] = DeltaVersions) -> Reading:
    """A group that publishes a table of three versions."""
    one = Reading(root, sessions, source("orders"))
    for version in range(VERSIONS):
        write_deltalake(one.orders, pa.table({"id": pa.array(ids(version), pa.int64())}), mode="append")
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    one.names = ("save",)
    return one


@pytest.fixture
def dead(tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Its driver has published something, and was killed before it committed the rest."""
    one = reading(tmp_path, sessions)
    with monkeypatch.context() as patch:
        kill(patch, committer, CrashPoint.BEFORE_COMMIT, 3)
        one.die()
    return one


def compacted(table: Path | str, *, vacuumed: bool) -> None:
    """Its files become one; those that were are kept, or removed."""
    found = DeltaTable(table)
    found.optimize.compact()
    if vacuumed:
        assert found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_a_pinned_version_is_read_again_whatever_has_become_of_the_table(dead: Reading) -> None:
    write_deltalake(dead.orders, pa.table({"id": pa.array([10**6], pa.int64())}), mode="append")
    compacted(dead.orders, vacuumed=False)
    dead.finish()
    assert sorted(row["id"] for row in dead.published("out")) == list(range(VERSIONS * RECORDS))


def test_a_version_that_was_vacuumed_is_a_source_that_has_changed(dead: Reading) -> None:
    compacted(dead.orders, vacuumed=True)
    with pytest.raises(SourceChanged, match=r"version \d of .*/orders was vacuumed: .*\.parquet is gone"):
        dead.run(*dead.names)


class VacuumedMeanwhile(DeltaVersions):
    """Vacuumed between the plan and the job, when Spark alone notices."""

    def frame(self, spark: Any, params: Mapping[str, Any], start: int, end: int) -> Any:
        frame = super().frame(spark, params, start, end)
        if end == 1:
            compacted(params[self.table], vacuumed=True)
        return frame


class StoredAndVacuumedMeanwhile(VacuumedMeanwhile):
    """Its effects are stored before they are used."""

    replayable = False


@pytest.mark.parametrize("source", [VacuumedMeanwhile, StoredAndVacuumedMeanwhile])
def test_a_version_that_is_vacuumed_while_spark_reads_has_changed_and_nobody_has_failed(
    source: type[DeltaVersions], tmp_path: Path, sessions: SparkSessions
) -> None:
    one = reading(tmp_path, sessions, source)
    with pytest.raises(SourceChanged, match=r"version 1 of .*/orders was vacuumed: .*\.parquet is gone"):
        one.run(*one.names)
    assert {row["id"] for row in one.published("out")} <= set(ids(0))
