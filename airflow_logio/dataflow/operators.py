"""Operator base classes: the contract between what an author writes and the runtime that logs it.

An operator object holds settings only. Everything that changes during a run is handed in: the *global state*
(a dict of msgpack-able values, stored in STATE) and the *event state* of an Input Set (`InputSet.held`, rebuilt from
the logged events on recovery, never stored). Author's code should be deterministic: the same events and states, the same
results (Section 2). `part` and `accumulate` must be; of a generation, the result that was logged first stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import needed_table, split_by_input_set, tag_input_sets
from airflow_logio.dataflow.dependencies import Dependencies, by_port
from airflow_logio.dataflow.describing import class_source, plain_settings, stable_name
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.protocol.record_rules import WHOLE, RecordRules
from airflow_logio.protocol.values import ExecutionMode

if TYPE_CHECKING:
    from airflow_logio.contrib.paper_api import Logio

PortTable = tuple[str, pa.Table]
"""One output event: the name of the output port, and its records."""

SparkFrame = Any
"""A ``pyspark.sql.DataFrame``; named here only, because this package imports without Spark."""


@dataclass(frozen=True, slots=True)
class InputEvent:
    """An event as an operator sees it: the input port it came on, its id on the sender's port, its records."""

    port: str
    event_id: int
    table: pa.Table
    progress: Mapping[str, str] = field(default_factory=dict)
    """Set for an event from a Dispatcher: how far the windows of the whole stream have come (`Window.progress`)."""
    place: tuple[int, bool] | None = None
    """Where a Merger keeps the order: the number of the Dispatcher's event, from 1, and whether nothing more follows for
    it on this port."""


@dataclass(frozen=True, slots=True)
class InputSet:
    """One Input Set with its event state; `held` is what the operator's `accumulate` built."""

    inset_id: str
    held: Any


class External(Protocol):
    """The external systems, and what else comes from outside, as the runtime gives them to `process` and `generate`."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The run's parameters, read-only."""
        ...

    def read(self, read: DeclaredRead, keys: pa.Array | None = None) -> pa.Table:
        """Side-effect read action (Algorithm 4): the rows of `read`, restricted to `keys` of its key column."""
        ...

    def write(self, connection: str, table: pa.Table) -> None:
        """Write action (Algorithm 5). It is logged with the Output Set and executed after that commit, not here."""
        ...


class Operator(ABC):  # noqa: B024  # abstract by purpose: each role below adds its own abstract method
    """What all operators share. `inputs` and `outputs` are port names; a name may be used once per operator.

    Raise `state_version` when stored state, or the meaning of the graph around it, changes: a run begun under another
    version is then parked instead of continuing with state that it would misread. `reads_state` says that the
    generation reads the global state, so that it is logged as it was at the trigger (Algorithm 3 Step 2).
    """

    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    mode: ExecutionMode = ExecutionMode.DRIVER
    state_version: int = 1
    reads_state: bool = False
    port_order: tuple[str, ...] = ()
    """A cycle of input ports in which events are used, say fifty of ``a`` and then a hundred of ``b``; it makes an
    operator with several ports deterministic. Empty: events are used in the order in which they arrive (Algorithm 9
    Step 2)."""
    sends_after_writes: bool = False
    """Send the events of an Output Set only when its write actions are done (Steps 5 and 6 of Algorithm 3 swapped): for
    downstream readers of what is written."""
    on_error: str = "fail"
    """What an error in the generation of an Input Set does: ``fail`` the group, or ``quarantine`` the Input Set.

    An error before it (`assign`, `part`, `accumulate`, `triggered`, `flush`) always fails the group: the state that it may
    have left half changed is shared by all Input Sets, and the event may belong to several.
    """
    order_insensitive: bool = False
    """Its results do not depend on when an event comes, even after the end of the stream. Quarantine requires this."""
    needs_event_ids: bool = False
    """It hands on the numbers of its input events. In a replicated group each slot counts its events on its own, and those
    numbers would say nothing."""
    partitionable: bool = False
    """Its output for one key does not depend on records of other keys, so it may be replicated by key."""
    depends: Dependencies | None = None
    """How output records depend on input records, for all output ports or by output port; see `from_every` and `from_one`."""

    def record_rules(self) -> RecordRules:
        """What lineage between records is found by (Section 7.3). Said of the operator, no part of the run's fingerprint.

        Raises PipelineDefinitionError for what `depends` cannot be.
        """
        where = f"operator of class {type(self).__name__!r}"
        return RecordRules(by_port(self.depends, self.inputs, self.outputs, where, has_windows=False))

    def connections(self) -> tuple[str, ...]:
        """Names of the external connections that this operator reads or writes; never URLs."""
        return tuple(self.writes())

    def sql_connections(self) -> frozenset[str]:
        """The connections whose tables or queries are declared, and which must therefore be SQL databases."""
        return frozenset()

    def writes(self) -> Mapping[str, str | None]:
        """Connection → guarantee of its write actions: ``conditional``, ``checkable``, ``idempotent``, or None.

        A pipeline refuses an operator that answers None, and the runtime a write to a connection not named here.
        """
        return {}

    def placeholders(self) -> frozenset[str]:
        """Names of the run parameters this operator's settings refer to."""
        return frozenset()

    def settings(self) -> dict[str, Any]:
        """The author's settings, JSON-able; by default the public attributes of the object that are plain values.

        Keep secrets out of operators: name a connection instead.
        """
        return {name: value for name, value in plain_settings(self).items() if name != "depends"}

    def describe(self) -> dict[str, Any]:
        """JSON-able description for the run fingerprint: equal in every process that built the same pipeline."""
        return {
            "class": stable_name(type(self)),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "mode": str(self.mode),
            "state_version": self.state_version,
            "reads_state": self.reads_state,
            "port_order": list(self.port_order),
            "sends_after_writes": self.sends_after_writes,
            "on_error": self.on_error,
            "connections": sorted(self.connections()),
            "settings": self.settings(),
        }

    def code(self) -> str:
        """Source text of the author's code; a change of it alone causes a warning, it does not park a run."""
        return class_source(type(self))


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Records of one output event; `next_offset` is the number of records read up to and including this batch."""

    table: pa.Table
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)
    """Which part of the read action it is, small and JSON-able; lineage shows it. ``first`` and ``last`` are row numbers."""

    def __post_init__(self) -> None:
        """A frame of pandas or polars becomes a table. Raises OperatorFailed for anything else."""
        object.__setattr__(self, "table", needed_table(self.table, "the source"))


class SourceOperator(Operator):
    """Has no input port and turns read actions, one after the other, into events (Algorithms 1 and 6).

    `replayable` says that a read action returns the same records in the same order when it is executed again, perhaps
    with more behind them. The effect of one that is not is stored before its first event is made (Step 2), and the
    external system is not read again.
    """

    inputs = ()
    replayable: bool = True
    unavailable: tuple[type[Exception], ...] = ()
    """More errors that mean that the external system is unavailable, beside those of `unavailability.is_outage`: the read
    action is then replayed with back-off. Any other error fails the group."""

    @abstractmethod
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """JSON-able description of the first read action, with a fingerprint of what is read; asked once per run.

        What later read actions need to know of it goes under ``plan``: the run keeps that, and the log entry of an action
        does not repeat it. Raises ConfigurationError if the source cannot be read.
        """

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        """The read action that follows `previous`, or None (the default) if the stream ends with it.

        `previous` has the ``plan`` of the first one, if there is one. A source whose read actions cannot be replayed is not
        asked again for what is in the log.
        Asked in the driver when all events of `previous` are made; logged with the last of them, before it is executed.
        """
        return None

    @abstractmethod
    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        """Execute the logged `action` and resume *after* its first `offset` records; 0 starts at the beginning.

        A replayable source returns the same records in the same batches every time; one that is not is always asked for
        all (`offset` is 0). Wait for records no longer than seconds at a time, yielding an empty batch if none come: a
        group that halts or rebuilds itself waits for this. Raises SourceChanged if it cannot.
        """


class StatelessOperator(Operator):
    """Computes output events from each input event alone; every Input Set is one event (Section 2)."""

    order_insensitive = True
    partitionable = True

    def record_rules(self) -> RecordRules:
        return replace(super().record_rules(), parts={"": WHOLE})

    @abstractmethod
    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        """The Output Set of one event, in the order in which it is to be sent."""


class StatefulOperator(Operator):
    """The paper's three phases: State Update (Algorithm 2), Triggering, Generation (Algorithm 3)."""

    def initial_state(self) -> dict[str, Any]:
        """Global state before the first event: text, bytes, numbers, booleans, None, datetimes in UTC, lists and dicts.

        Anything else would not come back as it was (a tuple as a list), and is refused when the state is first stored. Dicts
        come back in the order of their keys.
        """
        return {}

    @abstractmethod
    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        """State Update, called exactly once per event: {inset_id: part of the event}; may change `state`.

        An empty mapping says that no Input Set uses the event; it is then done.
        """

    @abstractmethod
    def part(self, event: InputEvent, inset_id: str) -> Any:
        """The part of a logged event that belongs to an Input Set: equal to what `assign` returned (Alg. 9 Step 2.b).

        Pure: it sees no state, because on recovery the state already counts the event. No clock and no random number, either:
        a record would count twice, or not at all. Drivers compare it with what `assign` returned now and then.
        """

    def accumulate(self, held: Any | None, part: Any) -> Any:
        """Event state of one Input Set after `part`; `held` is None at first, and may be changed and returned. Pure."""
        if held is None:
            return [part]
        held.append(part)
        return held

    @abstractmethod
    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """Which of the open Input Sets are complete, in the order in which to generate.

        Level-triggered: it depends on `state` and on the names alone, so asking twice, or later, is harmless.
        """

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """The Input Sets to generate when all inputs have ended, in order; all of them by default."""
        return sorted(open_insets, key=self._flush_key)

    def _flush_key(self, inset_id: str) -> tuple[Any, ...]:
        order = self.order(inset_id)
        return (1, inset_id) if order is None else (0, order, inset_id)

    def function(self, inset_id: str) -> str:
        """The generative function that an Input Set is for, if the operator has several (the paper's Example OP2)."""
        return ""

    def order(self, inset_id: str) -> int | str | None:
        """A sortable place in the order in which Input Sets of its `function` close; None if they close in no order.

        With an order, one low-water mark stands for all closed Input Sets; without, each is remembered by name.
        """
        return None

    @abstractmethod
    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        """The Output Set of one complete Input Set (mode ``driver``), in the order in which it is to be sent."""


class BatchGenerator(ABC):
    """Mixed into a StatefulOperator of mode ``executors``: the generation of many Input Sets is one Spark job.

    The defaults of `tagged` and `split` suit an event state that is a list of tables, and one output port.
    """

    reads: Mapping[str, DeclaredRead] = {}

    if TYPE_CHECKING:  # the operator's; read-only here, so that a class with two ports may be mixed with this one

        @property
        def outputs(self) -> tuple[str, ...]: ...

    def tagged(self, input_sets: Sequence[InputSet]) -> pa.Table:
        """All records of the Input Sets, with int64 column ``inset_id`` = place (from 0) in the given sequence."""
        return tag_input_sets([input_set.held for input_set in input_sets])

    @abstractmethod
    def run(self, tagged: SparkFrame, reads: Mapping[str, SparkFrame]) -> SparkFrame:
        """The author's Spark function; its result keeps column ``inset_id``."""

    def run_with(self, tagged: SparkFrame, reads: Mapping[str, SparkFrame], params: Mapping[str, Any]) -> SparkFrame:
        """As `run`, with the run's parameters: override this one if the function needs them."""
        return self.run(tagged, reads)

    def split(self, result: pa.Table, count: int) -> list[list[PortTable]]:
        """The Output Set of each of the `count` Input Sets, without column ``inset_id``; [] where it has no rows.

        Raises OperatorFailed if the column is missing or names an Input Set that was not in the batch.
        """
        port = self.outputs[0]
        return [[(port, table)] if table is not None else [] for table in split_by_input_set(result, count)]


class WriterOperator(StatelessOperator):
    """Middle operator with write actions (Algorithm 5); sends what it writes on to ``out``, which may stay unconnected.

    `write_guarantee` is ``conditional`` (the external system applies action and marker in one step), ``checkable`` (it
    can be asked whether an action was applied) or ``idempotent``. A pipeline refuses None.
    """

    connection: str
    write_guarantee: str | None = None

    def writes(self) -> Mapping[str, str | None]:
        return {self.connection: self.write_guarantee}


class SinkOperator(StatefulOperator):
    """An operator without output ports."""

    outputs = ()


class ManualOperator(Operator):
    """Declares ports and connections like every operator; its one method is executed in place of the group's loop.

    It is alone in its group. Without input ports it is a source; add it with `Pipeline.operator` in any case. Connections
    that it only reads are named by `connections`, those it writes to by `writes`, with the guarantee that its author makes.
    """

    @abstractmethod
    def run(self, logio: Logio) -> None:
        """Recover, then process until every input has ended; on return the end of the stream is logged.

        Called by the driver at every start, the first and every recovery alike. Keep what changes in local objects: a
        rebuild in place calls it again on the same operator. Do not catch errors of `logio`. Any other error ends the
        driver, which is recovered within the budget.
        """
