"""What a `TableWriter` makes of an event that is a dataset: its records stay in files up to the table (ADR-86)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_logio.dataflow.operators import InputEvent, Operator
from airflow_logio.dataflow.writers.action_writers import EVENT, INSERT
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.protocol.logic import Emit, Output, Write
from airflow_logio.protocol.replicas import PLACE
from airflow_logio.protocol.values import Event
from airflow_logio.systems.payloads.bodies import dataset_of
from airflow_logio.systems.payloads.dataset import Borrowed, Dataset


def written_in_files(operator: Operator, port: str, event: Event) -> Sequence[Output] | None:
    """The write action of the event, and the event sent on; None if its records are to be looked at here.

    Raises `OperatorFailed` for records of other columns than the table's.
    """
    dataset = dataset_of(event.payload)
    if dataset is None or PLACE in event.about or not isinstance(operator, TableWriter) or not operator.takes_files():
        return None
    operator.records(InputEvent(port, event.event_id, dataset.empty()))
    described: dict[str, Any] = {"action": INSERT}
    if operator.lineage_column is not None:
        described[EVENT] = event.event_id
    # The dataset of an event from the log is that of its row; what a chain has made may have none.
    payload = Borrowed(dataset) if isinstance(event.payload, Dataset) else event.payload
    return (
        Write(operator.connection, described, payload, dataset.num_rows),
        Emit(operator.outputs[0], payload, dataset.num_rows),
    )
