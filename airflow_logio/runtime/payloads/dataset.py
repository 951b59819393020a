"""A dataset as a driver holds it: the manifest, where its files are, and the way to its records for who needs them here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from airflow_logio.dataflow.event_stream import uniform
from airflow_logio.errors import LogInconsistent, LogUnavailable, OperatorFailed
from airflow_logio.runtime.payloads.manifests import DataFile, Manifest
from airflow_logio.runtime.payloads.task_files import footer_checksum
from airflow_logio.store.rules.payload_references import Reference

MAX_TABLE_BYTES = 256 * 2**20
"""The largest dataset, in bytes of its files, that a driver takes into its memory as one table."""


@dataclass(frozen=True)
class Dataset:
    """`where` names what it is the body of, for errors; `root` is the folder of the payload store."""

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
        """The absolute paths of its files, after a look at each. Raises as `check`."""
        self.check()
        return self.file_paths()

    def file_paths(self) -> Sequence[str]:
        """The absolute paths of its files; nobody looks at them."""
        return [self._path(file) for file in self.manifest.files]

    def check(self) -> None:
        """Compare files with the manifest: bytes and footer. Raises `LogInconsistent`, `LogUnavailable`."""
        for file in self.manifest.files:
            path = self._path(file)
            try:
                size = os.path.getsize(path)
                footer = footer_checksum(path, size) if size == file.size else None
            except FileNotFoundError:
                raise LogInconsistent(
                    f"the dataset of {self.where} has lost a file: {path} is missing. Put it back, or start a fresh run"
                ) from None
            except OSError as error:
                raise LogUnavailable(f"the payload store {self.root}: {type(error).__name__}: {error}") from error
            if footer != file.footer:
                raise LogInconsistent(
                    f"the dataset of {self.where} is damaged: {path} is not the file that its manifest names "
                    f"({file.size:,} bytes, footer {file.footer:08x}). Put that back, or start a fresh run"
                )

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
        for path, file in zip(self.paths(), self.manifest.files, strict=True):
            try:
                table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
            except (pa.ArrowException, OSError) as error:
                raise LogInconsistent(f"the dataset of {self.where} is damaged: {path}: {error}") from error
            if table.num_rows != file.records:
                raise LogInconsistent(
                    f"the dataset of {self.where} is damaged: {path} has {table.num_rows:,} records, its manifest says "
                    f"{file.records:,}"
                )
            tables.append(table.cast(schema))
        return uniform(pa.concat_tables(tables))

    def _path(self, file: DataFile) -> str:
        return os.path.join(self.root, file.path)
