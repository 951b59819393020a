"""What a writer may do at an external system, decided from what was read there (Algorithm 8 Step 2).

An atomically conditional system keeps two rows, which are read under their locks. The *marker* of a writer is the last
write action that was applied, and the fencing token it was applied with. The *owner* of a table is the last run that has
claimed all of its rows. With its first write action a run takes the table over, and runs that were started earlier may not
write to it any more. A run that appends claims no row: it joins. A fresh run says which runs were given up for it: these may
not write any more, by their uid, and no other is concerned.

`systems/table_transaction.py` reads them with SQL and acts on what is decided here; the simulator's external
systems (`testing/simulator/write_attempts.py`) run the same functions.

A folder of files has no transaction and no fence: `folder_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from airflow_logio.errors import ExternalUnavailable, Fenced, LogInconsistent, WriteRefused
from airflow_logio.protocol.writes import Action, HeldGroup, unapplied


class MarkerRow(NamedTuple):
    """The high-water row of a writer. Without one, nothing was applied."""

    number: int = 0
    token: int = 0


class Marked(Protocol):
    """What a driver says of itself at its marker (`Marker`)."""

    @property
    def run_uid(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def connection(self) -> str: ...
    @property
    def line(self) -> tuple[str, str, int] | None: ...


class Owner(NamedTuple):
    """The run that has claimed a table."""

    run_uid: str
    started_at: float
    """When the run was started, by the clock of its log."""

    def is_newer_than(self, other: Owner) -> bool:
        return (self.started_at, self.run_uid) > (other.started_at, other.run_uid)

    @property
    def of_days(self) -> str:
        """What pipelines own by value in a table whose owner this is: a name, such as ``day``. Empty for a run."""
        return self.run_uid.removeprefix(_BY) if self.run_uid.startswith(_BY) else ""

    @property
    def of_runs(self) -> str:
        """The column by which rows of a table whose owner this is are told by the runs that own them. Empty for a run."""
        return self.run_uid.removeprefix(_RUNS) if self.run_uid.startswith(_RUNS) else ""

    @property
    def is_shared(self) -> bool:
        """Whether pipelines own parts of the table, and no run all of it."""
        return bool(self.of_days or self.of_runs)

    @property
    def began(self) -> str:
        """When it was started, in UTC, for messages."""
        return datetime.fromtimestamp(self.started_at, UTC).isoformat(" ", "milliseconds")


_BY, _RUNS = "by:", "runs:"
_SHARED_STARTED_AT = 2.0**33
"""No clock reaches it, so that earlier versions refuse their runs where pipelines own parts of a table."""


def owner_by(name: str) -> Owner:
    """The owner of a table in which pipelines own, by value, the days (or hours) of that name."""
    return Owner(_BY + name, _SHARED_STARTED_AT)


def owner_by_run(column: str) -> Owner:
    """The owner of a table in which a column says, for each row, to what run of which partition it belongs."""
    return Owner(_RUNS + column, _SHARED_STARTED_AT)


NO_RUN = Owner("", 0.0)
"""The owner of a table that runs have only appended to."""


def check_token(operator: str, connection: str, token: int, row: MarkerRow) -> None:
    """Refuse a driver that was replaced: its successor, with a higher token, has written."""
    if row.token > token:
        raise Fenced(
            f"write actions of {operator!r} on {connection!r}: token {row.token} has written, but this driver holds {token}: "
            "it was replaced"
        )


def check_not_removed(marker: Marked, removed_up_to: int) -> None:
    """Refuse a driver that finds no marker of its own, where those of runs up to that ordinal were removed: its run is no
    longer in its log, and all that it had to write was written, or given up. Raises `WriteRefused`."""
    if marker.line is None or marker.line[2] > removed_up_to:
        return
    raise WriteRefused(
        f"write actions of {marker.operator!r} on {marker.connection!r}: run {marker.run_uid}, number {marker.line[2]} of "
        f"its pipeline, was removed from its log, as all up to {removed_up_to} were, and must not write any more. If it "
        f"has just begun, its log was restored from a copy: `logio again {marker.run_uid[:8]} --above {removed_up_to}`, then "
        "the next run has a greater number"
    )


def shuts_out(operator: str, connection: str, token: int, row: MarkerRow) -> bool:
    """Whether the row is to get this token, so that lower ones are refused. Raises `Fenced` if a higher token wrote."""
    check_token(operator, connection, token, row)
    return row.token < token


def compare(operator: str, connection: str, token: int, row: MarkerRow, log_end: int) -> None:
    """Refuse to write where the marker is ahead of the log.

    `log_end` is the last number that the log had given out when an epoch began, of the earliest epoch since whose begin
    nothing was applied. A marker is never beyond it: actions are logged first. If it is, commits of the log are lost (a
    copy was restored, a standby took over that lacked them), and what the log gives out now would count as applied. So
    nothing may be applied before the log knows that the comparison has succeeded (ADR-88).

    Raises `Fenced` if a higher token wrote, `LogInconsistent` if the row is ahead.
    """
    check_token(operator, connection, token, row)
    if row.number > log_end:
        raise LogInconsistent(
            f"connection {connection!r} has applied write actions of {operator!r} up to {row.number}, but the log has "
            f"given out numbers up to {log_end} only: it has lost commits (was an older copy restored, or did a "
            "standby take over that lacked the last ones?). Bring back the log that has them, or give the run up and "
            "start a fresh one"
        )


def to_apply(operator: str, connection: str, token: int, actions: Sequence[Action], row: MarkerRow) -> Sequence[Action]:
    """The actions that a driver with this token still has to apply, by the state of the row.

    Raises `Fenced` if a higher token wrote, `LogInconsistent` if the row is behind the log.
    """
    check_token(operator, connection, token, row)
    return unapplied(actions, row.number)


def group_to_apply(operator: str, connection: str, token: int, group: HeldGroup, row: MarkerRow) -> bool:
    """Whether a driver with this token still has to apply `group`, by the state of the row: all of it, or nothing.

    The row never says a number within the group, because one transaction applies it (Proposition 2, Case 2). Raises `Fenced`
    if a higher token wrote, `LogInconsistent` if the row is behind the log, or within the group.
    """
    check_token(operator, connection, token, row)
    if row.number not in (group.first - 1, group.last):
        raise LogInconsistent(
            f"connection {connection!r} has applied write actions of {operator!r} up to {row.number}, but {group.first} to "
            f"{group.last} are applied as one: was the external system restored from an older copy?"
        )
    return row.number < group.last


def check_advanced(operator: str, connection: str, rows: int) -> None:
    """Refuse a transaction that has changed `rows` rows where it advanced the marker from the values that it had read.

    Its lock forbids that another one changes the marker meanwhile. A database that does not keep the lock is found out
    here. Raises `ExternalUnavailable`: nothing was applied, and the next attempt reads the marker again.
    """
    if rows != 1:
        raise ExternalUnavailable(
            f"the marker of {operator!r} on {connection!r} was changed by another driver while this one held its lock"
        )


@dataclass(frozen=True, slots=True)
class Contender:
    """A writer of one run, at a table that other runs may write to as well."""

    table: str
    connection: str
    operator: str
    mine: Owner
    on_new_run: str
    """What its first write action does to rows of other runs: ``replace``, ``append``, ``error`` or ``update``."""

    given_up: tuple[str, ...] = ()
    """The uids of runs that were given up for this one: their drivers must not write any more, not even to append."""
    by: str = ""
    """The name of what the writer owns by value, such as ``day``; empty if it owns nothing so."""
    by_version: bool = False
    """It updates rows by their keys, and the greatest version wins, whichever run writes it."""
    run_column: str = ""
    """The column that says which rows are those of the writer's runs; empty if none does."""
    owner_row: str = "logio_owner SET run_uid = '', started_at = 0 WHERE table_name = ..."
    """How a person takes the claim of an owner back: what comes between UPDATE and AND, with names as that database has
    them. Empty where there is no way to do so (a Delta table)."""

    @property
    def claimed(self) -> Owner:
        """The owner of a table that it takes over."""
        if self.by:
            return owner_by(self.by)
        if self.run_column:
            return owner_by_run(self.run_column)
        return NO_RUN if self._joins else self.mine

    @property
    def _joins(self) -> bool:
        return self.on_new_run == "append" or self.by_version

    def is_youngest(self, youngest: Owner | None) -> bool:
        """Whether this run appends, and was started after all that have begun to append to the table."""
        return self._joins and (youngest is None or self.mine.is_newer_than(youngest))

    def takes_over(self, owner: Owner | None, pipelines: Sequence[str] = ()) -> bool:
        """Whether the first write action changes the owner; False if another writer of the run has, or the run joins.

        `pipelines` own parts of the table. Raises `WriteRefused` if a run that was started later owns the table: this one was
        stopped before its first write. And where parts are owned, for what neither owns such, too, nor replaces all; where
        rows are owned by runs, one may append: its rows are of no run.
        """
        if owner is None:
            return True
        if owner.is_shared:  # before starts are compared: it has none
            if self._suits(owner):
                return False
            if self.on_new_run != "replace":
                raise self._among_others(owner, pipelines)
            return True
        if owner.is_newer_than(self.mine):
            raise self._not_owner(owner, begins=True)
        return not self._joins and owner.run_uid != self.mine.run_uid

    def empties(self, *, is_filled: bool, youngest: Owner | None = None) -> bool:
        """Whether a table that it takes over is emptied.

        Raises `WriteRefused` if it must be empty and is not, and where rows of a run would go that appends and was started
        later: `youngest` is the last one of these.
        """
        if self.on_new_run == "error" and is_filled:
            raise WriteRefused(
                f"table {self.table!r} of connection {self.connection!r} is not empty, and its writer {self.operator!r} says "
                "on_new_run='error'; empty it, or choose 'append' or 'replace'"
            )
        if (
            self.on_new_run in ("replace", "update")
            and is_filled
            and youngest is not None
            and youngest.is_newer_than(self.mine)
        ):
            must_not = "delete its rows" if self.on_new_run == "replace" else "put older rows over its rows"
            raise WriteRefused(
                f"{self._where}: run {youngest.run_uid} writes to it as well, and was started later ({youngest.began}) than "
                f"run {self.mine.run_uid} ({self.mine.began}), which says on_new_run={self.on_new_run!r} and must not "
                f"{must_not}. {started_later(self.mine.run_uid)}; if the clock of its log was wrong, delete the rows yourself"
            )
        return self.on_new_run == "replace"

    def check_not_given_up(self, fresh: Owner | None) -> None:
        """Raises `WriteRefused` if this run was given up for a fresh one, which has said so."""
        if fresh is not None:
            raise WriteRefused(
                f"{self._where}: run {self.mine.run_uid} was given up, and run {fresh.run_uid} has begun in its place; it "
                "must not write any more"
            )

    def check_owner(self, owner: Owner | None) -> None:
        """Raises `WriteRefused` unless this run owns the table, or appends to one that no newer run owns, or owns a part
        of one whose parts are owned so."""
        if self._claims_a_part or (owner is not None and owner.is_shared):
            if owner is None or not self._suits(owner):
                raise self._not_owner(owner) if owner is None or not owner.is_shared else self._among_others(owner)
            return
        joined = self._joins and owner is not None and not owner.is_newer_than(self.mine)
        if not joined and (owner is None or owner.run_uid != self.mine.run_uid):
            raise self._not_owner(owner)

    def check_not_replaced(self, owner: Owner | None) -> None:
        """Raises `WriteRefused` if a newer run owns the table. For a run that is to write again, or for the first time."""
        if owner is not None and owner.is_shared:
            if not self._suits(owner) and self.on_new_run != "replace":
                raise self._among_others(owner)
            return
        if owner is not None and owner.run_uid != self.mine.run_uid and owner.is_newer_than(self.mine):
            raise self._not_owner(owner)

    def _not_owner(self, owner: Owner | None, *, begins: bool = False) -> WriteRefused:
        if owner is None:
            return WriteRefused(
                f"{self._where} has no owner, though run {self.mine.run_uid} has begun to write to it: its row in "
                "logio_owner was deleted, or it began under an earlier version, which kept the row elsewhere. Start a fresh "
                "run"
            )
        return WriteRefused(
            f"{self._where} belongs to run {owner.run_uid}: a newer run has taken it over, and run {self.mine.run_uid} must "
            f"not write to it any more.{self._way_out(owner, begins=begins)}"
        )

    def is_beside_runs(self, owner: Owner) -> bool:
        """Whether this run appends where pipelines own rows by their runs: its own are of none, and stay."""
        return self.on_new_run == "append" and bool(owner.of_runs)

    def _suits(self, owner: Owner) -> bool:
        """Whether parts of the table are owned as this run owns one, or its rows are beside them."""
        return owner == self.claimed or self.is_beside_runs(owner)

    @property
    def _claims_a_part(self) -> bool:
        return bool(self.by or self.run_column)

    def _among_others(self, owner: Owner, pipelines: Sequence[str] = ()) -> WriteRefused:
        what = f"on_new_run={self.on_new_run!r}"
        what += f", by=({self.by!r},)" if self.by else f", run_column={self.run_column!r}" if self.run_column else ""
        whose = f" ({', '.join(pipelines)})" if pipelines else ""
        release = f"UPDATE {self.owner_row} AND run_uid = '{owner.run_uid}'"
        if not self.owner_row:
            release = "a run with on_new_run='replace' takes it over, and removes what is there"
        how = f"it by {owner.of_days!r} (by=({owner.of_days!r},))"
        if owner.of_runs:
            how = f"rows of it by their runs (on_new_run='supersede', run_column={owner.of_runs!r})"
        return WriteRefused(
            f"{self._where}: pipelines{whose} own {how}, and the writer {self.operator!r} of run {self.mine.run_uid} with "
            f"{what} must not write to it. Give it a table of its own. If no pipeline is to own "
            f"{f'a {owner.of_days}' if owner.of_days else 'rows'} there any more: {release}"
        )

    def _way_out(self, owner: Owner, *, begins: bool) -> str:
        """A fresh run would append its rows a second time where the owner has deleted none."""
        if not self._joins:
            by_clock = f" By its clock, that run was started later ({owner.began}) than this one ({self.mine.began})."
            return f"{by_clock} {started_later(self.mine.run_uid)}." if begins else ""
        fresh = (
            f" If that run replaces the rows, a fresh one of this run (`logio fresh {self.mine.run_uid[:8]}`) writes all of "
            "its rows once."
        )
        if not self.owner_row:
            return fresh
        return (
            f"{fresh} If it appends as well (a fresh run of an earlier version shut out all older ones), the rows of "
            f"this run are there: take its claim back, and retry this run: UPDATE {self.owner_row} AND "
            f"run_uid = '{owner.run_uid}'"
        )

    @property
    def _where(self) -> str:
        return f"table {self.table!r} of connection {self.connection!r}"


def started_later(run_uid: str) -> str:
    """What a person does whose run is taken for older than another one."""
    return f"Give this run up (`logio fresh {run_uid[:8]}`) and start it again when the clock of its log has passed that time"
