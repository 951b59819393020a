"""What the parts of an epoch are given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver.direct import DirectChannel
from airflow_logio.driver.mailbox import Bound, LoadMeter
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.protocol.replicas import Slot
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.payloads import Payloads


@dataclass(frozen=True, slots=True)
class EpochSettings:
    """What an epoch needs besides the log."""

    pipeline: Pipeline
    run: Run
    group: str
    connections: Connections
    sessions: SparkSessions
    may_start: Callable[[threading.Event], None]
    """Blocks until sources may read, or the event is set."""
    stop_requested: threading.Event
    """Set when the group is asked to halt."""
    drain_requested: threading.Event = field(default_factory=threading.Event)
    """Set when the group is asked to drain."""
    prefetch: Bound = field(default_factory=Bound)
    slots_of: Callable[[str], Sequence[Slot]] = lambda _: ()
    """Replicated group → its slots and their owners, for its Dispatchers. Raises `LogUnavailable`."""
    load: LoadMeter = field(default_factory=LoadMeter)
    direct: DirectChannel | None = None
    """By which bodies that are not in the log go from driver to driver."""
    payloads: Payloads | None = None
    """The payload store of the deployment, if it has one."""
