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

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.arrow_tables import check_values, needed_table, split_by_input_set, tag_input_sets
from airflow_logio.dataflow.dependencies import Dependencies, by_port
from airflow_logio.dataflow.describing import class_source, plain_settings, stable_name
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.protocol.record_rules import WHOLE, RecordRules
from airflow_logio.protocol.values import ExecutionMode

if TYPE_CHECKING:
    from airflow_logio.contrib.paper_api import Logio

PortTable = tuple[str, "pa.Table"]
"""One output event: the name of the output port, and its records."""

SparkFrame = Any
"""A ``pyspark.sql.DataFrame``; named here only, because this package imports without Spark."""


@dataclass(frozen=True, slots=True)
class InputEvent:
    """An event as an operator sees it.

    :param port: the input port that it has come on.
    :param event_id: its number on the sender's port; numbers rise, perhaps with gaps.
    :param table: its records.
    :param progress: for an event from a Dispatcher: how far the windows of the whole stream have come
        (`Window.progress`).
    :param place: where a Merger keeps the order: the number of the Dispatcher's event, from 1, and whether nothing more
        follows for it on this port.
    """

    port: str
    event_id: int
    table: pa.Table
    progress: Mapping[str, str] = field(default_factory=dict)
    place: tuple[int, bool] | None = None


@dataclass(frozen=True, slots=True)
class InputSet:
    """One complete Input Set: some events, or parts of them, from which an Output Set is made (Section 2).

    :param inset_id: its name, which the operator's `assign` has given it.
    :param held: its event state: what the operator's `accumulate` has made of the parts, by default the list of them.
    """

    inset_id: str
    held: Any


class External(Protocol):
    """What comes from outside the events, as a driver gives it to `process` and `generate`."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The run's parameters, read-only."""
        ...

    def read(self, read: DeclaredRead, keys: pa.Array | None = None) -> pa.Table:
        """Read from an external system (Algorithm 4). The rows are logged with the Output Set, so that lineage shows
        them.

        :param read: what to read; the operator's `connections` must name its connection.
        :param keys: restrict the rows to those with these values in the read's key column; None: all rows.

        While the external system is unavailable it is asked again, with back-off. Raises OperatorFailed for a
        connection that the operator does not name, or writes to.
        """
        ...

    def write(self, connection: str, table: pa.Table) -> None:
        """Add a write action (Algorithm 5). It is logged with the Output Set, and executed after that commit, not here.

        :param connection: a connection that the operator's `writes` names.
        :param table: the records to write.
        """
        ...


class Operator(ABC):  # noqa: B024  # abstract by purpose: each role below adds its own abstract method
    """What all operators share: ports, connections, settings. Derive from one of the roles instead: `SourceOperator`,
    `StatelessOperator`, `StatefulOperator`, `SinkOperator`, a writer, or `ManualOperator`.

    An operator object holds settings only; what changes during a run is handed in. A driver of another process makes an
    equal object from the same module, so keep no open files, clients or random numbers in it, and no secrets: name a
    connection instead.

    Class attributes say what a role does differently; each is described below. `inputs` and `outputs` are the names of
    its ports; within an operator no name is used twice.
    """

    inputs: tuple[str, ...] = ("in",)
    """Names of the input ports."""
    outputs: tuple[str, ...] = ("out",)
    """Names of the output ports."""
    mode: ExecutionMode = ExecutionMode.DRIVER
    """Where it works: in the ``driver``, in Spark jobs on what the driver ships (``executors``), or on records that stay with
    the executors (``dataframe``)."""
    state_version: int = 1
    """Raise it when stored state, or the meaning of the graph around it, changes: a run begun under another version is then
    parked instead of continuing with state that it would misread."""
    reads_state: bool = False
    """The generation reads the global state, so that it is logged as it was at the trigger (Algorithm 3 Step 2)."""
    port_order: tuple[str, ...] = ()
    """A cycle of input ports in which events are used, say fifty of ``a`` and then a hundred of ``b``; it makes an
    operator with several ports deterministic. Empty: events are used in the order in which they arrive (Algorithm 9
    Step 2)."""
    sends_after_writes: bool = False
    """Send the events of an Output Set only when its write actions are done (Steps 5 and 6 of Algorithm 3 swapped): for
    downstream readers of what is written."""
    runs_together: bool = False
    """What two runs of the pipeline write at once does not get in each other's way: say so of a writer of your own, and the
    runs may live at once. `TableWriter` and `DatasetWriter` say it by `on_new_run`, and `ParquetWriter` always may."""
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
        """What lineage between records is found by (Section 7.3). It is no part of the run's fingerprint.

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

    def for_run(self, params: Mapping[str, Any]) -> Operator:
        """The operator as a run with these parameters has it; itself by default.

        :param params: the run's parameters.

        If names in it depend on parameters (`placeholders`), return a copy: this one is part of the pipeline, whose
        description says the names as they are written. Raises ConfigurationError for a value that cannot be.
        """
        return self

    def settings(self) -> dict[str, Any]:
        """The author's settings, JSON-able; by default the public attributes of the object that are plain values.

        Keep secrets out of operators: name a connection instead.
        """
        return {name: value for name, value in plain_settings(self).items() if name != "depends"}

    def describe(self) -> dict[str, Any]:
        """JSON-able description for the run fingerprint: equal in every process that built the same pipeline."""
        described = {
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
        many = getattr(self, "many", None)
        return described if many is None else described | {"many": many}

    def code(self) -> str:
        """Source text of the author's code; a change of it alone causes a warning, it does not park a run."""
        return class_source(type(self))


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The records of one output event of a source.

    :param table: the records: an Arrow table, or a DataFrame of pandas or polars, which becomes one.
    :param next_offset: how many records of the read action have been read up to and including these.
    :param about: which part of the read action it is, small and JSON-able; lineage shows it. ``first`` and ``last`` are
        row numbers.

    Raises OperatorFailed for a `table` that is none, or that has values that their type cannot have.
    """

    table: pa.Table
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A frame of pandas or polars becomes a table. Raises OperatorFailed for anything else."""
        object.__setattr__(self, "table", needed_table(self.table, "the source"))


class SourceOperator(Operator):
    """A source turns read actions, one after the other, into events (Algorithms 1 and 6). It has no input port.

    Implement `action` (what is to be read) and `read` (read it). Implement `next_action`, too, if a run reads more than
    one thing. A source that reads a connection of the pipeline derives from `ConnectedSource`, one whose records Spark
    reads from `RangeSource`.

    A read action is logged before it is executed, and executed again after a failure. `replayable` (by default true)
    says that it then returns the same records in the same order, perhaps with more behind them. The records of one that
    is not are stored before the first event is made of them (Step 2), and the external system is not read again.
    """

    inputs = ()
    replayable: bool = True
    """A read action that is executed again returns the same records in the same order."""
    unavailable: tuple[type[Exception], ...] = ()
    """More errors that mean that the external system is unavailable, beside those of `unavailability.is_outage`: the read
    action is then replayed with back-off. Any other error fails the group."""

    def missing(self, params: Mapping[str, Any]) -> str | None:
        """What is not there yet of what a run reads, in words; None (the default) if all of it is.

        :param params: the run's parameters.

        For sources that are added with ``wait=...``: asked about once a minute before there is a run, in the task that
        starts it, and never in a driver. Raise ConfigurationError for what time does not mend; while the external system
        is unavailable (`unavailability.is_outage`) it is asked again.
        """
        return None

    @abstractmethod
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The first read action, JSON-able: what is to be read, with a fingerprint by which `read` notices a change.
        Asked once per run.

        :param params: the run's parameters.

        What later read actions need to know of it goes under ``plan``: the run keeps that, and the log entry of an
        action does not repeat it. Raises ConfigurationError if the source cannot be read.
        """

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        """The read action that follows, or None (the default) if the stream ends.

        :param params: the run's parameters.
        :param previous: the read action before, with the ``plan`` of the first one, if there is one.

        Asked in the driver when all events of `previous` are made; logged with the last of them, before it is executed.
        A source whose read actions cannot be replayed is not asked again for what is in the log.
        """
        return None

    @abstractmethod
    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        """Execute a logged read action: yield the records of one event after the other.

        :param params: the run's parameters.
        :param action: what `action` or `next_action` has returned, as the log gives it back.
        :param offset: how many records to pass over, because their events are in the log; 0 starts at the beginning. It
            is always 0 if the source is not `replayable`.

        A replayable source returns the same records in the same batches every time. Wait for records no longer than
        seconds at a time, yielding an empty batch if none come: a group that halts or rebuilds itself waits for this.
        Raise SourceChanged if it is not what it was, ExternalUnavailable (or an error that `unavailable` names) to be
        called again with back-off. Any other error fails the group.
        """


class StatelessOperator(Operator):
    """Makes output events of each input event alone; every Input Set is one event (Section 2). Implement `process`."""

    order_insensitive = True
    partitionable = True

    def record_rules(self) -> RecordRules:
        return replace(super().record_rules(), parts={"": WHOLE})

    @abstractmethod
    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        """The Output Set of one event: pairs (output port, table), in the order in which they are to be sent.

        :param event: the input event.
        :param external: the run's parameters, reads and writes.

        Deterministic: after a failure it is called again, and lineage and replicas rely on the same result.
        """


class StatefulOperator(Operator):
    """The paper's three phases as methods: State Update (Algorithm 2), Triggering, Generation (Algorithm 3).

    Implement `assign`, `part`, `triggered` and `generate`. `initial_state`, `accumulate`, `flush`, `function` and
    `order` have defaults. For Input Sets by number of events or by time, use a `generate` function with a window
    instead.

    The *global state* is stored with every step. The *event state* of an Input Set is in memory only: a recovery builds
    it again from the logged events with `part` and `accumulate`, which must therefore be pure.
    """

    def initial_state(self) -> dict[str, Any]:
        """Global state before the first event: text, bytes, numbers, booleans, None, datetimes in UTC, lists and dicts.

        Anything else would not come back as it was (a tuple as a list), and is refused when the state is first stored. Dicts
        come back in the order of their keys.
        """
        return {}

    @abstractmethod
    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        """State Update, called exactly once per event: {inset_id: the part of the event that this Input Set gets}.

        :param event: the input event.
        :param state: the global state, which it may change.

        An empty mapping says that no Input Set uses the event; it is then done.
        """

    @abstractmethod
    def part(self, event: InputEvent, inset_id: str) -> Any:
        """The part of a logged event that belongs to an Input Set: equal to what `assign` returned (Algorithm 9 Step
        2.b).

        :param event: the input event, read back from the log.
        :param inset_id: name of the Input Set.

        Pure: it sees no state, because on recovery the state already counts the event. No clock and no random number,
        either: a record would count twice, or not at all. Drivers compare it with what `assign` returned now and then.
        """

    def accumulate(self, held: Any | None, part: Any) -> Any:
        """The event state of one Input Set with one more part. By default it is the list of the parts. Pure.

        :param held: the event state so far, which may be changed and returned; None if this is the first part.
        :param part: what `assign` or `part` returned.
        """
        if held is None:
            return [part]
        held.append(part)
        return held

    @abstractmethod
    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """Triggering: which of the open Input Sets are complete, in the order in which to generate.

        :param state: the global state.
        :param open_insets: names of the Input Sets that have events and are not generated yet.

        Level-triggered: it depends on these two alone, so that asking twice, or later, is harmless.
        """

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """The Input Sets to generate when all inputs have ended, in order; all of them by default.

        :param state: the global state.
        :param open_insets: names of the Input Sets that have events and are not generated yet.
        """
        return sorted(open_insets, key=self._flush_key)

    def _flush_key(self, inset_id: str) -> tuple[Any, ...]:
        order = self.order(inset_id)
        return (1, inset_id) if order is None else (0, order, inset_id)

    def function(self, inset_id: str) -> str:
        """The generative function that an Input Set is for, if the operator has several (the paper's Example OP2); by
        default ``""``.

        :param inset_id: name of the Input Set.
        """
        return ""

    def order(self, inset_id: str) -> int | str | None:
        """A sortable place in the order in which Input Sets of its `function` close; None (the default) if they close
        in no order.

        :param inset_id: name of the Input Set.

        With an order, one low-water mark stands for all closed Input Sets; without, each is remembered by name.
        """
        return None

    @abstractmethod
    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        """Generation: the Output Set of one complete Input Set, as pairs (output port, table) in the order in which
        they are to be sent.

        :param input_set: its name and its event state.
        :param state: the global state: as it is now; with ``reads_state = True`` as it was when the Input Set was
            triggered.
        :param external: the run's parameters, reads and writes.

        If a generation is repeated after a failure, the result that was logged first stands.
        """


class BatchGenerator(ABC):
    """Mixed into a StatefulOperator of mode ``executors``: a generation is a plan of Spark.

    Implement `run`, or `run_with` if it needs the run's parameters. Each call gets one Input Set; several share a job.
    With ``many = True`` a call gets many, with column ``inset_id``, which the result keeps. The defaults of `records_of`,
    `tagged` and `split` suit an event state that is a list of tables, and one output port. `reads` are its declared
    reads by name.
    """

    reads: Mapping[str, DeclaredRead] = {}
    """Name → declared read."""
    many: bool = False
    """`run` gets many Input Sets in one plan, as `tagged` makes them, and keeps them apart: see `generate`."""

    if TYPE_CHECKING:  # the operator's; read-only here, so that a class with two ports may be mixed with this one

        @property
        def outputs(self) -> tuple[str, ...]: ...

    def records_of(self, input_set: InputSet) -> pa.Table:
        """All records of one Input Set, for `run`.

        :param input_set: the Input Set.
        """
        return pa.concat_tables(input_set.held)

    def tagged(self, input_sets: Sequence[InputSet]) -> pa.Table:
        """With ``many = True``: all records, with int64 column ``inset_id``: the place of their Input Set, from 0.

        :param input_sets: the Input Sets of one Spark job.
        """
        return tag_input_sets([input_set.held for input_set in input_sets])

    @abstractmethod
    def run(self, records: SparkFrame, reads: Mapping[str, SparkFrame]) -> SparkFrame:
        """The author's Spark function: DataFrame in, DataFrame out.

        :param records: those of one Input Set; with ``many = True`` of many, whose column ``inset_id`` the result
            keeps.
        :param reads: declared read → its rows, restricted to the keys of the records if it has a key.
        """

    def run_with(self, records: SparkFrame, reads: Mapping[str, SparkFrame], params: Mapping[str, Any]) -> SparkFrame:
        """As `run`, with the run's parameters: override this one if the function needs them.

        :param records: as for `run`.
        :param reads: declared read → its rows.
        :param params: the run's parameters.
        """
        return self.run(records, reads)

    def run_one(
        self, inset_id: str, records: SparkFrame, reads: Mapping[str, SparkFrame], params: Mapping[str, Any]
    ) -> SparkFrame:
        """As `run_with`, for one Input Set: override this one if the function needs its name.

        :param inset_id: name of the Input Set.
        :param records: its records.
        :param reads: declared read → its rows.
        :param params: the run's parameters.
        """
        return self.run_with(records, reads, params)

    def split(self, result: pa.Table, count: int) -> list[list[PortTable]]:
        """With ``many = True``: the Output Set of each Input Set, without column ``inset_id``; [] where it has no rows.

        :param result: what the Spark function returned, as a table.
        :param count: how many Input Sets the job had.

        Raises OperatorFailed if the column is missing or names an Input Set that was not in the batch, and for values that
        their type cannot have: Spark casts any bytes to a string.
        """
        check_values(result, "the Spark function returned")
        port = self.outputs[0]
        return [[(port, table)] if table is not None else [] for table in split_by_input_set(result, count)]


class WriterOperator(StatelessOperator):
    """An operator whose every input event is a write action (Algorithm 5); it sends what it writes on to ``out``, which
    may stay unconnected.

    Do not derive from it but from `ConditionalWriter`, `CheckableWriter` or `IdempotentWriter`: these say how actions
    are executed. Its `connection` is the external system, `write_guarantee` what can be said of a repeated action:
    ``conditional`` (the external system applies action and marker in one step), ``checkable`` (it can be asked whether
    an action was applied) or ``idempotent``. A pipeline refuses a writer that says none of these.
    """

    connection: str
    write_guarantee: str | None = None

    def writes(self) -> Mapping[str, str | None]:
        return {self.connection: self.write_guarantee}


class SinkOperator(StatefulOperator):
    """An operator without output ports. Implement the methods of `StatefulOperator`; `generate` yields nothing. What is
    to be written is for a writer.
    """

    outputs = ()


class ManualOperator(Operator):
    """An operator whose author drives the protocol by hand (Section 6.3), with `airflow_logio.contrib.paper_api`.
    Implement `run`.

    It declares ports and connections like every operator; its one method is executed in place of the group's loop. It
    is alone in its group. Without input ports it is a source; add it with `Pipeline.operator` in any case. Connections
    that it only reads are named by `connections`, those it writes to by `writes`, with the guarantee that its author
    makes.
    """

    @abstractmethod
    def run(self, logio: Logio) -> None:
        """Recover, then process until every input has ended; on return the end of the stream is logged.

        :param logio: the paper's calls (Tables 7 to 9), bound to this operator.

        Called by the driver at every start, the first and every recovery alike. Keep what changes in local objects: a
        rebuild in place calls it again on the same operator. Do not catch errors of `logio`. Any other error ends the
        driver, which is recovered within the budget.
        """
