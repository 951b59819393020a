"""`DeltaWriter`: Delta tables, exactly once. A declaration; its commits are those of `systems/delta/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.column_types import ColumnType, column_type
from airflow_logio.dataflow.names import check_columns, did_you_mean, quoted
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.placeholders import folder_of_run, placeholders_of, relative_folder
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.audits import AuditFunction, audits_of_run, check_audits
from airflow_logio.dataflow.writers.owned_days import AT_THE_END, check_by, check_empty, check_switch
from airflow_logio.dataflow.writers.owning_writers import SUPERSEDE, OwningWriter, check_run_column, check_supersede
from airflow_logio.dataflow.writers.upserts import INSERT, UPSERT, check_key, check_mode
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

ON_NEW_RUN = ("replace", "append", "error", "overwrite", SUPERSEDE)
_NO_TYPES = {"json": "text", "uuid": "text"}
"""Types of SQL tables that Delta tables do not have → what to write."""
PARTITION_TYPES = ("text", "bigint", "int", "date", "boolean")


class DeltaWriter(OwningWriter):
    """Writes the records of each event into a Delta table: files and the marker of the write action in one commit of the
    table's own log. Exactly once, even when a replaced driver keeps writing: it must commit the version behind the one that
    it has read, which its successor has taken, and the marker refuses it. Needs the extra ``delta``, and no Spark.

    :param connection: name of the connection. Its URL is a folder (an absolute path, or ``file:///...``), or
        ``s3://bucket/path`` without credentials, which the driver takes from its environment or role.
    :param table: the folder of the table, a relative path below it; it may contain ``{param}`` placeholders
        (docs/parameters.md).
    :param columns: column → type: ``bigint``, ``int``, ``double``, ``decimal(p,s)``, ``text``, ``boolean``, ``timestamp``
        (without a zone), ``timestamptz``, ``date`` or ``binary``. The table is made with them when it is missing, and must
        have exactly these when it is there. By default the table must be there, and says its columns.
    :param partition_by: columns by which a table that is made is partitioned, of type ``text``, ``bigint``, ``int``,
        ``date`` or ``boolean``.
    :param primary_key: with ``mode="upsert"``, the columns by which rows are updated. Delta tables hold no keys themselves.
    :param on_new_run: what a new run does to rows of earlier runs: ``"replace"`` removes them with the run's first commit,
        ``"append"`` keeps them, ``"error"`` (the default) refuses a table that has any. After ``"replace"`` and
        ``"error"``, earlier runs may write to the table no more. ``"overwrite"`` replaces the rows of the run's day; it
        needs `by`. ``"supersede"`` replaces what earlier runs of the run's partition, of this pipeline, have written,
        wherever its values lie.
    :param by: the name of the pipeline's partition, as ``("day",)``, which is a partition column of the table: the run owns
        the rows with its day. They are replaced in one commit when all new ones are there. A record of another day is
        refused.
    :param switch: with `by`, when the old rows of the day go. ``"at the end"`` (the default): when all new ones are there.
        ``"at once"``: with the first commit of the run; then events are sent on as they come.
    :param run_column: with ``"supersede"``, the column that says which rows are those of the runs of a partition, by
        default ``"logio_run"``: a text, by which the table is partitioned. It is written by the writer, records do not have
        it; rows with null there belong to no run, and stay.
    :param empty: with `by` or ``"supersede"``, what happens if a run has no records and there are rows for them to
        replace: ``"refuse"`` (the default) or ``"replace"``.
    :param audit: with `by` or ``"supersede"``, what must be right before rows are replaced: a function, or a mapping of names
        to functions. It gets the records of the run, an iterator of Arrow tables (and ``params``, if it has such a
        parameter), and returns None if nothing is wrong, else a text, or a table of the rows at fault. A fault leaves the
        old rows, and the group parks: `logio retry` asks again.
    :param sends_after_writes: send an event on only when its records are in the table. By default False.
    :param mode: ``"insert"`` (the default), or ``"upsert"``: a row whose key is in the table takes the place of the one that
        is there: the files that have such rows are written anew without them. Then `on_new_run` is ``"update"`` by default:
        rows of earlier runs stay until their keys come again; ``"replace"`` and ``"error"`` are as above.
    :param version: with ``mode="upsert"``, the column that says which of two rows of one key is newer: the greatest version
        wins, in whichever order they come. Refused are a version that is null or NaN, and two rows of one key whose greatest
        versions are equal and that are not. Without it, the last event wins, and a key twice in one event is refused.

    Raises PipelineDefinitionError; in a run OperatorFailed for records of other columns than are declared.
    """

    write_guarantee = "conditional"
    actions_at_once = 256
    _scope = ""

    def __init__(
        self,
        connection: str,
        table: str = "",
        columns: Mapping[str, str] | None = None,
        *,
        partition_by: Iterable[str] = (),
        primary_key: Iterable[str] = (),
        on_new_run: str | None = None,
        mode: str = INSERT,
        version: str | None = None,
        by: Iterable[str] = (),
        switch: str = AT_THE_END,
        run_column: str | None = None,
        empty: str = "refuse",
        audit: AuditFunction | Mapping[str, AuditFunction] | None = None,
        sends_after_writes: bool = False,
    ) -> None:
        super().__init__(connection)
        self.sends_after_writes = bool(sends_after_writes)
        self.table = relative_folder(table)
        self._placeholders = placeholders_of(self.table, "table") if self.table else frozenset()
        self.columns = None if columns is None else {name: self._declared(name, columns[name]) for name in columns}
        for name, given in (("partition_by", partition_by), ("primary_key", primary_key)):
            if isinstance(given, str):
                raise PipelineDefinitionError(
                    f"{self.where}: {name} is the single string {given!r}: write ({given!r},)"
                )
        self.partition_by = check_columns(partition_by)
        self.primary_key = check_columns(primary_key)
        self.on_new_run = check_mode(self.where, mode, on_new_run, version)
        self.upserts = mode == UPSERT
        self.version = version
        if self.upserts and version is None:
            self.order_insensitive = False
        self.by = check_by(self.where, by)
        self.empty = check_empty(self.where, empty, owns=self.owns)
        self._audits = check_audits(self.where, audit, owns=self.owns)
        self.switch = check_switch(self.where, switch, self.by, self.empty, has_audit=bool(self._audits))
        self.run_column = check_run_column(self.where, run_column, self.columns or (), supersedes=self.supersedes)
        if self.owns and not self.fills_at_once:
            self.closes = True
            self.outputs = ()
        self._check()

    @property
    def where(self) -> str:
        return f"writer of Delta table {self.table or '.'!r}"

    @property
    def joins(self) -> bool:
        """Whether its runs write beside each other: what they write does not depend on which is first."""
        return self.on_new_run == "append" or (self.on_new_run == "update" and self.version is not None)

    @property
    def scope(self) -> str:
        """The day that the run owns, as ``day=2026-03-01``; empty if it owns none, or that is not known yet."""
        return self._scope

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def code(self) -> str:
        return "\n".join(filter(None, (super().code(), *(audit.code() for audit in self._audits))))

    def column_types(self) -> dict[str, ColumnType] | None:
        """Column → declared type, with the column of runs; None if the table is to say."""
        if self.columns is None:
            return None
        declared = self.columns if self.run_column is None else self.columns | {self.run_column: "text"}
        return {name: self._type(name, kind) for name, kind in declared.items()}

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition columns of a table that is made: files of different runs are different files."""
        return self.partition_by if self.run_column is None else (*self.partition_by, self.run_column)

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if self.supersedes or name != "run_column"}

    def opening(self) -> Mapping[str, Any]:
        """The run takes the table over, and treats what is in it as `on_new_run` says."""
        opening: dict[str, Any] = {"table": self.table, "mode": self.on_new_run}
        if self.scope:
            opening["scope"] = self.scope
        return opening | {"switch": self.switch} if self.fills_at_once else opening

    def closing(self) -> Mapping[str, Any]:
        """The rows of the run take the place of those that have its day."""
        return {"table": self.table, "scope": self.scope}

    def for_run(self, params: Mapping[str, Any]) -> DeltaWriter:
        """With the folder, and the day, of a run with these parameters. Raises `ConfigurationError`."""
        if not self._placeholders and not self.owns:
            return self
        own = copy(self)
        own.table = folder_of_run(self.table, params)
        if self.owns:
            day = self.day_of(params)
            own.owned, own._scope = day if self.by else None, day.scope
            own._audits = audits_of_run(self._audits, self.partition, params)
        return own

    def records(self, event: InputEvent) -> pa.Table:
        """The records with their columns in declared order; raises OperatorFailed if they have others."""
        names = event.table.schema.names
        if self.run_column in names:
            raise OperatorFailed(
                f"{self.where}: the records have a column {self.run_column!r} themselves, by which the writer tells the rows "
                "of runs; drop it, or give run_column another name"
            )
        if self.columns is None or names == list(self.columns):
            return event.table
        if len(names) != len(self.columns) or set(names) != set(self.columns):
            raise OperatorFailed(f"{self.where} has columns {list(self.columns)}, but the records have {names}")
        return event.table.select(list(self.columns))

    def without_audits(self) -> DeltaWriter:
        """For where records are only written: an author's functions stay behind."""
        own = copy(self)
        own._audits = ()
        return own

    def takes_files(self) -> bool:
        ours = (DeltaWriter.records, ActionWriter.process)
        return (type(self).records, type(self).process) == ours

    def _check(self) -> None:
        if self.upserts:
            check_key(self.where, self.primary_key, self.version, self.columns, None)
        elif self.on_new_run not in ON_NEW_RUN:
            raise PipelineDefinitionError(
                f"{self.where}: on_new_run={self.on_new_run!r} is none of {quoted(ON_NEW_RUN)}."
                f"{did_you_mean(self.on_new_run, ON_NEW_RUN)}"
            )
        if self.primary_key and not self.upserts:
            raise PipelineDefinitionError(
                f"{self.where}: primary_key={self.primary_key!r} is for mode='upsert': a Delta table holds no keys. Leave it "
                "out"
            )
        check_supersede(self.where, self.on_new_run, self.by)
        if bool(self.by) != (self.on_new_run == "overwrite"):
            raise PipelineDefinitionError(
                f"{self.where}: on_new_run={self.on_new_run!r} with by={self.by!r}. To replace the rows of the run's day, "
                "write on_new_run='overwrite', by=('day',) with the name of the pipeline's partition; to replace all, "
                "'replace' without by"
            )
        for audit in self._audits:
            if audit.query is not None:
                raise PipelineDefinitionError(
                    f"{self.where}: audit {audit.name!r} is a SELECT, and no database is behind a Delta table: give a "
                    "function, which gets the records as Arrow tables"
                )
        if self.sends_after_writes and self.closes:
            said = f"by={self.by!r}" if self.by else f"on_new_run={self.on_new_run!r}"
            raise PipelineDefinitionError(
                f"{self.where}: sends_after_writes with {said}: the rows are there when everything has ended. Read them in a "
                f"pipeline of their own{', or say switch=' + repr('at once') if self.by else ''}"
            )
        self._check_columns()

    def _check_columns(self) -> None:
        if self.columns is None:
            if self.partition_by:
                raise PipelineDefinitionError(
                    f"{self.where}: partition_by is for a table that is made, whose columns are declared: give columns, or "
                    "leave it out"
                )
            return
        if not self.columns:
            raise PipelineDefinitionError(f"{self.where}: columns is empty; leave it out or name some")
        self._check_partitions(self.columns)
        seen: dict[str, str] = {}
        for name in self.columns:
            if (other := seen.setdefault(name.casefold(), name)) != name:
                raise PipelineDefinitionError(
                    f"{self.where}: columns {other!r} and {name!r} differ by case only, which Delta tables take for one: "
                    "give one of them another name"
                )
        if self.by and self.columns[self.by[0]] not in ("text", "date"):
            raise PipelineDefinitionError(
                f"{self.where}: column {self.by[0]!r} of by={self.by!r} is declared {self.columns[self.by[0]]}; days are "
                "date or text, hours text"
            )
        if self.by and self.by[0] not in self.partition_by:
            raise PipelineDefinitionError(
                f"{self.where}: a run replaces the files of its {self.by[0]}, so by={self.by!r} is in partition_by, which is "
                f"{self.partition_by!r}"
            )

    def _check_partitions(self, columns: Mapping[str, str]) -> None:
        for what, names in (("partition_by", self.partition_by), ("primary_key", self.primary_key), ("by", self.by)):
            for name in names:
                if name not in columns:
                    raise PipelineDefinitionError(
                        f"{self.where}: {what} column {name!r} is not among its columns.{did_you_mean(name, columns)}"
                    )
        for name in self.partition_by:
            if columns[name] not in PARTITION_TYPES:
                raise PipelineDefinitionError(
                    f"{self.where}: partition_by column {name!r} is declared {columns[name]}, and values in the names "
                    f"of partitions are {', '.join(PARTITION_TYPES)}"
                )
        if len(self.partition_by) == len(columns):
            raise PipelineDefinitionError(f"{self.where}: partition_by has all of its columns; leave one out of it")

    def _type(self, name: str, kind: object) -> ColumnType:
        return column_type(f"{self.where}: column {name!r}", kind)

    def _declared(self, name: str, kind: object) -> str:
        found = self._type(name, kind)
        if found.name in _NO_TYPES:
            raise PipelineDefinitionError(
                f"{self.where}: column {name!r} is declared {found}, which Delta tables do not have: write "
                f"{_NO_TYPES[found.name]!r}"
            )
        return str(found)
