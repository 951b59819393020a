"""Simulates a pipeline as its author wrote it: the adapters are those of a driver, the external systems are simulated.

Operators of mode ``executors`` and ``dataframe`` need a Spark session and are refused. So are operators driven by hand and
sources of one's own that read a connection. Give the simulator a pipeline in which Arrow functions and tables stand in for
them, as the example of the sales pipeline does. A `QuerySource` is answered by tables, as reads are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.column_types import column_type
from airflow_logio.dataflow.operators import Operator, SourceBatch, SourceOperator, StatefulOperator, StatelessOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.dataflow.replication import Dispatcher, Routes
from airflow_logio.dataflow.sources import QuerySource
from airflow_logio.dataflow.sources.connected import ConnectedSource
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.driver.garbage import sweeps_of
from airflow_logio.driver.logics.operator_specs import captured_inputs, specs_of
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch.start_run import replicated_shapes
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.values import ExecutionMode, Port
from airflow_logio.systems.calls import CallWatch
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.databases.sql_types import arrow_type
from airflow_logio.testing.simulator.codec import ArrowCodec
from airflow_logio.testing.simulator.external_systems import ExternalSystem, Guarantee
from airflow_logio.testing.simulator.plan import (
    Batch,
    Destinations,
    GroupPlan,
    Observed,
    Read,
    Scenario,
    Sweep,
    Systems,
)

RETENTION = 30.0
"""In ticks of the log's clock. A schedule has some hundreds of ticks."""


class ScriptedSource(SourceOperator):
    """A replayable source over a table in memory. `records_per_event` records make one event."""

    def __init__(self, table: pa.Table, records_per_event: int) -> None:
        self._table = table
        self.records_per_event = records_per_event

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"records": self._table.num_rows}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for start in range(offset, self._table.num_rows, self.records_per_event):
            part = self._table.slice(start, self.records_per_event)
            yield SourceBatch(part, start + part.num_rows)


def pipeline_scenario(
    pipeline: Pipeline,
    *,
    params: Mapping[str, Any] | None = None,
    partition: PartitionKey | None = None,
    tables: ExternalTables | None = None,
    expected: Callable[[], Destinations] | None = None,
    expected_of: Callable[[Read], Destinations] | None = None,
    judge: Callable[[Observed, Any], Sequence[str]] | None = None,
    deterministic: bool = True,
    drains: bool | None = None,
    weights: Mapping[str, float] | None = None,
) -> Scenario:
    """Make a scenario of a pipeline from its run parameters, the data that its side-effect reads find, and, if known, the
    expected result.

    A pipeline with a partition needs one for the run: ``partition=pipeline.partition.key_of("2026-03-01")``.

    `tables` says what each connection holds that is read, beside the input or by a `QuerySource`. Give its tables by name,
    and the result of a source's query by the name of the source; or a function of read and keys that answers every read,
    even a `FunctionRead`, and a source, which has no keys. The function is called again after a crash. If it may then answer
    differently, set ``deterministic=False``.

    With ``deterministic=False`` no two runs are alike (random, uuid, now), so none is compared with a failure-free run. What
    is left is crash safety: all invariants of the log, and that each destination has exactly the write actions that the log
    has, in order. A `judge` may say what else must hold of a result.

    Otherwise, without `expected`, every schedule is compared with a failure-free run. In every eighth schedule the run is
    drained, unless there is a `judge`. A `judge` that checks `Observed.read`, the part of the input that was read, allows
    `drains=True`. A run with a writer that `closes` is never drained. If operators quarantine, quarantined Input Sets are
    retried, and results are compared regardless of order. If lineage has a retention, it expires after some ticks of a clock
    that has no seconds.

    If groups are replicated, replicas come and go, and slots move at any moment. Every schedule is then compared, record by
    record and regardless of order, with the same pipeline without replication; `expected` and `judge` also refer to that
    one. Set ``deterministic=False`` if the result depends on the order of events of different keys, or of whole events:
    then the judge sees what the replicas have made.

    Raises `PipelineDefinitionError` for an operator that cannot run here, `ConfigurationError` for unusable parameters.
    """
    rows: dict[str, Rows] = {}
    for name, operator in pipeline.operators.items():
        _refuse_what_needs_more(name, operator)
        refuse_unknown_reads(name, operator, tables or {})
        if isinstance(operator, QuerySource):
            rows[name] = Rows(name, operator, tables or {})
    plain: Scenario | None = None
    closes = any(isinstance(operator, ActionWriter) and operator.closes for operator in pipeline.operators.values())
    drains = (judge is None if drains is None else drains) and not closes
    if pipeline.replicated and deterministic:
        plain = pipeline_scenario(
            pipeline.unreplicated(),
            params=params,
            partition=partition,
            tables=tables,
            expected=expected,
            expected_of=expected_of,
            judge=judge,
            drains=drains,
        )
        expected, expected_of, judge = None, None, None
    checked = pipeline.check_params(dict(params or {}), partition)
    pipeline = pipeline.for_run(checked)
    guarantees = _guarantees(pipeline)
    retention, sweeps, kept = _retention(pipeline)
    return Scenario(
        pipeline.name,
        partial(_groups, pipeline, tables or {}, weights or {}, checked),
        {
            name: _ReadActions(operator, checked, rows.get(name))
            for name, operator in pipeline.operators.items()
            if isinstance(operator, SourceOperator)
        },
        {name: partial(ExternalSystem, guarantees.get(name, Guarantee.CONDITIONAL)) for name in pipeline.connections},
        codec=ArrowCodec(),
        expected=expected,
        expected_of=expected_of,
        judge=judge,
        deterministic=deterministic,
        drains=drains,
        replicated=replicated_shapes(pipeline),
        plain=plain,
        retries=any(operator.on_error == "quarantine" for operator in pipeline.operators.values()),
        retention=retention,
        sweeps=sweeps,
        kept=kept,
        crash_stop=any(guarantee is not Guarantee.CONDITIONAL for guarantee in guarantees.values()),
    )


def _retention(pipeline: Pipeline) -> tuple[float | None, Sequence[Sweep], frozenset[Port]]:
    """Ticks until lineage expires, what is swept, and the output ports whose lineage stays. None if nothing expires."""
    swept = [sweep for group in pipeline.groups for sweep in sweeps_of(pipeline, group)]
    expiring = {Port(sweep.operator, sweep.name) for sweep in swept if sweep.kept is Kept.EVENTS}
    captured = {Port(name, port) for name in pipeline.operators for port in pipeline.lineage_ports(name)[1]}
    if not expiring:
        return None, (), frozenset(captured)
    ticks = [replace(sweep, retention_seconds=RETENTION) if sweep.retention_seconds else sweep for sweep in swept]
    return RETENTION, [partial(sweep.batch, 0) for sweep in ticks], frozenset(captured - expiring)


def _refuse_what_needs_more(name: str, operator: Operator) -> None:
    """Refuses an operator that needs a Spark session, a database, or a program that drives it."""
    if operator.mode is not ExecutionMode.DRIVER:
        raise PipelineDefinitionError(
            f"operator {name!r} has mode {operator.mode}, which needs a Spark session; the simulator has none. Give it a "
            "pipeline in which an Arrow function of mode 'driver' stands in for it"
        )
    if not isinstance(operator, SourceOperator | StatelessOperator | StatefulOperator):
        raise PipelineDefinitionError(
            f"operator {name!r} is driven by hand; the simulator cannot do that. Give it a pipeline in which a "
            "function or a ScriptedSource stands in for it; one by hand is tested by killing its driver (airflow_logio.crash)"
        )
    if isinstance(operator, ConnectedSource) and not isinstance(operator, QuerySource):
        raise PipelineDefinitionError(
            f"source {name!r} reads connection {operator.connection!r}, and the simulator reads nothing outside. Give it a "
            "pipeline in which a ScriptedSource over an Arrow table stands in for it"
        )


def _guarantees(pipeline: Pipeline) -> Mapping[str, Guarantee]:
    found: dict[str, Guarantee] = {}
    for name, operator in pipeline.operators.items():
        for connection, guarantee in operator.writes().items():
            made = Guarantee(str(guarantee))
            if found.setdefault(connection, made) is not made:
                raise PipelineDefinitionError(
                    f"writer {name!r} promises {made.value} write actions on connection {connection!r}, another one "
                    f"{found[connection].value} ones; the simulator has one kind of system per connection"
                )
    return found


def _groups(
    pipeline: Pipeline,
    tables: ExternalTables,
    weights: Mapping[str, float],
    params: Mapping[str, Any],
    _systems: Systems,
) -> Sequence[GroupPlan]:
    connections = cast(Connections, Reads(tables, params))
    routes = any_routes(pipeline)
    plans = []
    for name, group in pipeline.groups.items():
        specs, receivers = specs_of(pipeline, group.operators, connections, routes.__getitem__)
        plans.append(
            GroupPlan(name, tuple(specs), receivers, frozenset(captured_inputs(pipeline)), weights.get(name, 1.0))
        )
    return plans


class _ReadActions:
    """The read actions of a source operator. Each batch is read once and kept: a replayable source returns it again."""

    def __init__(self, operator: SourceOperator, params: Mapping[str, Any], rows: Rows | None) -> None:
        self._operator, self._params, self._rows = operator, params, rows
        self._actions: list[Mapping[str, Any]] | None = None
        self._effects: dict[tuple[int, int], dict[int, Batch]] = {}

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]:
        if self._actions is None:
            following: Mapping[str, Any] | None = self._operator.action(self._params)
            self._actions = []
            while following is not None:
                self._actions.append(following)
                following = self._operator.next_action(self._params, following)
        return self._actions

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        key = (action, reading)
        if key not in self._effects:
            batches, start = {}, 0
            for read in self._read(self.actions[action]):
                batches[start] = Batch(read.table, read.table.num_rows, read.next_offset, read.about)
                start = read.next_offset
            self._effects[key] = batches
        return self._effects[key].get(offset)

    def _read(self, action: Mapping[str, Any]) -> Iterator[SourceBatch]:
        if isinstance(self._operator, ConnectedSource):
            assert self._rows is not None
            return self._operator.read_from(self._rows, self._params, action, 0)
        return self._operator.read(self._params, action, 0)


# --- side-effect reads: the user says what external systems hold ------------------------------------------------------


Answers = Callable[[DeclaredRead | QuerySource, pa.Array | None], pa.Table]
"""Stands in for an external system: returns the effect of a read, for these keys if it has a key, or the rows of a source."""
Contents = Mapping[str, pa.Table] | Answers
"""The tables of a SQL database by name, the result of a source's query by the source's name; or a function that answers any
read, even a `FunctionRead`."""
ExternalTables = Mapping[str, Contents]
"""Connection → what reads and sources find there."""

NEXT_STEP = (
    "say what it holds, `scenario = pipeline_scenario(pipeline, tables={{{connection!r}: ...}})` with its tables by name or "
    "with one function of read and keys, and simulate that (`file.py:scenario` for `logio simulate`)"
)


class Reads:
    """What operators see of connections."""

    def __init__(self, tables: ExternalTables, params: Mapping[str, Any]) -> None:
        self._tables = tables
        self.params = MappingProxyType(dict(params))
        self.calls = CallWatch()

    def read(self, read: DeclaredRead, keys: pa.Array | None) -> pa.Table:
        """The effect of a side-effect read. Raises `ConfigurationError` if the user has not given it."""
        found = _contents(self._tables, read)
        if found is None:
            raise ConfigurationError(_unknown(str(read), read.connection))
        if not isinstance(found, pa.Table):
            return _answered(found, read, keys)
        if keys is not None and read.key is not None:
            found = found.filter(pc.is_in(found.column(read.key), pc.unique(keys)))
        columns = read.columns if isinstance(read, TableRead) else ()
        return found.select(list(columns)) if columns else found


def refuse_unknown_reads(name: str, operator: Operator, tables: ExternalTables) -> None:
    """Raises `PipelineDefinitionError` if an operator reads data that the user has not given to the simulator."""
    if isinstance(operator, SourceOperator):
        return
    declared: Mapping[str, DeclaredRead] = getattr(operator, "reads", {})
    for read in declared.values():
        if _contents(tables, read) is None:
            raise PipelineDefinitionError(f"operator {name!r}: {_unknown(str(read), read.connection)}")
    for connection in operator.connections():
        if connection not in tables and connection not in operator.writes():
            raise PipelineDefinitionError(f"operator {name!r}: {_unknown('what it reads', connection)}")


class Rows:
    """A connection as a `QuerySource` sees it (`SourceConnection`): the rows of its table or query are those given for it."""

    def __init__(self, name: str, source: QuerySource, tables: ExternalTables) -> None:
        """Raises `PipelineDefinitionError` if the user has not given them."""
        self._source = source
        contents = tables.get(source.connection, {})
        place = source.table or name
        found: pa.Table | Answers | None = contents if callable(contents) else contents.get(place)
        if found is None:
            what = (
                f"table {place!r}" if source.table else f"the result of the query, under the source's name, {name!r},"
            )
            raise PipelineDefinitionError(f"source {name!r}: {_unknown(what, source.connection)}")
        self._found = found

    @property
    def url(self) -> str:
        return "simulated://"

    def quoted(self, name: str) -> str:
        return name

    def column(self, rows: str, name: str) -> str:
        return f"{rows}.{name}"

    def query(
        self,
        statement: str,
        values: Mapping[str, Any],
        columns: Mapping[str, str | None],
        table: str | None = None,
        key: Sequence[str] = (),
    ) -> Iterator[pa.Table]:
        """Raises `ConfigurationError` if they are not what the source declares."""
        found = self._found
        rows = found if isinstance(found, pa.Table) else _answered(found, self._source, None)
        names = list(columns) or rows.column_names
        if missing := [name for name in names if name not in rows.column_names]:
            raise ConfigurationError(
                f"what stands in for connection {self._source.connection!r} has no column {missing[0]!r}, which a source "
                f"reads; it has {', '.join(rows.column_names)}"
            )
        kinds = {name: column_type(name, kind) for name, kind in columns.items() if kind}
        try:
            typed = [rows[name].cast(arrow_type(kinds[name])) if name in kinds else rows[name] for name in names]
        except pa.ArrowException as error:
            raise ConfigurationError(
                f"what stands in for connection {self._source.connection!r} does not have the types that a source declares: "
                f"{error}"
            ) from error
        order = [(name, "ascending") for name in self._source.order_by]
        result = pa.table(typed, names=names)
        yield result.sort_by(order) if order else result


def _contents(tables: ExternalTables, read: DeclaredRead) -> pa.Table | Answers | None:
    contents = tables.get(read.connection, {})
    if callable(contents):
        return contents
    return contents.get(read.table) if isinstance(read, TableRead) else None


def _answered(answers: Any, read: DeclaredRead | QuerySource, keys: pa.Array | None) -> pa.Table:
    table = answers(read, keys)
    asked = f"the query of a source ({read.query or read.table})" if isinstance(read, QuerySource) else read
    if not isinstance(table, pa.Table):
        raise ConfigurationError(
            f"the function that stands in for connection {read.connection!r} answered {asked} with a "
            f"{type(table).__name__}; return an Arrow table"
        )
    return table


def _unknown(what: str, connection: str) -> str:
    next_step = NEXT_STEP.format(connection=connection)
    return f"the simulator reads nothing outside and does not know {what} of connection {connection!r}; {next_step}"


# --- hints to Dispatchers ---------------------------------------------------------------------------------------------


MOST_WAITING = 5


class AnyRoutes:
    """Some slots, owned by some replicas, have room. Each answer names others."""

    def __init__(self, slots: int, seed: str) -> None:
        self._slots = list(range(slots))
        self._random = random.Random(seed)

    def replicas(self) -> Sequence[Sequence[int]]:
        with_room = self._random.sample(self._slots, self._random.randint(1, len(self._slots)))
        owners: dict[int, list[int]] = {}
        for slot in with_room:
            owners.setdefault(self._random.randrange(len(with_room)), []).append(slot)
        return list(owners.values())

    def backlog(self, slot: int) -> int:
        return self._random.randrange(MOST_WAITING)


def any_routes(pipeline: Pipeline) -> Mapping[str, Routes]:
    """The hints for all Dispatchers of one schedule."""
    return {
        name: AnyRoutes(operator.slots, name)
        for name, operator in pipeline.operators.items()
        if isinstance(operator, Dispatcher)
    }
