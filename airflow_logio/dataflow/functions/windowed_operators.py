"""Operators made of a `generate` function and a window: in the driver, in Spark jobs, or on datasets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.arrow_tables import is_spark_frame, tag_input_sets, type_name
from airflow_logio.dataflow.describing import source, stable_name
from airflow_logio.dataflow.functions.decorators import ONE_INPUT, GenerativeFunction, name_of
from airflow_logio.dataflow.functions.function_operators import EVENT_IDS, keys_of, outputs_of
from airflow_logio.dataflow.functions.holding import SCHEMAS, holding_of
from airflow_logio.dataflow.functions.ready_made import Sums
from airflow_logio.dataflow.operators import (
    BatchGenerator,
    External,
    InputEvent,
    InputSet,
    PortTable,
    SparkFrame,
    StatefulOperator,
)
from airflow_logio.dataflow.parameters import PARAMS
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.dataflow.windows import WINDOW_START, Tumbling, Window
from airflow_logio.dataflow.windows.window import is_as_in
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.record_rules import Dependence, Part, RecordRules, Uses
from airflow_logio.protocol.values import ExecutionMode


class WindowedOperator(StatefulOperator):
    """A `generate` function with its window as an operator. `Pipeline.operator` makes it.

    Event state: as the `Holding` of the function says, which is chosen once. Global state: the window's, with key
    ``schemas`` if the function names its input ports, so that a port without events in an Input Set gives a table
    without rows.

    :param function: what `generate` has returned.
    :param window: how events become Input Sets.

    Raises PipelineDefinitionError if function and window do not fit together.
    """

    def __init__(self, function: GenerativeFunction, window: Window) -> None:
        self._function = function
        self._window = window
        self.reads: Mapping[str, DeclaredRead] = dict(function.reads)
        self.outputs = function.outputs
        self.mode = function.mode
        self.state_version = function.state_version
        self.on_error = function.on_error
        self.order_insensitive = function.order_insensitive
        self.partitionable = window.partitionable
        self.reads_state = "state" in function.asks
        self.inputs = function.inputs
        self.port_order = window.port_order()
        self.needs_event_ids = EVENT_IDS in function.asks
        self._holding = holding_of(function)
        _check_ports(function, window)
        names_start = any(one.window_starts for one in function.depends.values())
        if (WINDOW_START in function.asks and not _has_starts(window)) or (names_start and window.grid() is None):
            raise PipelineDefinitionError(
                f"function {name_of(function.fn)!r} {'depends on' if names_start else 'takes'} {WINDOW_START!r}, which "
                f"{window!r} does not have"
            )

    def record_rules(self) -> RecordRules:
        part, grid = self._window.record_part(), self._window.grid()
        window = None if grid is None or grid.zone else Part(grid.on, grid.seconds, grid.origin)
        outputs = {
            port: replace(self._of_sums(one), window=window if one.window_starts else None)
            for port, one in self._function.depends.items()
        }
        return RecordRules(outputs, {} if part is None else {"": part})

    def _of_sums(self, dependence: Dependence) -> Dependence:
        """A record that depends on all columns of a grouping is made of one sum, and that of every record of the group."""
        add, finish = self._function.accumulate, self._function.finish
        if dependence.uses is not Uses.SOME or not isinstance(add, Sums) or finish != add.finish:
            return dependence
        named = set((dependence.columns or {}).get(self.inputs[0], {}).values())
        return replace(dependence, uses=Uses.EVERY) if named >= set(add.by) else dependence

    def windows(self, port: str) -> tuple[Window, ...]:
        """Whose progress must be known where only part of the stream arrives on a port."""
        return (self._window,) if port in self.inputs else ()

    def connections(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(read.connection for read in self.reads.values()))

    def sql_connections(self) -> frozenset[str]:
        return frozenset(read.connection for read in self.reads.values() if isinstance(read, TableRead))

    def initial_state(self) -> dict[str, Any]:
        return {**self._window.initial_state(), **self._holding.initial_state()}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        self._holding.see(event, state)
        parts = self._window.assign(event, state)
        return {inset_id: self._holding.part(event, records) for inset_id, records in parts.items()}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return self._holding.part(event, self._window.part(event, inset_id))

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return self._holding.add(held, part)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return self._window.triggered(state, open_insets)

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return self._window.flush(open_insets)

    def order(self, inset_id: str) -> int | str:
        return self._window.order(inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        if not self._window.admits(input_set.inset_id, state):
            return []
        records = self._holding.records(input_set.held, state)
        positional, named = self._holding.arguments(records)
        result = self._function.fn(*positional, **named, **self._asked(input_set, state, external, records))
        return outputs_of(result, self.outputs, self._function.fn)

    def _asked(
        self, input_set: InputSet, state: Mapping[str, Any], external: External, records: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The facts and reads that the function takes by name."""
        facts = {"inset_id": input_set.inset_id, "state": state, PARAMS: external.params}
        facts |= self._holding.facts(input_set.held)
        asked = {name: facts[name] for name in self._function.asks if name in facts}
        if WINDOW_START in self._function.asks:
            asked[WINDOW_START] = self._window.tags([input_set.inset_id])[WINDOW_START][0].as_py()
        for name, read in self.reads.items():
            asked[name] = external.read(read, keys_of(records.values(), read))
        return asked

    def _made(
        self,
        positional: Sequence[SparkFrame],
        named: Mapping[str, SparkFrame],
        reads: Mapping[str, SparkFrame],
        params: Mapping[str, Any],
        inset_id: str | None,
    ) -> SparkFrame:
        """What a function of Spark makes of one Input Set, or of many, which have no name. Raises OperatorFailed."""
        facts: dict[str, Any] = {PARAMS: params}
        if inset_id is not None:
            facts["inset_id"] = inset_id
            for tag, values in self._window.tags([inset_id]).items():
                at = values[0].as_py()
                # Spark takes a time without a zone for one of this machine's.
                facts[tag] = at.replace(tzinfo=dt.UTC) if isinstance(at, dt.datetime) and at.tzinfo is None else at
        asked = {name: facts[name] for name in self._function.asks if name in facts}
        asked |= {name: reads[name] for name in self.reads}
        fn = self._function.fn
        result = fn(*positional, **named, **asked)
        if self.mode is ExecutionMode.DATAFRAME and not is_spark_frame(result):
            raise OperatorFailed(
                f"function {name_of(fn)!r} returned {type_name(result)}; in mode 'dataframe' return a DataFrame of Spark"
            )
        return result

    @property
    def function_name(self) -> str:
        """The author's name of its function."""
        return name_of(self._function.fn)

    def settings(self) -> dict[str, Any]:
        add = self._function.accumulate
        return {
            "function": stable_name(self._function.fn),
            "window": self._window.describe(),
            "columns": list(self._function.columns),
            "reads": {name: read.describe() for name, read in sorted(self.reads.items())},
            "accumulate": None if add is None else add.describe() if hasattr(add, "describe") else stable_name(add),
        }

    def code(self) -> str:
        functions = (self._function.accumulate, self._function.finish)
        beside = [source(fn) for fn in functions if fn is not None and hasattr(fn, "__code__")]
        return "\n".join([source(self._function.fn), *beside])


class BatchOperator(WindowedOperator, BatchGenerator):
    """A `generate` function of mode ``executors`` with its window.

    :param function: what `generate` has returned.
    :param window: how events become Input Sets.

    Raises PipelineDefinitionError if function and window do not fit together.
    """

    def __init__(self, function: GenerativeFunction, window: Window) -> None:
        super().__init__(function, window)
        self.many = function.many

    def tagged(self, input_sets: Sequence[InputSet]) -> pa.Table:
        """As in `BatchGenerator`; a time window adds ``window_start``, timestamp[us]."""
        tags = self._window.tags([input_set.inset_id for input_set in input_sets])
        return tag_input_sets([input_set.held for input_set in input_sets], tags)

    def run(self, records: SparkFrame, reads: Mapping[str, SparkFrame]) -> SparkFrame:
        return self.run_with(records, reads, {})

    def run_with(self, records: SparkFrame, reads: Mapping[str, SparkFrame], params: Mapping[str, Any]) -> SparkFrame:
        return self._made((records,), {}, reads, params, None)

    def run_one(
        self, inset_id: str, records: SparkFrame, reads: Mapping[str, SparkFrame], params: Mapping[str, Any]
    ) -> SparkFrame:
        return self._made((records,), {}, reads, params, inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        raise OperatorFailed(f"function {name_of(self._function.fn)!r} runs in Spark jobs, not in the driver")


class FrameWindowOperator(WindowedOperator):
    """A windowed operator whose records are on Spark's executors (mode ``dataframe``, ADR-84).

    Event state: as of a `WindowedOperator`, with parts of datasets in place of tables, where the event is one. Global state:
    the window's, and ``schemas``: input port → schema of its records, as Spark has it.
    """

    def __init__(self, function: GenerativeFunction, window: Window) -> None:
        name = name_of(function.fn)
        if not window.suits_datasets:
            raise PipelineDefinitionError(
                f"function {name!r} has mode 'dataframe', and {window!r} needs the records to say which Input Sets they are "
                "in: use AllOfRun(), Tumbling(...), EveryEvents(...) or Synchronized(...), or mode='executors'"
            )
        super().__init__(function, window.for_datasets())
        self.many = function.many

    @property
    def window(self) -> Window:
        return self._window

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function needs, all if empty."""
        return self._function.columns

    def initial_state(self) -> dict[str, Any]:
        return {**self._window.initial_state(), SCHEMAS: {}}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        """For an event whose records came as a table. Its schema is known before, as Spark has it."""
        parts = self._window.assign(event, state)
        return {inset_id: self._holding.part(event, records) for inset_id, records in parts.items()}

    def held_by_port(self, held: Any) -> Mapping[str, Sequence[Any]]:
        """The parts in an event state, by input port."""
        return self._holding.by_port(held)

    def part_of(self, port: str, part: Any) -> Any:
        """For `accumulate`."""
        return self._holding.part_on(port, part)

    def run_on(
        self, frames: Mapping[str, SparkFrame], reads: Mapping[str, SparkFrame], params: Mapping[str, Any]
    ) -> SparkFrame:
        """What the author's function makes of many Input Sets: a DataFrame per input port, with column ``inset_id``."""
        positional, named = self._holding.arguments(frames)
        return self._made(positional, named, reads, params, None)

    def run_one(
        self,
        inset_id: str,
        frames: Mapping[str, SparkFrame],
        reads: Mapping[str, SparkFrame],
        params: Mapping[str, Any],
    ) -> SparkFrame:
        """What the author's function makes of one Input Set: a DataFrame per input port."""
        positional, named = self._holding.arguments(frames)
        return self._made(positional, named, reads, params, inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        raise OperatorFailed(f"function {name_of(self._function.fn)!r} runs in Spark jobs, not in the driver")


def windowed(function: GenerativeFunction, window: Window) -> WindowedOperator:
    """The operator of a `generate` function, by its mode."""
    match function.mode:
        case ExecutionMode.EXECUTORS:
            return BatchOperator(function, window)
        case ExecutionMode.DATAFRAME:
            return FrameWindowOperator(function, window)
    return WindowedOperator(function, window)


def _check_ports(function: GenerativeFunction, window: Window) -> None:
    name, ports = name_of(function.fn), function.inputs
    if (wanted := window.ports()) and set(wanted) != set(ports):
        raise PipelineDefinitionError(
            f"function {name!r} gets {'its records on one port' if ports == ONE_INPUT else f'ports {list(ports)}'}, but "
            f"{window!r} is for ports {list(wanted)}: write @generate(inputs={wanted!r}) and take a table of each by name"
        )
    if len(ports) > 1 and not window.suits_many_ports:
        raise PipelineDefinitionError(
            f"function {name!r} has input ports {list(ports)}, but {type(window).__name__} is a window of one port: the "
            "ports would overtake each other. Use AllOfRun(), Synchronized(...) or EveryEvents(...)"
        )


def _has_starts(window: Window) -> bool:
    """Whether its Input Sets have a ``window_start``; those of an author's own class say so by `tags`."""
    return is_as_in(Tumbling, window, "tags") or WINDOW_START in window.tags(())
