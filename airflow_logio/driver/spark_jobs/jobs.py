"""The generation of many triggered Input Sets in one Spark job (design D6 and D7).

The declared reads of a job are obtained once, in the driver, before the job; one read action per job, with a row per Input
Set. The job's result is split per Input Set; the log sees the same protocol as in mode ``driver``.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.arrow_tables import INSET_ID, needed_spark_frame, split_by_input_set
from airflow_logio.dataflow.functions.function_operators import keys_of
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import BatchGenerator, InputSet, PortTable, SparkFrame
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.driver.logics.replay_check import is_due
from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_jobs.faults import shortened, shuffle_lost
from airflow_logio.driver.spark_jobs.job_gate import Turn
from airflow_logio.driver.spark_jobs.together import (
    MOST_PLANS,
    Contract,
    NotTogether,
    are_alike,
    made_apart,
)
from airflow_logio.driver.spark_session import SparkSessions, partitions_for
from airflow_logio.errors import (
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    OperatorFailed,
    SparkLost,
    authored_frames,
)
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.spark.content_digests import have_same_records
from airflow_logio.spark.dataset_jobs import frame_of_table, free_name, keyed_as, lookup, union_of_sets
from airflow_logio.spark.kept_apart import check_kept_apart, have_whole_keys, marked_read, marked_records
from airflow_logio.systems.connections import Connections, describe_read, number_of

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
"""Attempts of a job that loses what tasks have shuffled. Spark itself gives up after so many, where it may try again."""

_OF_MANY = re.compile(r"`(inset_id|window_start)`.* cannot be resolved|UNRESOLVED_COLUMN.*`(inset_id|window_start)`")

Op = TypeVar("Op", bound=BatchGenerator | FrameWindowOperator)


@dataclass(frozen=True, slots=True)
class Generated:
    """A job has ended: outputs per Input Set in the order triggered, and the read actions of the job.

    `aside` are Input Sets to be quarantined, with their errors; `is_last` frees the runner.
    """

    operator: str
    results: list[tuple[str, Sequence[Output]]]
    reads: list[Read]
    aside: list[tuple[str, str]] = field(default_factory=list)
    is_last: bool = True


class JobRunner(ABC, Generic[Op]):
    """Runs one job at a time for one operator; the loop asks `is_free` and hands Input Sets to `start`.

    `origin` says where an Input Set comes from, in words; it is asked only for one to blame, from the job's thread. Spark
    jobs are those of `job_group`, which are cancelled when the epoch ends; `stopping` is set then.
    """

    def __init__(
        self,
        pipeline: str,
        name: str,
        operator: Op,
        sessions: SparkSessions,
        connections: Connections,
        origin: Callable[[str], str],
        done: Callable[[Generated], None],
        failed: Callable[[BaseException], None],
        job_group: str,
        stopping: threading.Event,
        turn: Turn,
        contract: Contract,
    ) -> None:
        self._pipeline = pipeline
        self._name = name
        self._operator = operator
        self._turn = turn
        self._contract = contract
        self._keys = {name: read.key for name, read in operator.reads.items() if read.key is not None}
        # A read by key is that of its Input Sets: what one finds must not depend on which others are in the job.
        self._is_alone = bool(self._keys)
        self._plans_of_many = 0
        self._is_warned = self._is_refused = False
        """Whether a plan over many Input Sets does not keep them apart."""
        self._differs: str | None = None
        """An Input Set whose result differs between a plan over many and one over it alone."""
        self._sessions = sessions
        self._connections = connections
        self._origin = origin
        self._done = done
        self._failed = failed
        self._job_group = job_group
        self._stopping = stopping
        self._thread: threading.Thread | None = None
        self._state: Mapping[str, Any] = {}
        self._has_generated = False

    def is_free(self) -> bool:
        return self._thread is None

    def start(self, input_sets: Sequence[tuple[str, Any]], state: Mapping[str, Any] | None = None) -> None:
        """`state` is a copy of the operator's global state."""
        self._state = state or {}
        sets = [InputSet(inset_id, held) for inset_id, held in input_sets]
        self._thread = threading.Thread(target=self._run, args=(sets,), name=f"logio-job-{self._name}", daemon=True)
        self._thread.start()

    def finished(self) -> None:
        """The loop has taken the result; the runner is free again."""
        self._thread = None

    @property
    def thread(self) -> threading.Thread | None:
        """The thread of the job that is under way."""
        return self._thread

    def _run(self, sets: Sequence[InputSet]) -> None:
        try:
            before: Generated | None = None
            for part in self._parts(sets):
                if before is not None:
                    self._done(replace(before, is_last=False))
                before = part
            assert before is not None, "a job has Input Sets"
            self._done(before)
        except Closed:
            return  # the epoch has ended
        except BaseException as error:
            self._failed(error)

    def _parts(self, sets: Sequence[InputSet]) -> Iterator[Generated]:
        """All of them in one plan, or as many plans as may share a job, one such job after the other."""
        if self._contract is not Contract.ONE:
            yield from self._isolating(sets)
            return
        left = list(sets)
        while left:
            several = 1 if self._is_alone else MOST_PLANS
            some, left = left[:several], left[several:]
            try:
                yield from self._isolating(some)
            except NotTogether:
                log.info("%s: each Input Set is generated by a job of its own", self._name)
                self._is_alone = True
                left = [*some, *left]

    def _isolating(self, sets: Sequence[InputSet]) -> Iterator[Generated]:
        """Run the job. Where it fails, halve it until the Input Set to blame is alone: that one is named, or set aside."""
        try:
            yield self._generate_again(sets)
        except (Closed, NotTogether):
            raise
        except Exception as error:
            if self._stopping.is_set():  # the job was cancelled: no operator has failed
                raise Closed from error
            if isinstance(error, LogioError) and not isinstance(error, OperatorFailed):
                raise
            if self._sessions.is_lost(error):  # no Input Set is to blame
                raise SparkLost(
                    f"Spark ended while it worked for operator {self._name!r}: {_first_lines(error)}"
                ) from error
            if self._concerns_all():
                raise self._failure(self._differs or sets[0].inset_id, error) from error
            if len(sets) == 1:
                yield self._to_blame(sets[0].inset_id, error)
                return
            log.warning(
                "%s: a job of %d Input Sets failed, looking for the one at fault: %s", self._name, len(sets), error
            )
            middle = len(sets) // 2
            yield from self._isolating(sets[:middle])
            yield from self._isolating(sets[middle:])

    def _concerns_all(self) -> bool:
        """Whether what has failed is the function, whichever Input Sets it gets: none is to be looked for, or set aside."""
        return self._is_refused

    def _check_apart(self, result: SparkFrame, given: Iterable[SparkFrame]) -> None:
        """Raises `OperatorFailed` if the plan of a function of many Input Sets does not keep them apart. For a run of an
        earlier version that is a warning: its function can say nothing else. `given` are its arguments."""
        try:
            check_kept_apart(result, self._keys, whole_keys=have_whole_keys(given, self._keys.values()))
        except OperatorFailed as error:
            if self._contract is not Contract.EARLIER:
                self._is_refused = True
                raise OperatorFailed(f"{self._function}: {error}") from error
            if not self._is_warned:
                log.warning("%s: %s: %s. An earlier version began the run", self._name, self._function, error)
            self._is_warned = True

    def _keyed(self, reads: Mapping[str, SparkFrame], records: Mapping[str, SparkFrame]) -> dict[str, SparkFrame]:
        """The rows of reads, by name; those of tables by key with keys as the records have them. `records` are by port."""
        found = dict(reads)
        for name, key in self._keys.items():
            if isinstance(self._operator.reads[name], TableRead):
                for frame in records.values():
                    found[name] = keyed_as(found[name], key, frame)
        return found

    def _marked(self, reads: Mapping[str, SparkFrame], records: Mapping[str, SparkFrame]) -> dict[str, SparkFrame]:
        """As `_keyed`, and those by key are found again in the plan of a function of many Input Sets."""
        found = self._keyed(reads, records)
        return {name: marked_read(frame, name) if name in self._keys else frame for name, frame in found.items()}

    def _compared(self, sets: Sequence[InputSet]) -> int | None:
        """The place of the Input Set that is generated alone, too, beside this plan over several; None for most plans."""
        if self._contract is not Contract.MANY or len(sets) == 1:
            return None
        self._plans_of_many += 1
        return self._plans_of_many.bit_length() % len(sets) if is_due(self._plans_of_many) else None

    def _compare(self, inset_id: str, count: int, together: SparkFrame | None, alone: SparkFrame | None) -> None:
        """Raises `OperatorFailed` if an Input Set has other records alone than in a plan of `count`."""
        if have_same_records(together, alone):
            return
        self._is_refused, self._differs = True, inset_id
        raise OperatorFailed(
            f"{self._function} has many=True, and makes other records of Input Set {inset_id!r} in a plan of {count} Input "
            "Sets than of that one alone. Either its plan mixes Input Sets, or the order of records decides (equal values in "
            "row_number(), first(), a limit within groups): make that unique. Or leave many=True out: then the function gets "
            "one Input Set"
        )

    @contextmanager
    def _called(self) -> Iterator[None]:
        """The call of the author's function."""
        with self._turn(), self._sessions.keeping_zone(self._function):
            yield

    @property
    def _function(self) -> str:
        return f"function {getattr(self._operator, 'function_name', type(self._operator).__name__)!r}"

    def _to_blame(self, inset_id: str, error: Exception) -> Generated:
        failure = self._failure(inset_id, error)
        if getattr(self._operator, "on_error", "fail") != "quarantine":
            raise failure from error
        return Generated(self._name, [], [], [(inset_id, str(failure))])

    def _failure(self, inset_id: str, error: Exception) -> OperatorFailed:
        cause = f"{type(error).__name__}: {_first_lines(error)}{authored_frames(error)}"
        return OperatorFailed(
            f"{error if isinstance(error, OperatorFailed) else cause}{self._advice(error)}",
            FailurePoint(self._name, inset_id=inset_id),
            place=f"pipeline {self._pipeline!r}, operator {self._name!r}, Input Set {inset_id!r}",
            is_first=not self._has_generated,
        ).further(self._origin(inset_id))

    def _advice(self, error: Exception) -> str:
        """For a function that looks for the columns of another contract."""
        if self._contract is Contract.ONE and _OF_MANY.search(str(error)):
            return (
                "\nA function gets one Input Set, without columns 'inset_id' and 'window_start': leave them out, take "
                "window_start as a parameter, or write many=True"
            )
        return ""

    def _generate_again(self, sets: Sequence[InputSet]) -> Generated:
        """As `_generate`, and again where executors were lost with what tasks had shuffled: no Input Set is to blame."""
        for attempt in itertools.count(1):
            try:
                return self._generate(sets)
            except Exception as error:
                if not shuffle_lost(error) or self._stopping.is_set():
                    raise
                said = f"operator {self._name!r}: Spark has lost executors, and with them what tasks had shuffled"
                if attempt == MOST_ATTEMPTS:
                    raise ExternalUnavailable(
                        f"{said}, {attempt} times: {shortened(error)}. The Input Sets stay in the log: when executors stay, "
                        "`logio retry` resumes it"
                    ) from error
                log.warning("%s; its job runs again: %s", said, shortened(error))
        raise AssertionError("the last attempt returns or raises")

    def _generate(self, sets: Sequence[InputSet]) -> Generated:
        started = time.monotonic()
        with self._connections.calls.call("run", self._point(sets)):
            outputs, records, reads = self._worked(sets)
        log.info("%s: %d Input Sets, %d records in %.2f s", self._name, len(sets), records, time.monotonic() - started)
        self._has_generated = True
        results = [(one.inset_id, made) for one, made in zip(sets, outputs, strict=True)]
        return Generated(self._name, results, reads)

    def _point(self, sets: Sequence[InputSet]) -> FailurePoint:
        if len(sets) == 1:
            return FailurePoint(self._name, inset_id=sets[0].inset_id)
        return FailurePoint(self._name, action=f"a Spark job of {len(sets)} Input Sets")

    @abstractmethod
    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        """Run the job. The outputs of each Input Set, the records that went in or came out, and the read actions."""


class TableJobs(JobRunner[BatchGenerator]):
    """Mode ``executors``: the records go into the job from the driver, and the result comes back."""

    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        operator, is_one = self._operator, self._contract is Contract.ONE
        tables = [operator.records_of(one) for one in sets] if is_one else [operator.tagged(sets)]
        effects = self._read(tables)
        crash_here(CrashPoint.BEFORE_JOB)
        where = f"operator {self._name!r}, {len(sets)} Input Sets from {sets[0].inset_id!r}"
        session = self._sessions.entered(self._job_group, where)
        reads = {name: lookup(session, effect) for name, (effect, _) in effects.items()}
        made = self._of_each(session, sets, tables, reads) if is_one else self._of_all(session, sets, tables[0], reads)
        crash_here(CrashPoint.AFTER_JOB)
        outputs = [[Emit(port, table, table.num_rows) for port, table in own] for own in made]
        return outputs, sum(table.num_rows for table in tables), [read for _, read in effects.values()]

    def _of_all(
        self, session: Any, sets: Sequence[InputSet], tagged: pa.Table, reads: Mapping[str, SparkFrame]
    ) -> Sequence[Sequence[PortTable]]:
        def made(table: pa.Table, count: int) -> Sequence[Sequence[PortTable]]:
            records = marked_records(self._frame(session, table), "in")
            found = self._marked(reads, {"in": records})
            with self._called():
                result = self._operator.run_with(records, found, self._connections.params)
            self._check_apart(needed_spark_frame(result, "the operator"), [records, *found.values()])
            return self._operator.split(result.toArrow(), count)

        outputs = made(tagged, len(sets))
        if (place := self._compared(sets)) is not None:
            (alone,) = made(self._operator.tagged([sets[place]]), 1)
            for port in self._operator.outputs:
                both = [[table for name, table in own if name == port] for own in (outputs[place], alone)]
                frames = [frame_of_table(session, pa.concat_tables(own)) if own else None for own in both]
                self._compare(sets[place].inset_id, len(sets), *frames)
        return outputs

    def _of_each(
        self, session: Any, sets: Sequence[InputSet], tables: Sequence[pa.Table], reads: Mapping[str, SparkFrame]
    ) -> Sequence[Sequence[PortTable]]:
        records = {one.inset_id: table for one, table in zip(sets, tables, strict=True)}

        def make(name: str) -> SparkFrame:
            frame = self._frame(session, records[name])
            found = self._keyed(reads, {"in": frame})
            with self._called():
                made = self._operator.run_one(name, frame, found, self._connections.params)
            return needed_spark_frame(made, "the operator")

        frames = made_apart(list(records), make)
        if frames is None or not are_alike(frames):
            raise NotTogether
        tag = free_name(INSET_ID, frames[0])
        result = union_of_sets(frames, tag).toArrow()
        port = self._operator.outputs[0]
        parts = split_by_input_set(result, len(sets), tag)
        return [[] if part is None else [(port, part)] for part in parts]

    @staticmethod
    def _frame(session: Any, table: pa.Table) -> SparkFrame:
        return frame_of_table(session, table).coalesce(partitions_for(session))

    def _read(self, tables: Sequence[pa.Table]) -> Mapping[str, tuple[pa.Table, Read]]:
        """The effects of the declared reads, by name."""
        effects = {}
        for name, read in self._operator.reads.items():
            keys = _without_signs_of_zero(keys_of(tables, read))
            table = self._connections.read(read, keys)
            described = describe_read(read, number_of(keys))
            effects[name] = (table, Read(read.connection, described, table, table.num_rows))
        return effects


def _without_signs_of_zero(keys: pa.Array | None) -> pa.Array | None:
    """A join of Spark takes -0.0 for 0.0, as databases do: asked for both, it would give the rows of either to each."""
    if keys is None or not pa.types.is_floating(keys.type):
        return keys
    return pc.unique(pc.if_else(pc.equal(keys, pa.scalar(0, keys.type)), pa.scalar(0, keys.type), keys))


def _first_lines(error: BaseException, count: int = 6) -> str:
    return "\n".join(str(error).splitlines()[:count])
