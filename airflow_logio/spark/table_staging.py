"""Write actions of a `TableWriter` whose records are datasets: executors stage large ones for PostgreSQL (ADR-86).

Small ones, and those for another database, pass through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_logio import errors
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.spark.database_tasks import MOST_SESSIONS, handed_url, told, warehouse_of
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.payload_store import Payloads
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.stored_records import RecordsInFiles, StagedFiles
from airflow_logio.systems.warehouse import TableTarget, Warehouse

STAGED_BYTES = 8 * 2**20
"""Datasets with more bytes of files are staged; below, a job takes longer than the inserts of the driver."""

Job = Callable[[str, Callable[[Any], pa.Table]], pa.Table]
"""Runs a Spark job: its description, and what starts it, given the session. Raises `SparkLost`, `ExternalUnavailable`,
`ConfigurationError`, `OperatorFailed`."""


class StagingTarget:
    """A `TableWriter` as the runtime drives it, of one epoch.

    `dataset` finds the dataset of a reference, `url` names the database, `job` runs what loads a staging table, and `staging`
    are the staging tables of a database.
    """

    unavailable: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        tables: TableTarget,
        url: str,
        dataset: Callable[[str, str], Dataset],
        payloads: EpochPayloads,
        job: Job,
        staging: Callable[[Warehouse], StagingTables] = StagingTables,
    ) -> None:
        self._tables = tables
        self._url = url
        self._dataset = dataset
        self._payloads = payloads
        self._job = job
        self._staging = staging
        self._has_swept = False
        self._left: Sequence[TableName] = ()
        """Staging tables that could not be dropped."""

    @contextmanager
    def connect(self, url: str) -> Iterator[Warehouse]:
        """As `TableTarget.connect`; when it is closed, what could not be dropped before is tried once more."""
        with self._tables.connect(url) as warehouse:
            yield warehouse
            self._drop(warehouse)

    def apply(self, client: Warehouse, marker: Marker, actions: Sequence[WriteAction]) -> None:
        """Apply the actions in order. One of a dataset is a group of its own, as are those before it."""
        if not self._has_swept and client.engine.dialect.name == "postgresql":
            crash_here(CrashPoint.BEFORE_STAGING_SWEEP)
            self._staging(client).sweep(marker)
            crash_here(CrashPoint.AFTER_STAGING_SWEEP)
            self._has_swept = True
        if marker.look is not None:  # nothing is applied in this step (ADR-88), so nothing is staged for it
            self._tables.apply(client, marker, actions)
            return
        for group in _groups(actions):
            if group[0].dataset is None:
                self._tables.apply(client, marker, group)
                continue
            try:
                self._apply_dataset(client, marker, group[0])
            except errors.LogUnavailable as error:  # the payload store
                raise ExternalUnavailable(str(error)) from error

    def apply_held(
        self,
        client: Warehouse,
        marker: Marker,
        group: HeldGroup,
        closing: WriteAction,
        pages: Iterable[Sequence[WriteAction]],
    ) -> None:
        """As `TableTarget.apply_held`: the records of a day that a run owns are in the log, since each is looked at."""
        self._tables.apply_held(client, marker, group, closing, pages)

    def _apply_dataset(self, client: Warehouse, marker: Marker, action: WriteAction) -> None:
        where = f"write action {action.number} of {action.operator!r}"
        dataset = self._dataset(where, str(action.dataset))
        dataset.check()  # now, because no transaction may be idle for long
        is_large = dataset.nbytes > STAGED_BYTES and client.engine.dialect.name == "postgresql"
        table = self._made(client, marker, action, dataset) if is_large else None
        if table is None:
            self._tables.apply(client, marker, [action], {action.number: RecordsInFiles(dataset)})
            return
        try:
            crash_here(CrashPoint.BEFORE_STAGING)
            staged = self._staged(table, action, dataset, where)
            crash_here(CrashPoint.AFTER_STAGING)
            self._tables.apply(client, marker, [action], {action.number: RecordsInFiles(dataset, staged)})
            crash_here(CrashPoint.BEFORE_UNSTAGING)
        finally:
            self._drop(client, table)
        crash_here(CrashPoint.AFTER_UNSTAGING)

    def _made(self, client: Warehouse, marker: Marker, action: WriteAction, dataset: Dataset) -> TableName | None:
        """As `StagingTables.make`. If the answer is lost, the table may be there: the next attempt sweeps first."""
        try:
            return self._staging(client).make(marker, self._tables.writer, action, dataset)
        except ExternalUnavailable:
            self._has_swept = False
            raise

    def _drop(self, client: Warehouse, *tables: TableName) -> None:
        self._left = self._staging(client).drop([*self._left, *tables])

    def _staged(self, table: TableName, action: WriteAction, dataset: Dataset, where: str) -> StagedFiles:
        files = len(dataset.manifest.files)
        with handed_url(self._payloads, f"staging/{self._tables.writer.connection}", self._url) as ref:
            named = (self._payloads.root, ref, action.connection, table, self._tables.writer, action, where)
            load = partial(loaded, Loading(*named))

            def job(session: Any) -> pa.Table:
                numbers = session.range(0, files, 1, min(files, MOST_SESSIONS))
                return numbers.mapInArrow(load, RESULT).toArrow()

            lines = self._job(f"{where}: loading {table.table}", job).to_pylist()
        return StagedFiles(table, _attempts(where, lines, dataset.counts()))


def _groups(actions: Sequence[WriteAction]) -> Iterator[Sequence[WriteAction]]:
    group: list[WriteAction] = []
    for action in actions:
        if action.dataset is None:
            group.append(action)
            continue
        if group:
            yield group
            group = []
        yield [action]
    if group:
        yield group


def _attempts(where: str, lines: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> Mapping[int, str]:
    """File → attempt. Raises what a task has found, and `ExternalUnavailable` if not each file was loaded once, whole."""
    failed = sorted((line for line in lines if line["error"]), key=_urgency)
    if failed:
        raise told(failed[0]["error"], failed[0]["said"])
    found = {line["file"]: line["attempt"] for line in lines if line["records"] == counts[line["file"]]}
    if len(lines) != len(counts) or len(found) != len(counts):
        raise ExternalUnavailable(
            f"{where}: {len(found):,} of {len(counts):,} files were loaded; they are loaded again"
        )
    return found


def _urgency(line: Mapping[str, Any]) -> tuple[bool, int]:
    """What waiting does not mend comes first, then the first file."""
    kind = getattr(errors, line["error"])
    return issubclass(kind, ExternalUnavailable | errors.LogUnavailable), line["file"]


# --- what tasks do, on executors: they need this package, and reach the database --------------------------------------

RESULT = "file long, attempt string, records long, error string, said string"
"""The schema of what a loading task returns."""


@dataclass(frozen=True)
class Loading:
    """What is loaded, and where to: part of the job, so there is no secret in it."""

    root: str
    """The folder of the payload store."""
    url: str
    """Reference of the file that has the URL of the connection."""
    connection: str
    table: TableName
    writer: TableWriter
    action: WriteAction
    """With the reference of its dataset."""
    where: str
    """What the dataset is the body of, for errors."""


def loaded(loading: Loading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Load the files whose numbers come, one after the other; a line for each.

    The first one that cannot be loaded is the last one: what is wrong with it is in its line, as Spark would try a task that
    raises again. The numbers behind it are read all the same, because Spark waits for that.
    """
    warehouse: Warehouse | None = None
    has_failed = False
    try:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            if has_failed:
                continue
            try:
                warehouse = warehouse or warehouse_of(loading.root, loading.connection, loading.url)
                yield _line(number, *_load(loading, warehouse, number))
            except LogioError as error:
                has_failed = True
                yield _line(number, error=type(error).__name__, said=str(error))
    finally:
        if warehouse is not None:
            warehouse.close()


def _load(loading: Loading, warehouse: Warehouse, number: int) -> tuple[str, int]:
    dataset = Payloads(loading.root).dataset(loading.where, str(loading.action.dataset))
    return StagingTables(warehouse).load(loading.table, loading.writer, loading.action, dataset, number)


def _line(number: int, attempt: str = "", records: int = 0, error: str = "", said: str = "") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "file": pa.array([number], pa.int64()),
            "attempt": pa.array([attempt], pa.string()),
            "records": pa.array([records], pa.int64()),
            "error": pa.array([error], pa.string()),
            "said": pa.array([said], pa.string()),
        }
    )
