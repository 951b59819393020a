"""`Pipeline`: what an author builds, and what the runtime reads. Defining one starts nothing and connects to nothing.

While it is built, each method refuses at once what it can judge; the rest (cycles, dangling ports, groups, lineage) is
checked by `validate`, or on first use. From first use on the pipeline is frozen: what runs is what was defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_logio.dataflow import parameters
from airflow_logio.dataflow.functions.decorators import GenerativeFunction, StatelessFunction, name_of
from airflow_logio.dataflow.functions.function_operators import FrameFunctionOperator, FunctionOperator
from airflow_logio.dataflow.functions.own_partition import OwnPartition
from airflow_logio.dataflow.functions.several_functions import SeveralFunctions
from airflow_logio.dataflow.functions.windowed_operators import WindowedOperator, windowed
from airflow_logio.dataflow.names import check_count, check_name
from airflow_logio.dataflow.operators import ManualOperator, Operator, SourceOperator, WriterOperator
from airflow_logio.dataflow.pipeline.days import Partitioning, PartitionKey, check_partition, partition_params
from airflow_logio.dataflow.pipeline.days_of_tables import DaysOfTable, WhichDays
from airflow_logio.dataflow.pipeline.definition import (
    CallLimit,
    Definition,
    Group,
    LocalDefaults,
    Prepare,
    Replicated,
    check_variables,
)
from airflow_logio.dataflow.pipeline.frozen import Frozen
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.lineage import (
    LineagePorts,
    LineageScope,
    MadeFrom,
    columns_of_dependence,
    declared_columns,
)
from airflow_logio.dataflow.pipeline.validation import (
    check_group,
    check_operator,
    check_whole,
    checked_arrival,
    checked_days,
)
from airflow_logio.dataflow.quantities import kept_seconds, retention_seconds
from airflow_logio.dataflow.replication.partition import Partition
from airflow_logio.dataflow.sources.arrival import FINISH, InputArrival
from airflow_logio.dataflow.sources.query import QuerySource
from airflow_logio.dataflow.windows import Window
from airflow_logio.dataflow.windows.zones import check_zone
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.replicas import base_operator, replicated_group
from airflow_logio.protocol.values import ExecutionMode, Port


@dataclass(frozen=True, slots=True)
class Node:
    """The handle of an operator of a pipeline, as the pipeline's builder methods return it.

    As an upstream it means the operator's only output port.

    :param name: name of the operator.
    :param pipeline: the pipeline that it is in.
    """

    name: str
    pipeline: Pipeline

    def port(self, name: str | None = None) -> Port:
        """An output port of the operator.

        :param name: name of the port; None (the default) means the only one.

        Raises PipelineDefinitionError if there is no such port, or none was named and there are several.
        """
        return self.pipeline.output(self.name if name is None else f"{self.name}.{name}")

    @property
    def out(self) -> Port:
        """The only output port."""
        return self.port()


Upstream = Node | Port | str
"""An output port: a `Node`, a `Port`, ``"operator.port"``, or ``"operator"`` if it has one output port."""

OneFunction = GenerativeFunction | tuple[GenerativeFunction, Window]
"""One of several functions of an operator, perhaps with a window of its own."""


class Pipeline:
    """A graph of operators, cut into groups, with named parameters and connections to external systems.

    Build it at the top of a module, with one call per operator. From its first use on (a run, `freeze`, or any of the
    views) it cannot be changed. What it needs from a deployment has a name here and a value there.

    :param name: name of the pipeline: lower-case letters, digits and ``_``, at most 63 characters, as all names here.
    :param params: name of a run parameter → its type: ``str``, ``int``, ``float`` or ``bool``. Every run must give a
        value for each (`local_defaults` is for `logio run`). Paths name them as ``{name}``, queries as ``:name``,
        functions take them as ``params`` (docs/parameters.md).
    :param connections: names of the external systems that operators use. A deployment says what they are; a URL is
        refused.
    :param environment: names of environment variables of whatever process launches a driver, which the driver gets,
        too: a token, a proxy. Their values are in no command line, Spark property or log. Names of Airflow's own
        variables are refused.
    :param fuse: operators that are in no `group` share one where nothing tells them apart, which costs the least.
        False: each has a group of its own. Cut where you want a unit of failure, of scaling, or of parallel work
        (ADR-121).
    :param partition: what one run is for: `Days` or `Hours`. Each run then has a day (or hour), which gives it the
        parameters ``{day}``, ``{day_start}`` and ``{day_end}``. By default runs have none.
    :param zone: the time zone of its Spark sessions, ``"Europe/Berlin"``: that in which functions of mode ``executors``
        and ``dataframe`` cast times to dates and texts. By default UTC. Their windows of time must have the same zone
        (`Tumbling(..., zone=...)`), so that a start that is cast to a date is the day of its window.
    :param drivers_at_once: how many drivers all runs of the pipeline may have at once, by default any number: a task that
        is deferred holds no slot of a worker, but its driver holds memory. A run begins when all its groups fit, or when
        no other run has drivers; until then its tasks wait, deferred. A run that has begun is never held up. One that is
        parked or halted gives its place to others.
    :param keep_runs: how long ended runs stay in the log, ``"90d"``: what supervises runs then removes them, with their
        lineage and payloads (docs/how-to/operate.md). By default until a person removes them (`logio gc`). Runs that wait
        for a person stay. It holds for all runs of the pipeline, as its last one says.

    All methods that build raise PipelineDefinitionError for what they can judge at once; `validate` judges the rest.
    """

    def __init__(
        self,
        name: str,
        *,
        params: Mapping[str, type] | None = None,
        connections: Iterable[str] = (),
        environment: Iterable[str] = (),
        fuse: bool = True,
        partition: Partitioning | None = None,
        zone: str | None = None,
        drivers_at_once: int | None = None,
        keep_runs: str | None = None,
    ) -> None:
        check_name("pipeline", name)
        typed = {check_name("parameter", p): parameters.check_type(p, kind) for p, kind in (params or {}).items()}
        if isinstance(connections, str):
            raise PipelineDefinitionError(f"connections is the single string {connections!r}: write [{connections!r}]")
        named = tuple(check_name("connection", connection) for connection in connections)
        session_zone = "" if zone is None else check_zone(zone)
        self._definition = Definition(name, typed, named, fuse, check_variables(environment), session_zone)
        if (divided := check_partition(partition)) is not None:
            self._definition.divide(divided)
        if drivers_at_once is not None:
            self._definition.drivers_at_once = check_count("drivers_at_once", drivers_at_once)
        if keep_runs is not None:
            self._definition.keep_seconds = kept_seconds(keep_runs)
        if len(set(named)) < len(named):
            self._definition.refuse(f"a connection is named twice in {named}")

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}: {', '.join(self._definition.operators)})"

    # --- building ----------------------------------------------------------------------------------------------------

    def source(
        self,
        name: str,
        source: SourceOperator,
        *,
        wait: str | None = None,
        ready: str | None = None,
        on_empty: str = FINISH,
        days: Mapping[str, WhichDays] | None = None,
    ) -> Node:
        """Add an operator without input ports, and return its handle.

        :param name: name of the operator, unique in the pipeline.
        :param source: a ready-made source, or one derived from `SourceOperator`, `ConnectedSource` or `RangeSource`.
        :param wait: for how long a run waits for its input, ``"6h"``, before there is a run or a driver
            (docs/how-to/every-day.md). By default it does not wait: input that is not there is refused.
        :param ready: what is there when all of the input is: a path, ``"{data}/dt={day}/_SUCCESS"``; or for a source of
            a SQL connection a SELECT on it, which returns a row then. By default what the source reads is looked for:
            files that are whole, or one row.
        :param on_empty: what becomes of a run whose input is there and has no rows at all: ``"finish"`` (the default), or
            ``"fail"``, before it begins.
        :param days: which days of which tables it reads, so that the run is marked when one of them is replaced later:
            ``{"top": "day={day}"}``, a range ``"day={first}..{last}"``, several of them, or a function that gets the run's
            parameters and returns such texts (docs/how-to/every-day.md). It is your word, and changes nothing that is read.

        `wait`, `ready`, `on_empty` and `days` are no part of what a run resumes with. Raises PipelineDefinitionError.
        """
        partition = self._definition.partition
        if isinstance(source, QuerySource) and partition is not None:
            source = source.with_instants(partition.names[1:])
        self._open()
        arrival = checked_arrival(self._definition, name, source, wait, ready, on_empty)
        read = checked_days(self._definition, name, source, days)
        node = self._add(name, source, SourceOperator)
        if read:
            self._definition.days_read[name] = read
        if arrival is not None:
            self._definition.arrivals[name] = arrival
        return node

    def operator(
        self,
        name: str,
        function: Operator | OwnPartition | StatelessFunction | GenerativeFunction | Mapping[str, OneFunction],
        *upstreams: Upstream,
        window: Window | None = None,
        replay: bool = False,
        **inputs: Upstream,
    ) -> Node:
        """Add an operator, and return its handle.

        :param name: name of the operator, unique in the pipeline.
        :param function: a `stateless` function; a `generate` function, which needs a `window`; `OwnPartition`; or an
            `Operator`. A mapping makes one operator of several `generate` functions over the same events, ``{"totals":
            f, "hourly": (g, Tumbling("1h", on="time"))}``: `window` is for those without one of their own, and output
            ports have the names of the functions. A plain function is refused.
        :param upstreams: output ports that feed its input ports, in the order of these: a `Node`, a port,
            ``"operator.port"`` or ``"operator"``. Each input port has exactly one.
        :param window: how events become Input Sets: `AllOfRun`, `EveryEvents`, `Tumbling`, `Synchronized`, or one
            derived from `Window`. Refused for anything but `generate` functions.
        :param replay: keep the records of its events out of the log: receivers make them again from the Input Sets,
            which are in it. Only for what makes the same of the same events, with lineage on all its ports (ADR-106 has
            the conditions). By default False.
        :param inputs: upstreams by the name of the input port, where it has several: ``clicks=upstream``.

        Raises PipelineDefinitionError.
        """
        operator = _operator_of(self._definition, name, function, window)
        node = self._add(name, operator, Operator, upstreams, inputs)
        if replay:
            self._definition.replays.add(name)
        return node

    def writer(self, name: str, writer: WriterOperator, *upstreams: Upstream, **inputs: Upstream) -> Node:
        """Add an operator whose every input event is a write action, and return its handle.

        :param name: name of the operator, unique in the pipeline.
        :param writer: a ready-made writer, or one derived from `ConditionalWriter`, `CheckableWriter` or
            `IdempotentWriter`.
        :param upstreams: the output port that feeds it.
        :param inputs: the same by the name of the input port: ``**{"in": upstream}``.

        It sends on what it writes; its output port may stay unconnected. Raises PipelineDefinitionError.
        """
        return self._add(name, writer, WriterOperator, upstreams, inputs)

    def sink(self, name: str, sink: Operator, *upstreams: Upstream, **inputs: Upstream) -> Node:
        """Add an operator without output ports, and return its handle.

        :param name: name of the operator, unique in the pipeline.
        :param sink: `Count`, or one derived from `SinkOperator`. One with output ports is refused.
        :param upstreams: output ports that feed its input ports, in the order of these.
        :param inputs: upstreams by the name of the input port.

        Raises PipelineDefinitionError.
        """
        if ports := getattr(sink, "outputs", ()):
            self._definition.refuse(f"sink {name!r} has output port {ports[0]!r}; add it with .operator(...)")
        return self._add(name, sink, Operator, upstreams, inputs)

    def connect(self, sender: Upstream, receiver: Port | str) -> None:
        """Connect an output port to an input port that has no sender yet: ``connect("a.out", "b.in")``.

        :param sender: the output port: a `Node`, a port, ``"operator.port"`` or ``"operator"``.
        :param receiver: the input port, ``"operator.port"`` or ``"operator"``.

        Raises PipelineDefinitionError if one of them does not exist, or the input port has a sender.
        """
        self._open()
        begin = self._definition.output(self._reference(sender), "connection from port")
        self._definition.connect(begin, self._definition.input(str(receiver)))

    def group(
        self,
        name: str,
        *operators: Node | str,
        spark: Mapping[str, str] | None = None,
        jobs_at_once: int | None = None,
        standby: int = 0,
    ) -> Group:
        """Put operators into one Spark application, which fails and recovers as one, and return the group.

        :param name: name of the group, unique in the pipeline.
        :param operators: the members: nodes or names. Each operator is in one group at most.
        :param spark: Spark properties of its drivers, ``{"spark.driver.memory": "2g"}``; values are text. They are no
            part of what a run resumes with, and an Airflow operator may override them.
        :param jobs_at_once: how many waiting events are evaluated side by side, each by Spark jobs of its own: 1 to 64.
            Only for groups with an operator of mode ``dataframe``. Results leave in the order of events. By default
            what cores and memory of the driver allow. It may be changed between a driver and its successor.
        :param standby: 1: a second process stands by on the driver's machine, with everything imported and its Spark
            session made. When the driver dies, it takes its place, and starts the next one. It needs about as much
            memory as an idle driver. Each replica of a replicated group has one of its own. By default 0.

        Raises PipelineDefinitionError.
        """
        self._open()
        members = tuple(self._reference(operator) for operator in operators)
        group = Group(name, members, spark or {}, jobs_at_once, standby)
        check_group(self._definition, group)
        self._definition.groups[name] = group
        return group

    def replicate(
        self,
        group: Group | Node | str,
        *,
        partition: Partition,
        max: int,  # what authors call it
        min: int = 0,
        initial: int | None = None,
        ordered: bool = False,
    ) -> Replicated:
        """Let several replicas share the work of a group. Their number can be changed during a run (`logio scale`,
        LogioScaleOperator).

        :param group: the group; or an operator that is in no named group.
        :param partition: which replica gets what: `RoundRobin`, `LeastLoaded`, or `ByKey` where operators have state.
        :param max: the largest number of replicas there may be in a run.
        :param min: the smallest number; with 0 (the default) the group may sleep until there is work.
        :param initial: how many there are when a run begins; by default 1, or `min`.
        :param ordered: what comes out has the order of what went in: for whole events, and operators without state. By
            default False.

        The group's operators must allow it (docs/how-to/scale.md): that is checked on first use. Raises
        PipelineDefinitionError.
        """
        self._open()
        name = group.name if isinstance(group, Group) else self._reference(group)
        if any(one.group == name for one in self._definition.replicated):
            self._definition.refuse(f"group {name!r} is replicated twice")
        one = Replicated(name, partition, min, max, (1 if min == 0 else min) if initial is None else initial, ordered)
        self._definition.replicated.append(one)
        return one

    def limit(self, *operators: Node | str, max_seconds: float, on_overrun: str = "recover") -> None:
        """Let a call of these operators' functions, sources or writers that runs too long end its driver. The default
        is no limit.

        :param operators: nodes or names.
        :param max_seconds: how many seconds one call may take. Waiting for an external system that says it is
            unavailable does not count.
        :param on_overrun: ``"recover"`` (the default) recovers the group, and parks it at the third overrun at the same
            place; ``"park"`` parks it at once.

        Limits may be changed between a driver and its successor: they are no part of what a run resumes with (ADR-57).
        Raises PipelineDefinitionError.
        """
        self._open()
        limit = CallLimit(max_seconds, on_overrun)
        for name in map(self._reference, operators):
            if isinstance(self._definition.operator_named(name, "the limit of a call names"), ManualOperator):
                self._definition.refuse(f"operator {name!r} is written by hand: its one call lasts as long as the run")
            self._definition.limits[name] = limit

    def lineage(self, start: Upstream, target: Upstream, *, retention: str | None = None) -> LineageScope:
        """Capture lineage on all paths between two output ports (Section 3.1), and return the scope.

        :param start: the output port that lineage leads back to.
        :param target: the output port that lineage starts from, downstream of `start`.
        :param retention: how long the lineage of a target event is kept, ``"12h"`` or ``"7d"``: for runs that never
            end. By default as long as the run is in the log (Section 3.6).

        Raises PipelineDefinitionError; a scope without a path is refused on first use.
        """
        self._open()
        ports = [self._definition.output(self._reference(end), "lineage scope names port") for end in (start, target)]
        scope = LineageScope(ports[0], ports[1], None if retention is None else retention_seconds(retention))
        if scope not in self._definition.scopes:
            self._definition.scopes.append(scope)
        return scope

    def column_lineage(self, output: Upstream, columns: Mapping[str, str | Iterable[str]]) -> None:
        """Say which input columns the columns of an output port are made from, for OpenLineage (docs/airflow.md).

        :param output: the output port.
        :param columns: output column → input column, or several: ``{"revenue": "sales_value"}``; with several input
            ports ``"clicks.price"``, from a declared read ``"products.department"``.

        Nothing is derived from an author's code, so a column that is not named here, nor in ``depends``, has no
        lineage. Ready-made sources and writers need no declaration. It may be changed during a run: it is no part of
        what a run resumes with. Raises PipelineDefinitionError.
        """
        self._open()
        port = self._definition.output(self._reference(output), "column lineage names port")
        if port in self._definition.columns:
            self._definition.refuse(f"the column lineage of {str(port)!r} is declared twice")
        operator = self._definition.operators[port.operator]
        self._definition.columns[port] = declared_columns(port, operator, columns, self._definition.refuse)

    def local_defaults(
        self,
        *,
        params: Mapping[str, Callable[[], Any]] | None = None,
        connections: Mapping[str, str | Path] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """Say what `logio run` uses where nothing else is given, so that an example needs no options. Airflow ignores
        it.

        :param params: run parameter → a function without arguments that makes its value.
        :param connections: connection → an SQLite file, or a folder if files are written there; relative to the
            terminal's folder.
        :param prepare: called before a run that uses any of these is started, with connection name → database URL. It
            may return a sentence for the terminal.

        Raises PipelineDefinitionError for a name that the pipeline does not have.
        """
        self._open()
        files = {name: Path(file) for name, file in (connections or {}).items()}
        local = LocalDefaults(dict(params or {}), files, prepare)
        if flaw := local.flaw(self.params, self._definition.connections):
            self._definition.refuse(flaw)
        self._definition.local = local

    def output(self, reference: str) -> Port:
        """The output port that a reference means.

        :param reference: ``"operator.port"``, or ``"operator"`` if it has one output port.

        Raises PipelineDefinitionError.
        """
        return self._definition.output(reference, "reference to port")

    def validate(self) -> Pipeline:
        """Check the whole pipeline and return it. It changes nothing, and the pipeline can still be built on.

        Raises PipelineDefinitionError for a cycle, a port without a connection, operators that cannot share a group,
        and the like.
        """
        Frozen.of(self._definition)
        return self

    def freeze(self) -> Pipeline:
        """Check the whole pipeline, end its construction and return it; reading any of the views does the same.

        Raises PipelineDefinitionError.
        """
        _ = self._frozen
        return self

    def unreplicated(self) -> Pipeline:
        """The same pipeline with nothing replicated, in the same groups. However many replicas there are, they must
        produce what it produces.
        """
        plain = Pipeline(self.name)
        plain._definition = replace(check_whole(self._definition)[0], replicated=[])
        return plain.freeze()

    # --- what the runtime reads: views of the frozen pipeline --------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self._definition.name

    @property
    def params(self) -> dict[str, type]:
        """Run parameters and their types, without those that the partition of a run gives."""
        return self._definition.given_params()

    @property
    def partition(self) -> Partitioning | None:
        """What one run is for; None if runs have no day or hour of their own."""
        return self._definition.partition

    @property
    def connections(self) -> tuple[str, ...]:
        """Names of the external systems the pipeline needs."""
        return self._definition.connections

    @property
    def environment(self) -> tuple[str, ...]:
        """Names of the environment variables that drivers get."""
        return self._definition.environment

    @property
    def drivers_at_once(self) -> int | None:
        """How many drivers all its runs may have at once; None for any number."""
        return self._definition.drivers_at_once

    @property
    def keep_seconds(self) -> float | None:
        """How long its ended runs stay in the log, in seconds; None: until a person removes them."""
        return self._definition.keep_seconds

    @property
    def limits(self) -> Mapping[str, CallLimit]:
        """Operator, as its author named it → limit of its calls."""
        return dict(self._definition.limits)

    @property
    def arrivals(self) -> Mapping[str, InputArrival]:
        """Source → how it gets its input, for sources that say so."""
        return dict(self._definition.arrivals)

    @property
    def days_read(self) -> Mapping[str, tuple[DaysOfTable, ...]]:
        """Source → the days of tables that it reads, for sources that say so."""
        return dict(self._definition.days_read)

    @property
    def declared_columns(self) -> Mapping[Port, MadeFrom]:
        """Output port, as its author named it → what its columns are made from, as far as declared: by `column_lineage`, or
        else by the operator's `depends`."""
        found: dict[Port, MadeFrom] = {}
        for name, operator in self._definition.operators.items():
            for output, dependence in operator.record_rules().outputs.items():
                if columns := columns_of_dependence(dependence):
                    found[Port(name, output)] = columns
        return found | {port: {**found.get(port, {}), **columns} for port, columns in self._definition.columns.items()}

    @property
    def local(self) -> LocalDefaults:
        """What `logio run` uses where nothing else is given."""
        return self._definition.local

    @property
    def operators(self) -> dict[str, Operator]:
        """Operators by name, in topological order; those of a replicated group once per slot, ``enrich[3]``."""
        return self._frozen.operators

    @property
    def groups(self) -> dict[str, Group]:
        """Groups by name, in the order of their first operator; an operator without group has one of its own name."""
        return self._frozen.groups

    @property
    def replicated(self) -> dict[str, Replicated]:
        """Replicated groups by name."""
        return self._frozen.replicated

    @property
    def applications(self) -> tuple[str, ...]:
        """What is launched, claimed and recovered by itself: groups, and each replica of those that are replicated."""
        replicas = {name: one.replicas for name, one in self.replicated.items()}
        return tuple(name for group in self.groups for name in replicas.get(group, (group,)))

    def group_of(self, application: str) -> Group:
        """The group that an application runs, itself or as a replica; KeyError if there is none.

        :param application: name of a group, or of a replica.
        """
        return self.groups[replicated_group(application)]

    def no_group(self, *names: str) -> str:
        """The sentence for groups that there are not; an operator of such a name may be in another one (ADR-121).

        :param names: the names that were given for groups.
        """
        inside = "".join(
            f". Operator {name!r} is in group {self.home(name)!r}: give it a group of its own with .group({name!r}, {name!r})"
            for name in names
            if name in self.operators
        )
        return f"pipeline {self.name!r} has no group {', '.join(map(repr, names))}; it has {list(self.groups)}{inside}"

    def applications_of(self, operator: str) -> tuple[str, ...]:
        """The applications in which an operator may run: that of its group, or all its replicas.

        :param operator: name of the operator.
        """
        home = self.home(operator)
        return self.replicated[home].replicas if home in self.replicated else (home,)

    def home(self, operator: str) -> str:
        """Name of the group of an operator; KeyError if unknown.

        :param operator: name of the operator.
        """
        return self._frozen.homes[operator]

    @property
    def scopes(self) -> tuple[LineageScope, ...]:
        """Lineage scopes, as defined."""
        return self._frozen.scopes

    @property
    def graph(self) -> Graph:
        """Ports and connections."""
        return self._frozen.graph

    def receivers(self, sender: Port) -> tuple[Port, ...]:
        """Input ports fed by an output port; KeyError if there is no such port.

        :param sender: the output port.
        """
        return self._frozen.graph.receivers(sender)

    def sender(self, receiver: Port) -> Port:
        """The output port that feeds an input port; KeyError if there is no such port.

        :param receiver: the input port.
        """
        return self._frozen.graph.senders[receiver]

    def lineage_ports(self, operator: str) -> LineagePorts:
        """(IN, OUT): input and output ports of an operator for which lineage is captured; KeyError if unknown.

        :param operator: name of the operator.
        """
        return self._frozen.lineage[operator]

    def lineage_starts(self, operator: str) -> frozenset[str]:
        """Output ports of OUT at which lineage paths only start; KeyError if unknown.

        :param operator: name of the operator.
        """
        return self._frozen.lineage_starts[operator]

    def replays(self, operator: str) -> bool:
        """Whether it is a replay operator, whose events' bodies are not in the log.

        :param operator: name of the operator.
        """
        return base_operator(operator) in self._definition.replays

    def check_params(self, given: Mapping[str, Any], partition: PartitionKey | None = None) -> dict[str, Any]:
        """The values of a run's parameters, checked, text turned into the declared type, and those of its partition.

        :param given: name → value, without those that the partition gives.
        :param partition: the partition of the run, if the pipeline has one for each.

        Raises ConfigurationError if one is missing, unknown or wrong, and if the partition is missing or there is none.
        """
        own = partition_params(self.name, self.partition, given, partition)
        return parameters.check_params(self.name, self.params, given) | own

    def for_run(self, params: Mapping[str, Any]) -> Pipeline:
        """The pipeline as a run has it: with the parameters in the names of folders (docs/parameters.md). Its description
        and fingerprint stay those of the pipeline.

        :param params: what `check_params` has returned.

        Raises ConfigurationError for a value that cannot be part of a name, PipelineDefinitionError if writers get in each
        other's way.
        """
        frozen = self._frozen.for_run(params)
        if frozen is self._frozen:
            return self
        own = Pipeline(self.name)
        own._definition = self._definition
        own.__dict__["_frozen"] = frozen
        return own

    def describe(self) -> dict[str, Any]:
        """JSON-able structure; ``fingerprint()["graph"]`` is its hash, and a comparison tells what has changed."""
        return self._frozen.describe()

    def fingerprint(self) -> dict[str, str]:
        """``graph``: hash of structure, settings and state versions; a run resumes only with the same one.

        ``code``: hash of the source text of the author's functions and classes; a change of it alone only warns.
        """
        return self._frozen.fingerprint()

    # --- inside ------------------------------------------------------------------------------------------------------

    @cached_property
    def _frozen(self) -> Frozen:
        return Frozen.of(self._definition)

    def _open(self) -> None:
        if "_frozen" in self.__dict__:
            self._definition.refuse("it is in use and cannot be changed; define everything before its first use")

    def _add(
        self,
        name: str,
        operator: object,
        role: type[Operator],
        upstreams: Iterable[Upstream] = (),
        inputs: Mapping[str, Upstream] | None = None,
    ) -> Node:
        self._open()
        check_name("operator", name)
        operator = _checked_operator(self._definition, name, operator, role)
        if isinstance(operator, OwningWriter) and self.partition is not None:
            operator = operator.in_pipeline_by(self.partition.name)
        named = {port: self._reference(upstream) for port, upstream in (inputs or {}).items()}
        pairs = _senders_of(self._definition, name, operator, [self._reference(u) for u in upstreams], named)
        self._definition.operators[name] = operator
        self._definition.senders.update(pairs)
        return Node(name, self)

    def _reference(self, upstream: Upstream) -> str:
        if isinstance(upstream, Node) and upstream.pipeline is not self:
            self._definition.refuse(f"operator {upstream.name!r} belongs to pipeline {upstream.pipeline.name!r}")
        return upstream.name if isinstance(upstream, Node) else str(upstream)


def _operator_of(definition: Definition, name: str, function: object, window: object) -> object:
    """The operator of a decorated function and its window, or of several functions. Anything else stays as it is, for
    `_checked_operator` to judge."""
    if isinstance(function, Mapping):
        each = {part: _one_of_several(definition, f"{name}.{part}", one, window) for part, one in function.items()}
        return SeveralFunctions(each)
    if isinstance(function, GenerativeFunction):
        return _windowed(definition, name, function, window)
    if window is not None:
        definition.refuse(f"operator {name!r} has a window, but {function!r} is no @generate function")
    if isinstance(function, OwnPartition):
        function = _dividing(definition, name, function)
    if isinstance(function, StatelessFunction):
        in_spark = function.mode is ExecutionMode.DATAFRAME
        return FrameFunctionOperator(function) if in_spark else FunctionOperator(function)
    if callable(function) and not isinstance(function, Operator | type):
        definition.refuse(
            f"operator {name!r} is the plain function {name_of(function)!r}; decorate it: @stateless or @generate(...)"
        )
    return function


def _dividing(definition: Definition, name: str, own: OwnPartition) -> StatelessFunction:
    partition = definition.partition
    if partition is None:
        definition.refuse(
            f"operator {name!r} is {own!r}, and runs of the pipeline have no partition: define it with "
            f"partition=Days({own.partition!r}, zone=...)"
        )
    if partition.name != own.partition:
        definition.refuse(
            f"operator {name!r} is {own!r}, and the partition of the pipeline is {partition.written()}: write "
            f"OwnPartition({partition.name!r}, ...)"
        )
    return own.of(partition.what, partition.zone, lambda at: partition.containing(at).text)


def _windowed(definition: Definition, name: str, function: GenerativeFunction, window: object) -> WindowedOperator:
    if not isinstance(window, Window):
        windows = "AllOfRun(), EveryEvents(...), Tumbling(...) or Synchronized(...)"
        definition.refuse(f"operator {name!r} generates from Input Sets: give window={windows}")
    return windowed(function, window)


def _one_of_several(definition: Definition, name: str, given: object, window: object) -> WindowedOperator:
    """`given` is a function, for the window of all, or (function, window of its own)."""
    function, own = given if isinstance(given, tuple) and len(given) == 2 else (given, window)
    if not isinstance(function, GenerativeFunction):
        definition.refuse(
            f"{name!r} is one of several functions of an operator, and no @generate function: {function!r}"
        )
    return _windowed(definition, name, function, own)


def _checked_operator(definition: Definition, name: str, operator: object, role: type[Operator]) -> Operator:
    """`operator`, if it is one, plays the role and can be added under that name; raises PipelineDefinitionError."""
    if not isinstance(operator, role):
        given = (
            f"the class {operator.__name__}: write {operator.__name__}(...)" if isinstance(operator, type) else operator
        )
        definition.refuse(f"{name!r} must be a {role.__name__}, not {given}")
    check_operator(definition, name, operator)
    return operator


def _senders_of(
    definition: Definition, name: str, operator: Operator, upstreams: Sequence[str], inputs: Mapping[str, str]
) -> dict[Port, Port]:
    """Receiver → sender ports; resolved before anything is added, so that a refused call changes nothing."""
    for port in inputs:
        if port not in operator.inputs:
            definition.refuse_port(f"{name}.{port}", "upstream given for port", operator.inputs)
    free = [port for port in operator.inputs if port not in inputs]
    if len(upstreams) > len(free):
        definition.refuse(
            f"operator {name!r} gets {len(upstreams)} upstreams for {len(free)} input port(s): one input port has one "
            f"sender. {_way_to_bring_together(operator)}"
        )
    named = [*zip(free, upstreams, strict=False), *inputs.items()]
    return {Port(name, port): definition.output(upstream, f"operator {name!r} reads port") for port, upstream in named}


def _way_to_bring_together(operator: Operator) -> str:
    """What to do with several upstreams of an operator that has too few ports."""
    if isinstance(operator, WriterOperator):
        return (
            "A writer has one: bring its upstreams together in front of it, with a function of several ports, "
            "@stateless(inputs=('a', 'b')) def both(rows): return rows; or give each a writer of its own"
        )
    if isinstance(operator, FunctionOperator | FrameFunctionOperator):
        return (
            "Name one for each: @stateless(inputs=('a', 'b')). Each event of any of them is then a call, and a parameter "
            "`port` says which one it came from"
        )
    if isinstance(operator, WindowedOperator):
        return (
            "Name one for each: @generate(inputs=('a', 'b')) def joined(a, b): ... gets a table of each port, by name"
        )
    return "Give the operator one input port for each"
