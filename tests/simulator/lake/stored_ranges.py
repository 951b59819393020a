"""The lake, whose source may change behind what was read: each range is stored before its event leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import Batch, Scenario
from tests.simulator.lake.scenarios import INPUT, RANGES, Ranges, Rows, expected_lake, lake, lake_scenario_of
from tests.simulator.lake.staging import StagingDatabase


class StoredRanges(Ranges):
    replayable = False


class RangeEffects:
    """The records of one range after the other; an offset counts records."""

    def __init__(self, ranges: Sequence[Rows]) -> None:
        self._ranges = ranges

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]:
        return [{"start": number, "end": number + 1} for number in range(len(self._ranges))]

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        records = self._ranges[action]
        return Batch(records[offset:], len(records) - offset, len(records)) if offset < len(records) else None


def stored_ranges_scenario() -> Scenario:
    made = lake_scenario_of(
        lake("stored", StoredRanges(), retention=None),
        RangeEffects(INPUT[:RANGES]),
        expected_lake,
        "datasets: ranges that are stored before they are used, then as in `lake`; lineage is kept for ever",
    )
    # Records reach the tables through the driver: staging is that of `lake`.
    plain = {name: ExternalSystem if make is StagingDatabase else make for name, make in made.externals.items()}
    return replace(made, externals=plain)
