"""Operators of one group of which one reads what another one writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.graph import Graph


def reads_beside_writes(definition: Definition, graph: Graph, members: Collection[str]) -> Iterator[str]:
    """The reads that cannot be in one group with the writes, as sentences.

    A read would have to wait for the group's earlier writes, which are not even logged while a step is open. It need not
    where it reads for events that the writers send after their writes (Steps 5 and 6 of Algorithm 3 swapped).
    """
    operators = {name: definition.operators[name] for name in members}
    for name, operator in operators.items():
        for connection in sorted(set(operator.connections()) - set(operator.writes())):
            for writer, other in operators.items():
                if connection in other.writes():
                    yield from _refused(definition, graph, name, connection, writer)


def _refused(definition: Definition, graph: Graph, reader: str, connection: str, writer: str) -> Iterator[str]:
    is_downstream = reader in graph.downstream(writer)
    if is_downstream and definition.operators[writer].sends_after_writes:
        return
    what = f"operator {reader!r} reads connection {connection!r}, which {writer!r} writes in the same group"
    if is_downstream:
        yield (
            f"{what}. If it is to see what is written for its events, let {writer!r} send after its writes "
            "(sends_after_writes=True); else put them into groups of their own"
        )
    else:
        yield f"{what} for other events than those it reads for; put them into groups of their own"
