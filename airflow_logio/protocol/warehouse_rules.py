"""What a writer may do, given a marker and an owner that were read under their rows' locks (Algorithm 8 Step 2).

An atomically conditional system keeps two rows. The *marker* of a writer is the last write action that was applied, and
the fencing token it was applied with. The *owner* of a table is the run that writes to it; the first write action of a run
takes the table over. `runtime/systems/warehouse.py` reads them with SQL and acts on what is decided here; the simulator's
external systems (`testing/simulator/write_attempts.py`) run the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_logio.errors import Fenced, WriteRefused
from airflow_logio.protocol.writes import Action, unapplied


class MarkerRow(NamedTuple):
    """The high-water row of a writer. Without one, nothing was applied."""

    number: int = 0
    token: int = 0


class Owner(NamedTuple):
    """The run that a table belongs to."""

    run_uid: str
    started_at: float
    """When the run was started, by the clock of its log."""


def check_token(operator: str, connection: str, token: int, row: MarkerRow) -> None:
    """Refuse a driver that was replaced: its successor, with a higher token, has written."""
    if row.token > token:
        raise Fenced(
            f"write actions of {operator!r} on {connection!r}: token {row.token} has written, but this driver holds {token}: "
            "it was replaced"
        )


def to_apply(operator: str, connection: str, token: int, actions: Sequence[Action], row: MarkerRow) -> Sequence[Action]:
    """The actions that a driver with this token still has to apply, by the state of the row.

    Raises `Fenced` if a higher token wrote, `LogInconsistent` if the row is behind the log.
    """
    check_token(operator, connection, token, row)
    return unapplied(actions, row.number)


@dataclass(frozen=True, slots=True)
class Contender:
    """A writer of one run, at a table that other runs may write to as well."""

    table: str
    connection: str
    operator: str
    mine: Owner
    on_new_run: str
    """What its first write action does to rows of other runs: ``replace``, ``append`` or ``error``."""

    def takes_over(self, owner: Owner | None) -> bool:
        """Whether the first write action of the run makes the table its own; False if another writer of the run has.

        Raises `WriteRefused` if a run that was started later owns it: this one was stopped before its first write.
        """
        if owner is None:
            return True
        if (owner.started_at, owner.run_uid) > (self.mine.started_at, self.mine.run_uid):
            raise self._not_owner(owner.run_uid)
        return owner.run_uid != self.mine.run_uid

    def empties(self, *, is_filled: bool) -> bool:
        """Whether a table that it takes over is emptied. Raises `WriteRefused` if it must be empty and is not."""
        if self.on_new_run == "error" and is_filled:
            raise WriteRefused(
                f"table {self.table!r} of connection {self.connection!r} is not empty, and its writer {self.operator!r} says "
                "on_new_run='error'; empty it, or choose 'append' or 'replace'"
            )
        return self.on_new_run == "replace"

    def check_owner(self, owner: str | None) -> None:
        """Raises `WriteRefused` unless this run, by its uid, owns the table."""
        if owner != self.mine.run_uid:
            raise self._not_owner(owner)

    def _not_owner(self, owner: str | None) -> WriteRefused:
        return WriteRefused(
            f"table {self.table!r} of connection {self.connection!r} belongs to run {owner or 'none'}: a newer run has taken "
            f"it over, and run {self.mine.run_uid} must not write to it any more"
        )
