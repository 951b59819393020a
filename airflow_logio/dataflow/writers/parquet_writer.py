"""`ParquetWriter`: the ready-made idempotent writer, a Parquet file per write action."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.arrow_tables import SCHEMA, schema_of, schema_text
from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.placeholders import in_folder_of_run, placeholders_of, relative_folder
from airflow_logio.dataflow.writers.action_writers import IdempotentWriter, WriteAction
from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step, opened, whole_object
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, OperatorFailed, PipelineDefinitionError

COMPRESSIONS = ("zstd", "snappy", "gzip", "none")


@dataclass(slots=True)
class _Place:
    """A folder of a file system."""

    system: Any
    base: str
    """What the connection names."""
    root: str
    is_local: bool
    renames: bool
    """A file is put into place by renaming it; an object store shows it only when it is closed."""
    prepared: set[str] = field(default_factory=set)
    """Folders that exist and are cleared of what earlier drivers left in them."""


class ParquetWriter(IdempotentWriter[_Place]):
    """Writes the records of each event to a Parquet file of their own: ``<folder>/<run
    uid>/<operator>/<number>.parquet``.

    :param connection: name of the connection. Its URL is a local path (the folder must be there) or a URI that Arrow
        can open (``file``, ``s3``, ``gs``, ``hdfs``).
    :param folder: a relative path below it; it may contain ``{param}`` placeholders (docs/parameters.md).
    :param compression: ``"zstd"`` (the default), ``"snappy"``, ``"gzip"`` or ``"none"``.
    :param schema: begin a run with a file without records, so that readers find the schema even if nothing comes;
        records must then have exactly these columns and types. Without, the first file says it. A run that sends the
        writer nothing then leaves no file, unless the source right before the writer is a `ParquetSource` without
        `transform` whose files have no rows: then their schema is written.

    A file appears as a whole or not at all: it is written under a name beginning with a dot, which readers of Parquet
    folders pass over, synced, and renamed; in S3 it is put in one step. Files of different runs never meet.

    Exactly once, even when a replaced driver keeps writing: the number of an action and its records are in the log, so
    that every driver that writes a file writes the same records to the same place. Raises PipelineDefinitionError; in a
    run OperatorFailed for records of another schema.
    """

    def __init__(
        self, connection: str, folder: str = "", *, compression: str = "zstd", schema: pa.Schema | None = None
    ) -> None:
        super().__init__(connection)
        self.folder = relative_folder(folder)
        self._placeholders = placeholders_of(self.folder, "folder") if self.folder else frozenset()
        if compression not in COMPRESSIONS:
            raise PipelineDefinitionError(
                f"compression {compression!r} is none of {quoted(COMPRESSIONS)}.{did_you_mean(compression, COMPRESSIONS)}"
            )
        self.compression = compression
        self.schema = None if schema is None else _checked(schema)

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def for_run(self, params: Mapping[str, Any]) -> ParquetWriter:
        """With the folder of a run with these parameters. Raises ConfigurationError."""
        return in_folder_of_run(self, params)

    def settings(self) -> dict[str, Any]:
        """As a run of an earlier version has them, where no schema is declared."""
        settings = {name: value for name, value in super().settings().items() if name != SCHEMA}
        if self.schema is not None:
            settings[SCHEMA] = [
                [name, str(kind)] for name, kind in zip(self.schema.names, self.schema.types, strict=True)
            ]
        return settings

    def opening(self) -> Mapping[str, Any] | None:
        """A file without records, if the schema is declared."""
        return None if self.schema is None else {SCHEMA: schema_text(self.schema)}

    def opening_of_empty(self, schema: pa.Schema) -> Mapping[str, Any]:
        return {SCHEMA: schema_text(schema if self.schema is None else self.schema)}

    def records(self, event: InputEvent) -> pa.Table:
        """The records as they are, columns in declared order; raises OperatorFailed if they have another schema."""
        return event.table if self.schema is None else _as_declared(event.table, self.schema)

    @contextmanager
    def connect(self, url: str) -> Iterator[_Place]:
        from pyarrow import fs

        system, root = opened(f"connection {self.connection!r}", url)
        local = isinstance(system, fs.LocalFileSystem)
        if local and not os.path.isdir(root):  # to make it would hide a disk that is not mounted
            raise ConfigurationError(f"connection {self.connection!r}: there is no folder {root}; make or mount it")
        folder = "/".join(filter(None, (root.rstrip("/"), self.folder)))
        yield _Place(system, root.rstrip("/"), folder, local, renames=local or system.type_name == "hdfs")

    def write(self, client: _Place, action: WriteAction) -> None:
        """Put the file of one action; one that is there already has the same records."""
        folder = f"{client.root}/{action.run_uid}/{action.operator}"
        try:
            if client.renames:
                self._rename_into(client, folder, action)
            else:
                self._fill(client, f"{folder}/{_file(action)}", action)
        except OSError as error:
            if is_lasting(error):
                raise ConfigurationError(
                    f"connection {self.connection!r}: file {_file(action)} of {action.operator!r} cannot be written: "
                    f"{error}{next_step(error)}"
                ) from error
            raise ExternalUnavailable(f"connection {self.connection!r}: {error}") from error

    def _rename_into(self, client: _Place, folder: str, action: WriteAction) -> None:
        target = f"{folder}/{_file(action)}"
        if folder not in client.prepared:
            client.system.create_dir(folder, recursive=True)
            self._sweep(client, folder, action.token)
            if client.is_local:
                _sync(*_folders_above(client.base, folder))
            client.prepared.add(folder)
        if not client.is_local and client.system.get_file_info(target).is_file:
            return  # HDFS renames over nothing
        # The token keeps drivers apart: none renames a file that another one is still writing.
        hidden = f"{folder}/.{_file(action)}.{action.token}.tmp"
        self._fill(client, hidden, action)
        try:
            if client.is_local:
                _sync(hidden)
            client.system.move(hidden, target)
        except FileNotFoundError as error:
            if not _is_folder(client, folder):
                raise
            raise ExternalUnavailable(
                f"connection {self.connection!r}: {hidden} was removed before it had its name: by a later driver of this "
                "group, which removes what earlier ones leave half-written and takes the place of this one, or by a program "
                "that cleans the folder up. It is written again"
            ) from error
        if client.is_local:
            _sync(folder)

    def _fill(self, client: _Place, path: str, action: WriteAction) -> None:
        import pyarrow.parquet as pq

        file = client.system.open_output_stream(path) if client.renames else whole_object(client.system, path)
        with file as stream:
            pq.write_table(_content(action), stream, compression=self.compression)

    @staticmethod
    def _sweep(client: _Place, folder: str, token: int) -> None:
        """Remove what earlier drivers have left half-written."""
        from pyarrow import fs

        if token == 1:
            return
        for file in client.system.get_file_info(fs.FileSelector(folder)):
            left_by = file.base_name.removesuffix(".tmp").rpartition(".")[2]
            if file.base_name.endswith(".tmp") and left_by.isdecimal() and int(left_by) < token:
                client.system.delete_file(file.path)


def _is_folder(client: _Place, path: str) -> bool:
    from pyarrow import fs

    return bool(client.system.get_file_info(path).type == fs.FileType.Directory)


def _content(action: WriteAction) -> pa.Table:
    return schema_of(action.description[SCHEMA]).empty_table() if action.is_opening else action.records


def _checked(schema: object) -> pa.Schema:
    if not isinstance(schema, pa.Schema):
        raise PipelineDefinitionError(
            f"schema is {schema!r}; give an Arrow schema: pa.schema([('store_id', pa.int64())])"
        )
    if not schema.names or len(set(schema.names)) < len(schema.names):
        raise PipelineDefinitionError(f"schema has columns {schema.names}; name at least one, and none twice")
    return schema


def _as_declared(table: pa.Table, schema: pa.Schema) -> pa.Table:
    names, wanted = table.schema.names, schema.names
    if sorted(names) != sorted(wanted):
        raise OperatorFailed(f"the schema of the files has columns {wanted}, but the records have {names}")
    for name, declared in zip(wanted, schema.types, strict=True):
        found = table.schema.field(name).type
        if found != declared:
            raise OperatorFailed(
                f"column {name!r} of the records is {found}, but {declared} in the schema of the files: cast it in an "
                "operator before the writer, or declare what comes"
            )
    return table if names == wanted else table.select(wanted)


def _file(action: WriteAction) -> str:
    return f"{action.number:012d}.parquet"


def _folders_above(base: str, folder: str) -> list[str]:
    """The folders from `base` down to the one that holds `folder`: new names in them are to be durable."""
    parts = folder.removeprefix(base).strip("/").split("/")
    return ["/".join([base, *parts[:depth]]) for depth in range(len(parts))]


def _sync(*paths: str) -> None:
    """Write through to the disk: what is acknowledged to the log is durable."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
