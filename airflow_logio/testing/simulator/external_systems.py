"""Simulated external systems, each with exactly the promise that docs/design.md makes for its kind ("What is promised").

A system is one object that all drivers of a run share, zombies included. Every method is one atomic step of the system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_logio.errors import Fenced
from airflow_logio.protocol.writes import PendingWrite, check_gapless, unapplied


class Guarantee(StrEnum):
    """What an external system can do about a write action that may have been applied already."""

    CONDITIONAL = "conditional"
    """Applies an action and its marker in one step, refuses what the marker has passed and lower tokens."""
    CHECKABLE = "checkable"
    """Can be asked which action it has applied last; the answer and a later write are two steps."""
    IDEMPOTENT = "idempotent"
    """Keyed: applying an action twice is applying it once."""


WriterKey = tuple[str, str]
"""(operator, connection)"""


@dataclass(frozen=True, slots=True)
class AppliedWrite:
    """A write action as the external system got it."""

    number: int
    header: Mapping[str, Any]
    body: bytes


@dataclass
class ExternalSystem:
    """One connection's system: what it has applied, in order, and the marker per writer."""

    guarantee: Guarantee = Guarantee.CONDITIONAL
    applied: dict[WriterKey, list[AppliedWrite]] = field(default_factory=dict)
    tokens: dict[WriterKey, int] = field(default_factory=dict)
    reads: int = 0
    """How often it was read: contents of `lookup` may depend on it."""

    def marker(self, key: WriterKey) -> int:
        """Number of the last write action that was applied; 0 if none was."""
        done = self.applied.get(key)
        return done[-1].number if done else 0

    def apply(self, key: WriterKey, token: int, writes: Sequence[PendingWrite]) -> None:
        """Atomically conditional: what the marker has not passed is applied, and the marker advances, in one step.

        Raises `Fenced` if a higher token wrote.
        """
        check_gapless(writes)
        self._check_token(key, token)
        self._append(key, unapplied(writes, self.marker(key)))
        self.tokens[key] = token

    def _check_token(self, key: WriterKey, token: int) -> None:
        if self.tokens.get(key, 0) > token:
            raise Fenced(f"a driver with token {self.tokens[key]} has written for {key[0]}, this one holds {token}")

    def write(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """Unconditional: of a checkable system, after its `marker` was asked; each action is applied, again or not."""
        self._append(key, writes)

    def upsert(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """Idempotent: an action replaces what it wrote before, under its key."""
        held = {action.number: index for index, action in enumerate(self.applied.get(key, ()))}
        for write in writes:
            if write.number in held:
                self.applied[key][held[write.number]] = AppliedWrite(write.number, write.header, write.body)
            else:
                self._append(key, [write])

    def _append(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        self.applied.setdefault(key, []).extend(
            AppliedWrite(write.number, write.header, write.body) for write in writes
        )
