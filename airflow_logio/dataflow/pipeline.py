"""`Pipeline`: what an author builds, and what the runtime reads. Defining one starts nothing and connects to nothing.

While it is built, each method refuses at once what it can judge; the rest (cycles, dangling ports, groups, lineage) is
checked by `validate`, or on first use. From first use on the pipeline is frozen: what runs is what was defined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_logio.dataflow import params as parameters
from airflow_logio.dataflow.definition import Definition, with_own_groups
from airflow_logio.dataflow.describing import digest
from airflow_logio.dataflow.function_operators import FunctionOperator, windowed
from airflow_logio.dataflow.functions import GenerativeFunction, StatelessFunction, name_of
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.groups import Group
from airflow_logio.dataflow.lineage import LineagePorts, LineageScope, lineage_ports
from airflow_logio.dataflow.names import check_name
from airflow_logio.dataflow.operators import Operator, SourceOperator, WriterOperator
from airflow_logio.dataflow.validation import check_operator, check_whole
from airflow_logio.dataflow.windows import Window
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.values import Port


@dataclass(frozen=True, slots=True)
class Node:
    """Handle of an operator in a pipeline under construction; as an upstream it means its only output port."""

    name: str
    pipeline: Pipeline

    def port(self, name: str | None = None) -> Port:
        """The output port of that name, or the only one; raises PipelineDefinitionError."""
        return self.pipeline._output(self.name if name is None else f"{self.name}.{name}", "reference to port")

    @property
    def out(self) -> Port:
        """The only output port."""
        return self.port()


Upstream = Node | Port | str
"""An output port: a `Node`, a `Port`, ``"operator.port"``, or ``"operator"`` if it has one output port."""


@dataclass(frozen=True)
class _Frozen:
    graph: Graph
    operators: dict[str, Operator]
    groups: dict[str, Group]
    lineage: dict[str, LineagePorts]


class Pipeline:
    """A graph of operators, cut into groups, with named parameters and connections to external systems.

    All builder methods raise PipelineDefinitionError. `params` maps names to str, int, float or bool; `connections` are
    names that a deployment resolves, never URLs.
    """

    def __init__(
        self, name: str, *, params: Mapping[str, type] | None = None, connections: Iterable[str] = ()
    ) -> None:
        check_name("pipeline", name)
        typed = {check_name("parameter", p): parameters.check_type(p, kind) for p, kind in (params or {}).items()}
        if isinstance(connections, str):
            raise PipelineDefinitionError(f"connections is the single string {connections!r}: write [{connections!r}]")
        named = tuple(check_name("connection", connection) for connection in connections)
        self._definition = Definition(name, typed, named)
        if len(set(named)) < len(named):
            self._definition.refuse(f"a connection is named twice in {named}")

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}: {', '.join(self._definition.operators)})"

    # --- building ----------------------------------------------------------------------------------------------------

    def source(self, name: str, source: SourceOperator) -> Node:
        """Add an operator without input ports."""
        return self._add(name, source, SourceOperator, "a source")

    def operator(
        self,
        name: str,
        function: Operator | StatelessFunction | GenerativeFunction,
        *upstreams: Upstream,
        window: Window | None = None,
        **inputs: Upstream,
    ) -> Node:
        """Add an operator: a `stateless` function, a `generate` function with its `window`, or an `Operator`.

        `upstreams` feed its input ports in their order; with several ports, name them: ``clicks=upstream``.
        """
        return self._add(name, self._made(name, function, window), Operator, "an operator", upstreams, inputs)

    def writer(self, name: str, writer: WriterOperator, *upstreams: Upstream, **inputs: Upstream) -> Node:
        """Add an operator whose every input event is a write action."""
        return self._add(name, writer, WriterOperator, "a writer", upstreams, inputs)

    def sink(self, name: str, sink: Operator, *upstreams: Upstream, **inputs: Upstream) -> Node:
        """Add an operator without output ports."""
        if isinstance(sink, Operator) and sink.outputs:
            self._definition.refuse(f"sink {name!r} has output port {sink.outputs[0]!r}; add it with .operator(...)")
        return self._add(name, sink, Operator, "a sink", upstreams, inputs)

    def connect(self, sender: Upstream, receiver: str | Port) -> None:
        """Connect an output port to an input port: ``connect("a.out", "b.in")``."""
        self._open()
        begin = self._output(self._reference(sender), "connection from port")
        self._definition.connect(begin, self._definition.input(str(receiver)))

    def group(self, name: str, *operators: Node | str, spark: Mapping[str, str] | None = None) -> Group:
        """Put operators into one Spark application, with Spark settings of its own."""
        self._open()
        definition = self._definition
        members = tuple(member.name if isinstance(member, Node) else member for member in operators)
        group = Group(name, members, spark or {})
        if name in definition.groups:
            definition.refuse(f"group name {name!r} is used twice")
        for place, member in enumerate(members):
            definition.operator_named(member, f"group {name!r} contains")
            other = next((g.name for g in definition.groups.values() if member in g.operators), None)
            if member in members[:place]:
                other = name
            if other is not None:
                definition.refuse(f"operator {member!r} is in group {other!r} and in group {name!r}; it can be in one, once")
        definition.groups[name] = group
        return group

    def lineage(self, start: Upstream, target: Upstream) -> LineageScope:
        """Capture lineage on all paths between two output ports (Section 3.1)."""
        self._open()
        ports = [self._output(self._reference(end), "lineage scope names port") for end in (start, target)]
        scope = LineageScope(*ports)
        if scope not in self._definition.scopes:
            self._definition.scopes.append(scope)
        return scope

    def validate(self) -> Pipeline:
        """Check the whole pipeline; returns it; raises PipelineDefinitionError naming the culprit. Freezes nothing."""
        check_whole(self._definition)
        return self

    def freeze(self) -> Pipeline:
        """Check the whole pipeline and end its construction; returns it. Reading any view below does the same."""
        _ = self._frozen
        return self

    # --- views of the frozen pipeline --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def params(self) -> dict[str, type]:
        """Run parameters and their types."""
        return dict(self._definition.params)

    @property
    def connections(self) -> tuple[str, ...]:
        """Names of the external systems the pipeline needs."""
        return self._definition.connections

    @property
    def operators(self) -> dict[str, Operator]:
        """Operators by name, in topological order."""
        return self._frozen.operators

    @property
    def groups(self) -> dict[str, Group]:
        """Groups by name, those of sources first; an operator without group has one of its own name."""
        return self._frozen.groups

    @property
    def scopes(self) -> tuple[LineageScope, ...]:
        """Lineage scopes, as defined."""
        _ = self._frozen
        return tuple(self._definition.scopes)

    @property
    def graph(self) -> Graph:
        """Ports and connections."""
        return self._frozen.graph

    def receivers(self, sender: Port) -> tuple[Port, ...]:
        """Input ports fed by an output port; KeyError if there is no such port."""
        return self._frozen.graph.receivers(sender)

    def sender(self, receiver: Port) -> Port:
        """The output port that feeds an input port; KeyError if there is no such port."""
        return self._frozen.graph.senders[receiver]

    def lineage_ports(self, operator: str) -> LineagePorts:
        """(IN, OUT): input and output ports of an operator for which lineage is captured; KeyError if unknown."""
        return self._frozen.lineage[operator]

    def check_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a run's parameters, checked; raises ConfigurationError."""
        return parameters.check_params(self.name, self._definition.params, given)

    def describe(self) -> dict[str, Any]:
        """JSON-able structure: what ``fingerprint()["graph"]`` is the hash of. Spark settings are left out: more memory
        for a group must not make it another pipeline."""
        frozen = self._frozen
        return {
            "pipeline": self.name,
            "params": {name: kind.__name__ for name, kind in sorted(self._definition.params.items())},
            "connections": sorted(self.connections),
            "operators": {name: operator.describe() for name, operator in frozen.operators.items()},
            "senders": {str(receiver): str(sender) for receiver, sender in frozen.graph.senders.items()},
            "groups": {name: list(group.operators) for name, group in frozen.groups.items()},
            "lineage": sorted([str(scope.start), str(scope.target)] for scope in self.scopes),
        }

    def fingerprint(self) -> dict[str, str]:
        """``graph``: hash of structure, the authors' settings and state versions; a run goes on only with the same one.
        ``code``: hash of the source text of the authors' functions and classes; a change of it alone only warns."""
        code = {name: operator.code() for name, operator in self.operators.items()}
        return {"graph": digest(self.describe()), "code": digest(code)}

    # --- inside ------------------------------------------------------------------------------------------------------

    @cached_property
    def _frozen(self) -> _Frozen:
        definition = self._definition
        graph = check_whole(definition)
        order = graph.topological()
        operators = {name: definition.operators[name] for name in order}
        return _Frozen(
            graph, operators, with_own_groups(definition.groups, order), lineage_ports(graph, definition.scopes)
        )

    def _open(self) -> None:
        if "_frozen" in self.__dict__:
            self._definition.refuse("it is in use and cannot be changed; define everything before its first use")

    def _add(
        self,
        name: str,
        operator: Operator,
        expected: type[Operator],
        role: str,
        upstreams: tuple[Upstream, ...] = (),
        inputs: Mapping[str, Upstream] | None = None,
    ) -> Node:
        self._open()
        check_name("operator", name)
        if not isinstance(operator, expected):
            given = f"the class {operator.__name__}; write {operator.__name__}(...)" if isinstance(operator, type) else operator
            self._definition.refuse(f"{name!r} must be {role} ({expected.__name__}), not {given}")
        check_operator(self._definition, name, operator)
        pairs = self._fed(name, operator, upstreams, inputs or {})
        self._definition.operators[name] = operator
        for receiver, sender in pairs:
            self._definition.connect(sender, receiver)
        return Node(name, self)

    def _fed(
        self, name: str, operator: Operator, upstreams: tuple[Upstream, ...], inputs: Mapping[str, Upstream]
    ) -> list[tuple[Port, Port]]:
        """(receiver, sender) pairs; resolved before anything is added, so that a refused call changes nothing."""
        for port in inputs:
            if port not in operator.inputs:
                self._definition._no_port(f"{name}.{port}", "upstream given for port", operator.inputs)
        free = [port for port in operator.inputs if port not in inputs]
        if len(upstreams) > len(free):
            self._definition.refuse(
                f"operator {name!r} gets {len(upstreams)} upstreams for {len(free)} input port(s): one input port has one "
                "sender. Give the operator one input port for each"
            )
        named = [*zip(free, upstreams, strict=False), *inputs.items()]
        user = f"operator {name!r} reads port"
        return [(Port(name, port), self._output(self._reference(upstream), user)) for port, upstream in named]

    def _made(self, name: str, function: object, window: Window | None) -> Operator:
        refuse = self._definition.refuse
        if isinstance(function, GenerativeFunction):
            if not isinstance(window, Window):
                refuse(f"operator {name!r} generates from Input Sets: give window=EveryEvents(...) or Tumbling(...)")
            return windowed(function, window)
        if window is not None:
            refuse(f"operator {name!r} has a window, but {function!r} is no @generate function")
        if isinstance(function, StatelessFunction):
            return FunctionOperator(function)
        if not isinstance(function, Operator) and not isinstance(function, type) and callable(function):
            refuse(f"operator {name!r} is the plain function {name_of(function)!r}; decorate it: @stateless or @generate")
        return function  # type: ignore[return-value]  # _add refuses what is no Operator, with the right words

    def _reference(self, upstream: Upstream) -> str:
        if isinstance(upstream, Node):
            if upstream.pipeline is not self:
                self._definition.refuse(f"operator {upstream.name!r} belongs to pipeline {upstream.pipeline.name!r}")
            return upstream.name
        return str(upstream)

    def _output(self, reference: str, user: str) -> Port:
        return self._definition.output(reference, user)
