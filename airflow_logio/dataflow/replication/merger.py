"""The Merger (Section 7.1): the output events of all slots become one stream again."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_logio.dataflow.names import check_count
from airflow_logio.dataflow.operators import External, InputEvent, PortTable, StatelessOperator
from airflow_logio.dataflow.replication.dispatcher import slot_ports


class Merger(StatelessOperator):
    """Sends on what comes on any of its input ports ``slot0``, ``slot1``, ..., as it comes. It ends when all have ended."""

    def __init__(self, slots: int) -> None:
        self.inputs = slot_ports(check_count("Merger: slots", slots))

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        return (("out", event.table),)
