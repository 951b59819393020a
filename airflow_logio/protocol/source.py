"""A source with a replayable read action: Algorithms 1 (Step 3) and 6 (Step 4.b).

The offset is the number of records whose events are logged; it lives in the global state and commits with each event.
Non-replayable read actions (Steps 2.a to 2.d) store their effect first; they are not part of this module yet, and the
pipeline refuses them when it is defined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.effects import CompleteReadAction, StartReadAction
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.operator import OperatorProtocol

READ_CONNECTION = "source"
"""The connection id under which READ_ACTION keeps the read action of a source."""


class SourceProtocol(OperatorProtocol):
    """A source operator: global state ``{"action_id", "action", "offset", "complete"}``."""

    def begin(self, action: Mapping[str, Any], ledger: Ledger) -> None:
        """Algorithm 1 Step 1: log the read action as incomplete, once per run."""
        if self.state:
            return
        action_id = self.context.allocate_action()
        self.state = {"action_id": action_id, "action": dict(action), "offset": 0, "complete": False}
        ledger.add(StartReadAction(self.spec.name, READ_CONNECTION, action_id, dict(action)))
        ledger.has_output = True
        self.dirty = True

    @property
    def action(self) -> Mapping[str, Any] | None:
        """The read action on record, or None if this run has not begun it."""
        return self.state.get("action")

    @property
    def offset(self) -> int:
        """Records whose events are logged: where a replay resumes."""
        return int(self.state["offset"])

    def advance(self, offset: int) -> None:
        """Algorithm 1 Step 2.c (2): the offset of the batch end, stored with the event."""
        if offset < self.offset:
            raise ProtocolViolation(f"source {self.spec.name!r} went back from offset {self.offset} to {offset}")
        self.state["offset"] = offset
        self.dirty = True

    def complete(self, ledger: Ledger) -> None:
        """Algorithm 1 Step 3: the last event is logged, the read action is complete."""
        self.state["complete"] = True
        self.dirty = True
        ledger.add(CompleteReadAction(self.spec.name, READ_CONNECTION, int(self.state["action_id"])))

    def is_drained(self) -> bool:
        return bool(self.state) and bool(self.state["complete"]) and not self.context.finished
