"""Mode ``dataframe``: the generation of many triggered Input Sets, whose records stay on Spark's executors (ADR-84).

The declared reads of a job are obtained before it begins, each whole and durable (ADR-94).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.arrow_tables import INSET_ID, uniform
from airflow_logio.dataflow.functions.holding import SCHEMAS
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import InputSet, SparkFrame
from airflow_logio.dataflow.reads import DeclaredRead, FunctionRead, TableRead
from airflow_logio.driver.logics.frame_adapters import other_columns
from airflow_logio.driver.spark_jobs.evaluation import Evaluation, SetsJob
from airflow_logio.driver.spark_jobs.faults import shortened
from airflow_logio.driver.spark_jobs.jobs import JobRunner
from airflow_logio.driver.spark_jobs.together import Contract, NotTogether, made_apart
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import FailurePoint, LogioError, OperatorFailed, SparkLost
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.protocol.values import SENT_SCHEMA, Port
from airflow_logio.spark.chains import Evaluated
from airflow_logio.spark.database_tasks import may_hand
from airflow_logio.spark.dataset_jobs import (
    frame_of,
    lookup,
    materialized,
    materialized_apart,
    materialized_sets,
    written_by_driver,
)
from airflow_logio.spark.dataset_parts import FileSpans, frame_of_set, frame_of_sets
from airflow_logio.spark.kept_apart import marked_records
from airflow_logio.spark.row_readers import (
    MOST_ASKED,
    MOST_IN_DRIVER,
    TableRows,
    asked_keys,
    distinct_keys,
    looked_up_frame,
    rows_frame,
    too_many,
)
from airflow_logio.spark.schemas import schema_of
from airflow_logio.spark.store_probe import spark_root
from airflow_logio.systems.connections import Connections, describe_read, number_of
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset

log = logging.getLogger(__name__)
SMALL_BYTES = 8 * 2**20
"""An answer of up to so many bytes, as Arrow, is a table in the driver; a larger one is a dataset."""
_NO_COLUMNS = json.dumps({"type": "struct", "fields": []})
"""The schema of a port that has never had an event."""
Frames = Callable[[], Mapping[str, SparkFrame]]
"""The records of the Input Sets of a job, by input port."""
Tables = Iterator[pa.Table]


class FrameJobs(JobRunner[FrameWindowOperator]):
    """`evaluation` runs the jobs, as the Spark jobs of this epoch. `captures` says whether lineage leads from its output
    port to its reads."""

    def __init__(self, evaluation: Evaluation, payloads: EpochPayloads, captures: bool, *common: Any) -> None:
        super().__init__(*common)
        self._evaluation = evaluation
        self._payloads = payloads
        self._captures = captures
        self._jobs = 0
        self._columns: str | None = None
        """The columns of its output port, as far as this driver knows: the state of a part of a job has only those before."""
        self._has_other_columns = False

    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        admitted = [one for one in sets if self._operator.window.admits(one.inset_id, self._state)]
        if not admitted:
            return [[] for _ in sets], 0, []
        self._jobs += 1
        at, what = self._point(sets), f"operator {self._name!r}, {_named(admitted)}"
        effects = self._obtained(admitted, at, what)
        crash_here(CrashPoint.BEFORE_JOB)
        try:
            made = self._evaluation.evaluate(SetsJob(what, at, lambda: self._materialized(admitted, effects)))
        except OperatorFailed:
            discard(self._payloads, effects.values())
            raise
        if made is None:
            discard(self._payloads, effects.values())
            raise NotTogether
        crash_here(CrashPoint.AFTER_JOB)
        outputs = {one.inset_id: self._sent(made.get(place)) for place, one in enumerate(admitted)}
        records = sum(dataset.num_rows for dataset in made.values())
        return [outputs.get(one.inset_id, []) for one in sets], records, self._logged(effects, bool(made))

    def _obtained(self, sets: Sequence[InputSet], at: FailurePoint, what: str) -> Mapping[str, ReadEffect]:
        """The effects of the declared reads of the job, by name."""
        if not self._operator.reads:
            return {}
        reads = FrameReads(
            self._name,
            self._jobs,
            self._operator.reads,
            self._connections,
            self._payloads,
            self._sessions,
            self._evaluation.gate.before_job,
        )

        def obtain() -> Mapping[str, ReadEffect]:
            session = self._sessions.get()
            return reads.obtained(session, lambda: self._frames(session, sets))

        return self._evaluation.evaluate(SetsJob(f"{what}: reads", at, obtain))

    def _logged(self, effects: Mapping[str, ReadEffect], has_output: bool) -> list[Read]:
        """The read actions that lineage asks for (ADR-23). The log will name nothing of any other."""
        if self._captures and has_output:
            return [effect.logged() for effect in effects.values()]
        discard(self._payloads, effects.values())
        return []

    def _materialized(
        self, sets: Sequence[InputSet], effects: Mapping[str, ReadEffect]
    ) -> Mapping[int, Dataset] | None:
        """Place of an Input Set → its Output Set, where that has records; None if they cannot share a job."""
        session = self._sessions.get()
        reads = {name: effect.frame(session) for name, effect in effects.items()}
        where = [f"the Output Set of Input Set {one.inset_id!r} of operator {self._name!r}" for one in sets]
        purpose = f"datasets/{Port(self._name, self._operator.outputs[0])}/{self._jobs}"
        if self._contract is Contract.ONE:
            results = self._of_each(session, sets, reads)
            if results is None:
                return None
            self._evaluation.gate.before_job()
            self._check_alike([schema_of(one) for one in results])
            made = materialized_apart(self._payloads, where, purpose, results, self._check_columns)
        else:
            result = self._of_all(session, sets, reads)
            self._evaluation.gate.before_job()
            made = materialized_sets(self._payloads, where, purpose, result, self._check_columns)
            if (place := self._compared(sets)) is not None:
                alone = self._of_all(session, [sets[place]], reads).drop(INSET_ID)
                self._evaluation.gate.before_job()
                together = made.get(place)
                found = None if together is None else frame_of(session, together)
                self._compare(sets[place].inset_id, len(sets), found, alone)
        if made:
            self._columns = next(iter(made.values())).manifest.schema
        return made

    def _of_all(self, session: Any, sets: Sequence[InputSet], reads: Mapping[str, SparkFrame]) -> SparkFrame:
        """What the function makes of many Input Sets, with column ``inset_id``."""
        frames = {port: marked_records(frame, port) for port, frame in self._frames(session, sets).items()}
        found = self._marked(reads, frames)
        with self._called():
            result = self._operator.run_on(frames, found, self._connections.params)
        self._check_apart(result, [*frames.values(), *found.values()])
        return result

    def _of_each(
        self, session: Any, sets: Sequence[InputSet], reads: Mapping[str, SparkFrame]
    ) -> Sequence[SparkFrame] | None:
        """What the function makes of each Input Set; None if they cannot share a job."""
        by_name, spans = {one.inset_id: one for one in sets}, FileSpans()

        def make(name: str) -> SparkFrame:
            self._evaluation.gate.check_wanted()
            frames = self._frames_of_one(session, by_name[name], spans)
            found = self._keyed(reads, frames)
            with self._called():
                return self._operator.run_one(name, frames, found, self._connections.params)

        return made_apart(list(by_name), make, spark_root(session, self._payloads.files))

    def _check_alike(self, schemas: Sequence[str]) -> None:
        """Input Sets of one job whose results have other columns than the first. Raises `OperatorFailed`."""
        for schema in schemas[1:]:
            if schema != schemas[0]:
                self._has_other_columns = True
                raise other_columns(f"output port {self._operator.outputs[0]!r}", schemas[0], schema)

    def _frames_of_one(self, session: Any, one: InputSet, spans: FileSpans) -> Mapping[str, SparkFrame]:
        operator, parts = self._operator, self._operator.held_by_port(one.held)
        return {
            port: frame_of_set(
                session,
                operator.window,
                one.inset_id,
                parts.get(port, ()),
                operator.columns,
                self._state[SCHEMAS].get(port, _NO_COLUMNS),
                spans,
            )
            for port in operator.inputs
        }

    def _check_columns(self, schema: str) -> None:
        """Before a receiver gets them, which could not be helped any more. Raises `OperatorFailed`."""
        known = self._state.get(SENT_SCHEMA) or self._columns
        if known is not None and known != schema:
            self._has_other_columns = True
            raise other_columns(f"output port {self._operator.outputs[0]!r}", known, schema)

    def _concerns_all(self) -> bool:
        return self._has_other_columns or super()._concerns_all()

    def _frames(self, session: Any, sets: Sequence[InputSet]) -> Mapping[str, SparkFrame]:
        operator, names = self._operator, [one.inset_id for one in sets]
        held = [operator.held_by_port(one.held) for one in sets]
        return {
            port: frame_of_sets(
                session,
                operator.window,
                names,
                [parts.get(port, ()) for parts in held],
                operator.columns,
                self._state[SCHEMAS].get(port, _NO_COLUMNS),
            )
            for port in operator.inputs
        }

    def _sent(self, dataset: Dataset | None) -> Sequence[Output]:
        if dataset is None:
            return []
        payload = Evaluated(dataset, dataset.manifest.schema)
        return [Emit(self._operator.outputs[0], payload, dataset.num_rows)]


def _named(sets: Sequence[InputSet]) -> str:
    if len(sets) == 1:
        return f"Input Set {sets[0].inset_id!r}"
    return f"{len(sets)} Input Sets from {sets[0].inset_id!r} to {sets[-1].inset_id!r}"


class FrameReads:
    """Those of one job, the `number`-th of operator `operator` in this epoch. For the thread of the job alone.

    `before_job` is called before each job of Spark.
    """

    def __init__(
        self,
        operator: str,
        number: int,
        declared: Mapping[str, DeclaredRead],
        connections: Connections,
        payloads: EpochPayloads,
        sessions: SparkSessions,
        before_job: Callable[[], None],
    ) -> None:
        self._operator = operator
        self._number = number
        self._declared = declared
        self._connections = connections
        self._payloads = payloads
        self._sessions = sessions
        self._before_job = before_job
        self._answers: dict[str, tuple[pa.Table, int | None]] = {}
        """What functions answered, and the number of keys: an unavailable payload store is no reason to ask again."""

    def obtained(self, session: Any, frames: Frames) -> Mapping[str, ReadEffect]:
        """The effects by name. If one cannot be obtained, nothing is left of those before it.

        Raises `OperatorFailed`, `ConfigurationError`, `ExternalUnavailable`, `LogUnavailable`, `SparkLost`, `Closed`,
        and what jobs raise.
        """
        effects: dict[str, ReadEffect] = {}
        try:
            for name, read in self._declared.items():
                keys = None if read.key is None else distinct_keys(frames(), read)
                if isinstance(read, FunctionRead):
                    effects[name] = self._of_function(session, name, read, keys)
                else:
                    effects[name] = self._of_table(session, name, read, keys)
        except Exception:
            discard(self._payloads, effects.values())
            raise
        return effects

    def _of_function(self, session: Any, name: str, read: FunctionRead, keys: SparkFrame | None) -> ReadEffect:
        if name not in self._answers:
            asked = None if keys is None else self._asked(keys, read, MOST_IN_DRIVER)
            if keys is not None and asked is None:
                raise too_many(read, MOST_IN_DRIVER)
            self._answers[name] = uniform(self._connections.read(read, asked)), number_of(asked)
        table, count = self._answers[name]
        return ReadEffect(read, _small_or(iter([table]), self._written(session, name, read)), count)

    def _of_table(self, session: Any, name: str, read: TableRead, keys: SparkFrame | None) -> ReadEffect:
        """The driver asks first. What is large, executors ask for if they can; otherwise the driver writes it on its way."""
        warehouse = self._connections.warehouse(read.connection)
        by_executors = warehouse.engine.dialect.name == "postgresql" and may_hand(self._payloads)
        asked = None if keys is None else self._asked(keys, read, MOST_ASKED if by_executors else MOST_IN_DRIVER)
        large = _nothing if by_executors else self._written(session, name, read)
        if keys is None or asked is not None:
            found = self._connections.pieces(read, asked, lambda tables: _small_or(tables, large))
            if found is not None:
                return ReadEffect(read, found, number_of(asked))
        elif not by_executors:
            raise too_many(read, MOST_IN_DRIVER)
        return self._by_executors(session, name, read, keys)

    def _asked(self, keys: SparkFrame, read: DeclaredRead, most: int) -> pa.Array | None:
        self._before_job()
        return asked_keys(keys, read, most)

    def _by_executors(self, session: Any, name: str, read: TableRead, keys: SparkFrame | None) -> ReadEffect:
        common = session, self._payloads, self._connections.warehouse(read.connection)
        url, key = self._connections.url(read.connection), () if read.key is None else (read.key,)
        rows = TableRows(read.table, read.columns, begins="the read of ", key=key)
        crash_here(CrashPoint.BEFORE_STORE)
        if keys is None:
            return self._stored(name, read, lambda: rows_frame(*common, url, rows), None)
        self._before_job()
        distinct = materialized(self._payloads, f"the keys of {read}", f"{self._purpose(name)}-keys", keys)
        try:
            looked_up = lambda: looked_up_frame(*common, url, rows, str(read.key), distinct)  # noqa: E731
            return self._stored(name, read, looked_up, distinct.num_rows)
        finally:
            _remove(self._payloads, [str(distinct.reference)])

    def _stored(self, name: str, read: TableRead, opened: Callable[[], Any], keys: int | None) -> ReadEffect:
        """`opened` gives a context of the rows: where they are not all of one snapshot, it is opened once more."""

        def attempt() -> Dataset:
            with self._by_spark(), opened() as frame:
                self._before_job()
                return materialized(self._payloads, self._where(read), self._purpose(name), frame)

        dataset = self._connections.replayed(read, attempt)
        crash_here(CrashPoint.AFTER_STORE)
        return ReadEffect(read, dataset, keys)

    def _written(self, session: Any, name: str, read: DeclaredRead) -> Callable[[Tables], Dataset]:
        def write(tables: Tables) -> Dataset:
            crash_here(CrashPoint.BEFORE_STORE)
            with self._by_spark():
                dataset = written_by_driver(session, self._payloads, self._where(read), self._purpose(name), tables)
            crash_here(CrashPoint.AFTER_STORE)
            return dataset

        return write

    @contextmanager
    def _by_spark(self) -> Iterator[None]:
        """A connection to Spark that is lost is none to the external system, which would be asked again."""
        try:
            yield
        except Exception as error:
            if isinstance(error, SparkLost) or not self._sessions.is_lost(error):
                raise
            raise SparkLost(f"Spark ended while operator {self._operator!r} read: {shortened(error)}") from error

    def _where(self, read: DeclaredRead) -> str:
        return f"the effect of the read of {read} by operator {self._operator!r}"

    def _purpose(self, name: str) -> str:
        return f"datasets/{self._operator}/{name}/{self._number}"


@dataclass(frozen=True, slots=True)
class ReadEffect:
    """What a declared read has given for one job."""

    declared: DeclaredRead
    payload: pa.Table | Dataset
    keys: int | None
    """Number of the keys to which it was restricted."""

    def frame(self, session: Any) -> SparkFrame:
        """What the author's function gets: the same columns and types, whatever the size."""
        if isinstance(self.payload, Dataset):
            return frame_of(session, self.payload)
        return lookup(session, self.payload)

    def logged(self) -> Read:
        """The read action, for the log."""
        described = describe_read(self.declared, self.keys)
        return Read(self.declared.connection, described, self.payload, self.payload.num_rows)


def discard(payloads: EpochPayloads, effects: Iterable[ReadEffect]) -> None:
    """Remove the files of effects that no row of the log will name."""
    _remove(payloads, [str(effect.payload.reference) for effect in effects if isinstance(effect.payload, Dataset)])


def _remove(payloads: EpochPayloads, refs: list[str]) -> None:
    """What cannot be removed now, the sweep finds."""
    try:
        payloads.remove(refs)
    except LogioError as error:
        log.warning("%d dataset(s) of reads are not removed: %s", len(refs), error)


def _small_or(tables: Tables, large: Callable[[Tables], Any]) -> Any:
    """The records as one table; where they are too many for that, what `large` makes of all of them."""
    found: list[pa.Table] = []
    size = 0
    for table in tables:
        found.append(table)
        size += table.nbytes
        if size > SMALL_BYTES:
            return large(chain(found, tables))
    return pa.concat_tables(found)


def _nothing(_tables: Tables) -> None:
    return None
