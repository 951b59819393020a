"""Checks whether an author's writer keeps its guarantee, against the real external system or a test double."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import CheckableWriter, ClientWriter, ConditionalWriter, WriteAction
from airflow_logio.errors import Fenced
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import executor_of

OPERATOR = "writer_check"


def check_writer(
    writer: ClientWriter[Any],
    url: str,
    records: Sequence[pa.Table],
    contents: Callable[[], Any],
    *,
    run_uid: str = "check",
) -> None:
    """Write four write actions like drivers that die and are replaced. Raises AssertionError if the guarantee does not hold.

    `records` are those of the four actions, all different. `contents` reads back what the external system holds, as a
    comparable value. The system must not know run `run_uid` yet. Whatever is written stays there.
    """
    assert len(records) == 4, f"the records of four write actions are needed, got {len(records)}"
    trial = _Trial(writer, url, records, run_uid)
    before = contents()
    trial.execute(1, 2, token=1)
    two = contents()
    assert two != before, "write actions 1 and 2 have changed nothing that `contents` sees"
    trial.execute(1, 2, token=2, recovered=2)
    assert contents() == two, "write actions 1 and 2 were executed again after a recovery, and have changed something"
    trial.execute(1, 2, 3, token=2, recovered=3)
    three = contents()
    assert three != two, "write action 3 was lost behind actions that were executed before"
    trial.execute(2, 3, token=3, recovered=3)
    assert contents() == three, "write actions 2 and 3 were executed again after a recovery, and have changed something"
    if isinstance(writer, ConditionalWriter):
        trial.check_fence()
        assert contents() == three, "write action 4 of a driver that was replaced was refused, and applied all the same"
    if isinstance(writer, CheckableWriter):
        trial.check_answers(writer)
    trial.execute(4, token=4)
    assert contents() != three, "write action 4 has changed nothing"


class _Trial:
    def __init__(self, writer: ClientWriter[Any], url: str, records: Sequence[pa.Table], run_uid: str) -> None:
        self._writer = writer
        self._url = url
        self._run_uid = run_uid
        self._writes = [
            PendingWrite(OPERATOR, writer.connection, number, {"action": "insert"}, table.num_rows, encode(table))
            for number, table in enumerate(records, start=1)
        ]

    def execute(self, *numbers: int, token: int, recovered: int = 0) -> None:
        """Execute write actions as the driver of an incarnation does, with a client of its own."""
        identity = WriterIdentity(self._run_uid, token, 1.0)
        shared = Connections("trial", {self._writer.connection: self._url}, identity, replay_seconds=10)
        executor = executor_of(OPERATOR, self._writer, shared)
        try:
            executor.execute([self._writes[number - 1] for number in numbers], recovered, threading.Event())
        finally:
            executor.close()

    def check_fence(self) -> None:
        try:
            self.execute(4, token=1)
        except Fenced:
            return
        raise AssertionError(
            "a driver with token 1 may write although token 3 has written: `apply` must hand the stored token to "
            "Marker.unapplied, and store the marker's"
        )

    def check_answers(self, writer: CheckableWriter[Any]) -> None:
        def action(number: int, run_uid: str) -> WriteAction:
            return WriteAction(run_uid, OPERATOR, writer.connection, number, 3, pa.table({}), {"action": "insert"})

        with writer.connect(self._url) as client:
            assert not writer.is_applied(client, action(4, self._run_uid)), (
                "is_applied says yes for an action that was not written"
            )
            assert not writer.is_applied(client, action(3, "another run")), (
                "is_applied says yes for another run's write action: ask for WriteAction.key"
            )
