"""Versions of a Delta table as a source that is read again as long as they are kept."""

from __future__ import annotations

# [START delta]
import os
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable

from airflow_logio import RangeSource
from airflow_logio.errors import SourceChanged


class DeltaVersions(RangeSource):
    """What each version of a Delta table has added, up to the version that a run finds when it begins; one event each.

    `table` is the parameter that has the table's folder. For tables that only grow.
    """

    def __init__(self, table: str) -> None:
        self.table = table

    def placeholders(self) -> frozenset[str]:
        return frozenset({self.table})

    def first(self, params: Mapping[str, Any]) -> int:
        return -1

    def last(self, params: Mapping[str, Any]) -> int:
        return DeltaTable(params[self.table]).version()

    def latest(self, params: Mapping[str, Any], start: int, limit: int | None) -> int:
        return start + 1

    def frame(self, spark: Any, params: Mapping[str, Any], start: int, end: int) -> Any:
        return spark.read.parquet(*self._added(params, end))

    def observed(self, params: Mapping[str, Any], start: int, end: int) -> None:
        """Asked before Spark reads, when it has read, and when it could not."""
        for file in self._added(params, end):
            if not os.path.exists(file):
                raise SourceChanged(
                    f"version {end} of {params[self.table]} was vacuumed: {file} is gone. Start a fresh run"
                )

    def _added(self, params: Mapping[str, Any], version: int) -> list[str]:
        files, before = self._files(params, version), self._files(params, version - 1)
        if before - files:
            raise SourceChanged(f"version {version} of {params[self.table]} has not only added records")
        return sorted(files - before)

    def _files(self, params: Mapping[str, Any], version: int) -> set[str]:
        return set(DeltaTable(params[self.table], version=version).file_uris()) if version >= 0 else set()


# [END delta]
