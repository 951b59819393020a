"""Write actions of a `TableWriter` whose records are datasets (ADR-86): small ones pass through the driver, large ones are
staged by executors where the database is a PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_logio import errors
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.write_actions import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.spark import staging_tasks
from airflow_logio.spark.database_tasks import MOST_SESSIONS, handed_url, told
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.stored_records import RecordsInFiles, StagedFiles
from airflow_logio.systems.table_names import TableName
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
            load = partial(staging_tasks.loaded, staging_tasks.Loading(*named))

            def job(session: Any) -> pa.Table:
                numbers = session.range(0, files, 1, min(files, MOST_SESSIONS))
                return numbers.mapInArrow(load, staging_tasks.RESULT).toArrow()

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
    return line["error"] in (ExternalUnavailable.__name__, errors.LogUnavailable.__name__), line["file"]
