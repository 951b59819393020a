"""Write actions of a `TableWriter` whose records are datasets: executors stage large ones for PostgreSQL (ADR-86).

Small ones, and those for another database, pass through the driver.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa

from airflow_logio import errors
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.spark.database_tasks import MOST_SESSIONS, handed_url, may_hand, told, warehouse_of
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset, dataset_at
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.stored_records import HeldFiles, RecordsInFiles, StagedActions, StagedFiles, no_part
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
        self._sweep(client, marker)
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
        """As `TableTarget.apply_held`. If datasets are large, executors load all of them into one staging table; the closing
        transaction moves its rows."""
        self._sweep(client, marker)
        found: Sequence[tuple[WriteAction, Dataset]] = ()
        # What an earlier driver has done is not looked at.
        if group.outside and marker.applies(group, *client.shut_out(marker)):
            found = self._datasets(pages)
        records = {action.number: _OfStore(dataset) for action, dataset in found}
        is_large = self._is_large(client, [dataset for _, dataset in found]) and self._are_alike(found)
        table = self._made(client, marker, *found[0], group) if is_large else None
        if table is None:
            self._tables.apply_held(client, marker, group, closing, pages, HeldFiles(records))
            return
        try:
            crash_here(CrashPoint.BEFORE_STAGING)
            staged = self._staged_of(table, found)
            crash_here(CrashPoint.AFTER_STAGING)
            self._tables.apply_held(client, marker, group, closing, pages, HeldFiles(records, staged))
            crash_here(CrashPoint.BEFORE_UNSTAGING)
        finally:
            self._drop(client, table)
        crash_here(CrashPoint.AFTER_UNSTAGING)

    def _sweep(self, client: Warehouse, marker: Marker) -> None:
        """Once in an epoch, and again if an answer was lost."""
        if not self._has_swept and client.engine.dialect.name == "postgresql":
            crash_here(CrashPoint.BEFORE_STAGING_SWEEP)
            self._staging(client).sweep(marker)
            crash_here(CrashPoint.AFTER_STAGING_SWEEP)
            self._has_swept = True

    def _datasets(self, pages: Iterable[Sequence[WriteAction]]) -> Sequence[tuple[WriteAction, Dataset]]:
        """The write actions whose records are in files, with these. Raises what reading the pages raises."""
        found = []
        for action in (action for page in pages for action in page if action.dataset is not None):
            with _of_store():
                dataset = self._dataset(_where(action), str(action.dataset))
                dataset.check()
            found.append((action, dataset))
        return found

    def _staged_of(self, table: TableName, found: Sequence[tuple[WriteAction, Dataset]]) -> StagedActions:
        actions, datasets = zip(*found, strict=True)
        where = f"write actions {actions[0].number} to {actions[-1].number} of {actions[0].operator!r}"
        with _of_store():
            files = self._staged(table, actions, datasets, where)
        counts = [count for dataset in datasets for count in dataset.counts()]
        columns = no_part(self._tables.writer, actions[0], datasets[0]).records.column_names
        return StagedActions(files, frozenset(action.number for action in actions), counts, columns)

    def _are_alike(self, found: Sequence[tuple[WriteAction, Dataset]]) -> bool:
        """Whether all have the same columns: one that some lack has a default in the target only."""
        named = (no_part(self._tables.writer, *one).records.column_names for one in found)
        return len({frozenset(names) for names in named}) == 1

    def _is_large(self, client: Warehouse, datasets: Sequence[Dataset]) -> bool:
        size = sum(dataset.nbytes for dataset in datasets)
        return size > STAGED_BYTES and client.engine.dialect.name == "postgresql" and may_hand(self._payloads)

    def _apply_dataset(self, client: Warehouse, marker: Marker, action: WriteAction) -> None:
        where = _where(action)
        dataset = self._dataset(where, str(action.dataset))
        dataset.check()  # now, because no transaction may be idle for long
        table = self._made(client, marker, action, dataset) if self._is_large(client, [dataset]) else None
        if table is None:
            self._tables.apply(client, marker, [action], {action.number: RecordsInFiles(dataset)})
            return
        try:
            crash_here(CrashPoint.BEFORE_STAGING)
            staged = self._staged(table, [action], [dataset], where)
            crash_here(CrashPoint.AFTER_STAGING)
            self._tables.apply(client, marker, [action], {action.number: RecordsInFiles(dataset, staged)})
            crash_here(CrashPoint.BEFORE_UNSTAGING)
        finally:
            self._drop(client, table)
        crash_here(CrashPoint.AFTER_UNSTAGING)

    def _made(
        self,
        client: Warehouse,
        marker: Marker,
        action: WriteAction,
        dataset: Dataset,
        held: HeldGroup | None = None,
    ) -> TableName | None:
        """As `StagingTables.make`. If the answer is lost, the table may be there: the next attempt sweeps first."""
        try:
            return self._staging(client).make(marker, self._tables.writer, action, dataset, held)
        except ExternalUnavailable:
            self._has_swept = False
            raise

    def _drop(self, client: Warehouse, *tables: TableName) -> None:
        self._left = self._staging(client).drop([*self._left, *tables])

    def _staged(
        self, table: TableName, actions: Sequence[WriteAction], datasets: Sequence[Dataset], where: str
    ) -> StagedFiles:
        """The files of all datasets, counted through."""
        counts = [count for dataset in datasets for count in dataset.counts()]
        firsts = tuple(accumulate((len(dataset.counts()) for dataset in datasets[:-1]), initial=0))
        files, writer = len(counts), self._tables.writer
        with handed_url(self._payloads, f"staging/{writer.connection}", self._url) as ref:
            named = (
                self._payloads.root,
                ref,
                writer.connection,
                table,
                writer.without_audits(),
                tuple(actions),
                firsts,
            )
            load = partial(loaded, Loading(*named))

            def job(session: Any) -> pa.Table:
                numbers = session.range(0, files, 1, min(files, MOST_SESSIONS))
                return numbers.mapInArrow(load, RESULT).toArrow()

            lines = self._job(f"{where}: loading {table.table}", job).to_pylist()
        return StagedFiles(table, _attempts(where, lines, counts))


class _OfStore:
    """A dataset whose payload store may be unavailable: the log is not."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def counts(self) -> Sequence[int]:
        return self._dataset.counts()

    def empty(self) -> pa.Table:
        return self._dataset.empty()

    def batches(self, number: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        with _of_store():
            yield from self._dataset.batches(number)


@contextmanager
def _of_store() -> Iterator[None]:
    try:
        yield
    except errors.LogUnavailable as error:
        raise ExternalUnavailable(str(error)) from error


def _where(action: WriteAction) -> str:
    return f"write action {action.number} of {action.operator!r}"


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
    actions: tuple[WriteAction, ...]
    """With the references of their datasets."""
    firsts: tuple[int, ...]
    """For each, the number of its first file: those of all are counted through."""


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
    place = bisect_right(loading.firsts, number) - 1
    action, first = loading.actions[place], loading.firsts[place]
    dataset = dataset_at(loading.root, _where(action), str(action.dataset))
    return StagingTables(warehouse).load(loading.table, loading.writer, action, dataset, number - first, number)


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
