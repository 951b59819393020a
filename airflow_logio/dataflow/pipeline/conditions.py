"""Under which conditions an operator may be replayed (Section 5, ADR-106), and a group replicated (Section 7.1)."""

from __future__ import annotations

from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.dataflow.operators import (
    ManualOperator,
    Operator,
    SourceOperator,
    StatefulOperator,
    StatelessOperator,
)
from airflow_logio.dataflow.pipeline.definition import Definition, Replicated
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.lineage import lineage_ports, lineage_starts
from airflow_logio.dataflow.replication.partition import ByKey, Partition
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.protocol.values import ExecutionMode


def check_replays(definition: Definition, graph: Graph) -> None:
    """Raises PipelineDefinitionError for a replay operator whose events could not be made again."""
    if not definition.replays:
        return
    captured = lineage_ports(graph, definition.scopes)
    starts = lineage_starts(graph, definition.scopes)
    for name in definition.operators:
        if name in definition.replays:
            operator = definition.operators[name]
            where = f"operator {name!r} says replay=True, and"
            _check_replayable(definition, where, operator)
            _check_inputs(definition, where, operator)
            inside, outside = captured[name]
            _check_lineage(definition, where, operator, inside, outside - starts[name])
            _check_receivers(definition, graph, name)


def _check_replayable(definition: Definition, where: str, operator: Operator) -> None:
    if not isinstance(operator, StatelessOperator | StatefulOperator) or isinstance(operator, ManualOperator):
        definition.refuse(
            f"{where} is a source, or written by hand with the LOG.io API: there are no Input Sets to make its events of. "
            "Leave replay=True out"
        )
    if operator.mode is not ExecutionMode.DRIVER:
        definition.refuse(
            f"{where} has mode {str(operator.mode)!r}: its receivers could not make its events again without Spark jobs of "
            "their own. Use mode 'driver', or leave replay=True out"
        )
    if not operator.outputs:
        definition.refuse(f"{where} has no output port, so there is nothing that the log could leave out")
    if operator.connections() or operator.writes():
        definition.refuse(
            f"{where} uses connections {quoted(operator.connections())}: what is outside may have changed when its events "
            "are made again. Read or write in an operator before it, or behind it"
        )
    if operator.reads_state:
        definition.refuse(
            f"{where} its generation reads the global state, which is another one later: let it depend on the Input Set alone"
        )


def _check_inputs(definition: Definition, where: str, operator: Operator) -> None:
    if len(operator.inputs) != 1:
        definition.refuse(
            f"{where} has input ports {quoted(operator.inputs)}: the log does not say in which order events of several ports "
            "came, and what is made of them may depend on it. Join them in an operator before this one"
        )


def _check_lineage(
    definition: Definition, where: str, operator: Operator, inside: frozenset[str], outside: frozenset[str]
) -> None:
    missing = [*(port for port in operator.inputs if port not in inside)]
    missing += [port for port in operator.outputs if port not in outside]
    if missing:
        definition.refuse(
            f"{where} no lineage is captured through its ports {quoted(tuple(missing))}: what its events are made of would "
            "be removed from the log when it is used. Add .lineage(start, target) with a start before it, at the latest the "
            "port that sends to it, and a target behind it, at the earliest its own port"
        )


def _check_receivers(definition: Definition, graph: Graph, name: str) -> None:
    for port in graph.outputs_of(name):
        for receiver in graph.receivers(port):
            other = definition.operators[receiver.operator]
            if isinstance(other, ManualOperator):
                how = "is written by hand with the LOG.io API"
            elif other.mode is ExecutionMode.DATAFRAME:
                how = "has mode 'dataframe'"
            elif other.port_order and _together(definition, name, receiver.operator):
                definition.refuse(
                    f"operator {name!r} says replay=True, and {receiver.operator!r} of the same group uses its events in "
                    "turn with others: two threads would call the operator at once. Put them into two groups, or leave "
                    "replay=True out"
                )
            else:
                continue
            definition.refuse(
                f"operator {name!r} says replay=True, and {receiver.operator!r}, which gets its events, {how}: it takes only "
                "events whose bodies are in the log. Leave replay=True out, or put an operator in between"
            )


def _together(definition: Definition, *operators: str) -> bool:
    return any(set(operators) <= set(group.operators) for group in definition.groups.values())


def check_replicated(definition: Definition, graph: Graph, one: Replicated) -> None:
    """Whether the group may be replicated; every operator is in a group. Raises PipelineDefinitionError.

    What replicas do must not depend on which of them does it: operators without state may be split in any way, others
    by key, if what they make of one key does not depend on records of other keys. The old owner of a slot may still be
    writing when the new one begins, so that only an external system that knows what it has applied can be written to.
    """
    if one.group not in definition.groups:
        definition.refuse(
            f"group {one.group!r} is replicated, but there is no such group.{did_you_mean(one.group, definition.groups)}"
        )
    for name in definition.groups[one.group].operators:
        operator = definition.operators[name]
        where = f"group {one.group!r} is replicated, but its operator {name!r}"
        if isinstance(operator, SourceOperator) or not operator.inputs:
            definition.refuse(f"{where} is a source: it reads once. Put what follows it into a group of its own")
        if isinstance(operator, ManualOperator):
            definition.refuse(f"{where} is written by hand with the LOG.io API, which knows no slots")
        if getattr(operator, "closes", False):
            definition.refuse(
                f"{where} closes (closes=True): all of its write actions are applied as one, and no transaction spans the "
                "drivers of several replicas. Put it into a group of its own, behind this one"
            )
        _check_kind(definition, where, operator)
        if isinstance(operator, TableWriter | DeltaWriter) and operator.upserts and operator.version is None:
            _check_slot_of_key(definition, graph, one, name, operator)
        _check_state(definition, where, operator, one.partition)
        for connection, guarantee in operator.writes().items():
            if guarantee != "conditional":
                definition.refuse(
                    f"{where} writes to connection {connection!r} with {guarantee} write actions. A slot may change its "
                    "replica while one is under way: replicate operators whose writes are conditional (TableWriter), or put "
                    "the writer into a group behind this one"
                )
    if one.ordered:
        _check_order(definition, graph, one)
    _check_neighbours(definition, graph, one)


def _check_kind(definition: Definition, where: str, operator: Operator) -> None:
    if operator.mode is ExecutionMode.DATAFRAME:
        definition.refuse(
            f"{where} runs in mode 'dataframe': executors share its work already. Put it into a group of its own, and give "
            "that more executors"
        )
    if operator.port_order:
        definition.refuse(f"{where} uses its input ports in a declared order, which its slots could not keep")
    if operator.needs_event_ids:
        definition.refuse(
            f"{where} uses the ids of its events (event_ids, or lineage_column): each slot of a replicated group counts "
            "its events on its own. Put it in front of the group, or behind it"
        )


def _check_slot_of_key(
    definition: Definition, graph: Graph, one: Replicated, name: str, writer: TableWriter | DeltaWriter
) -> None:
    """Without a version the last row of a key wins, so that all of them must come in one order."""
    group = definition.groups[one.group].operators
    enters = all(graph.senders[port].operator not in group for port in graph.inputs_of(name))
    by = set(one.partition.columns) if isinstance(one.partition, ByKey) else set()
    if enters and by and by <= set(writer.primary_key):
        return
    columns = ", ".join(map(repr, writer.primary_key))
    definition.refuse(
        f"group {one.group!r} is replicated by {one.partition!r}, and its writer {name!r} updates rows without a version: "
        "slots would update one row in any order. Name the column that says which row is newer (version='updated_at'); or "
        f"let the writer be the first operator of the group, and partition by columns of its key, ByKey({columns}); or put "
        "it into a group behind this one"
    )


def _check_state(definition: Definition, where: str, operator: Operator, partition: Partition) -> None:
    if isinstance(operator, StatelessOperator):
        return
    if not partition.keyed:
        definition.refuse(
            f"{where} has state, and {partition!r} sends an event to any replica: partition by key, ByKey('column')"
        )
    if not operator.partitionable:
        definition.refuse(
            f"{where} is not partitionable: what it makes of one key may depend on records of other keys (a window that "
            "counts events does, or AllOfRun). Use a time window, or say partitionable = True in its class if it does not"
        )


def _check_order(definition: Definition, graph: Graph, one: Replicated) -> None:
    """The output for an event must be known to be complete, and to come from that event alone."""
    if one.partition.keyed:
        definition.refuse(
            f"group {one.group!r} is replicated by key and ordered: events are split between slots, so there is no order of "
            "whole events to keep. Use RoundRobin() or LeastLoaded(), or sort behind the group"
        )
    entered = [
        str(receiver)
        for receiver, sender in graph.senders.items()
        if receiver.operator in definition.groups[one.group].operators
        and sender.operator not in definition.groups[one.group].operators
    ]
    if len(entered) > 1:
        definition.refuse(
            f"group {one.group!r} is replicated and ordered, but gets events on {quoted(entered)}: there is one order "
            "to keep only if there is one stream"
        )
    for name in definition.groups[one.group].operators:
        operator = definition.operators[name]
        if len(operator.inputs) > 1 or operator.on_error != "fail":
            definition.refuse(
                f"group {one.group!r} is replicated and ordered, but its operator {name!r} has several input ports or sets "
                "events aside: nothing tells when all that belongs to an event has come"
            )


def _check_neighbours(definition: Definition, graph: Graph, one: Replicated) -> None:
    """Dispatchers live with the sender, Mergers with the receiver: neither can be in several replicas at once."""
    home = {name: group.name for group in definition.groups.values() for name in group.operators}
    others = {other.group for other in definition.replicated} - {one.group}
    for receiver, sender in graph.senders.items():
        if one.group in (home[receiver.operator], home[sender.operator]):
            _check_not_by_hand(definition, one, receiver.operator, sender.operator)
        if home[receiver.operator] == one.group and home[sender.operator] in others:
            definition.refuse(
                f"groups {home[sender.operator]!r} and {one.group!r} are both replicated and next to each other: put an "
                "operator between them, in a group that is not, or replicate them as one group"
            )


def _check_not_by_hand(definition: Definition, one: Replicated, *ends: str) -> None:
    for name in ends:
        if isinstance(definition.operators[name], ManualOperator):
            definition.refuse(
                f"group {one.group!r} is replicated, but {name!r} beside it is written by hand with the LOG.io API and runs "
                "alone, without room for a Dispatcher or a Merger: put an operator between them"
            )
