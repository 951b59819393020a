"""`TableWriter`: the ready-made conditional writer. A declaration; its transaction is `systems/table_transaction.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.column_types import NULL, ColumnType, column_type
from airflow_logio.dataflow.names import check_sql_columns, check_sql_name, check_table, did_you_mean, quoted
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.audits import AuditFunction, audits_of_run, check_audits
from airflow_logio.dataflow.writers.owned_days import (
    AT_ONCE,
    AT_THE_END,
    check_by,
    check_empty,
    check_switch,
)
from airflow_logio.dataflow.writers.owning_writers import SUPERSEDE, OwningWriter, check_run_column, check_supersede
from airflow_logio.dataflow.writers.upserts import INSERT, UPDATE, UPSERT, check_key, check_mode
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

LINEAGE_TYPE = "bigint"
ON_NEW_RUN = ("replace", "append", "error", "overwrite", SUPERSEDE)
_BY_DAYS = ("by", "empty", "owned", "closes", "outputs")
"""Settings of writers whose runs own what they write: others are described as in earlier versions."""
_BY_KEY = ("upserts", "version")


class TableWriter(OwningWriter):
    """Inserts the records of each event into a SQL table, or updates rows by their key, in one transaction with the marker
    of the write action. Exactly once, even when a replaced driver keeps writing: the marker refuses it. A write is refused
    if the database drops rows of it (by a trigger, a rule, a view). Where rows are deleted for new ones, a table is refused
    if a foreign key would delete or change rows of others with them. Triggers of the table run as for any client: what they
    do to other tables is not looked at.

    :param connection: name of the connection: PostgreSQL or SQLite; a run with tables in another database is refused.
    :param table: ``table`` or ``schema.table``; a part with a dot of its own in double quotes.
    :param columns: column → type: ``bigint``, ``int``, ``double``, ``decimal(p,s)``, ``text``, ``boolean``,
        ``timestamp``, ``timestamptz``, ``date``, ``json``, ``uuid`` or ``binary``. The table is made with them when it
        is missing, and the records must then have exactly these columns, in types that fit without loss. A column that
        comes later is declared with ``null`` behind its type, as ``text null``: a run adds it to a table that lacks it, and
        rows from before have null there. By default the table must be there, and says its columns.
    :param primary_key: columns of the primary key of a table that is made; with ``mode="upsert"`` the columns by which rows
        are updated, for which the table must have a unique index of exactly these.
    :param on_new_run: what a new run does to rows of earlier runs: ``"replace"`` deletes them as a fenced first write
        action, ``"append"`` keeps them, ``"error"`` (the default) refuses a table that has any. After ``"replace"`` and
        ``"error"``, earlier runs may write to the table no more. A run that replaces is refused where a run that was
        started later has begun to append. ``"overwrite"`` replaces the rows of the run's day; it needs `by`.
        ``"supersede"``, in a pipeline with a partition, replaces the rows that earlier runs of the run's partition, of
        the same pipeline, have written, wherever their values lie: such as late rows, of many days. `run_column` tells
        them.
    :param by: the name of the pipeline's partition, as ``("day",)``: the run owns the rows whose column of that name,
        of type ``date`` or ``text`` (for hours also ``timestamptz``), has its day. They are replaced in one transaction
        when all new ones are there. A record of another day is refused, nothing is sent on, and rows of other days stay.
    :param switch: with `by`, when the old rows of the day go. ``"at the end"`` (the default): when all new ones are there.
        ``"at once"``: with the first write action of the run, and new ones come as they are made, events are sent on.
        Readers see a day that fills, a run that fails leaves a part of it, and one without records an empty day.
    :param run_column: with ``"supersede"``, the column that says which rows are those of the runs of a partition, by
        default ``"logio_run"``. It is written by the writer, records do not have it; rows with null or 0 there belong to
        no run, and stay. In a table that is made, it is the last one of the primary key, with an index of its own. In a
        table that is there, it is an integer with an index, and part of the primary key if there is one.
    :param empty: with `by` or ``"supersede"``, what happens if a run has no records and there are rows for them to
        replace: ``"refuse"`` (the default) or ``"replace"``.
    :param audit: with `by` or ``"supersede"``, what must be right before rows are replaced: a SELECT, a function, or a
        mapping of names to these. The SELECT is asked in the transaction that replaces them, of the table as it will
        be; each row that it returns is a fault. It may name run parameters, ``:day``. The function gets the records of
        the run, an iterator of Arrow tables (and ``params``, if it has such a parameter), and returns None if nothing is
        wrong, else a text, or a table of the rows at fault. A fault leaves the old rows, and the group parks: `logio
        retry` asks again.
    :param sends_after_writes: send an event on only when its records are in the table, for downstream operators that
        read it. By default False.
    :param mode: ``"insert"`` (the default), or ``"upsert"``: a row whose key is in the table takes the place of the one that
        is there. Then `on_new_run` is ``"update"`` by default: rows of earlier runs stay until their keys come again;
        ``"replace"`` and ``"error"`` are as above.
    :param version: with ``mode="upsert"``, the column that says which of two rows of one key is newer: the greatest version
        wins, in whichever order they come, so that runs, replicas and late events may write at once. An integer, decimal,
        double, time or date. Refused are a version that is null or NaN, and two rows of one key whose greatest versions are
        equal and that are not; rows that are equal in everything are one. Without it, the last event wins: a key twice in
        one event is refused, and runs write one after the other.
    :param lineage_column: name of one more column, a ``bigint``: each row then has the event id that it came with,
        which `logio lineage` takes to say what the row was made from. By default none.

    Raises PipelineDefinitionError; in a run OperatorFailed for records that do not fit.
    """

    write_guarantee = "conditional"
    actions_at_once = 4_096
    _scope = ""

    def __init__(
        self,
        connection: str,
        table: str,
        columns: Mapping[str, str] | None = None,
        primary_key: Iterable[str] = (),
        on_new_run: str | None = None,
        *,
        mode: str = INSERT,
        version: str | None = None,
        sends_after_writes: bool = False,
        lineage_column: str | None = None,
        by: Iterable[str] = (),
        run_column: str | None = None,
        empty: str = "refuse",
        switch: str = AT_THE_END,
        audit: str | AuditFunction | Mapping[str, str | AuditFunction] | None = None,
    ) -> None:
        super().__init__(connection)
        self.sends_after_writes = bool(sends_after_writes)
        self.table = check_table(table)
        self.columns = (
            None
            if columns is None
            else {name: self._declared(name, columns[name]) for name in check_sql_columns(columns)}
        )
        self.primary_key = check_sql_columns(primary_key)
        self.on_new_run = check_mode(f"writer of table {table!r}", mode, on_new_run, version)
        self.upserts = mode == UPSERT
        self.version = None if version is None else check_sql_name("column name", version)
        if self.upserts and version is None:
            self.order_insensitive = False
        self.lineage_column = None if lineage_column is None else check_sql_name("column name", lineage_column)
        self.needs_event_ids = lineage_column is not None
        self.by = check_by(f"writer of table {table!r}", by)
        self.empty = check_empty(f"writer of table {table!r}", empty, owns=self.owns)
        self._audits = check_audits(f"writer of table {table!r}", audit, owns=self.owns)
        self.switch = check_switch(
            f"writer of table {table!r}", switch, self.by, self.empty, has_audit=bool(self._audits)
        )
        others = (*(self.columns or ()), *filter(None, [lineage_column]))
        self.run_column = check_run_column(f"writer of table {table!r}", run_column, others, supersedes=self.supersedes)
        if self.owns and not self.fills_at_once:
            self.closes = True
            self.outputs = ()
        self._check()
        if self.columns is not None and lineage_column is not None:
            self.columns[lineage_column] = LINEAGE_TYPE

    def sql_connections(self) -> frozenset[str]:
        return frozenset({self.connection})

    @property
    def joins(self) -> bool:
        """Whether its runs write beside each other: what they write does not depend on which is first."""
        return self.on_new_run == "append" or (self.on_new_run == UPDATE and self.version is not None)

    def placeholders(self) -> frozenset[str]:
        return frozenset[str]().union(*(audit.placeholders() for audit in self._audits))

    def code(self) -> str:
        return "\n".join(filter(None, (super().code(), *(audit.code() for audit in self._audits))))

    @property
    def scope(self) -> str:
        """The partition whose rows the run owns, as ``day=2026-03-01``; empty if it owns none, or that is not known yet."""
        return self._scope

    def column_types(self) -> dict[str, ColumnType] | None:
        """Column → declared type, without the column of runs; None if the database is to say."""
        return None if self.columns is None else {name: self._type(name, kind) for name, kind in self.columns.items()}

    @property
    def may_add(self) -> frozenset[str]:
        """Columns that a run adds to a table that lacks them."""
        return frozenset(name for name, kind in (self.columns or {}).items() if kind.endswith(f" {NULL}"))

    def opening(self) -> Mapping[str, Any]:
        """The run takes the table over, and treats what is in it as `on_new_run` says."""
        opening: dict[str, Any] = {"table": self.table, "mode": self.on_new_run}
        if self.scope:
            opening["scope"] = self.scope
        return opening | {"switch": self.switch} if self.fills_at_once else opening

    def closing(self) -> Mapping[str, Any]:
        """The rows of the run take the place of those that have its day, or that earlier runs of its partition have
        written."""
        return {"table": self.table, "scope": self.scope}

    def for_run(self, params: Mapping[str, Any]) -> TableWriter:
        """With the day of a run with these parameters."""
        if not self.owns:
            return self
        own, day = copy(self), self.day_of(params)
        own.owned, own._scope = day if self.by else None, day.scope
        own._audits = audits_of_run(self._audits, self.partition, params)
        return own

    def records(self, event: InputEvent) -> pa.Table:
        """The records with their columns in declared order, and the lineage column; raises OperatorFailed if they have
        others."""
        records = event.table if self.lineage_column is None else self._with_event_id(event)
        names = records.schema.names
        if self.run_column in names:
            raise OperatorFailed(
                f"the records for table {self.table!r} have a column {self.run_column!r} themselves, by which its writer "
                "tells the rows of runs; drop it, or give run_column another name"
            )
        if self.columns is None or names == list(self.columns):
            return records
        if set(names) != set(self.columns):
            raise OperatorFailed(f"table {self.table!r} has columns {list(self.columns)}, but the records have {names}")
        return records.select(list(self.columns))

    def takes_files(self) -> bool:
        ours = (TableWriter.records, ActionWriter.process)
        return (type(self).records, type(self).process) == ours

    def without_audits(self) -> TableWriter:
        """For where rows are only loaded: an author's functions stay behind."""
        own = copy(self)
        own._audits = ()
        return own

    def settings(self) -> dict[str, Any]:
        """As a run of an earlier version has them, where there is no lineage column."""
        return {name: value for name, value in super().settings().items() if name not in self._unset()}

    def _unset(self) -> tuple[str, ...]:
        unset = ("needs_event_ids",) if self.lineage_column else ("needs_event_ids", "lineage_column")
        unset = unset if self.fills_at_once else (*unset, "switch")
        unset = (*unset, "order_insensitive", *(() if self.upserts else _BY_KEY))
        unset = (*unset, "owned", "closes", "outputs") if self.owns else (*unset, *_BY_DAYS)
        return unset if self.supersedes else (*unset, "run_column")

    def _with_event_id(self, event: InputEvent) -> pa.Table:
        if self.lineage_column in event.table.schema.names:
            raise OperatorFailed(
                f"the records for table {self.table!r} have a column {self.lineage_column!r} themselves, which is the "
                "lineage column of its writer; give lineage_column another name"
            )
        ids = pa.repeat(pa.scalar(event.event_id, pa.int64()), event.table.num_rows)
        return event.table.append_column(self.lineage_column, ids)

    def _check(self) -> None:
        if self.upserts:
            check_key(
                f"writer of table {self.table!r}", self.primary_key, self.version, self.columns, self.lineage_column
            )
        elif self.on_new_run not in ON_NEW_RUN:
            hint = did_you_mean(self.on_new_run, ON_NEW_RUN)
            raise PipelineDefinitionError(
                f"writer of table {self.table!r}: on_new_run={self.on_new_run!r} is none of {quoted(ON_NEW_RUN)}.{hint}"
            )
        check_supersede(f"writer of table {self.table!r}", self.on_new_run, self.by)
        if self.by or self.on_new_run == "overwrite":
            self._check_days()
        if self.owns:
            self._check_sends_nothing()
        if self.columns is None:
            return
        if self.lineage_column in self.columns:
            raise PipelineDefinitionError(
                f"writer of table {self.table!r}: lineage_column {self.lineage_column!r} is declared as a column, too; it is "
                "added to the declared ones"
            )
        if not self.columns:
            raise PipelineDefinitionError(
                f"writer of table {self.table!r}: columns is empty; leave it out or name some"
            )
        self._check_added(self.columns)
        for name in self.primary_key:
            if name not in (*self.columns, self.run_column):
                raise PipelineDefinitionError(
                    f"writer of table {self.table!r}: primary key column {name!r} is not among its columns."
                    f"{did_you_mean(name, self.columns)}"
                )

    def _check_added(self, columns: Mapping[str, str]) -> None:
        """Refuse to add what no row may have null in."""
        for name in (*self.primary_key, *filter(None, (self.version,))):
            if name in self.may_add:
                raise PipelineDefinitionError(
                    f"writer of table {self.table!r}: column {name!r} is declared {columns[name]!r}, and each row has a "
                    f"value there, as it is {'in primary_key' if name in self.primary_key else 'its version'}: leave "
                    f"{NULL!r} out"
                )

    def _check_days(self) -> None:
        where = f"writer of table {self.table!r}"
        if not self.by or self.on_new_run != "overwrite":
            raise PipelineDefinitionError(
                f"{where}: on_new_run={self.on_new_run!r} with by={self.by!r}. To replace the rows of the run's day, write "
                "on_new_run='overwrite', by=('day',) with the name of the pipeline's partition; to replace all, 'replace' "
                "without by"
            )
        (name,) = self.by
        if self.columns is not None and name not in self.columns:
            raise PipelineDefinitionError(
                f"{where}: by={self.by!r} names no column of it.{did_you_mean(name, self.columns)}"
            )
        if self.columns is not None and self.columns[name] not in ("date", "text", "timestamptz"):
            raise PipelineDefinitionError(
                f"{where}: column {name!r} of by={self.by!r} is declared {self.columns[name]}; days are date or text, hours "
                "timestamptz or text"
            )
        if self.primary_key and name not in self.primary_key:
            raise PipelineDefinitionError(
                f"{where}: primary_key {self.primary_key!r} lacks the column {name!r} of by={self.by!r}: the second {name} "
                f"would have the same keys. Write primary_key=({name!r}, ...)"
            )

    def _check_sends_nothing(self) -> None:
        if self.sends_after_writes and self.switch == AT_THE_END:
            said = f"by={self.by!r}" if self.by else f"on_new_run={self.on_new_run!r}"
            raise PipelineDefinitionError(
                f"writer of table {self.table!r}: sends_after_writes with {said}: the rows are there when everything has "
                "ended, so an operator behind it would read the old ones. Read them in a pipeline of their own"
                + (f", or say switch={AT_ONCE!r}" if self.by else "")
            )

    def _type(self, name: str, kind: object) -> ColumnType:
        plain = kind.removesuffix(f" {NULL}") if isinstance(kind, str) else kind
        return column_type(f"writer of table {self.table!r}: column {name!r}", plain)

    def _declared(self, name: str, kind: object) -> str:
        """A type, with ``null`` behind it if it has that."""
        added = f" {NULL}" if str(kind).endswith(f" {NULL}") else ""
        return f"{self._type(name, kind)}{added}"
