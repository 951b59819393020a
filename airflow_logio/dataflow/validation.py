"""What must hold for a pipeline. Each check names the culprit, and the next step where it is not obvious.

Checks of one operator run when it is added; checks of the whole run on first use and in ``Pipeline.validate()``.
Groups may not exchange events in both directions (A → B → A over different operators): back-pressure stops a whole
group, so that two of them could wait for each other for ever.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import PurePosixPath

from airflow_logio.dataflow.action_writers import GUARANTEES, ActionWriter
from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.frame_operators import FrameOperator
from airflow_logio.dataflow.function_operators import FrameWindowOperator
from airflow_logio.dataflow.fusing import with_all_groups
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.group_order import groups_in_order
from airflow_logio.dataflow.lineage_scopes import has_path
from airflow_logio.dataflow.manual_operator import ManualOperator, check_alone, check_manual
from airflow_logio.dataflow.names import check_count, check_name, did_you_mean, may_be_one_table, quoted
from airflow_logio.dataflow.operators import BatchGenerator, Operator, SourceOperator, WriterOperator
from airflow_logio.dataflow.order_check import check_orders
from airflow_logio.dataflow.quarantine_check import check_on_error, check_quarantines
from airflow_logio.dataflow.reads_beside_writes import reads_beside_writes
from airflow_logio.dataflow.replay_check import check_replays
from airflow_logio.dataflow.sources import RangeSource, SparkSource
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.protocol.values import ExecutionMode


def check_operator(definition: Definition, name: str, operator: Operator) -> None:
    """Checks of an operator by itself; raises PipelineDefinitionError."""
    if name in definition.operators:
        definition.refuse(f"operator name {name!r} is used twice; names are unique within a pipeline")
    _check_ports(definition, name, operator)
    operator.record_rules()  # refuses what `depends` cannot be
    _check_mode(definition, name, operator)
    check_manual(definition, name, operator)
    if isinstance(operator, WriterOperator) and not hasattr(operator, "connection"):
        definition.refuse(f"writer {name!r} has no connection; call super().__init__(connection) in its class")
    _check_connections(definition, name, operator)
    _check_placeholders(definition, name, operator)
    _check_waiting(definition, name, operator)
    check_on_error(definition, name, operator)


def check_whole(definition: Definition) -> tuple[Definition, Graph]:
    """Checks that need all operators and connections. Returns the definition with every operator in a group, and the
    graph; raises PipelineDefinitionError."""
    graph = definition.graph()
    if not definition.operators:
        definition.refuse("it has no operators; begin with .source(...)")
    _check_cycle(definition, graph)
    _check_connected(definition, graph)
    _check_groups(definition)
    check_alone(definition)
    groups_in_order(definition, graph)
    for group in definition.groups.values():
        for sentence in reads_beside_writes(definition, graph, group.operators):
            definition.refuse(f"group {group.name!r}: {sentence}")
    definition = with_all_groups(definition, graph)
    _check_tables(definition)
    _check_folders(definition)
    check_quarantines(definition, graph)
    check_orders(definition, graph)
    check_replays(definition, graph)
    for scope in definition.scopes:
        if not has_path(graph, scope):
            definition.refuse(
                f"lineage scope {scope} has no path: no events of {str(scope.start)!r} reach {str(scope.target)!r}"
            )
    return definition, graph


def _check_ports(definition: Definition, name: str, operator: Operator) -> None:
    ports = [*operator.inputs, *operator.outputs]
    for port in ports:
        check_name("port", port)
        if ports.count(port) > 1:
            definition.refuse(
                f"operator {name!r} has two ports named {port!r}; a port is referred to as '{name}.{port}'"
            )
    if not operator.inputs and not isinstance(operator, SourceOperator | ManualOperator):
        definition.refuse(f"operator {name!r} has no input port; only a source may have none")


def _check_mode(definition: Definition, name: str, operator: Operator) -> None:
    if operator.mode is ExecutionMode.DATAFRAME:
        _check_frames(definition, name, operator)
    if operator.mode is ExecutionMode.EXECUTORS and not isinstance(operator, BatchGenerator):
        definition.refuse(f"operator {name!r} runs in mode 'executors', so its class must also be a BatchGenerator")


def _check_frames(definition: Definition, name: str, operator: Operator) -> None:
    if isinstance(operator, FrameWindowOperator):
        return
    if not isinstance(operator, FrameOperator | RangeSource | SparkSource | DatasetWriter):
        definition.refuse(
            f"operator {name!r} runs in mode 'dataframe', so its class must be a FrameOperator (stateless functions), a "
            "RangeSource, a SparkSource or a DatasetWriter; a window is for a @generate function"
        )
    if operator.on_error != "fail":
        definition.refuse(
            f"operator {name!r} runs in mode 'dataframe' with on_error={operator.on_error!r}: its events are evaluated in "
            "chains, so one cannot be set aside alone. Leave on_error out"
        )
    if operator.port_order:
        definition.refuse(f"operator {name!r} runs in mode 'dataframe', which knows no port_order")
    if operator.needs_event_ids:
        definition.refuse(
            f"operator {name!r} runs in mode 'dataframe': its events have no ids yet when it is evaluated"
        )


def _check_connections(definition: Definition, name: str, operator: Operator) -> None:
    for connection in dict.fromkeys((*operator.connections(), *operator.writes())):
        if connection not in definition.connections:
            definition.refuse(
                f"operator {name!r} uses connection {connection!r}, which the pipeline does not name (it names "
                f"{quoted(definition.connections)}).{did_you_mean(connection, definition.connections)}"
            )
    for connection, guarantee in operator.writes().items():
        if guarantee not in GUARANTEES:
            definition.refuse(
                f"the write actions of operator {name!r} on connection {connection!r} are neither conditional, "
                f"checkable nor idempotent (write_guarantee is {guarantee!r}): after a failure nothing tells "
                "whether to repeat them. Use TableWriter, or a writer that declares one of these"
            )
    if operator.writes() and not isinstance(operator, ManualOperator):
        _check_writer(definition, name, operator)


def _check_writer(definition: Definition, name: str, operator: Operator) -> None:
    """The runtime must know how to execute what the operator writes: one connection, by the class of its guarantee."""
    if not isinstance(operator, ActionWriter):
        definition.refuse(
            f"operator {name!r} declares write actions, but {type(operator).__name__} is no ConditionalWriter, "
            "CheckableWriter or IdempotentWriter, so there is no way to execute them. Derive it from one of these, "
            "or let it send the records to a writer in the same group"
        )
    if operator.writes() != {operator.connection: operator.write_guarantee}:
        definition.refuse(f"writer {name!r} overrides writes(); a writer has one connection and one guarantee")
    base = GUARANTEES[str(operator.write_guarantee)]
    if not isinstance(operator, base | TableWriter | DatasetWriter):
        definition.refuse(
            f"writer {name!r} says that its write actions are {operator.write_guarantee}, but "
            f"{type(operator).__name__} is no {base.__name__}"
        )
    check_count(f"actions_at_once of writer {name!r}", operator.actions_at_once)
    if operator.replay_seconds is not None and not operator.replay_seconds > 0:
        definition.refuse(f"replay_seconds of writer {name!r} is {operator.replay_seconds!r}; give seconds, or None")


def _check_placeholders(definition: Definition, name: str, operator: Operator) -> None:
    for placeholder in sorted(operator.placeholders() - set(definition.params)):
        definition.refuse(
            f"operator {name!r} refers to parameter {placeholder!r}, which the pipeline does not have (it has "
            f"{quoted(tuple(definition.params))}).{did_you_mean(placeholder, definition.params)}"
        )


def _check_cycle(definition: Definition, graph: Graph) -> None:
    cycle = graph.cycle()
    if cycle is not None:
        definition.refuse(f"operators form a cycle: {' → '.join(cycle)}. Remove one of these connections")


def _check_connected(definition: Definition, graph: Graph) -> None:
    for name, operator in definition.operators.items():
        for port in graph.inputs_of(name):
            if port not in definition.senders:
                definition.refuse(
                    f"input port {str(port)!r} is connected to nothing. Name its upstream, or .connect(...)"
                )
        if isinstance(operator, WriterOperator):
            continue  # what it passes on is a courtesy: the write is its effect
        for port in graph.outputs_of(name):
            if not graph.receivers(port):
                definition.refuse(
                    f"output port {str(port)!r} is connected to nothing, its events would pile up unread. Connect it, "
                    f"for example .sink('done', Count(), '{port}')"
                )


def _check_groups(definition: Definition) -> None:
    grouped = {operator for group in definition.groups.values() for operator in group.operators}
    for name in definition.operators:
        if name not in grouped and name in definition.groups:
            definition.refuse(
                f"operator {name!r} is in no group, so a group may get its name, but group {name!r} exists and "
                "does not contain it. Add it to a group, or rename that group"
            )


def _check_tables(definition: Definition) -> None:
    writers = [(name, op) for name, op in definition.operators.items() if isinstance(op, TableWriter)]
    for (first, a), (second, b) in combinations(writers, 2):
        same = (a.connection, a.table) == (b.connection, b.table)
        if same and (a.on_new_run, b.on_new_run) != ("append", "append"):
            definition.refuse(
                f"operators {first!r} and {second!r} both write table {a.table!r} of {a.connection!r} with on_new_run "
                f"{a.on_new_run!r} and {b.on_new_run!r}: a new run would find the rows of one when the other begins. "
                "Let both say 'append', or let them write different tables"
            )
        if a.connection == b.connection and a.on_new_run != b.on_new_run and may_be_one_table(a.table, b.table):
            definition.refuse(
                f"operators {first!r} and {second!r} write tables {a.table!r} and {b.table!r} of {a.connection!r} with "
                f"on_new_run {a.on_new_run!r} and {b.on_new_run!r}. A database may take both names for one table, and then "
                "a new run would lose rows. Give both tables a schema, or let both writers say the same"
            )


def _check_folders(definition: Definition) -> None:
    writers = [(name, op) for name, op in definition.operators.items() if isinstance(op, DatasetWriter)]
    for (first, a), (second, b) in combinations(writers, 2):
        if a.connection != b.connection:
            continue
        if a.folder == b.folder and a.on_new_run != b.on_new_run:
            definition.refuse(
                f"operators {first!r} and {second!r} both write folder {a.folder!r} of {a.connection!r} with on_new_run "
                f"{a.on_new_run!r} and {b.on_new_run!r}. Let both say the same, or let them write different folders"
            )
        outer, inner = sorted((a, b), key=lambda one: len(PurePosixPath(one.folder).parts))
        if outer.on_new_run != "append" and PurePosixPath(outer.folder) in PurePosixPath(inner.folder).parents:
            definition.refuse(
                f"operators {first!r} and {second!r} write folders {outer.folder!r} and {inner.folder!r} of "
                f"{a.connection!r}, one within the other, and the outer one says on_new_run={outer.on_new_run!r}. Let them "
                "write folders side by side"
            )


def _check_waiting(definition: Definition, name: str, operator: Operator) -> None:
    """What an operator waits for must exist."""
    if operator.sends_after_writes and not operator.writes():
        definition.refuse(
            f"operator {name!r} says sends_after_writes=True and has no write actions. It is for the writer whose records "
            "downstream operators read: say it there"
        )
    if not operator.port_order:
        return
    for port in operator.port_order:
        if port not in operator.inputs:
            definition.refuse(
                f"the port_order of operator {name!r} names {port!r}, which is no input port of it (it has "
                f"{quoted(tuple(operator.inputs))}).{did_you_mean(port, operator.inputs)}"
            )
    for port in operator.inputs:
        if port not in operator.port_order:
            definition.refuse(
                f"input port {port!r} of operator {name!r} is not in its port_order, so no event of it would ever be used. "
                f"Add it to the cycle, as often as events of it are used in a row"
            )
