"""Several generative functions over the same events (the paper's Example OP2, second half)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.dataflow.functions.decorators import ONE_OUTPUT
from airflow_logio.dataflow.functions.windowed_operators import WindowedOperator
from airflow_logio.dataflow.names import check_name, quoted
from airflow_logio.dataflow.operators import External, InputEvent, InputSet, Operator, PortTable, StatefulOperator
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.dataflow.windows import Window
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.record_rules import RecordRules
from airflow_logio.protocol.values import ExecutionMode


class SeveralFunctions(StatefulOperator):
    """One operator that assigns each event to Input Sets of several functions, each with its own window and event state.

    An Input Set is named ``function:inset_id``; the Input Sets of one function close in the order of its window,
    independently of the others. Global state: {function: state of its window}. Event state: (function, its event state).
    Input ports are those of all functions; a function sees the events of its own. A function with the one output port
    ``out`` gets an output port of its own name instead. Raises PipelineDefinitionError.
    """

    def __init__(self, functions: Mapping[str, WindowedOperator]) -> None:
        self._functions = {check_name("function", name): one for name, one in functions.items()}
        if not self._functions:
            raise PipelineDefinitionError("no function is given: write {name: function, ...}")
        self._refuse_jobs()
        self.inputs = _union(one.inputs for one in self._functions.values())
        self._ports = {
            name: {port: name if one.outputs == ONE_OUTPUT else port for port in one.outputs}
            for name, one in self._functions.items()
        }
        self.outputs = tuple(port for renamed in self._ports.values() for port in renamed.values())
        self.reads_state = any(one.reads_state for one in self._functions.values())
        self.state_version = max(one.state_version for one in self._functions.values())
        self.port_order = self._one_order()
        self.on_error = self._one_on_error()
        self.order_insensitive = all(one.order_insensitive for one in self._functions.values())
        self.needs_event_ids = any(one.needs_event_ids for one in self._functions.values())
        self.partitionable = all(one.partitionable for one in self._functions.values())

    @property
    def reads(self) -> Mapping[str, DeclaredRead]:
        """The declared reads of all functions, as ``function.read``."""
        return {f"{name}.{read}": what for name, one in self._functions.items() for read, what in one.reads.items()}

    def record_rules(self) -> RecordRules:
        every = {name: one.record_rules() for name, one in self._functions.items()}
        outputs = {self._ports[name][port]: one for name, rules in every.items() for port, one in rules.outputs.items()}
        return RecordRules(outputs, {name: rules.parts[""] for name, rules in every.items() if "" in rules.parts})

    def windows(self, port: str) -> tuple[Window, ...]:
        """Those of the functions that use the port."""
        return tuple(window for one in self._functions.values() for window in one.windows(port))

    def connections(self) -> tuple[str, ...]:
        return _union(one.connections() for one in self._functions.values())

    def sql_connections(self) -> frozenset[str]:
        return frozenset().union(*(one.sql_connections() for one in self._functions.values()))

    def initial_state(self) -> dict[str, Any]:
        return {name: one.initial_state() for name, one in self._functions.items()}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        return {
            f"{name}:{inset_id}": (name, part)
            for name, one in self._functions.items()
            if event.port in one.inputs
            for inset_id, part in one.assign(event, state[name]).items()
        }

    def part(self, event: InputEvent, inset_id: str) -> Any:
        name, inner = _split(inset_id)
        return name, self._functions[name].part(event, inner)

    def accumulate(self, held: Any | None, part: Any) -> Any:
        name, inner = part
        return name, self._functions[name].accumulate(None if held is None else held[1], inner)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return [
            f"{name}:{inset_id}"
            for name, inner in self._by_function(open_insets).items()
            for inset_id in self._functions[name].triggered(state[name], inner)
        ]

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return [
            f"{name}:{inset_id}"
            for name, inner in self._by_function(open_insets).items()
            for inset_id in self._functions[name].flush(state[name], inner)
        ]

    def function(self, inset_id: str) -> str:
        return _split(inset_id)[0]

    def order(self, inset_id: str) -> int | str:
        name, inner = _split(inset_id)
        return self._functions[name].order(inner)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        """The function sees its own Input Set: ``inset_id`` without its name, its window's state."""
        name, inner = _split(input_set.inset_id)
        outputs = self._functions[name].generate(InputSet(inner, input_set.held[1]), state[name], external)
        return [(self._ports[name][port], table) for port, table in outputs]

    def settings(self) -> dict[str, Any]:
        return {
            "functions": {
                name: one.settings() | {"inputs": list(one.inputs), "state_version": one.state_version}
                for name, one in self._functions.items()
            }
        }

    def code(self) -> str:
        return "\n".join(one.code() for one in self._functions.values())

    def _by_function(self, inset_ids: Sequence[str]) -> dict[str, list[str]]:
        """In the order of the functions, so that it does not depend on which Input Set was opened first."""
        named: dict[str, list[str]] = {name: [] for name in self._functions}
        for inset_id in inset_ids:
            name, inner = _split(inset_id)
            named[name].append(inner)
        return named

    def _refuse_jobs(self) -> None:
        for name, one in self._functions.items():
            if one.mode is not ExecutionMode.DRIVER:
                raise PipelineDefinitionError(
                    f"function {name!r} is one of several of an operator and has mode {str(one.mode)!r}: a Spark job works "
                    "on Input Sets of one function. Make it an operator of its own with the same upstream"
                )

    def _one_order(self) -> tuple[str, ...]:
        orders = {one.port_order for one in self._functions.values() if one.port_order}
        if len(orders) > 1:
            raise PipelineDefinitionError(
                f"the windows of functions {quoted(tuple(self._functions))} declare different orders over the input "
                "ports; an operator uses its events in one order"
            )
        return next(iter(orders), ())

    def _one_on_error(self) -> str:
        wanted = {one.on_error for one in self._functions.values()}
        if len(wanted) > 1:
            raise PipelineDefinitionError(
                f"functions {quoted(tuple(self._functions))} of one operator have on_error {quoted(sorted(wanted))}; an "
                "error concerns the operator: give all of them the same, or make them operators of their own"
            )
        return wanted.pop()


def _split(inset_id: str) -> tuple[str, str]:
    name, _, inner = inset_id.partition(":")
    return name, inner


def _union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


def windows_at(operator: Operator, port: str) -> tuple[Window, ...]:
    """The windows of an operator made of functions that get what comes on the port; none of any other operator.

    Windows behind another operator are not told of progress: what it makes of an event may have other times, or none.
    """
    return operator.windows(port) if isinstance(operator, WindowedOperator | SeveralFunctions) else ()
