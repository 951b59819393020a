"""The reading thread of a source operator: replays its read action from the logged offset (Algorithms 1, 6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.errors import LogioError, OperatorFailed
from airflow_logio.runtime.external import replay
from airflow_logio.runtime.mailbox import Closed, Mailbox


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one event, and the offset after them."""

    operator: str
    table: pa.Table
    next_offset: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The read action has no more records."""

    operator: str


class SourceReader:
    """`may_start` blocks until the source may read (a benchmark waits until all groups are ready)."""

    def __init__(
        self,
        name: str,
        operator: SourceOperator,
        params: Mapping[str, Any],
        action: Mapping[str, Any],
        offset: int,
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
        may_start: Callable[[threading.Event], None],
    ) -> None:
        self._name = name
        self._operator = operator
        self._params = params
        self._action = action
        self._offset = offset
        self._mailbox = mailbox
        self._failed = failed
        self._may_start = may_start
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"logio-source-{name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The mailbox must be closed first: the thread may wait for room in it."""
        self._stopping.set()
        self._thread.join()

    def _read(self) -> None:
        """From behind the last batch that was handed over: a replayable action resumes there when it is replayed."""
        for batch in self._operator.read(self._params, self._action, self._offset):
            if self._stopping.is_set():
                return
            self._mailbox.put_input(Batch(self._name, batch.table, batch.next_offset), batch.table.nbytes)
            self._offset = batch.next_offset

    def _run(self) -> None:
        try:
            self._may_start(self._stopping)
            replay(f"reading source {self._name}", self._read, self._stopping.is_set)
            if self._stopping.is_set():
                return
            self._mailbox.put_input(Exhausted(self._name), 0)
        except Closed:
            return
        except LogioError as error:
            self._failed(error)
        except Exception as error:
            failure = OperatorFailed(f"source {self._name!r}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._failed(failure)
