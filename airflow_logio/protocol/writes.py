"""Write actions of one connection: Algorithms 5 and 8 for groups of actions.

Groups are applied one at a time and in order. The numbers in a group have no gaps; the external system applies and marks
the group in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import Value


class PendingWrite(Value, frozen=True):
    """An undone write action, as EVENT_LOG and EVENT_DATA hold it."""

    operator: str
    connection: str
    number: int
    header: Mapping[str, Any]
    records: int
    body: bytes
    ref: str | None = None
    """Reference into the payload store, if the body is there and `body` is empty."""
    hidden: ClassVar[tuple[str, ...]] = ("body",)


class Numbered(Protocol):
    """A write action, in the log or on its way to the external system."""

    @property
    def operator(self) -> str: ...
    @property
    def connection(self) -> str: ...
    @property
    def number(self) -> int: ...


Action = TypeVar("Action", bound=Numbered)


def check_gapless(writes: Sequence[Numbered]) -> None:
    """Refuse a group with a gap: the marker would pass an action that was never applied."""
    for before, after in pairwise(writes):
        if after.number != before.number + 1:
            raise LogInconsistent(
                f"write actions of {after.operator!r} on {after.connection!r} jump from {before.number} to {after.number}"
            )


def unapplied(writes: Sequence[Action], marker: int) -> Sequence[Action]:
    """Algorithm 8 Step 2: the actions beyond the external system's marker; those at or below it have succeeded."""
    if writes and marker + 1 < writes[0].number:
        first = writes[0]
        raise LogInconsistent(
            f"connection {first.connection!r} has applied write actions of {first.operator!r} up to {marker}, but the log "
            f"holds {first.number} as the next one: was the external system restored from an older copy?"
        )
    return [write for write in writes if write.number > marker]
