"""Staging tables as a simulated driver has them: the runtime's code, with transactions of a simulated database (ADR-86)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.external_rules import MarkerRow, shuts_out
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.spark.table_staging import STAGED_BYTES
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.stored_records import RecordsInFiles, check_counts
from airflow_logio.systems.table_transaction import NOTHING_STORED
from airflow_logio.testing.simulator.data.simulated_storage import Record, encoded
from airflow_logio.testing.simulator.data.staging_database import StagingDatabase
from airflow_logio.testing.simulator.external_systems import AppliedWrite
from airflow_logio.testing.simulator.questions import Questions
from airflow_logio.testing.simulator.write_attempts import WriteAttempt

if TYPE_CHECKING:
    pass

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

    def make(self, marker: Marker, writer: Any, action: WriteAction, stored: Any) -> TableName | None:
        key = _key(marker)

        def made(row: MarkerRow) -> TableName | None:
            if not marker.unapplied([action], *row):
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
        """Itself, with the records of actions that are in files."""
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
