"""What must hold for a pipeline. Each check names the culprit, and the next step where it is not obvious.

Checks of one operator run when it is added; checks of the whole run on first use and in ``Pipeline.validate()``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import PurePosixPath

from airflow_logio.dataflow.functions.function_operators import FrameOperator
from airflow_logio.dataflow.functions.several_functions import SeveralFunctions, windows_at
from airflow_logio.dataflow.functions.windowed_operators import BatchOperator, FrameWindowOperator, WindowedOperator
from airflow_logio.dataflow.names import check_count, check_name, did_you_mean, may_be_one_table, quoted
from airflow_logio.dataflow.operators import BatchGenerator, ManualOperator, Operator, SourceOperator, WriterOperator
from airflow_logio.dataflow.pipeline.conditions import check_replays
from airflow_logio.dataflow.pipeline.days_of_tables import DaysOfTable, days_of_tables
from airflow_logio.dataflow.pipeline.definition import Definition, Group
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.grouping import groups_in_order, reads_beside_writes, with_all_groups
from airflow_logio.dataflow.pipeline.lineage import has_path
from airflow_logio.dataflow.query_text import without_comments
from airflow_logio.dataflow.sources import (
    DeltaSource,
    FolderSource,
    ParquetSource,
    QuerySource,
    RangeSource,
    SparkSource,
)
from airflow_logio.dataflow.sources.arrival import InputArrival, arrival_of
from airflow_logio.dataflow.windows.zones import SESSION_ZONE, UTC_ITSELF, same_zone
from airflow_logio.dataflow.writers.action_writers import GUARANTEES, ActionWriter
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode

ON_ERROR = ("fail", "quarantine")

_OF_THE_LOOP = ("mode", "reads_state", "port_order", "sends_after_writes", "on_error")
"""Declarations that the group's loop obeys; a hand-written operator has no loop."""


def check_operator(definition: Definition, name: str, operator: Operator) -> None:
    """Checks of an operator by itself; raises PipelineDefinitionError."""
    if name in definition.operators:
        definition.refuse(f"operator name {name!r} is used twice; names are unique within a pipeline")
    _check_ports(definition, name, operator)
    operator.record_rules()  # refuses what `depends` cannot be
    _check_mode(definition, name, operator)
    _check_manual(definition, name, operator)
    if isinstance(operator, WriterOperator) and not hasattr(operator, "connection"):
        definition.refuse(f"writer {name!r} has no connection; call super().__init__(connection) in its class")
    _check_connections(definition, name, operator)
    _check_placeholders(definition, name, operator)
    _check_waiting(definition, name, operator)
    _check_on_error(definition, name, operator)


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
    if isinstance(operator, BatchGenerator) and not operator.many:
        methods = [(base.tagged, base.split) for base in (type(operator), BatchGenerator, BatchOperator)]
        own = [one.__name__ for one, *ours in zip(*methods, strict=True) if one not in ours]
        if own:
            definition.refuse(
                f"operator {name!r} has its own {own[0]}(), which is for many Input Sets in one plan: say many = True in its "
                "class, or leave it out (records_of() makes the table of one Input Set)"
            )


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


def _check_manual(definition: Definition, name: str, operator: Operator) -> None:
    """Refuse declarations of a hand-written operator that would have no effect."""
    if not isinstance(operator, ManualOperator):
        return
    for declared in _OF_THE_LOOP:
        if getattr(operator, declared) != getattr(Operator, declared):
            definition.refuse(
                f"operator {name!r} is written by hand and declares {declared}={getattr(operator, declared)!r}, which only "
                "the loop of a group obeys; do it in run(), and leave the declaration out"
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
    _check_runs_together(definition, name, operator)
    _check_closes(definition, name, operator)
    if operator.writes() and not isinstance(operator, ManualOperator):
        _check_writer(definition, name, operator)
    if isinstance(operator, OwningWriter) and operator.owns:
        _check_owns(definition, name, operator)
    if isinstance(operator, DatasetWriter):
        _check_overwritten(definition, name, operator)


def _check_runs_together(definition: Definition, name: str, operator: Operator) -> None:
    """Refuse a word on other runs that is none, or that would say nothing."""
    said: object = operator.runs_together
    if type(said) is not bool:
        definition.refuse(f"runs_together of operator {name!r} is {said!r}; give True or False")
    if said and not operator.writes():
        definition.refuse(f"operator {name!r} declares runs_together=True, and has no write actions: leave it out")
    if said and isinstance(operator, OwningWriter):
        definition.refuse(
            f"writer {name!r} declares runs_together=True, which is for writers of your own: {type(operator).__name__} says "
            "by on_new_run whether runs may live at once"
        )


_APPLIED_AS_ONE = {"conditional": "apply_held", "idempotent": "close_group"}
"""Guarantee of write actions → what an author's writer that closes applies all of them with."""


def _check_closes(definition: Definition, name: str, operator: Operator) -> None:
    """The write actions of a writer that closes are applied as one, when its inputs have ended."""
    said: object = getattr(operator, "closes", False)
    if type(said) is not bool:
        definition.refuse(f"closes of operator {name!r} is {said!r}; give True or False")
    if not said:
        return
    if not isinstance(operator, ActionWriter):
        definition.refuse(
            f"operator {name!r} declares closes=True, and is no ConditionalWriter or IdempotentWriter, so no write actions "
            "wait for a closing one: leave it out, or let it send the records to a writer that closes"
        )
    where = f"writer {name!r} closes (closes=True): its write actions wait in the log until all of them are there"
    guarantee = str(operator.write_guarantee)
    method = _APPLIED_AS_ONE.get(guarantee)
    if method is None:
        definition.refuse(
            f"{where}, and are applied as one. They are {guarantee}, and no question tells whether a group was applied in "
            "part: derive it from ConditionalWriter or IdempotentWriter, or leave closes out"
        )
    if operator.outputs:
        definition.refuse(
            f"{where}, so what reads behind it would see the old rows. It has output ports "
            f"({quoted(tuple(operator.outputs))}): say outputs = () in its class, and let others read from its upstream, or "
            "in a run after this one"
        )
    if operator.sends_after_writes:
        definition.refuse(f"{where}, and it sends nothing: leave sends_after_writes=True out")
    if not isinstance(operator, OwningWriter) and not callable(getattr(operator, method, None)):
        definition.refuse(
            f"{where}, and {type(operator).__name__} has no {method}(), which applies them: write it, or leave closes out"
        )


def _check_owns(definition: Definition, name: str, writer: OwningWriter) -> None:
    """Refuse a writer whose runs would not know what they own."""
    partition = definition.partition
    if partition is None:
        said = f"by={writer.by!r}" if writer.by else f"on_new_run={writer.on_new_run!r}"
        definition.refuse(
            f"writer {name!r} says {said}, and runs of the pipeline have no partition: define it with "
            f"partition=Days({writer.partition or 'day'!r}, zone=...)"
        )
    if writer.by and writer.by != (partition.name,):
        definition.refuse(
            f"writer {name!r} says by={writer.by!r}, and the partition of the pipeline is {partition.written()}: write "
            f"by=({partition.name!r},)"
        )
    if not isinstance(writer, TableWriter | DeltaWriter) or not writer.by:
        return
    kind = None if writer.columns is None else writer.columns[partition.name]
    plain = isinstance(writer, DeltaWriter)  # no partition of a Delta table is named by a time
    takes = "date" if partition.what == "day" else "text" if plain else "timestamptz"
    if kind is not None and kind not in ("text", takes):
        definition.refuse(
            f"column {partition.name!r} of writer {name!r} is declared {kind}, which holds no {partition.what}s: declare it "
            f"{' or '.join(dict.fromkeys(('text', takes)))}"
        )


def _check_overwritten(definition: Definition, name: str, writer: DatasetWriter) -> None:
    """Refuse a writer that would overwrite other days than its run's."""
    partition = definition.partition
    if partition is None or writer.by or writer.on_new_run != "overwrite" or partition.name not in writer.partition_by:
        return
    definition.refuse(
        f"writer {name!r} says on_new_run='overwrite' and is partitioned by {partition.name!r}, the partition of the "
        f"pipeline: late records of another {partition.what} would replace all of that. Say by=({partition.name!r},), so "
        f"that a run replaces its own {partition.what} only"
    )


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
    if not isinstance(operator, base | OwningWriter):
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
    for parameter in definition.params:
        if any(f"{{{parameter}}}" in without_comments(query) for query in _queries(operator)):
            definition.refuse(
                f"the query of operator {name!r} has {{{parameter}}}, as paths name a parameter; a query names it "
                f":{parameter}, without quotes"
            )
        if any(re.search(rf":{parameter}\b", path) for path in _paths(operator)):
            definition.refuse(
                f"a path of operator {name!r} has :{parameter}, as queries name a parameter; a path names it {{{parameter}}}"
            )


def checked_arrival(
    definition: Definition, name: str, source: object, wait: object, ready: object, on_empty: object
) -> InputArrival | None:
    """How a source gets its input, as its author says it; raises PipelineDefinitionError."""
    if not isinstance(source, SourceOperator):
        return None  # refused as an operator
    try:
        found = arrival_of(source, wait, ready, on_empty)
    except PipelineDefinitionError as error:
        definition.refuse(f"source {name!r}: {error}")
    for placeholder in sorted((found.placeholders() if found else frozenset()) - set(definition.params)):
        definition.refuse(
            f"ready of source {name!r} refers to parameter {placeholder!r}, which the pipeline does not have (it has "
            f"{quoted(tuple(definition.params))}).{did_you_mean(placeholder, definition.params)}"
        )
    return found


def checked_days(definition: Definition, name: str, source: object, days: object) -> tuple[DaysOfTable, ...]:
    """Which days of tables a source reads, as its author says it; raises PipelineDefinitionError."""
    if not isinstance(source, SourceOperator):
        return ()  # refused as an operator
    try:
        found = days_of_tables(source, days)
    except PipelineDefinitionError as error:
        definition.refuse(f"source {name!r}: {error}")
    for one in found:
        for placeholder in sorted(one.placeholders() - set(definition.params)):
            definition.refuse(
                f"days of source {name!r} refer to parameter {placeholder!r}, which the pipeline does not have (it has "
                f"{quoted(tuple(definition.params))}).{did_you_mean(placeholder, definition.params)}"
            )
    return found


def check_group(definition: Definition, group: Group) -> None:
    """Its members are known and in no other group; raises PipelineDefinitionError."""
    name, members = group.name, group.operators
    if name in definition.groups:
        definition.refuse(f"group name {name!r} is used twice")
    owners = {member: other.name for other in definition.groups.values() for member in other.operators}
    for member in members:
        definition.operator_named(member, f"group {name!r} contains")
        if member in owners:
            definition.refuse(
                f"operator {member!r} is in group {owners[member]!r} and again in group {name!r}; it runs in one place"
            )
        owners[member] = name
    if group.jobs_at_once is not None and all(
        definition.operators[m].mode is not ExecutionMode.DATAFRAME for m in members
    ):
        definition.refuse(
            f"group {name!r} has jobs_at_once, and no operator of mode 'dataframe', whose events could be evaluated side by "
            "side; leave it out"
        )


def _queries(operator: Operator) -> tuple[str, ...]:
    match operator:
        case QuerySource():
            return () if operator.query is None else (operator.query,)
        case OwningWriter():
            return tuple(audit.query for audit in operator.audits if audit.query is not None)
    return ()


def _paths(operator: Operator) -> tuple[str, ...]:
    match operator:
        case ParquetSource():
            return operator.paths
        case FolderSource() | DeltaSource():
            return (operator.path,)
        case DatasetWriter() | ParquetWriter():
            return (operator.folder,)
        case DeltaWriter():
            return (operator.table,)
    return ()


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


def _check_on_error(definition: Definition, name: str, operator: Operator) -> None:
    if operator.on_error not in ON_ERROR:
        hint = did_you_mean(operator.on_error, ON_ERROR)
        definition.refuse(f"operator {name!r}: on_error={operator.on_error!r} is none of {quoted(ON_ERROR)}.{hint}")


def check_whole(definition: Definition) -> tuple[Definition, Graph]:
    """Checks that need all operators and connections. Returns the definition with every operator in a group, and the
    graph; raises PipelineDefinitionError."""
    graph = definition.graph()
    if not definition.operators:
        definition.refuse("it has no operators; begin with .source(...)")
    _check_cycle(definition, graph)
    _check_connected(definition, graph)
    _check_groups(definition)
    _check_alone(definition)
    groups_in_order(definition, graph)
    for group in definition.groups.values():
        for sentence in reads_beside_writes(definition, graph, group.operators):
            definition.refuse(f"group {group.name!r}: {sentence}")
    definition = with_all_groups(definition, graph)
    check_places(definition)
    _check_quarantines(definition, graph)
    _check_orders(definition, graph)
    check_replays(definition, graph)
    _check_bounded(definition)
    _check_closers_end(definition, graph)
    for scope in definition.scopes:
        if not has_path(graph, scope):
            definition.refuse(
                f"lineage scope {scope} has no path: no events of {str(scope.start)!r} reach {str(scope.target)!r}"
            )
    return definition, graph


def _check_bounded(definition: Definition) -> None:
    """A partition ends, so the sources of its run do."""
    if definition.partition is None:
        return
    for name, operator in definition.operators.items():
        if _is_endless(operator) or getattr(operator, "unbounded", False):
            definition.refuse(
                f"source {name!r} is unbounded, and a run of {definition.partition.written()} ends with what its "
                f"{definition.partition.what} has: let the source end (unbounded=False, or a method last), or leave the "
                "partition out"
            )


def _check_closers_end(definition: Definition, graph: Graph) -> None:
    """A writer that closes has all of its rows when its sources have ended."""
    for name, source in definition.operators.items():
        if not _is_endless(source) and not getattr(source, "unbounded", False):
            continue
        for other in _behind(graph, name):
            if getattr(definition.operators[other], "closes", False):
                definition.refuse(
                    f"source {name!r} is unbounded, and writer {other!r} behind it closes (closes=True) when all of its rows "
                    "are there, so it would write none: let the source end (unbounded=False, or a method last), or leave "
                    "closes out"
                )


def _is_endless(operator: Operator) -> bool:
    """Whether a source of ranges has no last one; one that needs connections is asked for it by its driver."""
    if not isinstance(operator, RangeSource):
        return False
    kind = type(operator)
    return kind.last is RangeSource.last and kind.connected is RangeSource.connected


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


def _check_alone(definition: Definition) -> None:
    """A hand-written operator drives its group, so the group has no other."""
    for group in definition.groups.values():
        manual = [name for name in group.operators if isinstance(definition.operators[name], ManualOperator)]
        if manual and len(group.operators) > 1:
            definition.refuse(
                f"group {group.name!r} contains {manual[0]!r}, which is written by hand and drives its group alone; give it "
                "a group of its own"
            )


def check_places(definition: Definition) -> None:
    """Refuse writers that would get in each other's way; raises PipelineDefinitionError."""
    _check_tables(definition)
    _check_folders(definition)
    _check_delta_tables(definition)


def _check_tables(definition: Definition) -> None:
    writers = [(name, op) for name, op in definition.operators.items() if isinstance(op, TableWriter)]
    for (first, a), (second, b) in combinations(writers, 2):
        same = (a.connection, a.table) == (b.connection, b.table)
        may_be_same = a.connection == b.connection and (same or may_be_one_table(a.table, b.table))
        if may_be_same and (a.on_new_run, b.on_new_run) == ("update", "update"):
            if a.version is None or (a.version, set(a.primary_key)) != (b.version, set(b.primary_key)):
                definition.refuse(
                    f"operators {first!r} and {second!r} both update rows of table {a.table!r} of {a.connection!r}, and what "
                    "is left of a key would depend on which comes last: let both have the same primary_key, and the same "
                    "version"
                )
            continue
        if same and (a.on_new_run, b.on_new_run) != ("append", "append"):
            definition.refuse(
                f"operators {first!r} and {second!r} both write table {a.table!r} of {a.connection!r} with on_new_run "
                f"{a.on_new_run!r} and {b.on_new_run!r}: a new run would find the rows of one when the other begins. "
                "Let both say 'append', or let them write different tables"
            )
        differ = a.on_new_run != b.on_new_run or a.owns
        if a.connection == b.connection and differ and may_be_one_table(a.table, b.table):
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
        if a.folder == b.folder and (a.owns or b.owns):
            definition.refuse(
                f"operators {first!r} and {second!r} both write folder {a.folder!r} of {a.connection!r}, and one of them "
                "owns days of it: it would replace what the other one writes. Let them write different folders"
            )
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


def _check_delta_tables(definition: Definition) -> None:
    writers = [(name, op) for name, op in definition.operators.items() if isinstance(op, DeltaWriter)]
    for (first, a), (second, b) in combinations(writers, 2):
        if (a.connection, a.table) != (b.connection, b.table):
            continue
        both = (a.on_new_run, b.on_new_run)
        by_version = both == ("update", "update") and a.version is not None and a.version == b.version
        if both != ("append", "append") and not (by_version and set(a.primary_key) == set(b.primary_key)):
            definition.refuse(
                f"operators {first!r} and {second!r} both write Delta table {a.table or '.'!r} of {a.connection!r} with "
                f"on_new_run {a.on_new_run!r} and {b.on_new_run!r}: what is left would depend on which is first. Let both "
                "say 'append', or upsert with the same primary_key and version, or let them write different tables"
            )


def _check_quarantines(definition: Definition, graph: Graph) -> None:
    """Refuse a quarantine whose late events could change what is made of the others.

    A quarantined Input Set is generated late, when a person has fixed its cause: perhaps after everything else, perhaps
    after the stream has ended. The result of every receiver must not depend on when its events come.
    """
    for name, operator in definition.operators.items():
        if operator.on_error != "quarantine":
            continue
        for other in (name, *_behind(graph, name)):
            if other != name and isinstance(definition.operators[other], WindowedOperator | SeveralFunctions):
                definition.refuse(
                    f"operator {name!r} sets Input Sets aside on errors, but {other!r} behind it collects events in windows, "
                    "which close at the end of the stream at the latest: a retried Input Set would come too late. What was "
                    "made of a window that lacks its rows has been sent on, and no retry makes it again. Let "
                    f"{name!r} fail (on_error='fail'), put it behind the window, or let it send what it cannot use to a port "
                    "of its own"
                )
            writer = definition.operators[other]
            if isinstance(writer, TableWriter | DeltaWriter) and not writer.order_insensitive:
                definition.refuse(
                    f"operator {name!r} sets Input Sets aside on errors, but writer {other!r} behind it updates rows without "
                    "a version: what is retried late would be put over rows that came after it. Name the column that says "
                    f"which row is newer (version='updated_at'), or let {name!r} fail (on_error='fail')"
                )
            if not definition.operators[other].order_insensitive:
                where = "which is stateful" if other == name else f"but {other!r} behind it is stateful"
                definition.refuse(
                    f"operator {name!r} sets Input Sets aside on errors, {where} and does not say that the order of its "
                    "events does not matter: a retried Input Set comes late, even after the end of the stream. Declare "
                    f"{other!r} order_insensitive=True if that is so, or let {name!r} fail (on_error='fail')"
                )


def _behind(graph: Graph, operator: str) -> list[str]:
    found: list[str] = []
    todo = [operator]
    while todo:
        for follower in graph.after(todo.pop()):
            if follower not in found:
                found.append(follower)
                todo.append(follower)
    return found


def _check_orders(definition: Definition, graph: Graph) -> None:
    """Refuse a window that later records close, behind a DataFrame in no order.

    A column that functions in between have made may or may not be in the order of `ordered_by`; a record that comes too late
    is refused when it comes.
    """
    for name, source in definition.operators.items():
        if isinstance(source, SparkSource) and source.ordered_by is None:
            for other in sorted(graph.downstream(name)):
                for column in _ordered_on(definition.operators[other]):
                    definition.refuse(
                        f"operator {other!r} collects windows by {column!r}, which close when a later record comes, and the "
                        f"records of source {name!r} come in any order: write SparkSource(..., ordered_by={column!r}), or "
                        "name the column of the source that it is made of. A window that closes at the end of the stream, "
                        "or counts events, needs no order"
                    )


def _ordered_on(operator: Operator) -> list[str]:
    columns = (window.ordered_on() for port in operator.inputs for window in windows_at(operator, port))
    return [column for column in columns if column is not None]


# --- zones ------------------------------------------------------------------------------------------------------------


def check_session_zone(group: Group, operators: Mapping[str, Operator], session: str) -> None:
    """Raise PipelineDefinitionError, naming the operator, if a window of time of the group's Spark functions has another zone
    than their sessions: a start that is cast to a date there would be another day than its window."""
    for name in group.operators:
        operator = operators[name]
        if operator.mode not in (ExecutionMode.EXECUTORS, ExecutionMode.DATAFRAME):
            continue
        for window in (window for port in operator.inputs for window in windows_at(operator, port)):
            grid = window.grid()
            if grid is None or same_zone(grid.zone or UTC_ITSELF, session):
                continue
            raise PipelineDefinitionError(
                f"operator {name!r} of group {group.name!r} has windows of zone {grid.zone or UTC_ITSELF!r}, and Spark's "
                f"session has the zone {session!r} ({SESSION_ZONE}): a window_start that is cast to a date, or a time of a "
                "record, would be of another day than its window. Give both the same: Tumbling(..., zone=...) and "
                "Pipeline(..., zone=...)"
            )
