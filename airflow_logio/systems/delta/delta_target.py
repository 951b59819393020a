"""What executes the write actions of a `DeltaWriter`: records and marker in one commit of the table (Algorithms 5 and 8).

An attempt loads the table, looks at its marker, writes data files, loads the table again and decides anew, commits the next
version, and loads it once more: only the marker that it then finds says what became of the commit. Two drivers never commit
one version, so a replaced one that still writes has read what its successor has written, or commits nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import (
    ExternalUnavailable,
    LockHeld,
    LogInconsistent,
    LogUnavailable,
    ProtocolViolation,
    WriteRefused,
)
from airflow_logio.protocol.external_rules import Contender, Owner
from airflow_logio.protocol.scope_rules import DayRun, ScopeContender
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems import day_audits
from airflow_logio.systems.calls import Locks
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.delta import table_rows
from airflow_logio.systems.delta.action_records import ActionRecords, where_of
from airflow_logio.systems.delta.active_files import ActiveFile, of_partition
from airflow_logio.systems.delta.keyed_merge import KeyedMerge
from airflow_logio.systems.delta.table_columns import RecordColumns
from airflow_logio.systems.delta.table_log import Commit, LoadedTable, TableLog
from airflow_logio.systems.delta.table_place import TablePlace, delta_rs, missing, place_of
from airflow_logio.systems.delta.written_files import FileWriter, WrittenFile, check_there
from airflow_logio.systems.stored_records import StoredRecords

_CONFLICTS = 12
"""So often an attempt decides anew because another program has committed. Then it begins again, with files of its own."""
_PAUSE_SECONDS = 0.05

Datasets = Callable[[str, str], StoredRecords]
"""The dataset of a reference; the first argument says what it is of."""


class ByTasks(Protocol):
    """Has executors write the datasets of write actions into the folder of a table."""

    def __call__(
        self, place: TablePlace, columns: RecordColumns, prefix: str, actions: Sequence[WriteAction]
    ) -> Sequence[WrittenFile] | None:
        """The files, durable, which no commit names; None if the driver is to write them: there are too few bytes, or no
        executors. Raises `WriteRefused`, `LogInconsistent`, `ExternalUnavailable`, `ConfigurationError`, `SparkLost`."""
        ...


def no_datasets(where: str, reference: str) -> StoredRecords:
    raise ProtocolViolation(f"{where}: there is no payload store with {reference}")


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """A `DeltaWriter` as the runtime drives it: like an author's `ConditionalWriter`."""

    writer: DeltaWriter
    identity: WriterIdentity
    datasets: Datasets = no_datasets
    by_tasks: ByTasks | None = None
    unavailable: tuple[type[Exception], ...] = ()
    locks: ClassVar[Locks] = Locks(count=False)
    """Others that commit all the time are no outage."""

    @property
    def named(self) -> str:
        return f"Delta table {self.writer.table or '.'!r} of connection {self.writer.connection!r}"

    @contextmanager
    def connect(self, url: str) -> Iterator[TableLog]:
        """The log of the table. A bucket is asked whether it refuses a second put of one version."""
        place = place_of(f"connection {self.writer.connection!r}", url, self.writer.table)
        with delta_rs(self.named):
            place.check()
        yield TableLog(self.named, place)

    def apply(self, client: TableLog, marker: Marker, actions: Sequence[WriteAction]) -> None:
        """Apply what is not applied yet, and advance the marker, in one commit.

        Raises `WriteRefused`, `Fenced`, `LogInconsistent`, `ExternalUnavailable`.
        """
        with delta_rs(self.named):
            _Attempt(self, client, marker).apply(actions)

    def apply_held(
        self,
        client: TableLog,
        marker: Marker,
        group: HeldGroup,
        closing: WriteAction,
        pages: Iterable[Sequence[WriteAction]],
    ) -> None:
        """Put the rows of a run, all of them, in the place of those that have its day, in one commit.

        `pages` have the write actions `group` but for the closing one. Raises as `apply`, and what reading them raises.
        """
        with delta_rs(self.named):
            _Attempt(self, client, marker).close_day(group, pages)

    def check_not_replaced(self, url: str) -> None:
        """Raises `WriteRefused` if a newer run owns the table, or has claimed the run's day of it."""
        with self.connect(url) as client, delta_rs(self.named):
            if (loaded := client.load()) is None:
                return
            mine = Owner(self.identity.run_uid, self.identity.started_at)
            contender = self.contender(mine, "")
            contender.check_not_replaced(loaded.rows.owner(mine, contender.claimed))
            contender.check_not_given_up(loaded.rows.given_up(mine))
            if (scope := self.scope()) is not None:
                scope.check_retry(loaded.rows.scope(scope.key, scope.mine))

    def inspect(self, url: str) -> None:
        """Whether the table is one that the writer writes exactly; nothing is changed. Raises as `apply`."""
        with self.connect(url) as client, delta_rs(self.named):
            loaded = client.load()
            if loaded is not None:
                loaded.columns.check(self.writer)
            elif self.writer.columns is None:
                raise missing(self.named)

    def contender(self, mine: Owner, operator: str) -> Contender:
        writer = self.writer
        by_version = writer.upserts and writer.joins
        return Contender(
            *(writer.table or ".", writer.connection, operator, mine, writer.on_new_run),
            given_up=self.identity.given_up,
            by="".join(writer.by),
            by_version=by_version,
            run_column=writer.run_column or "",
            owner_row="",
        )

    def scope(self) -> ScopeContender | None:
        """The day that the run owns."""
        writer, identity = self.writer, self.identity
        if not writer.owns:
            return None
        if not writer.scope:
            raise ProtocolViolation(f"{writer.where} owns a day, and is not of a run that has one")
        run = DayRun(identity.pipeline, identity.log_uid, identity.ordinal, identity.run_uid)
        is_to_replace = identity.may_be_empty or writer.empty == "replace"
        said = (identity.takes_over, is_to_replace, writer.fills_at_once, writer.supersedes)
        return ScopeContender(writer.table or ".", writer.connection, writer.scope, run, *said)


class _Attempt:
    """One attempt at a gapless group of write actions."""

    def __init__(self, target: DeltaTarget, client: TableLog, marker: Marker) -> None:
        self._target = target
        self._writer = target.writer
        self._client = client
        self._marker = marker
        self._mine = Owner(marker.run_uid, marker.started_at)
        self._contender = target.contender(self._mine, marker.operator)
        self._scope = target.scope()
        self._pending: Sequence[WriteAction] = ()
        self._files: Sequence[WrittenFile] | None = None
        """What is written of the pending actions, and no commit names."""
        self._shape: tuple[str, ...] = ()
        """The columns for which that is written."""

    def apply(self, actions: Sequence[WriteAction]) -> None:
        def decide(loaded: LoadedTable) -> Commit | None:
            pending = self._marker.unapplied(actions, *loaded.rows.marker(self._marker))
            if not pending:
                return None
            if self._scope is not None and not self._scope.fills_at_once and not all(a.is_opening for a in pending):
                raise ProtocolViolation(
                    f"a write action of {self._marker.operator!r} is applied before its closing one"
                )
            if pending != self._pending:  # an earlier driver has applied some meanwhile
                self._pending, self._files = pending, None
            return self._commit_of(loaded, pending)

        self._repeat(decide, actions[0].is_opening)

    def close_day(self, group: HeldGroup, pages: Iterable[Sequence[WriteAction]]) -> None:
        scope = self._scope
        if scope is None:
            raise ProtocolViolation(f"{self._marker.operator!r} has a closing write action, and owns nothing")
        has_asked = False

        def decide(loaded: LoadedTable) -> Commit | None:
            nonlocal has_asked
            if not self._marker.applies(group, *loaded.rows.marker(self._marker)):
                return None
            self._check_owner(loaded)
            scope.check_close(loaded.rows.scope(scope.key, scope.mine))
            if not has_asked and any(audit.function for audit in self._writer.audits):
                day_audits.ask_functions(self._writer.audits, _Records(self._tables, pages), scope)
                has_asked = True
            loaded.columns.check(self._writer)
            old = self._files_of_day(loaded)
            scope.check_records(held=group.records, is_filled=bool(old))
            if self._files is None:
                self._write(loaded, (action for page in pages for action in page))
                self._check_count(group)
            commit = self._begun(group.last)
            commit.removed, commit.added = old, list(self._files or ())
            commit.rows |= table_rows.closed(scope.key, scope.mine, group.last)
            return commit

        self._repeat(decide, is_opening=False)

    def _repeat(self, decide: Callable[[LoadedTable], Commit | None], is_opening: bool) -> None:
        """Load, decide, commit, until what is decided is that nothing is left to do."""
        committed: tuple[LoadedTable, Commit] | None = None
        for number in range(_CONFLICTS):
            # After a commit nothing but the table itself, read anew, says what became of it.
            if (loaded := self._loaded(is_opening, anew=committed is not None)) is None:
                continue  # it was just made
            if committed is not None and committed[0].version == loaded.version and committed[0].uid == loaded.uid:
                raise ExternalUnavailable(
                    f"{self._client.named}: nothing could be committed: {self._client.last_error}"
                )
            if committed is not None and not loaded.has(committed[1]):
                _pause(number)
                loaded = self._loaded(is_opening, anew=False) or loaded
            self._keep_shape(loaded)
            has_files = self._files is not None
            commit = decide(loaded)
            if commit is None:
                self._end(loaded, committed)
                return
            if self._files is not None and not has_files:
                loaded = self._loaded(is_opening, anew=False) or loaded  # files were written, which may take long
                self._keep_shape(loaded)
                if (commit := decide(loaded)) is None:
                    self._end(loaded, committed)
                    return
            check_there(self._client.place, commit.added)
            committed = (loaded, commit)
            self._client.commit(loaded, commit)
        raise LockHeld(f"{self._client.named}: others have committed {_CONFLICTS} versions while this one tried to")

    def _keep_shape(self, loaded: LoadedTable) -> None:
        """Files that were written for other columns or partitions, or another table, are written anew."""
        if loaded.columns.shape != self._shape:
            self._files, self._shape = None, loaded.columns.shape

    def _loaded(self, is_opening: bool, *, anew: bool) -> LoadedTable | None:
        loaded = self._client.load(anew=anew)
        if loaded is not None:
            return loaded
        self._marker.unapplied((), 0, 0)  # nothing is made before the marker was compared (ADR-88)
        if not is_opening:
            raise WriteRefused(
                f"{self._client.named} is gone, though run {self._mine.run_uid} has begun to write to it"
            )
        if self._writer.columns is None:
            raise missing(self._client.named)
        self._client.make(self._writer)
        return None

    def _end(self, loaded: LoadedTable, committed: tuple[LoadedTable, Commit] | None) -> None:
        """The marker says that all is applied: by this attempt, an earlier one, or another driver."""
        self._client.place.settle(loaded.version)
        if committed is not None:
            before, commit = committed
            if before.uid == loaded.uid:
                check_there(self._client.place, _still_there(loaded, commit), loaded.version)

    # --- what a commit does -------------------------------------------------------------------------------------------

    def _commit_of(self, loaded: LoadedTable, pending: Sequence[WriteAction]) -> Commit:
        writer, scope = self._writer, self._scope
        loaded.columns.check(writer)
        commit = self._begun(pending[-1].number)
        removed: Sequence[ActiveFile] = ()
        if pending[0].is_opening:
            removed = self._begin(loaded, commit)
        else:
            self._check_owner(loaded)
            if scope is not None:
                scope.check_fill(loaded.rows.scope(scope.key, scope.mine))
        commit.removed = list(removed)
        filled = [action for action in pending if not action.is_opening]
        if writer.upserts and filled:
            self._upsert(loaded, commit, filled)
            return commit
        if self._files is None:
            self._write(loaded, filled)
        commit.added = list(self._files or ())
        return commit

    def _begun(self, last: int) -> Commit:
        identity = self._target.identity
        about = {
            "run": self._mine.run_uid,
            "pipeline": identity.pipeline,
            "log": identity.log_uid,
            "operator": self._marker.operator,
            "write": last,
            "owner": table_rows.owner_number(self._mine),
        }
        return Commit(table_rows.marked(self._marker, last), about=about)

    def _check_owner(self, loaded: LoadedTable) -> None:
        self._contender.check_owner(loaded.rows.owner(self._mine, self._contender.claimed))
        self._contender.check_not_given_up(loaded.rows.given_up(self._mine))

    def _begin(self, loaded: LoadedTable, commit: Commit) -> Sequence[ActiveFile]:
        """The first write action of a run: take the table over, join, or claim a day of it. What is removed."""
        contender, rows = self._contender, loaded.rows
        owner, removed = rows.owner(self._mine, contender.claimed), list[ActiveFile]()
        contender.check_not_given_up(rows.given_up(self._mine))
        takes_over = contender.takes_over(owner)
        youngest = rows.appending(self._mine)
        if takes_over:
            commit.rows |= table_rows.owned(contender.claimed)
            if self._scope is None and contender.empties(is_filled=bool(loaded.files), youngest=youngest):
                removed = list(loaded.files)
            if self._scope is not None:  # what is there is owned by its value from now on
                commit.rows |= {table_rows.SINCE: loaded.version + 1, table_rows.APPENDING: 0}
        if contender.is_youngest(youngest):
            commit.rows |= table_rows.appended(self._mine)
        for run_uid in contender.given_up:
            commit.rows |= table_rows.gave_up(run_uid, self._mine)
        if self._scope is not None:
            removed += self._claim(loaded, commit, self._scope, begins=takes_over)
        return removed

    def _claim(
        self, loaded: LoadedTable, commit: Commit, scope: ScopeContender, *, begins: bool
    ) -> Sequence[ActiveFile]:
        before = None if begins else loaded.rows.scope(scope.key, scope.mine)
        scope.check_claim(before)
        since = loaded.version + 1 if begins else loaded.rows.number(table_rows.SINCE) or 0
        commit.rows |= table_rows.claimed(scope.key, scope.mine, since, before)
        has_begun = before is not None and before.claimed_by == scope.mine.run_uid
        if not scope.fills_at_once or not scope.clears(before, has_begun=has_begun):
            return ()
        commit.rows |= table_rows.closed(scope.key, scope.mine, FIRST_EVENT_ID)
        return self._files_of_day(loaded)

    def _files_of_day(self, loaded: LoadedTable) -> list[ActiveFile]:
        if self._constants:
            ((column, value),) = self._constants.items()
            return of_partition(loaded.files, column, value)
        owned = self._writer.owned
        assert owned is not None
        return of_partition(loaded.files, owned.column, owned.key)

    @property
    def _constants(self) -> Mapping[str, str]:
        """What the rows of the run have in the column that tells runs."""
        column, scope = self._writer.run_column, self._scope
        return {} if column is None or scope is None else {column: scope.key}

    def _columns(self, loaded: LoadedTable) -> RecordColumns:
        return replace(loaded.columns.records, constants=tuple(self._constants.items()))

    # --- records ------------------------------------------------------------------------------------------------------

    def _upsert(self, loaded: LoadedTable, commit: Commit, actions: Sequence[WriteAction]) -> None:
        """The files that are written depend on those of the version that is read: each decision has its own."""
        given = [
            (
                where_of(action),
                loaded.columns.records.fitted(pa.concat_tables(list(self._tables(action))), where_of(action)),
            )
            for action in actions
            if action.dataset is not None or action.records.num_rows
        ]
        gone = {file.path for file in commit.removed}
        there = [file for file in loaded.files if file.path not in gone]
        merge = KeyedMerge(self._client.place, loaded.columns, self._writer, given).merged(there)
        commit.removed += merge.removed
        commit.added = list(self._merged(loaded, merge.records))

    def _write(self, loaded: LoadedTable, actions: Iterable[WriteAction]) -> None:
        """Executors write datasets that are large together, the driver everything else."""
        crash_here(CrashPoint.BEFORE_LAKE_FILES)
        writer = FileWriter(self._client.place, self._columns(loaded), self._mine.run_uid)
        datasets = list[WriteAction]()
        for action in actions:
            if action.dataset is not None and self._target.by_tasks is not None:
                datasets.append(action)
                continue
            self._take(writer, action)
        found = None
        if self._target.by_tasks is not None and datasets:
            found = self._target.by_tasks(self._client.place, self._columns(loaded), self._mine.run_uid, datasets)
        for action in datasets if found is None else ():
            self._take(writer, action)
        self._files = [*writer.end(), *(found or ())]
        crash_here(CrashPoint.AFTER_LAKE_FILES)

    def _take(self, writer: FileWriter, action: WriteAction) -> None:
        for records in self._tables(action):
            if records.num_rows:
                writer.take(records, where_of(action))

    def _merged(self, loaded: LoadedTable, tables: Iterable[pa.Table]) -> Sequence[WrittenFile]:
        crash_here(CrashPoint.BEFORE_LAKE_FILES)
        writer = FileWriter(self._client.place, loaded.columns.records, self._mine.run_uid)
        for records in tables:
            if records.num_rows:
                writer.take(records, "rows that are merged")
        files = writer.end()
        crash_here(CrashPoint.AFTER_LAKE_FILES)
        return files

    def _tables(self, action: WriteAction) -> Iterator[pa.Table]:
        """The records of a write action, bit by bit where they are in files. Raises `WriteRefused`, `LogInconsistent`."""
        records = ActionRecords(self._client.named, self._writer)
        if action.dataset is None:
            yield records.of_table(action)
            return
        try:
            yield from records.in_files(action, self._target.datasets(where_of(action), action.dataset))
        except LogUnavailable as error:  # the payload store
            raise ExternalUnavailable(str(error)) from error

    def _check_count(self, group: HeldGroup) -> None:
        found = sum(file.records for file in self._files or ())
        if found != group.records:
            raise LogInconsistent(
                f"write actions {group.first} to {group.last} of {self._marker.operator!r} have {group.records:,} records, "
                f"and the log has given {found:,} of them"
            )


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of pages of write actions, as often as they are asked for."""

    tables: Callable[[WriteAction], Iterator[pa.Table]]
    pages: Iterable[Sequence[WriteAction]]

    def __iter__(self) -> Iterator[Iterator[pa.Table]]:
        return (self.tables(action) for page in self.pages for action in page)


def _still_there(loaded: LoadedTable, commit: Commit) -> Sequence[WrittenFile]:
    """Those of the files that the version names: others were refused with their commit, or are replaced since."""
    named = loaded.named_of([file.path for file in commit.added])
    return [file for file in commit.added if file.path in named]


def _pause(number: int) -> None:
    """Others were faster, the time of this number: let them finish."""
    time.sleep(_PAUSE_SECONDS * number * random.uniform(0.5, 1.5))


def delta_target(
    writer: DeltaWriter, connections: Connections, datasets: Datasets = no_datasets, by_tasks: ByTasks | None = None
) -> DeltaTarget:
    return DeltaTarget(writer, connections.identity, datasets, by_tasks)
