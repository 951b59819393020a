"""What the threads of a group bring, handed to its loop: one kind of item, one method of the loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.sources import RangeSource
from airflow_logio.driver.epoch_settings import Failure
from airflow_logio.driver.generation import Generation
from airflow_logio.driver.load import LoadMeter
from airflow_logio.driver.sources.read_results import (
    Discarded,
    Exhausted,
    Forgotten,
    HandedOver,
    ReadBatch,
    ReadFrame,
    Stored,
)
from airflow_logio.driver.spark_jobs.jobs import Generated
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.values import Event, Port
from airflow_logio.protocol.write_queue import Applied, Compared


class Intake:
    """Used by the main thread of an epoch."""

    def __init__(
        self, loop: GroupLoop, members: Mapping[str, Operator], generation: Generation, load: LoadMeter
    ) -> None:
        self._loop = loop
        self._members = members
        self._generation = generation
        self._load = load

    def take(self, item: Any) -> None:
        """One item of the mailbox. Raises the error of a thread that has failed."""
        loop, now = self._loop, time.monotonic()
        match item:
            case (Port() as receiver, Event() as event):
                self._load.took(1, event.records)
                loop.deliver(receiver, event, now)
            case ReadBatch() | ReadFrame() | Stored() | HandedOver() | Exhausted():
                self._observe_source(item, now)
            case Discarded(operator, action_id):
                loop.discarded(operator, action_id, now)
            case Forgotten(operator, action_id):
                loop.forgotten(operator, action_id, now)
            case Generated():
                self._observe_job(item, now)
            case Compared():
                loop.compared(item, now)
            case Applied():
                loop.applied(item, now)
            case Failure(error):
                raise error

    def _observe_source(self, item: ReadBatch | ReadFrame | Stored | HandedOver | Exhausted, now: float) -> None:
        loop = self._loop
        match item:
            case ReadBatch(operator, table, offset, about):
                outputs = self._members[operator].outputs if table.num_rows else ()
                emits = [Emit(port, table, table.num_rows, about=about) for port in outputs]
                loop.emit(operator, emits, offset, now)
            case ReadFrame(operator, payload, records, offset, about):
                source = self._members[operator]
                schema = payload.schema if isinstance(source, RangeSource) else None  # others have one read action
                loop.emit(operator, [Emit(source.outputs[0], payload, records, about=about)], offset, now, schema)
            case Stored(operator, ref, records, end):
                if loop.reads_on(operator):
                    loop.store_effect(operator, ref, records, now)
                    if end is not None:
                        loop.end_read(operator, end.next_action, now)
            case HandedOver(operator):
                loop.used_whole(operator, now)
            case Exhausted(operator, next_action):
                loop.end_read(operator, next_action, now)

    def _observe_job(self, job: Generated, now: float) -> None:
        """The end of a job is a step of its own: Output Sets logged, Input Sets done, state serialized."""
        self._generation.note_columns(job)
        self._loop.generated(job.operator, job.results, job.reads, now)
        for inset_id, error in job.aside:
            self._loop.set_aside(job.operator, inset_id, error, now)
        if job.is_last:
            self._generation.finished(job.operator)
