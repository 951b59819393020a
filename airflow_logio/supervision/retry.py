"""Before a person takes a run up again: which drivers are lost, what can be launched, which tables still take its rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Protocol

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, WriteRefused
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, LAUNCHING, GroupState
from airflow_logio.spark.publishing import check_not_replaced
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.look import Observation, Watcher
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import table_target

log = logging.getLogger(__name__)

STARTABLE = (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)


def nothing_to_retry(
    run: Run, statuses: Mapping[str, GroupStatus], asked: Collection[str], startable: Collection[GroupState] = STARTABLE
) -> str:
    """Why none of the groups that were `asked` for is launched again."""
    states = ", ".join(f"{name} is {statuses[name].state.value}" for name in asked)
    return (
        f"run {run.spec.key} has nothing to retry: {states}, and none of their Input Sets is quarantined; only a group that "
        f"is one of {', '.join(startable)} is launched again"
    )


class Resumed(Protocol):
    """A run that a person resumes; a `LaunchContext` is one."""

    @property
    def store(self) -> LogStore: ...

    @property
    def run(self) -> Run: ...

    @property
    def pipeline(self) -> Pipeline: ...

    @property
    def connections(self) -> Mapping[str, str]:
        """The pipeline's connection name → URL: of its writers, at least."""


def check_destinations(context: Resumed, operators: Iterable[str]) -> None:
    """Raise `WriteRefused` if a newer run owns a table or folder that events of these operators reach; it says what to do.

    Put back all the same, the Input Sets would only park the run. Raises `ExternalUnavailable` if a database or file system
    does not answer. A run that begins after this question, and takes one over, is found out by the write itself.
    """
    run = context.run
    pipeline = context.pipeline.for_run(run.spec.params)
    graph = pipeline.graph
    reached = {name for operator in operators for name in (operator, *graph.downstream(operator))}
    for name in sorted(reached):
        try:
            _check(context, name, pipeline.operators[name])
        except WriteRefused as error:
            raise WriteRefused(
                f"nothing was put back: {error}. To have the rows of these Input Sets, process the same input in a run "
                f"of its own: a new one, or this one again (`logio fresh {run.uid[:8]}`), which writes all of its rows anew"
            ) from error
        except ExternalUnavailable as error:
            raise ExternalUnavailable(
                f"nothing was put back: {error}. Try again when the database, or the file system, answers"
            ) from error


def check_days(context: Resumed, groups: Iterable[str]) -> None:
    """Raise `WriteRefused` if a writer that owns a day, in these groups or behind them, could not write there: a younger run
    has claimed it, or another pipeline.

    The groups would compute all of it and then be parked. Of a group that has finished nothing is asked, and where a database
    or file system does not answer, or another run has locked it, the driver asks again.
    """
    run = context.run
    pipeline = context.pipeline.for_run(run.spec.params)
    wholes = {replicated_group(one.group) for one in context.store.groups(run.run_id) if one.state not in CONCLUDED}
    asked = {replicated_group(name) for name in groups}
    begins = [name for name in pipeline.operators if pipeline.home(name) in asked]
    reached = {name for begin in begins for name in (begin, *pipeline.graph.downstream(begin))}
    for name, writer in pipeline.operators.items():
        replaces = isinstance(writer, OwningWriter) and writer.by
        closes = isinstance(writer, ActionWriter) and writer.closes
        if name not in reached or not (closes or replaces) or pipeline.home(name) not in wholes:
            continue
        try:
            _check(context, name, writer)
        except WriteRefused as error:
            raise WriteRefused(
                f"run {run.spec.key} is not resumed: its writer {name!r} would be refused. {error}. If its rows "
                f"are to replace those of a younger run of its pipeline: `logio again {run.uid[:8]}` gives it up, and the "
                "run in its place is younger"
            ) from error
        except ExternalUnavailable as error:
            log.info("whether %r can still write is left to its driver, which waits: %s", name, error)


def _check(context: Resumed, name: str, writer: Operator) -> None:
    run, line = context.run, (context.run.spec.key.pipeline, context.store.log_uid(), context.run.ordinal)
    if not isinstance(writer, OwningWriter):
        return
    takes_over = Allowed.TAKE_OVER in run.spec.allowed
    identity = WriterIdentity(run.uid, 0, run.created_at, (), *line, takes_over)
    if isinstance(writer, DatasetWriter):
        check_not_replaced(writer, context.connections[writer.connection], identity)
        return
    systems = Connections(line[0], context.connections, identity, run.spec.replay_seconds)
    with closing(systems):
        if isinstance(writer, DeltaWriter):
            from airflow_logio.systems.delta.delta_target import delta_target

            delta_target(writer, systems).check_not_replaced(systems.url(writer.connection))
            return
        assert isinstance(writer, TableWriter)
        table_target(name, writer, systems).check_not_replaced(Owner(run.uid, run.created_at))


POLL_SECONDS = 0.1
_MARGIN_SECONDS = 5.0


def find_lost(
    store: LogStore,
    run: Run,
    groups: Sequence[str],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Mapping[str, str]:
    """Look at the groups that have a driver until each has given a heartbeat or was declared dead; group → cause.

    At once where the driver's process can be seen to be gone, else after its lease. What is being launched is left to a
    supervisor. Raises `LogUnavailable` if the log cannot be asked at first.
    """
    open_ = {one.group: one for one in store.groups(run.run_id) if one.group in groups and one.state in ALIVE}
    watcher = Watcher(store, run, tuple(open_))
    deadline = clock() + run.spec.lease.seconds + _MARGIN_SECONDS
    lost: dict[str, str] = {}
    while open_ and clock() < deadline:
        look = watcher.look()
        for name, before in list(open_.items()):
            seen = look.observations[name]
            if seen.is_dead:
                lost[name] = seen.cause or "dead"
            if _is_known(before, seen):
                del open_[name]
        if open_:
            sleep(POLL_SECONDS)
    return lost


def _is_known(before: GroupStatus, seen: Observation) -> bool:
    """Whether a look has told what there is to tell."""
    now = seen.status
    if now is None or seen.left_to_standby:
        return False
    gives_beats = (now.incarnation, now.beat) != (before.incarnation, before.beat)
    return now.state not in ALIVE or now.state in LAUNCHING or gives_beats
