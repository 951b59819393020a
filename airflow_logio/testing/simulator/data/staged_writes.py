"""Write actions of a `TableWriter` whose records are datasets, a few questions at a time (ADR-86).

`StagingTarget` and `StagingTables` are those of the runtime: what is staged, swept, loaded, moved and dropped, and in which
order. Simulated are the transactions that they ask for, the tasks that load, and the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import count
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import pyarrow as pa

from airflow_logio.dataflow.write_actions import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.warehouse_rules import MarkerRow, shuts_out
from airflow_logio.protocol.write_queue import WriterKey
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.runtime.datasets.table_staging import STAGED_BYTES, StagingTarget
from airflow_logio.runtime.payloads.dataset import Dataset
from airflow_logio.runtime.systems.staged_rows import check_counts
from airflow_logio.runtime.systems.staging_tables import StagingTables
from airflow_logio.runtime.systems.stored_records import RecordsInFiles
from airflow_logio.runtime.systems.table_names import TableName
from airflow_logio.store.rules.payload_references import Reference
from airflow_logio.testing.simulator.data.published import one_file
from airflow_logio.testing.simulator.data.simulated_storage import Record, encoded
from airflow_logio.testing.simulator.data.staging_database import LateLoad, StagingDatabase
from airflow_logio.testing.simulator.external_systems import THIS_RUN, AppliedWrite
from airflow_logio.testing.simulator.questions import Paused, Questions
from airflow_logio.testing.simulator.write_attempts import WriteAttempt

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.evaluating import Evaluating

T = TypeVar("T")
Read = Callable[[Dataset], list[Record]]

STAGED_RECORDS = 4
"""A dataset with as many records is large: two files at least."""
LOSES_EVERY, LATE_EVERY = 3, 2
"""One in so many files is loaded by another attempt as well, and one in so many of these commits when it has lost."""
NOTHING_STORED: Mapping[int, RecordsInFiles] = MappingProxyType({})


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


class Move(WriteAttempt):
    """The transaction of the marker. What is staged is moved in it; what is not passes through the driver."""

    begins_again = False
    _system: StagingDatabase

    def hold(self, stored: Mapping[int, RecordsInFiles], read: Read) -> Move:
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

        def begun() -> Move:
            move = Move(client.database, self._key, self._token, writes, is_alive=self._is_alive)
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


class HandedPayloads:
    """Where the URL is handed to tasks: the file is one question, and so is its removal."""

    root = "/simulated"

    def __init__(self, client: StagingClient, evaluating: Evaluating) -> None:
        self._client = client
        self._payloads = evaluating.payloads

    def store(self, purpose: str, body: bytes) -> Reference:
        return self._client.ask(lambda: self._payloads.store(purpose, body))

    def discard(self, paths: Sequence[str], emptied: str) -> None:
        self._client.ask(lambda: self._payloads.discard(paths, emptied))


class _Lines(list[Mapping[str, Any]]):
    """What a job returns."""

    def to_pylist(self) -> list[Mapping[str, Any]]:
        return list(self)


class _Session:
    """Stands for a session of Spark, as far as `StagingTarget` needs one: tasks that load files."""

    def __init__(self, client: StagingClient, files: Callable[[Any, int], list[Record]]) -> None:
        self._client = client
        self._files = files
        self._numbers: range = range(0)

    def range(self, start: int, end: int, _step: int, _partitions: int) -> _Session:
        self._numbers = range(start, end)
        return self

    def mapInArrow(self, load: Any, _schema: str) -> _Session:
        self._loading = load.args[0]
        return self

    def toArrow(self) -> Any:
        return _Lines(self._line(number) for number in self._numbers)

    def _line(self, number: int) -> Mapping[str, Any]:
        """As `staging_tasks.loaded`: what has gone wrong is in the line."""
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


class Staging(NamedTuple):
    """The writer of an epoch: its target, and what that stands on."""

    target: StagingTarget
    tables: SimulatedTables
    client: StagingClient


def staging_of(evaluating: Evaluating, read: Read, database: StagingDatabase, tables: SimulatedTables) -> Staging:
    """What drives a `TableWriter` in one epoch."""
    client = StagingClient(database, read)

    def dataset(where: str, ref: str) -> LargeDataset:
        found = client.ask(lambda: evaluating.bodies.dataset(where, ref))

        def check() -> None:
            client.ask(lambda: read(found))

        return LargeDataset(found, check)

    def job(_description: str, work: Callable[[Any], pa.Table]) -> pa.Table:
        def of_file(loading: Any, number: int) -> list[Record]:
            return read(one_file(evaluating.bodies.dataset(loading.where, str(loading.action.dataset)), number))

        return work(_Session(client, of_file))

    payloads: Any = HandedPayloads(client, evaluating)
    of_tables: Any = tables
    target = StagingTarget(of_tables, "postgresql://simulated", cast(Any, dataset), payloads, job, SimulatedStaging)
    return Staging(target, tables, client)


class StagedWrites:
    """An attempt to apply a group of write actions; it begins again when the database was unavailable."""

    def __init__(
        self, staging: Staging, run_uid: str, key: WriterKey, token: int, writes: Sequence[PendingWrite]
    ) -> None:
        self._staging = staging
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

    def advance(self, many: int) -> bool:
        """Ask at most so many questions; True when all is applied. Raises what the writer would raise."""
        target, client = (
            copy(self._target),
            self._staging.client,
        )  # it runs again from the start, with the earlier answers
        client.questions.begin(many)
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

    def fail(self, breaks: str) -> None:
        """The connection breaks at the next step."""
        self._staging.client.breaks = breaks


_NO_RECORDS = pa.table({})


def _key(marker: Marker) -> WriterKey:
    return marker.operator, marker.connection
