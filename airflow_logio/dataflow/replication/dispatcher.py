"""Dispatcher and Merger (Section 7.1): a stream is split between slots, and becomes one stream again."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.dependencies import UNCHANGED
from airflow_logio.dataflow.names import check_count
from airflow_logio.dataflow.operators import (
    External,
    InputEvent,
    InputSet,
    PortTable,
    StatefulOperator,
    StatelessOperator,
)
from airflow_logio.dataflow.replication.partition import AllSlots, Partition, Routes
from airflow_logio.dataflow.windows import Window
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.record_rules import WHOLE, Dependence, RecordRules, Uses


@dataclass(frozen=True, slots=True)
class Dispatched:
    """An output event of a Dispatcher; without records it only brings progress."""

    port: str
    table: pa.Table
    progress: Mapping[str, str] = field(default_factory=dict)
    """Window → how far it has come in the whole stream (`Window.progress`); empty if that has not changed."""
    place: int | None = None
    """The number of the event in the whole stream, from 1, where a Merger keeps the order."""


class Dispatcher(StatefulOperator):
    """An operator that sends the records of each event on to output ports ``slot0``, ``slot1``, ..., one per slot
    (Section 7.1). `Pipeline.replicate` puts it in front of a group.

    :param partition: which slot takes which records.
    :param slots: the number of slots; by default what the partition says for one replica.
    :param windows: the windows of the operators behind it.
    :param ordered: number the events for an `OrderedMerger`.

    A slot may get no records for long while others do: when the whole stream enters a later window, every slot is told,
    so that each can close the earlier one. Global state: how far each window has come, the event that brought it there,
    and how many events were numbered. Raises PipelineDefinitionError.
    """

    order_insensitive = True

    def __init__(
        self,
        partition: Partition,
        slots: int | None = None,
        windows: Sequence[Window] = (),
        *,
        ordered: bool = False,
    ) -> None:
        self.partition = partition
        self.slots = partition.slots_for(1) if slots is None else check_count("Dispatcher: slots", slots)
        self.ordered = ordered
        self._windows = tuple(windows)
        self.outputs = slot_ports(self.slots)

    def record_rules(self) -> RecordRules:
        return RecordRules(dict.fromkeys(self.outputs, Dependence(Uses.ONE)), {"": WHOLE})

    def settings(self) -> dict[str, Any]:
        windows = [window.describe() for window in self._windows]
        return {"slots": self.slots, **self.partition.describe(), "windows": windows, "ordered": self.ordered}

    def initial_state(self) -> dict[str, Any]:
        return {"progress": {}, "brought_by": 0, "events": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        for window in self._windows:
            name, reached = window.progress_name(), _reached(window, event)
            if reached is not None and reached > state["progress"].get(name, ""):
                state["progress"][name] = reached
                state["brought_by"] = event.event_id
        if not self.ordered:
            return {str(event.event_id): event}
        state["events"] += 1  # event ids of a stream that continued after its end have gaps
        return {str(state["events"]): event}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return event

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return part

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets, key=int)

    def order(self, inset_id: str) -> int:
        return int(inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        """Without knowledge of the replicas, and so in turn to all slots where keys do not decide."""
        return [(sent.port, sent.table) for sent in self.dispatch(input_set, state, AllSlots(self.slots))]

    def dispatch(self, input_set: InputSet, state: Mapping[str, Any], routes: Routes) -> Iterable[Dispatched]:
        """The Output Set of one event, in the order of slots."""
        event: InputEvent = input_set.held
        place = int(input_set.inset_id) if self.ordered else None
        # Progress that is told again is harmless; only the event that brought it tells it, so that few events are sent.
        progress = dict(state["progress"]) if state["brought_by"] == event.event_id else {}
        parts = dict(self.partition.part(event, self.slots, routes))
        told = range(self.slots) if progress else sorted(parts)
        nothing = event.table.slice(0, 0)
        return [Dispatched(self.outputs[slot], parts.get(slot, nothing), progress, place) for slot in told]


def _reached(window: Window, event: InputEvent) -> str | None:
    """Records that the window will refuse are refused there, by the operator that owns them."""
    try:
        return window.progress(event)
    except OperatorFailed:
        return None


class Merger(StatelessOperator):
    """An operator that sends on what comes on any of its input ports ``slot0``, ``slot1``, ..., as it comes (Section
    7.1). `Pipeline.replicate` puts it behind a group. It ends when all ports have ended.

    :param slots: the number of slots.
    """

    def __init__(self, slots: int) -> None:
        self.inputs = slot_ports(check_count("Merger: slots", slots))

    def record_rules(self) -> RecordRules:
        return RecordRules({"out": UNCHANGED}, {"": WHOLE})

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        return (("out", event.table),)


class OrderedMerger(StatefulOperator):
    """Sends on what was made of the Dispatcher's events in the order of these, whichever slot is faster.

    An Input Set is what was made of one of them. What comes early is held in its event state, so that a slow slot holds no
    port up; it is in memory until then. Global state: the number of the first one that is not complete, and later ones that
    are.
    """

    def __init__(self, slots: int) -> None:
        self.inputs = slot_ports(check_count("OrderedMerger: slots", slots))

    def record_rules(self) -> RecordRules:
        return RecordRules({"out": Dependence(Uses.ONE)}, {"": WHOLE})

    def initial_state(self) -> dict[str, Any]:
        return {"next": 1, "complete": []}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        if event.place is None:
            raise OperatorFailed(
                f"event {event.event_id} on port {event.port!r} has no place in the order: it comes from no Dispatcher that "
                "numbers its events (ordered=True)"
            )
        number, is_last = event.place
        if is_last:
            insort(state["complete"], number)
            while state["complete"] and state["complete"][0] == state["next"]:
                del state["complete"][0]
                state["next"] += 1
        return {str(number): event.table}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return event.table

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted((inset for inset in open_insets if int(inset) < state["next"]), key=int)

    def order(self, inset_id: str) -> int:
        return int(inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        return [("out", table) for table in input_set.held if table.num_rows]


def slot_ports(slots: int) -> tuple[str, ...]:
    """Names of the ports of a Dispatcher or Merger, one per slot."""
    return tuple(f"slot{number}" for number in range(slots))
