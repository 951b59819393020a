"""The author's declaration of a replicated group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.replication.partition import Partition
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.replicas import MAX_REPLICAS, replica_name


@dataclass(frozen=True, slots=True)
class Replicated:
    """`group` has between `least` and `most` replicas, `initial` of them when a run begins.

    Raises PipelineDefinitionError.
    """

    group: str
    partition: Partition
    least: int
    most: int
    initial: int
    ordered: bool = False
    """What comes out has the order of what went in."""

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"min": self.least, "max": self.most, "initial": self.initial}
        for what, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                self._refuse(f"{what} is {value!r}; give a number of replicas, from 0 on")
        if not 1 <= self.most <= MAX_REPLICAS:
            self._refuse(f"max is {self.most}; give 1 to {MAX_REPLICAS} replicas")
        if not self.least <= self.initial <= self.most:
            self._refuse(f"initial is {self.initial}, which is not between min {self.least} and max {self.most}")
        partition: object = self.partition
        if not isinstance(partition, Partition):
            self._refuse(f"partition is {partition!r}; write RoundRobin(), LeastLoaded() or ByKey('column')")
        self.partition.slots_for(self.most)

    @property
    def slots(self) -> int:
        """The number of parts into which its work is cut."""
        return self.partition.slots_for(self.most)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of all replicas that it may ever have."""
        return tuple(replica_name(self.group, number) for number in range(1, self.most + 1))

    def _refuse(self, sentence: str) -> None:
        raise PipelineDefinitionError(f"group {self.group!r} is replicated: {sentence}")
