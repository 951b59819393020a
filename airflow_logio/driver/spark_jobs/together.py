"""What the plan of a generation gets, one Input Set or many, and which plans share a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import BatchGenerator, SparkFrame
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.spark.determinism import analyzed, reads_elsewhere
from airflow_logio.spark.engine import is_remote
from airflow_logio.spark.schemas import schema_of

MOST_PLANS = 16
"""So many plans share a job at most: what a job costs is shared, what the driver has to do for a plan is not."""


class Contract(Enum):
    """What a function of Spark is called with."""

    ONE = "one"
    """One Input Set, as in a script."""
    MANY = "many"
    """Many Input Sets in one plan, with column ``inset_id``; that the plan keeps them apart is checked."""
    EARLIER = "earlier"
    """As MANY: an earlier version has begun the run, when there was nothing else. What the check finds is a warning."""


def contract_of(graph: Mapping[str, Any], name: str, operator: BatchGenerator | FrameWindowOperator) -> Contract:
    """Of operator `name` in a run whose recorded graph is `graph`."""
    recorded = graph.get("operators", {}).get(base_operator(name))
    if recorded is not None and "many" not in recorded:
        return Contract.EARLIER
    return Contract.MANY if operator.many else Contract.ONE


class NotTogether(Exception):
    """The plans of these Input Sets cannot share a job."""


def made_apart(
    names: Sequence[str], make: Callable[[str], SparkFrame], root: str | None = None
) -> list[SparkFrame] | None:
    """What `make` makes of each Input Set, from records in memory and files below `root`.

    None for several if one would be another in the union of their plans: what is random, or numbered by tasks, depends on
    the place of a task in its job. A Connect server looks at a plan only when it runs, and a view that a function has made
    for one Input Set would be that of the last one; a file or a table, which the function may have written itself, is read
    only then by any Spark.
    """
    made: list[SparkFrame] = []
    for name in names:
        frame = make(name)
        if len(names) > 1 and (is_remote(frame) or not analyzed(frame)[1] or reads_elsewhere(frame, root)):
            return None
        made.append(frame)
    return made


def are_alike(frames: Iterable[SparkFrame]) -> bool:
    """Whether DataFrames have the same columns: others have no union."""
    return len({schema_of(frame) for frame in frames}) <= 1
