"""Write actions of a `TableWriter` whose records are datasets, a few questions at a time (ADR-86).

`StagingTarget` and `StagingTables` are those of the runtime: what is staged, swept, loaded, moved and dropped, and in which
order. Simulated are the transactions that they ask for, the tasks that load, and the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.spark.table_staging import StagingTarget
from airflow_logio.store.rules.payload_references import Reference
from airflow_logio.testing.simulator.data.published import one_file
from airflow_logio.testing.simulator.data.simulated_staging import (
    LargeDataset,
    Read,
    SimulatedStaging,
    SimulatedTables,
    StagingClient,
)
from airflow_logio.testing.simulator.data.simulated_storage import Record
from airflow_logio.testing.simulator.data.staging_database import LateLoad, StagingDatabase
from airflow_logio.testing.simulator.external_systems import THIS_RUN
from airflow_logio.testing.simulator.questions import Paused, Questions

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.evaluating import Evaluating

LOSES_EVERY, LATE_EVERY = 3, 2
"""One in so many files is loaded by another attempt as well, and one in so many of these commits when it has lost."""


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

        return work(_TaskSession(client, of_file))

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
