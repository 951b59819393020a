"""What the parts of a simulated driver know: the world around it, and the driver itself as its threads see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Logic, OperatorSpec
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.testing.simulator.actions import Incarnation
from airflow_logio.testing.simulator.datasets import DatasetEpoch, DatasetWorld
from airflow_logio.testing.simulator.offers import SimulatedOffers
from airflow_logio.testing.simulator.plan import Batch, Scenario, Sweep, Systems
from airflow_logio.testing.simulator.watch.log_watch import LogWatch


class Surroundings(Protocol):
    """The world of a schedule, as a driver asks it."""

    scenario: Scenario
    run: Run
    store: LogStore
    watch: LogWatch
    is_bounded: bool
    """Senders wait for receivers that lag."""

    @property
    def systems(self) -> Systems: ...
    @property
    def incarnations(self) -> Mapping[str, int]: ...
    @property
    def known(self) -> Mapping[Port, int]:
        """Receiver port → greatest event_id that is logged for it."""

    @property
    def wished(self) -> Set[str]:
        """Groups that were asked to drain."""

    @property
    def to_halt(self) -> Set[str]: ...
    @property
    def sweeps(self) -> Sequence[Sweep]: ...
    @property
    def replayed(self) -> Mapping[str, Logic]: ...
    @property
    def offers(self) -> SimulatedOffers: ...
    @property
    def datasets(self) -> DatasetWorld | None: ...
    @property
    def effects(self) -> dict[str, list[Batch]]:
        """Reference → stored effect of a non-replayable read action."""

    def is_locked(self, group: str) -> bool:
        """A transaction in doubt holds the group's fence row."""

    def is_in_doubt(self, driver: Incarnation) -> bool: ...
    def commit(self, driver: Incarnation, effects: fx.Effects) -> tuple[Collected, ...]: ...
    def doubt(self, driver: Incarnation, effects: fx.Effects) -> None: ...
    def has_halted(self, driver: Incarnation) -> None: ...
    def has_parked(self, driver: Incarnation) -> None: ...
    def leave(self, driver: Incarnation) -> bool:
        """A replica without slots takes itself out of use, if all slots are done."""

    def count_reading(self, driver: Incarnation, name: str, action_id: int) -> int:
        """A driver is about to read a source that is not replayable: the number of this reading."""


class Epoch(Incarnation, Protocol):
    """A driver in its present epoch, as its threads see it."""

    world: Surroundings
    loop: GroupLoop
    operators: tuple[OperatorSpec, ...]
    evaluating: DatasetEpoch | None
    epochs: int
    now: float

    @property
    def protocol(self) -> GroupProtocol: ...
    @property
    def is_running(self) -> bool: ...
    def observes(self) -> bool:
        """Whether the loop takes inputs now."""

    def token(self, operator: str) -> int:
        """The fencing token for the writes of an operator."""
