"""The order of groups: a sender comes before its receivers, so that back-pressure never runs in a circle."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.graph import Graph


def groups_in_order(definition: Definition, graph: Graph) -> list[str]:
    """Groups, an operator without one counting as a group of its own; raises PipelineDefinitionError for a cycle of them."""
    member = {name: name for name in definition.operators}
    member |= {name: group.name for group in definition.groups.values() for name in group.operators}
    # Not sets: in every process the order must be the same one.
    feeds: dict[str, dict[str, None]] = {group: {} for group in member.values()}
    for receiver, sender in graph.senders.items():
        if member[receiver.operator] != member[sender.operator]:
            feeds[member[receiver.operator]][member[sender.operator]] = None
    try:
        return list(TopologicalSorter(feeds).static_order())
    except CycleError as error:
        cycle = " → ".join(reversed(error.args[1]))
        definition.refuse(
            f"groups form a cycle: {cycle}. Each could wait for the other's back-pressure for ever; put their operators "
            "into one group, or split a group in two"
        )
