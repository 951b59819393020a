"""Which operators may be replay operators (Section 5, ADR-106): those whose Output Sets follow from their Input Sets alone,
and whose Input Sets stay in the log."""

from __future__ import annotations

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.lineage_scopes import lineage_ports, lineage_starts
from airflow_logio.dataflow.manual_operator import ManualOperator
from airflow_logio.dataflow.names import quoted
from airflow_logio.dataflow.operators import Operator, StatefulOperator, StatelessOperator
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
            _check_kind(definition, where, operator)
            _check_inputs(definition, where, operator)
            inside, outside = captured[name]
            _check_lineage(definition, where, operator, inside, outside - starts[name])
            _check_receivers(definition, graph, name)


def _check_kind(definition: Definition, where: str, operator: Operator) -> None:
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
