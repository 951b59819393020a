"""`DatasetWriter`: folders of Parquet files that executors write, partitioned if wanted (ADR-83, ADR-91, ADR-124)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from airflow_logio.dataflow.names import check_columns, did_you_mean, quoted
from airflow_logio.dataflow.operators import External, InputEvent, PortTable
from airflow_logio.dataflow.placeholders import in_folder_of_run, placeholders_of, relative_folder
from airflow_logio.dataflow.writers.audits import FRAME, AuditFunction, audits_of_run, check_audits
from airflow_logio.dataflow.writers.owned_days import AT_THE_END, check_by, check_empty, check_switch
from airflow_logio.dataflow.writers.owning_writers import SUPERSEDE, OwningWriter, check_supersede
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode

ON_NEW_RUN = ("append", "replace", "error", "overwrite", SUPERSEDE)


class DatasetWriter(OwningWriter):
    """Writes the records of each event into a folder of Parquet files, partitioned if wanted. Spark's executors write,
    the driver sees no record.

    :param connection: name of the connection. Its URL is a folder that driver and executors share (an absolute path, or
        ``file:///...``), or ``s3://bucket/path`` without credentials, which they take from their environment,
        ``~/.aws`` or role. Folder or bucket must be there.
    :param folder: a relative path below it; it may contain ``{param}`` placeholders (docs/parameters.md).
    :param partition_by: columns that the files do not have, because their values are in the names of folders,
        ``column=value``: of type text, whole number, date or boolean.
    :param on_new_run: what a new run does to files that earlier runs have published: ``"append"`` (the default) keeps
        them, ``"replace"`` removes them when the run begins, ``"error"`` refuses a folder that has any, ``"overwrite"``
        removes those of a partition when the run first publishes into it. Afterwards earlier runs may write to the
        folder (``"overwrite"``: the partition) no more. ``"supersede"``, in a pipeline with a partition, replaces what
        earlier runs of the run's partition, of the same pipeline, have published there, in whichever folders it lies, and
        nothing else: such as late records, of many days. It is switched as with `by`.
    :param by: with ``"overwrite"``, in a pipeline with a partition: the name of that, which is the first column of
        `partition_by`. The run then owns its day, all files with that value, and nothing else. The day stays as it was
        until all records of the run are there; then one closing receipt replaces it. A record of another day is
        refused.
    :param switch: with `by`, when the old files of the day go. ``"at the end"`` (the default): when all new ones are there.
        ``"at once"``: with the first write action of the run, and new ones come as they are made. Readers by receipts see a
        day that fills, a run that fails leaves a part of it, and one without records an empty day.
    :param empty: with `by` or ``"supersede"``, what happens if a run has no records, and there are some for them to
        replace: ``"refuse"`` (the default) or ``"replace"``.
    :param audit: with `by` or ``"supersede"``, what must be right before records are replaced: a SELECT, a function, or a
        mapping of names to these. The SELECT is asked of Spark, of the view ``records``: those of the run, with the columns
        of `partition_by` at their end; each row that it returns is a fault. It may name run parameters, ``:day``. The
        function gets the same as a DataFrame of Spark (and ``params``, if it has such a parameter), and returns None if
        nothing is wrong, else a text, or the rows at fault as a DataFrame. A fault leaves what was there, and the group
        parks: `logio retry` asks again. A run without an event for the writer is not asked about: `empty` decides.

    Exactly once, even when a replaced driver keeps writing: all drivers that execute a write action make the same files
    under the same names, ``<run uid>.<operator>.<number>.<n>.parquet``. A file appears as a whole or not at all, the
    files of one action one after the other; then its receipt, ``_logio/<run uid>.<operator>.<number>.json``, which
    names them. A reader that must see neither half an action, nor the files of two runs when one replaces the other,
    reads what `published_files` names. Nothing is sent on. Raises PipelineDefinitionError.
    """

    mode = ExecutionMode.DATAFRAME
    outputs = ()
    write_guarantee = "idempotent"
    actions_at_once = 16

    def __init__(
        self,
        connection: str,
        folder: str = "",
        *,
        partition_by: Iterable[str] = (),
        on_new_run: str = "append",
        by: Iterable[str] = (),
        empty: str = "refuse",
        switch: str = AT_THE_END,
        audit: str | AuditFunction | Mapping[str, str | AuditFunction] | None = None,
    ) -> None:
        super().__init__(connection)
        self.folder = relative_folder(folder)
        self._placeholders = placeholders_of(self.folder, "folder") if self.folder else frozenset()
        if isinstance(partition_by, str):
            raise PipelineDefinitionError(
                f"partition_by is the single string {partition_by!r}: write ({partition_by!r},)"
            )
        self.partition_by = check_columns(partition_by)
        self.on_new_run = on_new_run
        where = f"writer of folder {self.folder!r}"
        self.by = check_by(where, by)
        self.empty = check_empty(where, empty, owns=self.owns)
        self._audits = check_audits(where, audit, FRAME, owns=self.owns)
        self.switch = check_switch(where, switch, self.by, self.empty, has_audit=bool(self._audits))
        self.closes = self.owns and not self.fills_at_once
        self._scope = ""
        self._check()

    def placeholders(self) -> frozenset[str]:
        return self._placeholders.union(*(audit.placeholders() for audit in self._audits))

    def code(self) -> str:
        return "\n".join(filter(None, (super().code(), *(audit.code() for audit in self._audits))))

    def for_run(self, params: Mapping[str, Any]) -> DatasetWriter:
        """With the folder, and the day, of a run with these parameters. Raises ConfigurationError."""
        own = in_folder_of_run(self, params)
        if not self.owns:
            return own
        own = copy(own)
        own._scope = self.day_of(params).scope
        own._audits = audits_of_run(self._audits, self.partition, params)
        return own

    @property
    def scope(self) -> str:
        """The partition of a run that owns what it writes, as ``day=2026-03-01``: with `by`, its folder. Else empty."""
        return self._scope

    def opening(self) -> Mapping[str, Any] | None:
        """The run takes the whole folder over, or claims its day, if it is to."""
        if self.owns:
            opening = {"mode": self.on_new_run, "scope": self.scope}
            return opening | {"switch": self.switch} if self.fills_at_once else opening
        return {"mode": self.on_new_run} if self.on_new_run in ("replace", "error") else None

    def settings(self) -> dict[str, Any]:
        """As a run of an earlier version has them, where it appends, or owns no day."""
        unset = {"closes"} if self.owns else {"by", "empty", "closes"}
        unset |= set() if self.fills_at_once else {"switch"}
        unset |= {"on_new_run"} if self.on_new_run == "append" else set()
        return {name: value for name, value in super().settings().items() if name not in unset}

    def _check(self) -> None:
        if self.on_new_run not in ON_NEW_RUN:
            hint = did_you_mean(self.on_new_run, ON_NEW_RUN)
            raise PipelineDefinitionError(
                f"writer of folder {self.folder!r}: on_new_run={self.on_new_run!r} is none of {quoted(ON_NEW_RUN)}.{hint}"
            )
        check_supersede(f"writer of folder {self.folder!r}", self.on_new_run, self.by)
        if self.by and self.on_new_run != "overwrite":
            raise PipelineDefinitionError(
                f"writer of folder {self.folder!r}: by={self.by!r} says what a run replaces, and on_new_run="
                f"{self.on_new_run!r} replaces {'nothing' if self.on_new_run == 'append' else 'the whole folder'}: say "
                "on_new_run='overwrite', or leave by out"
            )
        if self.by and self.partition_by[: len(self.by)] != self.by:
            raise PipelineDefinitionError(
                f"writer of folder {self.folder!r}: a day is one folder with all that is below it, so the columns of "
                f"by={self.by!r} come first in partition_by, which is {self.partition_by!r}"
            )
        if self.on_new_run == "overwrite" and not self.partition_by:
            raise PipelineDefinitionError(
                f"writer of folder {self.folder!r}: on_new_run='overwrite' replaces partitions, and there is no "
                "partition_by. Name columns there, or say 'replace' for the whole folder"
            )

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        raise OperatorFailed("the records of a DatasetWriter are written by Spark's executors")
