"""Sales that an operator cannot use while a table of the warehouse is empty: it fails its group, or sets events aside."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_logio.dataflow import Count, ParquetSource, Pipeline, TableRead, TableWriter
from airflow_logio.dataflow.operators import External, InputEvent, PortTable, StatelessOperator

RECORDS_PER_EVENT = 250
EVERY = 16
"""Every so many events one cannot be used."""
COLUMNS = ("basket_id", "product_id", "quantity")


def is_unlucky(event_id: int) -> bool:
    return event_id % EVERY == 5


class Checked(StatelessOperator):
    """Raises for unlucky events until ``mended`` has a row."""

    def __init__(self, on_error: str) -> None:
        self.on_error = on_error

    def connections(self) -> tuple[str, ...]:
        return ("warehouse",)

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        if is_unlucky(event.event_id) and not external.read(TableRead("warehouse", "mended")).num_rows:
            raise ValueError(f"cannot use basket {event.table.column('basket_id')[0]}")
        yield "out", event.table


class Unable(StatelessOperator):
    """Raises for every event until ``mended`` has a row."""

    def connections(self) -> tuple[str, ...]:
        return ("warehouse",)

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        if not external.read(TableRead("warehouse", "mended")).num_rows:
            raise KeyError("department")
        yield "out", event.table


def build(operator: StatelessOperator, on_new_run: str = "replace") -> Pipeline:
    made = Pipeline("faulty", params={"transactions": str}, connections=["warehouse"])
    ingest = made.source(
        "ingest", ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT, columns=COLUMNS)
    )
    checked = made.operator("checked", operator, ingest)
    writer = TableWriter("warehouse", "sales", columns=dict.fromkeys(COLUMNS, "bigint"), on_new_run=on_new_run)
    made.sink("done", Count(), made.writer("save", writer, checked))
    made.group("ingest", ingest)
    made.group("checked", checked)
    made.group("save", "save", "done")
    return made


failing = build(Checked("fail"))
quarantining = build(Checked("quarantine"))
appending = build(Checked("quarantine"), "append")
unable = build(Unable())
