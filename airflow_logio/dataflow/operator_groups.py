"""Operator groups: operators that share one Spark application and fail together (Section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_logio.dataflow.names import check_name, did_you_mean
from airflow_logio.errors import PipelineDefinitionError

MOST_JOBS_AT_ONCE = 64
"""Each needs a thread of the driver, and memory for a plan."""


@dataclass(frozen=True, slots=True)
class Group:
    """`operators` in topological order, and the group's own Spark settings (an Airflow operator may override them).

    Raises PipelineDefinitionError for an illegal name, an empty group, a setting that is no ``spark.`` property, or a number
    of jobs or standbys that is none.
    """

    name: str
    operators: tuple[str, ...]
    spark: Mapping[str, str] = field(default_factory=dict)
    jobs_at_once: int | None = None
    """Events that are evaluated side by side in mode ``dataframe`` (ADR-92). None: what the cluster has room for."""
    standby: int = 0
    """How many processes stand by to take the place of its driver: none, or one (ADR-108)."""

    def __post_init__(self) -> None:
        check_name("group", self.name)
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "spark", dict(self.spark))
        if not self.operators:
            raise PipelineDefinitionError(f"group {self.name!r} has no operators")
        for key, value in self.spark.items():
            self._check_setting(key, value)
        jobs: object = self.jobs_at_once
        if jobs is not None and (
            isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MOST_JOBS_AT_ONCE
        ):
            raise PipelineDefinitionError(
                f"group {self.name!r}: jobs_at_once is {jobs!r}; give a number from 1 to {MOST_JOBS_AT_ONCE}"
            )
        standby: object = self.standby
        if isinstance(standby, bool) or standby not in (0, 1):
            raise PipelineDefinitionError(
                f"group {self.name!r}: standby is {standby!r}; give 1, or leave it out: the process that takes a driver's "
                "place starts the next one, so a second one would only wait"
            )

    def _check_setting(self, key: object, value: object) -> None:
        if not isinstance(key, str) or not key.startswith("spark."):
            hint = did_you_mean(
                f"spark.{key}", ["spark.driver.memory", "spark.executor.memory", "spark.executor.cores"]
            )
            raise PipelineDefinitionError(f"group {self.name!r}: {key!r} is no Spark property.{hint}")
        if not isinstance(value, str):
            raise PipelineDefinitionError(
                f"group {self.name!r}: Spark property {key!r} is {value!r}; write it as a string, as Spark reads it"
            )
