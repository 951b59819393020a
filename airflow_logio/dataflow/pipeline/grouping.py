"""Operator groups: their order, what may not share one, and which group an operator without one joins (ADR-121)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from airflow_logio.dataflow.operators import ManualOperator
from airflow_logio.dataflow.pipeline.definition import Definition, Group
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.windows.zones import SESSION_ZONE
from airflow_logio.protocol.values import ExecutionMode


def groups_in_order(definition: Definition, graph: Graph) -> list[str]:
    """Groups, each after those it receives from; an operator without one counts as a group of its own.

    Groups may not exchange events in both directions (A → B → A over different operators): back-pressure stops a whole group,
    so that two of them could wait for each other for ever. Raises PipelineDefinitionError.
    """
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


def with_all_groups(definition: Definition, graph: Graph) -> Definition:
    """The definition with every operator in a group; operators, and groups by their first, in topological order.

    An operator without a group joins that of an operator that sends to it, if that one has none either, unless something
    tells the two apart: one of them is written by hand, replayed or replicated; only one needs Spark, which a recovery
    without it does not wait for; one reads what the other writes; or groups would form a cycle. A group that is made so
    has the name of its first operator. With ``fuse=False`` each operator has a group of its own.
    """
    order = graph.topological()
    fused = _Fusing(definition, graph, order)
    if definition.fuse:
        for receiver in order:
            for port in graph.inputs_of(receiver):
                fused.join(graph.senders[port].operator, receiver)
    return replace(
        definition, groups={name: _in_zone(group, definition.zone) for name, group in fused.groups().items()}
    )


def _in_zone(group: Group, zone: str) -> Group:
    """The group, whose own word on the zone of its sessions counts before that of the pipeline."""
    return replace(group, spark={SESSION_ZONE: zone, **group.spark}) if zone else group


class _Fusing:
    def __init__(self, definition: Definition, graph: Graph, order: Iterable[str]) -> None:
        self._definition = definition
        self._graph = graph
        self._place = {name: number for number, name in enumerate(order)}
        self._declared = {name: group for group in definition.groups.values() for name in group.operators}
        self._home = {name: group.name for name, group in self._declared.items()}
        self._home |= {name: name for name in self._place if name not in self._home}
        self._alone = {one.group for one in definition.replicated} | definition.replays

    def join(self, sender: str, receiver: str) -> None:
        """Put the two, with those that they are fused with already, into one group, unless something tells them apart."""
        begin, other = self._home[sender], self._home[receiver]
        if begin == other or not self._alike(sender, receiver):
            return
        first, second = sorted((begin, other), key=self._place.__getitem__)
        before = dict(self._home)
        self._home = {name: first if home == second else home for name, home in before.items()}
        if self._has_cycle() or self._reads_its_writes(first):
            self._home = before

    def groups(self) -> dict[str, Group]:
        """Name → group."""
        members: dict[str, list[str]] = {}
        for name in self._place:
            members.setdefault(self._home[name], []).append(name)
        return {
            home: replace(self._definition.groups[home], operators=tuple(names))
            if home in self._definition.groups
            else Group(home, tuple(names))
            for home, names in members.items()
        }

    def _alike(self, sender: str, receiver: str) -> bool:
        return (
            self._is_free(sender)
            and self._is_free(receiver)
            and self._needs_spark(sender) == self._needs_spark(receiver)
        )

    def _is_free(self, name: str) -> bool:
        is_manual = isinstance(self._definition.operators[name], ManualOperator)
        return name not in self._declared and name not in self._alone and not is_manual

    def _needs_spark(self, name: str) -> bool:
        return self._definition.operators[name].mode is not ExecutionMode.DRIVER

    def _has_cycle(self) -> bool:
        feeds: dict[str, set[str]] = {home: set() for home in self._home.values()}
        for receiver, sender in self._graph.senders.items():
            begin, end = self._home[sender.operator], self._home[receiver.operator]
            if begin != end:
                feeds[end].add(begin)
        try:
            TopologicalSorter(feeds).prepare()
        except CycleError:
            return True
        return False

    def _reads_its_writes(self, home: str) -> bool:
        members = [name for name, other in self._home.items() if other == home]
        return next(reads_beside_writes(self._definition, self._graph, members), None) is not None
