"""The processes of the baseline: one for each group, two for the replicas of use case 3."""

from __future__ import annotations

from airflow_logio.dataflow import Pipeline, StatelessOperator

REPLICATED, REPLICAS = "slow", 2


def processes(pipeline: Pipeline, group: str) -> tuple[str, ...]:
    """The processes of a group: use case 3 has two of OP3."""
    if group == REPLICATED and isinstance(pipeline.operators["op3"], StatelessOperator):
        return tuple(f"{group}.{number}" for number in range(1, REPLICAS + 1))
    return (group,)


def feeding(pipeline: Pipeline, group: str) -> list[str]:
    """The processes that send to a group, once for each connection between operators."""
    receivers = pipeline.graph.senders.items()
    homes = [(pipeline.home(receiver.operator), pipeline.home(sender.operator)) for receiver, sender in receivers]
    return [name for to, begin in homes if to == group != begin for name in processes(pipeline, begin)]


def names_of(pipeline: Pipeline) -> list[str]:
    """All processes."""
    return [name for group in pipeline.groups for name in processes(pipeline, group)]
