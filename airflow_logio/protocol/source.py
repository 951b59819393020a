"""A source operator: Algorithms 1 and 6, for replayable and non-replayable read actions, one after the other.

The global state is ``{"action_id", "action", "offset", "stored", "done", "ended", "to_drop"}``: the read action on
record, the number of its records whose events are logged, the reference of its stored effect, and the stored effects
that are used up but not discarded yet; of a source that forgets, also ``"to_forget"``, and of
a `RangeSource`, `SENT_SCHEMA`. It commits with each event, so that recovery needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.effects import CompleteReadAction, DropRead, MayForget, ReadDone, StartReadAction
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.values import SENT_SCHEMA

READ_CONNECTION = "source"
"""The connection id under which READ_ACTION keeps the read actions of a source."""

READ_ACTION_ID = "read_action"
"""Key in `Event.about`, on a data lineage path: the action id of the read action that a source's event comes from."""
_STAYS = ("to_forget", SENT_SCHEMA)
"""Keys that outlive a read action, once they are there."""


class SourceProtocol(OperatorProtocol):
    """A source operator. One read action is under way at a time; the next one begins when the last has ended."""

    def restore(self, data: bytes) -> None:
        """Algorithm 6 Step 2. Sources of schema 0001 had one read action, a replayable one, and stored if it was complete."""
        super().restore(data)
        if "complete" in self.state:
            ended = bool(self.state.pop("complete"))
            self.state |= {"stored": None, "done": ended, "ended": ended, "to_drop": []}

    def begin(self, action: Mapping[str, Any], ledger: Ledger) -> None:
        """Algorithm 1 Step 1: log a read action as incomplete, once. Does nothing if one is under way, or at the end."""
        if self.state and (not self.state["done"] or self.state["ended"]):
            return
        action_id = self.context.allocate_action()
        self.state = {
            "action_id": action_id,
            "action": dict(action),
            "offset": 0,
            "stored": None,
            "done": False,
            "ended": False,
            "to_drop": self.to_drop(),
            **{key: self.state[key] for key in _STAYS if key in self.state},
        }
        kept = bool(self.spec.lineage_out)
        ledger.add(StartReadAction(self.spec.name, READ_CONNECTION, action_id, dict(action), kept=kept))
        ledger.has_output = True
        self.dirty = True

    @property
    def action(self) -> Mapping[str, Any] | None:
        """The read action on record, or None if this run has not begun one."""
        return self.state.get("action")

    @property
    def action_id(self) -> int:
        return int(self.state["action_id"])

    @property
    def offset(self) -> int:
        """Records whose events are logged: where a replay, or the reading of the stored effect, resumes."""
        return int(self.state["offset"])

    @property
    def stored(self) -> str | None:
        """Reference of the stored effect, once the read action is complete (Algorithm 1 Step 2.b)."""
        ref: str | None = self.state.get("stored")
        return ref

    @property
    def has_ended(self) -> bool:
        """No read action will follow."""
        return bool(self.state) and bool(self.state["ended"])

    def to_drop(self) -> list[list[Any]]:
        """(action_id, reference) of stored effects that are used up: to be discarded (Algorithm 6 Step 3.a)."""
        return list(self.state.get("to_drop", ()))

    def to_forget(self) -> tuple[int, Mapping[str, Any]] | None:
        """(action_id, read action): the last one whose event is in the log, if the external system may not have heard."""
        found = self.state.get("to_forget")
        return None if found is None else (int(found[0]), found[1])

    @property
    def sent_schema(self) -> str | None:
        """The columns that its events have had so far, if they told any."""
        schema: str | None = self.state.get(SENT_SCHEMA)
        return schema

    def store_effect(self, ref: str, records: int, ledger: Ledger) -> None:
        """Algorithm 1 Step 2.b: the whole effect is stored at `ref`. From now on, the external system is not read for it."""
        self._refuse_unless_under_way()
        if self.spec.replayable or self.stored is not None:
            why = "can be replayed" if self.spec.replayable else f"has its effect stored at {self.stored!r}"
            raise ProtocolViolation(
                f"source {self.spec.name!r} stored the effect of read action {self.action_id}, which {why}"
            )
        self.state["stored"] = ref
        self.dirty = True
        ledger.has_output = True
        ledger.add(CompleteReadAction(self.spec.name, READ_CONNECTION, self.action_id, ref, records))

    def advance(self, offset: int, ledger: Ledger, schema: str | None = None) -> None:
        """Algorithm 1 Step 2.c (2): the offset at the end of the batch, stored with the event, and its columns."""
        self._refuse_unless_under_way()
        if offset < self.offset:
            raise ProtocolViolation(f"source {self.spec.name!r} went back from offset {self.offset} to {offset}")
        if not self.spec.replayable and self.stored is None:
            raise ProtocolViolation(
                f"source {self.spec.name!r} made an event of read action {self.action_id}, which cannot be replayed and "
                "whose effect is not stored"
            )
        self.state["offset"] = offset
        if schema is not None:
            self.state.setdefault(SENT_SCHEMA, schema)
        self.dirty = True
        if self.spec.forgets:
            self.state["to_forget"] = [self.action_id, self.state["action"]]
            ledger.add(MayForget(self.spec.name, self.action_id, self.state["action"]))

    def forgotten(self, action_id: int) -> None:
        """The external system has heard that it may forget what was read up to the end of a read action."""
        pending = self.to_forget()
        if pending is not None and pending[0] <= action_id:
            del self.state["to_forget"]
            self.dirty = True

    def complete(self, ledger: Ledger) -> None:
        """The last event of the read action is logged: Algorithm 1 Step 3, or Step 2.c (3) for a stored effect."""
        self._refuse_unless_under_way()
        if self.spec.replayable:
            ledger.add(CompleteReadAction(self.spec.name, READ_CONNECTION, self.action_id))
        elif self.stored is None:
            raise ProtocolViolation(f"the effect of read action {self.action_id} of {self.spec.name!r} is not stored")
        else:
            ledger.add(ReadDone(self.spec.name, READ_CONNECTION, self.action_id))
            self.state["to_drop"] = [*self.to_drop(), [self.action_id, self.stored]]
            self.state["stored"] = None
        self.state["done"] = True
        self.dirty = True

    def dropped(self, action_id: int, ledger: Ledger) -> None:
        """Algorithm 1 Step 2.d: the stored effect of a read action is discarded; its event r goes with this step."""
        left = [pair for pair in self.to_drop() if pair[0] != action_id]
        if len(left) == len(self.to_drop()):
            raise ProtocolViolation(
                f"source {self.spec.name!r} has no used-up effect of read action {action_id} to discard"
            )
        self.state["to_drop"] = left
        self.dirty = True
        ledger.add(DropRead(self.spec.name, READ_CONNECTION, action_id))

    def cut_short(self, ledger: Ledger) -> None:
        """The group drains (design D9): the read action under way ends with what the log has, and no other follows. One
        that cannot be replayed counts as not read unless its effect is stored. May come before the first read action.
        """
        if not self.state:
            self.state = {"action_id": 0, "offset": 0, "stored": None, "done": True, "ended": False, "to_drop": []}
        if not self.state["done"]:
            if self.stored is not None:
                raise ProtocolViolation(
                    f"source {self.spec.name!r} cannot cut read action {self.action_id} short: its effect is stored, so it "
                    "has been read"
                )
            ledger.add(CompleteReadAction(self.spec.name, READ_CONNECTION, self.action_id))
            self.state["done"] = True
        self.end()

    def end(self) -> None:
        """No read action will follow."""
        self.state["ended"] = True
        self.dirty = True

    def _refuse_unless_under_way(self) -> None:
        if not self.state or self.state["done"]:
            raise ProtocolViolation(f"source {self.spec.name!r} has no read action under way")

    def is_drained(self) -> bool:
        return self.has_ended and not self.context.finished
