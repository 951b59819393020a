"""Operator groups: operators that share one Spark application and fail together (Section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_logio.dataflow.names import check_name, did_you_mean
from airflow_logio.errors import PipelineDefinitionError


@dataclass(frozen=True, slots=True)
class Group:
    """`operators` in topological order, and the group's own Spark settings (an Airflow operator may override them).

    Raises PipelineDefinitionError for an illegal name, an empty group, or a setting that is no ``spark.`` property.
    """

    name: str
    operators: tuple[str, ...]
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("group", self.name)
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "spark", dict(self.spark))
        if not self.operators:
            raise PipelineDefinitionError(f"group {self.name!r} has no operators")
        for key, value in self.spark.items():
            self._check_setting(key, value)

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
