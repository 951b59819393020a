"""`DatasetWriter`: folders of Parquet files that executors write, partitioned if wanted (ADR-83)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from airflow_logio.dataflow.action_writers import ActionWriter
from airflow_logio.dataflow.names import check_columns
from airflow_logio.dataflow.operators import External, InputEvent, PortTable
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode


class DatasetWriter(ActionWriter):
    """Writes the records of each event into a folder of Parquet files; Spark's executors write, the driver sees no record.

    The connection's URL is a folder that driver and executors share (an absolute path, or ``file:///...``); it must be
    there. `folder` is below it. Files are named ``<run uid>.<operator>.<number>.<n>.parquet``, in folders ``column=value``
    for the columns `partition_by`, which the files then do not have. Types of such columns: text, whole numbers, dates,
    booleans. A run adds its files to those of other runs.

    Exactly once, even when a replaced driver keeps writing: all drivers that execute a write action write the same files
    under the same names. A file appears as a whole or not at all, the files of one action one after the other; then its
    receipt, ``_logio/<run uid>.<operator>.<number>.json``, which names them. Who must not see half an action reads the files
    that receipts name. Nothing is sent on. Raises PipelineDefinitionError.
    """

    mode = ExecutionMode.DATAFRAME
    outputs = ()
    write_guarantee = "idempotent"
    actions_at_once = 16

    def __init__(self, connection: str, folder: str = "", *, partition_by: Iterable[str] = ()) -> None:
        super().__init__(connection)
        path = PurePosixPath(folder)
        if path.is_absolute() or ".." in path.parts or "://" in folder:
            raise PipelineDefinitionError(
                f"folder {folder!r} is not allowed: give a relative path; the connection says what it is relative to"
            )
        self.folder = "" if folder in ("", ".") else str(path)
        if isinstance(partition_by, str):
            raise PipelineDefinitionError(
                f"partition_by is the single string {partition_by!r}: write ({partition_by!r},)"
            )
        self.partition_by = check_columns(partition_by)

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        raise OperatorFailed("the records of a DatasetWriter are written by Spark's executors")
