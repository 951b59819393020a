"""A simulated PostgreSQL that has staging tables (ADR-86): each method is one transaction, or one step of it.

What a driver does with it, and in which order, is code of the runtime: see `staged_writes.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from airflow_logio.errors import ExternalUnavailable
from airflow_logio.protocol.external_rules import MarkerRow
from airflow_logio.protocol.writes import WriterKey
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.stored_records import StagedFiles
from airflow_logio.testing.simulator.data.simulated_storage import Record
from airflow_logio.testing.simulator.external_systems import THIS_RUN, ExternalSystem, LockHolder
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.write_attempts import PATIENCE

T = TypeVar("T")


class LateLoad(NamedTuple):
    """The transaction of a task attempt that has lost: nothing ends it, unless the table goes."""

    table: TableName
    file: int
    attempt: str
    records: list[Record]


@dataclass
class StagingTable:
    """Its note, and its rows. It is unlogged."""

    key: WriterKey
    token: int
    rows: list[tuple[int, str, Record]] = field(default_factory=list)


class _OneStep:
    """Holds a lock for one step."""

    def is_open(self) -> bool:
        return True

    def end(self) -> None:
        """Nothing is under way between two steps."""


@dataclass
class StagingDatabase(ExternalSystem):
    """Of one run: only its writers stage here."""

    staging: dict[TableName, StagingTable] = field(default_factory=dict)
    late: list[LateLoad] = field(default_factory=list)
    sessions: list[tuple[TableName, LockHolder]] = field(default_factory=list)
    """Staging table → a transaction that is to move its rows."""
    figures: Counter[str] = field(default_factory=Counter)
    """What has happened: how often tables were made, lost, swept or found empty."""

    # --- transactions of drivers --------------------------------------------------------------------------------------

    def under_lock(self, key: WriterKey, waited: int, change: Callable[[MarkerRow], T]) -> tuple[T] | None:
        """One transaction that holds the lock of a marker; None if another one has it, and this one has to wait."""
        session, resource = _OneStep(), ("marker", THIS_RUN.run_uid, *key)
        if not self.locks.take(resource, session):
            if waited > PATIENCE:
                self.locks.end_others(resource, session)
            return None
        try:
            return (change(self.marker_row(THIS_RUN, key)),)
        finally:
            self.locks.release(session)

    def make(self, key: WriterKey, token: int, number: int) -> TableName:
        """A staging table and its note, of one transaction."""
        self.figures["made"] += 1
        table = TableName("public", f"logio_staging_{token:x}_{number}_{self.figures['made']}")
        self.staging[table] = StagingTable(key, token)
        return table

    def shut_out(self, key: WriterKey, token: int, before: MarkerRow) -> None:
        self.markers[THIS_RUN.run_uid, key] = MarkerRow(before.number, token)

    def load(self, loaded: LateLoad) -> None:
        """One attempt's transaction commits. Raises `ExternalUnavailable` if the table is gone."""
        self._found(loaded.table).rows += [(loaded.file, loaded.attempt, record) for record in loaded.records]

    def open_late(self, loaded: LateLoad) -> None:
        """The same transaction begins, and commits later, or never. Raises as `load`."""
        self._found(loaded.table)
        self.late.append(loaded)

    def named(self, staged: StagedFiles) -> Mapping[int, list[Record]]:
        """The rows of the pairs that a job has named, by file. Raises as `load`."""
        found: dict[int, list[Record]] = {}
        for file, attempt, record in self._found(staged.table).rows:
            if staged.attempts.get(file) == attempt:
                found.setdefault(file, []).append(record)
        return found

    def noted(self, key: WriterKey, token: int) -> list[TableName]:
        return [name for name, table in self.staging.items() if table.key == key and table.token <= token]

    def end_sessions(self, table: TableName) -> None:
        """Of those that load a table, and of those that move it."""
        self.late = [one for one in self.late if one.table != table]
        for held, holder in self.sessions:
            if held == table and holder.is_open():
                self.figures["ended"] += 1
                holder.end()
        self.sessions = [one for one in self.sessions if one[0] != table]

    def drop(self, table: TableName) -> None:
        """A table and its note, of one transaction."""
        self.end_sessions(table)
        self.figures["dropped"] += self.staging.pop(table, None) is not None

    def _found(self, table: TableName) -> StagingTable:
        if table not in self.staging:
            self.figures["gone"] += 1
            raise ExternalUnavailable(f"the staging table {table} is gone")
        return self.staging[table]

    # --- what happens to it -------------------------------------------------------------------------------------------

    def commit_late(self) -> bool:
        """An attempt that has lost commits after all. False if there is none."""
        if not self.late:
            return False
        self.load(self.late.pop(0))
        self.figures["late"] += 1
        return True

    def crash(self) -> bool:
        """The server crashes: all transactions are rolled back, and unlogged tables are empty afterwards."""
        self.late.clear()
        self.locks.end_all()
        for table in self.staging.values():
            self.figures["emptied"] += bool(table.rows)
            table.rows.clear()
        return True

    # --- at the end ---------------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """After the run, and `logio gc`."""
        self.no_staging_table_is_left()

    def no_staging_table_is_left(self) -> None:
        if self.staging:
            raise Violation("no_staging_table_is_left", f"{len(self.staging)}, one is {next(iter(self.staging))}")

    def close(self) -> None:
        self.sessions.clear()
        super().close()
