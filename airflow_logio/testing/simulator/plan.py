"""What a simulation runs: groups of operators, scripts of sources, external systems. Public: `Scenario`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from airflow_logio.protocol.effects import Effect
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import ReplicatedShape
from airflow_logio.testing.simulator.codec import Codec, PlainCodec
from airflow_logio.testing.simulator.external_systems import ExternalSystem

Systems = Mapping[str, ExternalSystem]
"""Connection → external system, for one schedule."""
Sweep = Callable[[int], Effect]
"""Given a number of rows, one batch of work: retention of lineage, or removal of bodies that groups share."""
Pair = tuple[str, int, str, int]
"""(input port, event_id, output port, event_id): the input event went into the output event's Input Set."""


Logged = Mapping[tuple[str, int], bytes | None]
"""(port or channel as ``operator.name``, event_id) → what the body says that the log has, or that receivers make again."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group as the protocol sees it: operators in topological order, receivers of their output ports."""

    name: str
    operators: tuple[OperatorSpec, ...]
    receivers: Mapping[Port, tuple[Port, ...]]
    lineage_in: frozenset[Port] = frozenset()
    weight: float = 1.0
    """How often its drivers are chosen, relative to 1: a straggler has a small weight."""
    replica_of: str = ""
    """The replicated group that this replica belongs to: it runs the operators of the slots it owns. Else empty."""


def senders_of(plans: Mapping[str, GroupPlan]) -> dict[Port, Port]:
    """Input port → output port."""
    return {
        receiver: sender for plan in plans.values() for sender, ports in plan.receivers.items() for receiver in ports
    }


@dataclass(frozen=True, slots=True)
class Batch:
    """Part of the effect of a read action: one event on every output port, and the offset after it."""

    payload: Any
    records: int
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)


class SourceScript(Protocol):
    """What a source reads: a sequence of read actions, each a sequence of batches."""

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]: ...

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        """The batch behind `offset` of the read action with this index; None at its end.

        A replayable source always returns the same. The effect of any other source may depend on `reading`, the number of
        this reading of the external system, which never repeats.
        """
        ...


@dataclass(frozen=True)
class ListSource:
    """A source over lists of payloads, one list per read action; an offset counts batches."""

    effects: tuple[tuple[Any, ...], ...]

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]:
        return [{"action": index} for index in range(len(self.effects))]

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        effect = self.effects[action]
        if offset >= len(effect):
            return None
        return Batch(effect[offset], len(effect[offset]), offset + 1)


class UpTo(NamedTuple):
    """How far a source was read: all earlier read actions completely, and this one up to `offset`."""

    action: int
    offset: int


Read = Mapping[str, UpTo]
"""Source → how far it was read; to the end, unless the run was drained."""


@dataclass(frozen=True)
class Destinations:
    """What the world sees of a run: the events of each port, the writes of each writer, and lineage.

    `ports` maps ``operator.port`` to the payloads of its events, in order. `writes` maps ``operator>connection`` to the
    payloads of its write actions, in order. What a scenario leaves out is compared only with a failure-free run.
    """

    ports: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    writes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    lineage: frozenset[Pair] | None = None
    aside: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Observed:
    """What a schedule left behind: bodies in order per port and writer, and EVENT_LINEAGE joined with EVENT_LOG."""

    ports: Mapping[str, Sequence[bytes]]
    writes: Mapping[str, Sequence[bytes]]
    lineage: frozenset[Pair]
    systems: Systems
    aside: frozenset[tuple[str, str]] = frozenset()
    """(operator, Input Set) of each quarantined Input Set."""
    effects: int = 0
    """Number of stored effects left in the payload store."""
    expired: Mapping[tuple[str, int], bytes | None] = field(default_factory=dict)
    """(output port, event_id) of events whose lineage has expired → their bodies."""
    read: Read = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """A pipeline for the simulator.

    `groups` makes the groups of one schedule from its external systems. Results are compared with `expected`, if given;
    other deterministic results are compared with a failure-free run. `judge` is for results that are not deterministic; it
    returns what is wrong, in sentences.

    If the scenario drains, some schedules read only part of their input. `expected_of` says what results from that part,
    and `judge` finds its size in `Observed.read`. Deterministic results are also compared with a failure-free run over it.
    """

    name: str
    groups: Callable[[Systems], Sequence[GroupPlan]]
    sources: Mapping[str, SourceScript]
    externals: Mapping[str, Callable[[], ExternalSystem]] = field(default_factory=dict)
    codec: Codec = field(default_factory=PlainCodec)
    expected: Callable[[], Destinations] | None = None
    expected_of: Callable[[Read], Destinations] | None = None
    judge: Callable[[Observed, Codec], Sequence[str]] | None = None
    deterministic: bool = True
    crash_stop: bool = False
    """Zombies do not reach the external systems, as checkable and idempotent write actions assume."""
    retries: bool = False
    """Quarantined Input Sets are retried now and then, and when everything has finished; each at most a few times.

    Deterministic results are then compared regardless of order, because a retried Input Set comes late.
    """
    retention: float | None = None
    """Lineage older than this many ticks of the log's clock expires, and shared bodies are swept. None: never."""
    sweeps: Sequence[Sweep] | None = None
    """What expires, if not everything does."""
    kept: frozenset[Port] = frozenset()
    """Output ports whose lineage never expires."""
    drains: bool = False
    """In some schedules a person asks groups with sources to drain, at any moment."""
    replicated: Mapping[str, ReplicatedShape] = field(default_factory=dict)
    """Groups with replicas. Their plans name the operators of all slots. Slots may move at any moment."""
    plain: Scenario | None = None
    """The same pipeline without replication. Deterministic results are compared with it, record by record."""
    datasets: Callable[[Any], Any] | None = None
    """For a pipeline whose events are datasets: makes the `DatasetWorld` of one schedule from its `World` (`datasets.py`)."""
    about: str = ""
