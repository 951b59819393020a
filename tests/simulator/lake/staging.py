"""A simulated PostgreSQL that has staging tables, and the writers that stage in it (ADR-86).

`StagingTarget` and `StagingTables` are those of the product: what is staged, swept, loaded, moved and dropped, and in which
order. Simulated are the transactions that they ask for, the tasks that load, and the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.external_rules import MarkerRow, shuts_out
from airflow_logio.protocol.writes import HeldGroup, PendingWrite, WriterKey
from airflow_logio.spark.table_staging import STAGED_BYTES, StagingTarget
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.file_roots import data_files
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.stored_records import RecordsInFiles, StagedFiles, check_counts
from airflow_logio.systems.table_transaction import NOTHING_STORED
from airflow_logio.testing.simulator.external_systems import (
    PATIENCE,
    THIS_RUN,
    AppliedWrite,
    Attempt,
    Client,
    ExternalSystem,
    LockHolder,
    WriteAttempt,
)
from airflow_logio.testing.simulator.stepwise import Paused, Questions
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.lake.evaluating import Evaluating
from tests.simulator.lake.published import one_file
from tests.simulator.lake.storage import Record, encoded


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
    """The database of one run: only its writers stage here. `StagedSystem` is how they write to it."""

    stages: ClassVar[bool] = True

    staging: dict[TableName, StagingTable] = field(default_factory=dict)
    late: list[LateLoad] = field(default_factory=list)
    sessions: list[tuple[TableName, LockHolder]] = field(default_factory=list)
    """Staging table → a transaction that is to move its rows."""
    figures: Counter[str] = field(default_factory=Counter)
    """What has happened: how often tables were made, lost, swept or found empty."""

    def begin(self, client: Client) -> Attempt:
        return StagedWrites(self, client)

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
        """End the sessions that load a table, and those that move it."""
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


# --- staging tables, as a driver has them -----------------------------------------------------------------------------


T = TypeVar("T")
Read = Callable[[Dataset], list[Record]]

STAGED_RECORDS = 4
"""A dataset with as many records is large: two files at least."""


class StagingClient:
    """A driver's way to the database, and to what it reads. `questions` are those of the attempt that is under way."""

    engine = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))

    def __init__(
        self, database: StagingDatabase, read: Read = lambda _: [], questions: Questions | None = None
    ) -> None:
        self.database = database
        self.read = read
        self.questions = questions or Questions()
        self.breaks = ""
        """The connection breaks at the next question: ``before`` it is asked, or ``after``."""

    def ask(self, question: Callable[[], T]) -> T:
        """One step. Raises `ExternalUnavailable` if the connection breaks, and what the question raises."""

        def asked() -> T:
            breaks, self.breaks = self.breaks, ""
            answer = None if breaks == "before" else question()
            if breaks:
                raise ExternalUnavailable(f"the connection has broken {breaks} the answer")
            return cast(T, answer)

        return self.questions.ask(asked)

    def under_lock(self, key: WriterKey, change: Callable[[MarkerRow], T]) -> T:
        """A transaction that locks the marker of a writer; it waits as long as another one has it."""
        for waited in count():
            done = self.ask(lambda waited=waited: self.database.under_lock(key, waited, change))  # type: ignore[misc]
            if done is not None:
                return done[0]
        raise AssertionError


class SimulatedStaging(StagingTables):
    """The runtime's, with transactions of a simulated database."""

    def __init__(self, client: Any) -> None:
        """`client` is a `StagingClient`."""
        self._client = cast(StagingClient, client)
        self._database = self._client.database

    def make(
        self, marker: Marker, writer: Any, action: WriteAction, stored: Any, held: HeldGroup | None = None
    ) -> TableName | None:
        key = _key(marker)

        def made(row: MarkerRow) -> TableName | None:
            if not (marker.unapplied([action], *row) if held is None else marker.applies(held, *row)):
                return None
            return self._database.make(key, marker.token, action.number)

        return self._client.under_lock(key, made)

    def of_run(self, run_uid: str) -> Sequence[TableName]:
        return self._client.ask(lambda: list(self._database.staging))

    def _say_left(self, table: TableName, error: LogioError) -> None:
        """It is tried again, or swept: no news in a simulation."""

    def _drop_one(self, table: TableName) -> None:
        self._client.ask(lambda: self._database.drop(table))

    def _end_sessions(self, tables: Sequence[TableName]) -> None:
        for table in tables:
            self._client.ask(lambda table=table: self._database.end_sessions(table))  # type: ignore[misc]

    def _shut_out(self, marker: Marker) -> None:
        key = _key(marker)

        def shut(row: MarkerRow) -> None:
            if shuts_out(*key, marker.token, row):
                self._database.shut_out(key, marker.token, row)

        self._client.under_lock(key, shut)

    def _noted(self, marker: Marker) -> Sequence[TableName]:
        return self._client.ask(lambda: self._database.noted(_key(marker), marker.token))


class MoveAttempt(WriteAttempt):
    """The transaction of the marker. What is staged is moved in it; what is not passes through the driver."""

    begins_again = False
    _system: StagingDatabase

    def hold(self, stored: Mapping[int, RecordsInFiles], read: Read) -> MoveAttempt:
        """The attempt, with the records of actions that are in files."""
        self._stored, self._read = stored, read
        sessions = [one for one in self._system.sessions if one[1].is_open()]
        sessions += [(held.staged.table, self) for held in stored.values() if held.staged is not None]
        self._system.sessions = sessions
        return self

    def _inserted(self) -> list[AppliedWrite]:
        return [AppliedWrite(write.number, write.header, self._body(write)) for write in self._pending]

    def _body(self, write: PendingWrite) -> bytes:
        held = self._stored.get(write.number)
        if held is None:
            return write.body
        dataset = cast(LargeDataset, held.records)
        if held.staged is None:
            return encoded(sorted(self._read(dataset.found)))
        rows = self._system.named(held.staged)
        counts = {file: len(records) for file, records in rows.items()}
        self._system.figures["short"] += [
            counts.get(file, 0) for file in range(len(dataset.counts()))
        ] != dataset.counts()
        check_counts(held.staged.table, counts, dataset.counts())
        return encoded(sorted(record for file in sorted(rows) for record in rows[file]))


class SimulatedTables:
    """Stands for `TableTarget`: its transactions are those of `WriteAttempt`."""

    def __init__(self, writer: Any, key: WriterKey, token: int, is_alive: Callable[[], bool]) -> None:
        self.writer = writer
        self._key = key
        self._token = token
        self._is_alive = is_alive
        self.taken: Mapping[int, PendingWrite] = {}
        self.wrote = False
        """Some transaction has changed the table."""

    @contextmanager
    def connect(self, client: Any) -> Iterator[Any]:
        """Nothing is opened: each question is a connection."""
        yield client

    def apply(
        self,
        client: StagingClient,
        _marker: Marker,
        actions: Sequence[WriteAction],
        stored: Mapping[int, RecordsInFiles] = NOTHING_STORED,
    ) -> None:
        writes = [self.taken[action.number] for action in actions]

        def begun() -> MoveAttempt:
            move = MoveAttempt(client.database, self._key, self._token, writes, is_alive=self._is_alive)
            return move.hold(stored, client.read)

        move = client.ask(begun)
        while not client.ask(lambda: move.advance(1)):
            pass
        self.wrote = self.wrote or move.wrote


class LargeDataset:
    """A dataset as `StagingTarget` asks for it."""

    def __init__(self, found: Dataset, check: Callable[[], None]) -> None:
        self.found = found
        self.manifest = found.manifest
        self.nbytes = STAGED_BYTES + 1 if found.num_rows >= STAGED_RECORDS else 0
        self.check = check

    def counts(self) -> Sequence[int]:
        return self.found.counts()


def _key(marker: Marker) -> WriterKey:
    return marker.operator, marker.connection


# --- attempts of a writer, a few questions at a time ------------------------------------------------------------------


_NO_RECORDS = pa.table({})
LOSES_EVERY, LATE_EVERY = 3, 2
"""One in so many files is loaded by another attempt as well, and one in so many of these commits when it has lost."""


class HandedPayloads:
    """Where the URL is handed to tasks: the file is one question, and so is its removal."""

    root = "/simulated"
    files = data_files(root)

    def __init__(self, client: StagingClient, epoch: Evaluating) -> None:
        self._client = client
        self._payloads = epoch.payloads

    def store(self, purpose: str, body: bytes) -> Reference:
        return self._client.ask(lambda: self._payloads.store(purpose, body))

    def discard(self, paths: Sequence[str], emptied: str) -> None:
        self._client.ask(lambda: self._payloads.discard(paths, emptied))


class _Lines(list[Mapping[str, Any]]):
    """What a job returns."""

    def to_pylist(self) -> list[Mapping[str, Any]]:
        return list(self)


class _TaskSession:
    """Stands for a session of Spark, as far as `StagingTarget` needs one: tasks that load files."""

    def __init__(self, client: StagingClient, files: Callable[[Any, int], list[Record]]) -> None:
        self._client = client
        self._files = files
        self._numbers: range = range(0)

    def range(self, start: int, end: int, _step: int, _partitions: int) -> _TaskSession:
        self._numbers = range(start, end)
        return self

    def mapInArrow(self, load: Any, _schema: str) -> _TaskSession:
        self._loading = load.args[0]
        return self

    def toArrow(self) -> Any:
        return _Lines(self._line(number) for number in self._numbers)

    def _line(self, number: int) -> Mapping[str, Any]:
        """As `table_staging.loaded`: what has gone wrong is in the line."""
        try:
            records = self._client.ask(lambda: self._files(self._loading, number))
            attempt = self._client.ask(lambda: self._load(number, records))
        except LogioError as error:
            return {"file": number, "attempt": "", "records": 0, "error": type(error).__name__, "said": str(error)}
        return {"file": number, "attempt": attempt, "records": len(records), "error": "", "said": ""}

    def _load(self, number: int, records: list[Record]) -> str:
        database = self._client.database
        database.figures["loads"] += 1
        loads = database.figures["loads"]
        if loads % LOSES_EVERY == 0:
            loser = LateLoad(self._loading.table, number, f"{loads}-lost", records)
            if loads % (LOSES_EVERY * LATE_EVERY) == 0:
                database.open_late(loser)
            else:
                database.load(loser)
        database.load(LateLoad(self._loading.table, number, f"{loads}", records))
        return f"{loads}"


@dataclass
class Staging:
    """The writer of an epoch: its target, and what that stands on."""

    target: StagingTarget
    tables: SimulatedTables
    client: StagingClient
    breaks: int = 0
    """How often the connection has broken."""


def staging_of(epoch: Evaluating, database: StagingDatabase, tables: SimulatedTables) -> Staging:
    """What drives a `TableWriter` in one epoch."""
    client = StagingClient(database, epoch.records)

    def dataset(where: str, ref: str) -> LargeDataset:
        found = client.ask(lambda: epoch.bodies.dataset(where, ref))

        def check() -> None:
            client.ask(lambda: epoch.records(found))

        return LargeDataset(found, check)

    def job(_description: str, work: Callable[[Any], pa.Table]) -> pa.Table:
        def of_file(loading: Any, number: int) -> list[Record]:
            [action] = loading.actions
            return epoch.records(one_file(epoch.bodies.dataset("a file", str(action.dataset)), number))

        return work(_TaskSession(client, of_file))

    payloads: Any = HandedPayloads(client, epoch)
    of_tables: Any = tables
    target = StagingTarget(of_tables, "postgresql://simulated", cast(Any, dataset), payloads, job, SimulatedStaging)
    return Staging(target, tables, client)


class StagedWrites:
    """An attempt to apply a group of write actions; it begins again when the database was unavailable."""

    def __init__(self, database: StagingDatabase, client: Client) -> None:
        key, token, writes, run_uid = client.key, client.token(), client.taken, client.run_uid
        if client.kept is None:
            tables = SimulatedTables(client.datasets.member(key[0]), key, token, client.liveness())
            client.kept = staging_of(client.datasets, database, tables)
        self._watch, self._key, self._token = client.watch, key, token
        self._watch.before_write(key, writes)
        self._staging = staging = cast(Staging, client.kept)
        self._target = staging.target
        where = (run_uid, *key)
        self._marker = Marker(*where, 0, token, THIS_RUN.started_at)
        self._actions = [
            WriteAction(
                *where, write.number, token, _NO_RECORDS, write.header, dataset=None if write.body else write.ref
            )
            for write in writes
        ]
        staging.tables.taken = {write.number: write for write in writes}
        staging.tables.wrote = False
        self._begin()

    def _begin(self) -> None:
        self._staging.client.questions = Questions()

    def advance(self, steps: int) -> bool:
        """Ask at most so many questions; True when all is applied. Raises what the writer would raise."""
        if not self._apply(steps):
            return False
        if self._staging.tables.wrote:
            self._watch.a_lower_token_writes_nothing(self._key, self._token)
        return True

    def _apply(self, questions: int) -> bool:
        # It runs again from the start, with the earlier answers.
        target, client = copy(self._target), self._staging.client
        client.questions.begin(questions)
        try:
            target.apply(cast(Any, client), self._marker, self._actions)
        except Paused:
            return False
        except ExternalUnavailable:
            return self._close(target)
        except LogioError:
            self._keep(target)
            raise
        finally:
            client.questions.forget_frames()
        self._keep(target)
        return True

    def _close(self, target: StagingTarget) -> bool:
        """As the executor does: it closes the client, and tries again with another one."""
        try:
            with target.connect(cast(Any, self._staging.client)):
                pass
        except Paused:
            return False
        self._keep(target)
        self._begin()
        return False

    def _keep(self, target: StagingTarget) -> None:
        vars(self._staging.target).update(vars(target))

    def break_off(self) -> bool:
        """The connection breaks at the next step, before or after its question in turn."""
        self._staging.breaks += 1
        self._staging.client.breaks = "before" if self._staging.breaks % 2 else "after"
        return True
