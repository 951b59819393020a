"""How long a single call of an author's code may take, and what becomes of the group when it takes longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.errors import PipelineDefinitionError

ON_OVERRUN = ("recover", "park")


@dataclass(frozen=True, slots=True)
class CallLimit:
    """`seconds` per call of an operator's function, source or writer; then the driver ends, and its group is recovered, or
    parked. Raises PipelineDefinitionError."""

    seconds: float
    on_overrun: str = "recover"

    def __post_init__(self) -> None:
        given: object = self.seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise PipelineDefinitionError(f"max_seconds is {given!r}; give seconds, more than 0")
        if self.on_overrun not in ON_OVERRUN:
            raise PipelineDefinitionError(
                f"on_overrun {self.on_overrun!r} is neither 'recover' nor 'park'."
                f"{did_you_mean(str(self.on_overrun), ON_OVERRUN)}"
            )
