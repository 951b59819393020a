"""What a chain of operators of mode ``dataframe`` makes of an event, step by step (ADR-81).

Pure: the caller does the steps.
A driver does them with jobs of Spark, the simulator one at a time, with a seed in place of executors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_logio.dataflow.functions.function_operators import FrameFunctionOperator, FrameOperator
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import Operator, SparkFrame
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.values import ExecutionMode, Port
from airflow_logio.systems.payloads.dataset import Dataset

Outputs = Mapping[str, "Evaluated"]
"""Output port → what is sent there."""


@dataclass(frozen=True)
class Evaluated:
    """The payload of an event: its records where they are materialized, and what the operators behind it make of it."""

    dataset: Dataset | None = None
    """None where the records were only part of a plan."""
    schema: str = ""
    """The schema of its records, as Spark has it."""
    then: Mapping[Port, Outputs] = field(default_factory=dict)
    """Receiver in the group that is evaluated with it → what it sends."""
    writes: Mapping[str, Dataset] = field(default_factory=dict)
    """Writer that is evaluated with it → the files of its write action."""
    windows: Mapping[Port, Mapping[int, int]] = field(default_factory=dict)
    """Receiver with windows of time → number of a window → records of the dataset."""
    given: pa.Table | None = None
    """The records, where they came as a table."""
    late: Mapping[str, int] = field(default_factory=dict)
    """As `Emit.late`."""

    @property
    def num_rows(self) -> int:
        """Records; 0 where they were not counted: the event was only part of a plan."""
        counted = self.dataset or next(iter(self.writes.values()), None)
        return 0 if counted is None else counted.num_rows

    @property
    def materialized(self) -> Dataset:
        """Its dataset. Raises `ProtocolViolation` if it has none: the chain had to materialize it."""
        if self.dataset is None:
            raise ProtocolViolation(
                "an event has neither records nor a dataset: it was evaluated as part of a plan only"
            )
        return self.dataset

    @property
    def table(self) -> pa.Table:
        """As `Dataset.table`."""
        return self.materialized.table if self.given is None else self.given


@dataclass(frozen=True, slots=True)
class Apply:
    """Call an operator: the answer is output port → DataFrame."""

    receiver: Port
    frame: SparkFrame


@dataclass(frozen=True, slots=True)
class Materialize:
    """Write the records that `operator` sends or writes: the answer is their dataset, files and manifest durable."""

    operator: str
    where: str
    """What it will be the body of."""
    purpose: str
    frame: SparkFrame
    partition_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Copy the files of a dataset, which `operator` writes as they are: the answer is the copy, all of it durable."""

    operator: str
    where: str
    """What it will be the body of."""
    purpose: str
    dataset: Dataset


@dataclass(frozen=True, slots=True)
class Reopen:
    """The answer is the DataFrame of what was materialized: what follows reads the files."""

    dataset: Dataset


@dataclass(frozen=True, slots=True)
class CountWindows:
    """The answer is how many records of a dataset each window of time of the receiver has; nothing if it counts events."""

    receiver: Port
    dataset: Dataset
    frame: SparkFrame


@dataclass(frozen=True, slots=True)
class CountLate:
    """The answer is how many records that an `OwnPartition` sends on its port for others are of which partition."""

    sender: Port
    frame: SparkFrame


Step: TypeAlias = Apply | Materialize | Duplicate | Reopen | CountWindows | CountLate


class Chains:
    """The chains of one epoch of a group. `schema_of` is the schema of a DataFrame, as Spark has it."""

    def __init__(
        self, protocol: GroupProtocol, members: Mapping[str, Operator], schema_of: Callable[[SparkFrame], str]
    ) -> None:
        self._protocol = protocol
        self._members = members
        self._schema_of = schema_of

    def wants(self, receiver: Port) -> bool:
        """Whether the events of an input port are evaluated."""
        return self._members[receiver.operator].mode is ExecutionMode.DATAFRAME

    def has_windows(self, receiver: Port) -> bool:
        """Whether it is the input port of a window over datasets."""
        return isinstance(self._members[receiver.operator], FrameWindowOperator)

    def is_border(self, sender: Port) -> bool:
        """Whether the events of an output port are materialized."""
        receivers = self._protocol.fused(sender)
        if self._protocol.is_logged(sender) or len(receivers) > 1:
            return True
        return any(not self.wants(one) or self.has_windows(one) or self._needs_files(one) for one in receivers)

    def _needs_files(self, receiver: Port) -> bool:
        """Whether what it gets is read by several jobs: those of its outputs, or actions of its function."""
        operator = self._members[receiver.operator]
        return len(operator.outputs) > 1 or (isinstance(operator, FrameOperator) and operator.materialize_input)

    def arrived(self, receiver: Port, given: Dataset | SparkFrame, number: str) -> Generator[Step, Any, Evaluated]:
        """What comes of an event from the log: of its dataset, or of the DataFrame of a table."""
        dataset = given if isinstance(given, Dataset) else None
        if dataset is None:
            then, writes = yield from self._received(receiver, given, number)
            return Evaluated(None, self._schema_of(given), then, writes)
        schema = dataset.manifest.schema
        if self._is_written_whole(receiver):
            return Evaluated(dataset, schema, {}, {receiver.operator: (yield self._copy(receiver, number, dataset))})
        frame = yield Reopen(dataset)
        if self.has_windows(receiver):
            counted = yield CountWindows(receiver, dataset, frame)
            return Evaluated(dataset, schema, windows={receiver: counted})
        then, writes = yield from self._received(receiver, frame, number)
        return Evaluated(dataset, schema, then, writes)

    def sent(
        self, sender: Port, frame: SparkFrame, number: str, dataset: Dataset | None = None
    ) -> Generator[Step, Any, Evaluated]:
        """What is sent on an output port, and what comes of it in the group. `dataset` has the records, if one does."""
        if dataset is None and self.is_border(sender):
            where = f"the event for {number} on port {sender}"
            dataset = yield Materialize(sender.operator, where, f"datasets/{sender}/{number}", frame)
            frame = yield Reopen(dataset)
        then: dict[Port, Outputs] = {}
        writes: dict[str, Dataset] = {}
        windows: dict[Port, Mapping[int, int]] = {}
        for receiver in self._protocol.fused(sender):
            if self.has_windows(receiver):
                assert dataset is not None, "a window is a border"
                windows[receiver] = yield CountWindows(receiver, dataset, frame)
            elif dataset is not None and self._is_written_whole(receiver):
                writes[receiver.operator] = yield self._copy(receiver, number, dataset)
            elif self.wants(receiver):
                further, written = yield from self._received(receiver, frame, number)
                then |= further
                writes |= written
        late: Mapping[str, int] = {}
        whole = dataset or next(iter(writes.values()), None)  # the files of a writer right behind have the same records
        if self._is_for_others(sender) and (whole is None or whole.num_rows):
            late = yield CountLate(sender, frame)  # what it divides is in files: it has several outputs
        return Evaluated(dataset, self._schema_of(frame), then, writes, windows, late=late)

    def _is_for_others(self, sender: Port) -> bool:
        operator = self._members[sender.operator]
        return isinstance(operator, FrameFunctionOperator) and operator.divides_to(sender.name) is not None

    def _received(
        self, receiver: Port, frame: SparkFrame, number: str
    ) -> Generator[Step, Any, tuple[Mapping[Port, Outputs], Mapping[str, Dataset]]]:
        """What one receiver makes of a DataFrame: events, or the files of a write action."""
        operator = self._members[receiver.operator]
        if isinstance(operator, DatasetWriter):
            what = _write_action(receiver, number)
            written = yield Materialize(receiver.operator, *what, frame, operator.partition_by)
            return {}, {receiver.operator: written}
        assert isinstance(operator, FrameOperator)
        made = yield Apply(receiver, frame)
        outputs: dict[str, Evaluated] = {}
        for port, output in made.items():
            outputs[port] = yield from self.sent(Port(receiver.operator, port), output, number)
        return {receiver: outputs}, {}

    def _is_written_whole(self, receiver: Port) -> bool:
        """Whether the files of an event's dataset are those of a write action: nothing is to be made of the records."""
        operator = self._members[receiver.operator]
        return isinstance(operator, DatasetWriter) and not operator.partition_by

    @staticmethod
    def _copy(receiver: Port, number: str, dataset: Dataset) -> Duplicate:
        return Duplicate(receiver.operator, *_write_action(receiver, number), dataset)


def _write_action(receiver: Port, number: str) -> tuple[str, str]:
    """What is written for an event: where it is the body, and its purpose."""
    return f"the write action of {receiver.operator} for {number}", f"datasets/{receiver}/{number}"
