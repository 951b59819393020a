"""One day, or hour, is deleted on request: its rows and files, and all that the log knows of the runs that have made it.

First the day is made empty where runs own it, by the two write actions that a run without records has: it is a run of its
own, the youngest of the day, so that all others are shut out. It is given up as soon as it has begun, since no driver is to
be launched for it. Then the runs of the day leave the log, this one with them. A process that dies in between leaves a day
that is as it was, or empty, and is asked for again: another run empties what is empty, and removals continue.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.dataflow.writers.action_writers import BEGIN, ActionWriter, Marker, WriteAction
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.dataflow.writers.run_shapes import writer_shapes
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, ProtocolViolation
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.writes import CLOSE, HeldGroup
from airflow_logio.spark.publishing import DayTarget
from airflow_logio.status.whole_group import states_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, RunKey
from airflow_logio.store.rules.run_rules import has_ended
from airflow_logio.supervision.keeping import Places, remove_run
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import table_target
from airflow_logio.systems.warehouse import TableTarget

DAG_ID = "logio forget"
REASON = "by `logio forget`"
MOST_RUNS = 100_000
SEARCHED = 100


@dataclass(frozen=True, slots=True)
class Forgetting:
    """One partition of a pipeline; `pipeline` is the author's, `urls` has its connections, name → URL."""

    store: LogStore
    pipeline: Pipeline
    key: PartitionKey
    urls: Mapping[str, str]
    places: Places

    def runs(self) -> list[Run]:
        """Its runs that are in the log, the youngest first."""
        found = self.store.list_runs(pipeline=self.pipeline.name, partition=self.key.text, limit=MOST_RUNS)
        return sorted(found, key=lambda run: -run.ordinal)

    def check(self, *, rest_by_hand: bool) -> None:
        """Before anything is changed. Raises `ProtocolViolation` for a run that has not ended, and `ConfigurationError` for
        what other writers have put where this cannot remove it, which the person may do, and for an unknown day."""
        runs = self.runs()
        key = self.key.text
        if not runs and not self.store.removed_runs(pipeline=self.pipeline.name, partitions=(key, key), limit=1):
            raise ConfigurationError(f"the log has had no run of {key} of pipeline {self.pipeline.name!r}")
        for run in runs:
            if run.spec.key.dag_id != DAG_ID and not has_ended(run, states_of(self.store, run), unfinished=False):
                uid = run.uid[:8]
                raise ProtocolViolation(
                    f"run {run.spec.key}, uid {uid}, of {key} has not ended: it could fill the day again. Let it finish, or "
                    f"`logio again {uid}` gives it up, then forget the day"
                )
        if not rest_by_hand and (rest := sorted(set(self._rest(runs)))):
            raise ConfigurationError(
                f"what {', '.join(rest)} wrote for {key} is not owned by the day as the pipeline is now, and stays where it "
                "is: remove it by hand, and say so with --rest-by-hand. Nothing was changed"
            )

    def _rest(self, runs: Sequence[Run]) -> Iterator[str]:
        """What writers have put, or may have, where this does not remove it: those of the pipeline, and of the day's runs."""
        template, _, pipeline = self._made()
        operators = {base_operator(name): operator for name, operator in pipeline.operators.items()}
        names = () if pipeline.partition is None else pipeline.partition.names
        shapes = writer_shapes(operators, template.spec.connections, names)
        owned = {shape.place for shape in shapes if owns_its_day(operators[shape.writer])}
        for shape in (*shapes, *(shape for run in runs for shape in run.spec.writers or ())):
            if shape.place not in owned:
                yield f"writer {shape.writer!r} ({shape.what})"
        for run in runs:
            if run.spec.writers is None:
                yield f"run {run.uid[:8]} (the version that began it has not noted where)"

    def _made(self) -> tuple[Run, dict[str, Any], Pipeline]:
        """A run that says how the day is made, the parameters of the day, and the pipeline as a run of it has it."""
        assert self.pipeline.partition is not None
        template = self._template()
        params = {**template.spec.params, **self.pipeline.partition.parameters(self.key)}
        return template, params, self.pipeline.for_run(params)

    def empty(self) -> list[str]:
        """Make the day empty wherever runs own it; a sentence for each writer. Raises what its write actions raise, such as
        `WriteRefused` and `ExternalUnavailable`: then it can be asked for again."""
        template, params, pipeline = self._made()
        owning = {
            name: one for name, one in pipeline.operators.items() if isinstance(one, ActionWriter) and owns_its_day(one)
        }
        if not owning:
            return []
        run = self._begin(template, params)
        said = list[str]()
        with closing(self._systems(run)) as systems:
            places = [_Place(name, _unaudited(writer), systems) for name, writer in owning.items()]
            for place in places:  # all before one is emptied: one that is refused leaves all as they are
                place.open()
            for place in places:
                place.close()
                said.append(f"{self.key.text} is empty where {place} puts it")
        return said

    def _template(self) -> Run:
        for run in (*self.runs(), *self.store.list_runs(pipeline=self.pipeline.name, limit=SEARCHED)):
            if run.damage is None and run.spec.key.dag_id != DAG_ID:
                return run
        raise ConfigurationError(
            f"the log has no run of pipeline {self.pipeline.name!r} any more, which says with which parameters and "
            "connections the day was made: begin one of any day, then forget this one"
        )

    def _begin(self, template: Run, params: Mapping[str, Any]) -> Run:
        """The youngest run of the day, which is given up: nothing launches a driver of it, or waits for it."""
        for left in self.runs():  # of one that died between the two
            if left.spec.key.dag_id == DAG_ID and left.state is RunState.RUNNING:
                self.store.supersede(left.run_id, because=REASON)
        key = RunKey(self.pipeline.name, DAG_ID, f"forget {self.key.text} {uuid.uuid4().hex}")
        allowed = frozenset({Allowed.EMPTY})
        spec = replace(
            template.spec,
            key=key,
            partition=self.key.text,
            params=params,
            allowed=allowed,
            code_digest=None,
            actions={},
        )
        spec = replace(spec, days_read={})  # it reads nothing
        says = self.pipeline.partition  # what the youngest run says holds for all
        due = None if says is None else says.promise()
        spec = replace(spec, keep_seconds=self.pipeline.keep_seconds, due=due)
        run = self.store.start_run(spec, concurrent=ConcurrentRuns.DERIVED)
        self.store.supersede(run.run_id, because=REASON)
        return run

    def _systems(self, run: Run) -> Connections:
        others = [one.uid for one in self.runs() if one.uid != run.uid]
        others += [
            one.uid
            for one in self.store.removed_runs(
                pipeline=self.pipeline.name, partitions=(self.key.text, self.key.text), limit=MOST_RUNS
            )
            if one.state is RunState.SUPERSEDED
        ]
        identity = WriterIdentity(
            run.uid,
            1,
            run.created_at,
            tuple(sorted(set(others))),
            pipeline=self.pipeline.name,
            log_uid=self.store.log_uid(),
            ordinal=run.ordinal,
            takes_over=Allowed.TAKE_OVER in run.spec.allowed,
            may_be_empty=True,
        )
        return Connections(self.pipeline.name, self.urls, identity, run.spec.replay_seconds)

    def remove(self) -> tuple[int, list[str]]:
        """Remove the ended runs of the day from the log, with their lineage and payloads: how many, and those that stay, in
        words. Raises `LogUnavailable`."""
        removed, staying = 0, list[str]()
        for run in self.runs():
            if not has_ended(run, states_of(self.store, run), unfinished=False):
                staying.append(f"run {run.spec.key}, uid {run.uid[:8]}, has begun meanwhile")
            elif remove_run(self.store, self.places, run, REASON) is None:
                staying.append(f"run {run.spec.key}, uid {run.uid[:8]}: what it has left cannot be removed now")
            else:
                removed += run.spec.key.dag_id != DAG_ID
        return removed, staying


def owns_its_day(writer: object) -> bool:
    """Whether runs of a writer own what they write for their day, so that a run without records empties it."""
    if isinstance(writer, DatasetWriter):
        return bool(writer.by)
    return isinstance(writer, OwningWriter) and writer.owns


def _unaudited(writer: ActionWriter) -> ActionWriter:
    """An audit says what a day must be like; this one shall not be."""
    own = copy.copy(writer)
    if isinstance(own, OwningWriter):
        own._audits = ()
    return own


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a writer puts the day: what becomes of it is what a run without records makes of it."""

    name: str
    writer: ActionWriter
    systems: Connections

    def __str__(self) -> str:
        return f"writer {self.name!r}, connection {self.writer.connection!r},"

    def open(self) -> None:
        """The opening write action, number 1."""
        begin = self._action(1, {**(self.writer.opening() or {}), "action": BEGIN})
        if isinstance(self.writer, DatasetWriter):
            target = self._folder(self.writer)
            with target.connect(self.systems.url(self.writer.connection)) as claim:
                target.write_group(claim, [begin])
            return
        if isinstance(self.writer, DeltaWriter):
            with self._delta(self.writer) as (delta, log):
                delta.apply(log, self._marker, [begin])
            return
        table = self._table()
        table.apply(table.warehouse, self._marker, [begin])

    def close(self) -> None:
        """The closing one, number 2, of a writer that has one: at once, the opening has emptied the day."""
        if not self.writer.closes:
            return
        close = self._action(2, {**(self.writer.closing() or {}), "action": CLOSE})
        if isinstance(self.writer, DatasetWriter):
            target = self._folder(self.writer)
            with target.connect(self.systems.url(self.writer.connection)) as claim:
                target.close_group(claim, close, 0, ())
            return
        if isinstance(self.writer, DeltaWriter):
            with self._delta(self.writer) as (delta, log):
                delta.apply_held(log, self._marker, HeldGroup(2, 2, 0), close, ())
            return
        table = self._table()
        table.apply_held(table.warehouse, self._marker, HeldGroup(2, 2, 0), close, ())

    def _action(self, number: int, description: Mapping[str, Any]) -> WriteAction:
        return WriteAction(*self._where, number, self.systems.identity.token, pa.table({}), description)

    @property
    def _where(self) -> tuple[str, str, str]:
        return self.systems.identity.run_uid, self.name, self.writer.connection

    @property
    def _marker(self) -> Marker:
        identity = self.systems.identity
        return Marker(*self._where, 0, identity.token, identity.started_at, line=identity.line)

    def _table(self) -> TableTarget:
        assert isinstance(self.writer, TableWriter)
        return table_target(self.name, self.writer, self.systems)

    @contextmanager
    def _delta(self, writer: DeltaWriter) -> Iterator[Any]:
        from airflow_logio.systems.delta.delta_target import delta_target

        target = delta_target(writer, self.systems)
        with target.connect(self.systems.url(writer.connection)) as log:
            yield target, log

    def _folder(self, writer: DatasetWriter) -> DayTarget:
        return DayTarget(writer, self.systems.identity, _of_no_records, _of_no_records, _of_no_records)


def _of_no_records(*_: object) -> NoReturn:
    raise AssertionError("a day that is forgotten has no records, which could be read, copied or audited")
