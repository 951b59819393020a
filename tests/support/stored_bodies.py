"""Events whose records are in a payload store, as drivers put them there: as a body, or as a dataset."""

from __future__ import annotations

import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.payloads import Payloads
from tests.support.datasets import dataset_of


def store_body(store: SqlLogStore, run: Run, port: str, event: int, table: pa.Table, payloads: Payloads) -> str:
    """The event's records are a body in the payload store; returns its path below the root."""
    reference = payloads.epoch(run.uid, "g", 1, 0).store(f"{port}/{event}", encode(table))
    _refer(store, run, port, event, str(reference))
    return reference.path


def store_dataset(store: SqlLogStore, run: Run, port: str, event: int, table: pa.Table, payloads: Payloads) -> str:
    """The event's records are a dataset; returns the path of its only file."""
    made = dataset_of(payloads.epoch(run.uid, "g", 1, 0), table, purpose=f"{port}/{event}")
    _refer(store, run, port, event, str(made.reference))
    return made.manifest.files[0].path


def _refer(store: SqlLogStore, run: Run, port: str, event: int, reference: str) -> None:
    operator, _, channel = port.partition(".")
    columns = schema.event_data.c
    where = columns.run_id == run.run_id, columns.send_op == operator, columns.channel == channel
    change = sa.update(schema.event_data).where(*where, columns.event_id == event).values(body=b"", ref=reference)
    with store.engine.begin() as connection:
        assert connection.execute(change).rowcount == 1
