"""The Merger (Section 7.1): the output events of all slots become one stream again."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from airflow_logio.dataflow.replication.dispatcher import slot_ports
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.record_rules import WHOLE, Dependence, RecordRules, Uses


class Merger(StatelessOperator):
    """Sends on what comes on any of its input ports ``slot0``, ``slot1``, ..., as it comes. It ends when all have ended."""

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
