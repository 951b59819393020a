"""What holds a sending group up: the backlogs of its output ports, and the routes of its Dispatchers over them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.replication import Dispatcher, Routes
from airflow_logio.dataflow.replication.partition import AllSlots
from airflow_logio.driver.backlog import Backlog, bounded
from airflow_logio.driver.load import LoadMeter
from airflow_logio.driver.slot_routes import SlotRoutes
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.systems.arrow import bytes_shown
from airflow_logio.systems.payloads.bodies import dataset_of

FILES_COUNT = 256
"""So many bytes of files are one of the bound: they are in the payload store, and not in the log. Of the usual 256 MiB, 64
GiB of files."""


class BackPressure:
    """Back-pressure of one epoch; belongs to the group's loop. `sent` gives, for each port, its last event and the
    number of ids that belong to ends that were taken back."""

    def __init__(
        self,
        pipeline: Pipeline,
        members: Mapping[str, Operator],
        session: GroupSession,
        bound: BacklogBound,
        sent: Callable[[Port], tuple[int, int]],
        slots_of: Callable[[str], Sequence[Slot]],
    ) -> None:
        self._pipeline = pipeline
        self._backlogs = {
            sender: Backlog(receivers, session.acknowledged, bound, partial(_last, sent, sender), sent(sender)[1])
            for sender, receivers in bounded(pipeline, members).items()
        }
        self.routes: dict[str, Routes] = {}
        """Dispatcher → what it looks at."""
        together = set(self._open_routes(members, session, slots_of))
        alone = [one.is_full for sender, one in self._backlogs.items() if sender.operator not in together]
        self._waits = alone + [one.is_full for one in self.routes.values() if isinstance(one, SlotRoutes)]

    def _open_routes(
        self, members: Mapping[str, Operator], session: GroupSession, slots_of: Callable[[str], Sequence[Slot]]
    ) -> Iterable[str]:
        """Dispatchers whose connections are bounded together."""
        for name, operator in members.items():
            if not isinstance(operator, Dispatcher):
                continue
            receivers = [self._pipeline.receivers(Port(name, port)) for port in operator.outputs]
            group = self._pipeline.home(receivers[0][0].operator)
            if group not in self._pipeline.replicated:
                self.routes[name] = AllSlots(operator.slots)  # used by hand: what is behind it is not replicated
                continue
            backlogs = [self._backlogs[Port(name, port)] for port in operator.outputs]
            self.routes[name] = SlotRoutes(operator, backlogs, session.acknowledged, partial(slots_of, group))
            yield name

    def is_full(self) -> bool:
        """A receiver lags by the bound: take no more input."""
        return any(is_full() for is_full in self._waits)

    def note(self, effects: Collection[fx.Effect], load: LoadMeter) -> None:
        """These events are on their way to the log."""
        for effect in effects:
            if isinstance(effect, fx.LogEvent) and effect.event.sender in self._backlogs:
                event = effect.event
                load.sent(1, event.records)
                self._backlogs[event.sender].note_size(event.event_id, waiting_bytes(event))


def _last(sent: Callable[[Port], tuple[int, int]], sender: Port) -> int:
    return sent(sender)[0]


def waiting_bytes(event: Event) -> int:
    """Bytes of an event that count while a receiver lags."""
    if event.body is not None:
        return len(event.body)
    if (dataset := dataset_of(event.payload)) is not None:
        return dataset.nbytes // FILES_COUNT
    return bytes_shown(event.payload) if isinstance(event.payload, pa.Table) else 0
