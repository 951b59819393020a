"""A dataset as a driver holds it: the manifest, where its files are, and the way to its records in the driver."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import uniform
from airflow_logio.errors import LogInconsistent, OperatorFailed
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads.data_files import DamagedFile, DataFiles
from airflow_logio.systems.payloads.file_roots import data_files, located
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, manifest_of

MAX_TABLE_BYTES = 256 * 2**20
"""The largest dataset, in bytes of its files, that a driver takes into its memory as one table."""
BATCH_RECORDS = 20_000
BATCH_BYTES = 16 * 2**20
"""The most that is in memory of a dataset that is read in batches, before it is converted; one record may be larger."""


def metadata_of(location: str, where: str) -> Any:
    """The footer of a Parquet file of the payload store, as Arrow has it; `where` names what the file is of.

    Raises `LogInconsistent` if there is none, `LogUnavailable` if the store does not answer.
    """
    import pyarrow.parquet as pq

    files, path = located(location)
    try:
        with files.open(path) as file:
            return pq.read_metadata(file)
    except (FileNotFoundError, DamagedFile, pa.ArrowException) as error:
        raise LogInconsistent(f"{where}: {location} is missing or damaged: {error}") from error
    except OSError as error:
        raise files.told(error) from error


def check_whole(store: str, where: str, reference: Reference, checksum: int, size: int) -> None:
    """Raises `LogInconsistent` for a payload with another checksum, or more or less bytes, than its reference says."""
    if (checksum, size) != (reference.checksum, reference.size):
        raise LogInconsistent(
            f"the payload of {where} is damaged: {reference.path} in the {store} has {size:,} bytes with checksum "
            f"{checksum:08x}, it was written with {reference.size:,} and {reference.checksum:08x}"
        )


def dataset_at(root: str, where: str, ref: str) -> Dataset:
    """In a task: the dataset whose manifest `ref` names, read as tasks read files.

    Raises `LogInconsistent`, `LogUnavailable`, `ConfigurationError`.
    """
    files, reference = data_files(root), Reference.parse(where, ref)
    store = f"payload store {files.root}"
    try:
        with files.open(reference.path) as file:
            data = bytes(file.read())
    except FileNotFoundError:
        raise LogInconsistent(f"the payload of {where} is missing: {reference.path} is not in the {store}") from None
    except OSError as error:
        raise files.told(error) from error
    check_whole(store, where, reference, zlib.crc32(data), len(data))
    return Dataset(where, files.root, reference, manifest_of(where, data))


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """What the statistics of a file say of some of its records in one column. Bounds of long texts may be shortened."""

    records: int
    nulls: int
    """At least so many have none."""
    bounds: pa.Array | None
    """The least value and the greatest one, if they are known."""


@dataclass(frozen=True)
class Dataset:
    """`where` names what it is the body of, for errors; `root` is that of the payload store, as `data_files` takes it."""

    where: str
    root: str
    reference: Reference
    manifest: Manifest

    @property
    def num_rows(self) -> int:
        """Records."""
        return self.manifest.records

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return self.manifest.size

    def paths(self) -> Sequence[str]:
        """Where its files are (`DataFiles.location`), after a look at each. Raises as `check`."""
        self.check()
        return self.file_paths()

    def file_paths(self) -> Sequence[str]:
        """Where its files are, without a look at them."""
        return [self._path(file) for file in self.manifest.files]

    def check(self) -> None:
        """Compare files with the manifest: bytes and footer. Raises `LogInconsistent`, `LogUnavailable`."""
        for _ in self.files.each(self._check, self.manifest.files):
            pass

    def check_file(self, number: int) -> None:
        """As `check`, of one file."""
        self._check(self.manifest.files[number])

    def _check(self, file: DataFile) -> None:
        try:
            footer = self.files.footer(file.path, file.size)
        except FileNotFoundError:
            raise LogInconsistent(
                f"the dataset of {self.where} has lost a file: {self._path(file)} is missing. Put it back, or start a "
                "fresh run"
            ) from None
        except DamagedFile as error:
            raise self._damaged(self._path(file), str(error)) from error
        except OSError as error:
            raise self.files.told(error) from error
        if footer != file.footer:
            raise LogInconsistent(
                f"the dataset of {self.where} is damaged: {self._path(file)} is not the file that its manifest names "
                f"({file.size:,} bytes, footer {file.footer:08x}). Put that back, or start a fresh run"
            )

    @property
    def files(self) -> DataFiles:
        """Those of its payload store."""
        return data_files(self.root)

    @cached_property
    def table(self) -> pa.Table:
        """All records, in the order of the files, with the types that sources give (`event_stream.uniform`).

        Raises `OperatorFailed` if they are too many for a driver, and as `check`.
        """
        import pyarrow.parquet as pq

        if self.nbytes > MAX_TABLE_BYTES:
            raise OperatorFailed(
                f"{self.where} is a dataset of {self.nbytes:,} bytes, and an operator that works in the driver gets it "
                f"as one table of at most {MAX_TABLE_BYTES:,} bytes. Make smaller events at the source, or let the operator "
                "run in mode 'dataframe'"
            )
        schema = self.manifest.arrow_schema()
        tables = [schema.empty_table()]
        self.check()
        for file in self.manifest.files:
            with self.reading(file), self.files.open(file.path) as opened:
                table = pq.read_table(opened, page_checksum_verification=True, partitioning=None)
            self._check_records(file, table.num_rows)
            tables.append(table.cast(schema))
        return uniform(pa.concat_tables(tables))

    def spans(self, column: str) -> Iterator[ColumnSpan]:
        """What the footers of its files tell of a column. No record is read. Raises as `metadata_of`."""
        for path in self.file_paths():
            metadata = metadata_of(path, self.where)
            for index in range(metadata.num_row_groups):
                yield _span_of(metadata.row_group(index), column)

    # --- in batches: a `systems.stored_records.StoredRecords` ---------------------------------------------------------

    def counts(self) -> Sequence[int]:
        """The records of each file."""
        return [file.records for file in self.manifest.files]

    def empty(self) -> pa.Table:
        """No records, of the types that `batches` gives."""
        return uniform(self.manifest.arrow_schema().empty_table())

    def batches(
        self, number: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """The records in tables of bounded size, in the order of the files, each with the number of records before it.

        Of file `number` only, if one is given, and with `columns` only. When a file ends, it has had the records that its
        manifest says. Raises as `check`, and `OperatorFailed` as `table`.
        """
        first = 0
        for place, file in enumerate(self.manifest.files):
            if number in (None, place):
                yield from self._batches_of(file, first, columns)
            first += file.records

    def _batches_of(self, file: DataFile, first: int, columns: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        import pyarrow.parquet as pq

        self._check(file)
        schema, found = self.manifest.arrow_schema(), 0
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        # Neither whole row groups nor whole columns are fetched ahead.
        how: Mapping[str, Any] = {"page_checksum_verification": True, "pre_buffer": False, "buffer_size": 2**20}
        with self.reading(file), self.files.open(file.path) as source, pq.ParquetFile(source, **how) as opened:
            size = _batch_records(opened.metadata)
            for batch in opened.iter_batches(batch_size=size, columns=columns, use_threads=False):
                yield first + found, uniform(pa.Table.from_batches([batch]).cast(schema))
                found += batch.num_rows
        self._check_records(file, found)

    @contextmanager
    def reading(self, file: DataFile) -> Iterator[None]:
        """What a block that reads the file raises, as `LogInconsistent` if it is damaged, else as the store's error."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and not self.files.is_of_content(error):
                raise self.files.told(error) from error
            raise self._damaged(self._path(file), str(error)) from error

    def _check_records(self, file: DataFile, found: int) -> None:
        if found != file.records:
            raise self._damaged(self._path(file), f"it has {found:,} records, its manifest says {file.records:,}")

    def _damaged(self, path: str, how: str) -> LogInconsistent:
        return LogInconsistent(f"the dataset of {self.where} is damaged: {path}: {how}")

    def _path(self, file: DataFile) -> str:
        return self.files.location(file.path)


@dataclass(frozen=True)
class Borrowed:
    """The dataset of an event that has a row already: another row that is to name these records gets files of its own."""

    dataset: Dataset

    @property
    def num_rows(self) -> int:
        """Records."""
        return self.dataset.num_rows

    @property
    def table(self) -> pa.Table:
        """As `Dataset.table`."""
        return self.dataset.table


def _span_of(group: Any, column: str) -> ColumnSpan:
    columns = (group.column(index) for index in range(group.num_columns))
    found = next((one.statistics for one in columns if one.path_in_schema == column), None)
    if found is None:
        return ColumnSpan(group.num_rows, 0, None)
    return ColumnSpan(group.num_rows, found.null_count if found.has_null_count else 0, _bounds(found))


def _bounds(statistics: Any) -> pa.Array | None:
    """The least and the greatest value; None for kinds of columns that no day or hour is of."""
    if not statistics.has_min_max:
        return None
    logical = json.loads(statistics.logical_type.to_json())
    raw = [statistics.min_raw, statistics.max_raw]
    try:
        match logical["Type"]:
            case "String":
                return pa.array(raw, pa.binary()).cast(pa.string())
            case "Date":
                return pa.array(raw, pa.int32()).cast(pa.date32())
            case "Timestamp":
                kind = pa.timestamp(_UNITS[logical["timeUnit"]], "UTC" if logical["isAdjustedToUTC"] else None)
                return pa.array(raw, pa.int64()).cast(kind)
    except (pa.ArrowException, KeyError):
        return None
    return None


_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def _batch_records(metadata: Any) -> int:
    """How many records of a Parquet file are read at a time, by how wide they are on the average."""
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    wide = sum(group.total_byte_size for group in groups) / max(metadata.num_rows, 1)
    return max(1, min(BATCH_RECORDS, int(BATCH_BYTES / max(wide, 1))))
