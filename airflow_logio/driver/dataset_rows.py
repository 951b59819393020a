"""Which dataset a row of the log names: each row has files of its own (ADR-80), whoever has the same records (ADR-86)."""

from __future__ import annotations

from typing import Any

from airflow_logio.spark.chains import Evaluated
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.systems.payloads.dataset import Borrowed, Dataset


class DatasetRows:
    """For the rows of one transaction: all rows that name what a chain has made of one event are in one."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._named: set[str] = set()

    def dataset(self, payload: Any, where: str, purpose: str) -> Dataset | None:
        """The dataset that the row `where` names for a payload; None if that is no dataset.

        What a chain has materialized belongs to the first row that asks. Every further one, and one of which an event has a
        row since an earlier transaction, gets other names of the files, durable when this returns. Raises `LogUnavailable`.
        """
        match payload:
            case Dataset():  # written for this row
                return payload
            case Evaluated():
                made = payload.materialized
                if (ref := str(made.reference)) not in self._named:
                    self._named.add(ref)
                    return made
                return self._bodies.own(where, purpose, made)
            case Borrowed():
                return self._bodies.own(where, purpose, payload.dataset)
        return None
