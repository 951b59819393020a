"""Write actions as a writer executes them, and the marker that makes them atomically conditional (Algorithms 5 and 8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_logio.protocol.warehouse_rules import MarkerRow, to_apply

BEGIN, INSERT = "begin", "insert"
"""What the description of a write action says under ``action``: the one a run begins with, or records to write."""
EVENT = "event"
"""Under which it says the id of the event, where the writer needs it and the records are a dataset."""


@dataclass(frozen=True, slots=True)
class WriteAction:
    """One write action, read back from the log: every execution of it, by whichever driver, gets the same values.

    Only `token` differs: it is the fencing token of the driver that executes the action, and rises with every recovery.
    """

    run_uid: str
    """Unique over all runs and all logs."""
    operator: str
    connection: str
    number: int
    """Counts from 1, without a gap, per run, operator, connection and slot."""
    token: int
    records: pa.Table = field(repr=False, compare=False)
    description: Mapping[str, Any] = field(default_factory=dict)
    slot: int = 0
    """The slot of the key space, where the operator is replicated."""
    dataset: str | None = None
    """Where the manifest of its records is, in the payload store, if they are a dataset; then it has no `records`."""
    first_row: int = 0
    """The number of its first one of `records`, where these are only a part of a dataset."""

    @property
    def key(self) -> str:
        """Names this action and no other, for ever: an idempotency key."""
        return f"{self.run_uid}/{self.operator}/{self.connection}/{self.slot}/{self.number}"

    @property
    def is_opening(self) -> bool:
        """It has no records: it is the action that a run begins with (`WriterOperator.opening`)."""
        return self.description.get("action") == BEGIN


@dataclass(frozen=True, slots=True)
class Marker:
    """The high-water row of a writer in its external system: its owner, and the fencing token of the driver that
    advances it.

    The external system keeps, under `key`, the number of the last action applied and the token it was applied with, and
    changes them in the same atomic step as it applies actions.
    """

    run_uid: str
    operator: str
    connection: str
    slot: int
    token: int
    started_at: float
    """When the run was started, seconds since 1970 by the clock of its log."""
    look: Callable[[MarkerRow], None] | None = field(default=None, repr=False, compare=False)
    """Sees the row before anything is applied by it. It may raise, to refuse, or where nothing is to be applied yet."""

    @property
    def key(self) -> str:
        """Names the row."""
        return f"{self.run_uid}/{self.operator}/{self.connection}/{self.slot}"

    def unapplied(self, actions: Sequence[WriteAction], number: int = 0, token: int = 0) -> Sequence[WriteAction]:
        """Which of the actions are still to be applied, if the row holds `number` and `token` (0: there is none yet).

        To be asked inside the step that then applies them, with the row locked. Afterwards the row holds the number of the
        last action and `self.token`. Raises `Fenced` if a higher token wrote (this driver was replaced), and
        `LogInconsistent` if the row is behind the log, or ahead of it (one of them was restored from an older copy).
        What else it raises must leave the step, too, with nothing applied: a driver looks at the row before its first
        group of actions (ADR-88).
        """
        row = MarkerRow(number, token)
        if self.look is not None:
            self.look(row)
        return to_apply(self.operator, self.connection, self.token, actions, row)
