"""The operators of a pipeline as the protocol knows them: what an epoch runs, and what can make lost events again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import SCHEMA, schema_of
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import Operator, StatefulOperator, StatelessOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.replication import Dispatcher
from airflow_logio.dataflow.sources import ParquetSource
from airflow_logio.dataflow.sources.ranges import forgets
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.driver.logics.adapters import DispatcherLogic, RoutesOf, StatefulLogic, StatelessLogic, no_routes
from airflow_logio.driver.logics.frame_adapters import FrameLogic, FrameWindowLogic
from airflow_logio.driver.logics.replay_check import ReplayLogic, contents, size
from airflow_logio.protocol.logic import Logic, OperatorSpec
from airflow_logio.protocol.replay import Offers, Replay
from airflow_logio.protocol.values import ExecutionMode, Port
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.payloads.bodies import Bodies


def specs_of(
    pipeline: Pipeline,
    members: Collection[str],
    connections: Connections,
    routes_of: RoutesOf = no_routes,
    first_actions: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[list[OperatorSpec], dict[Port, tuple[Port, ...]]]:
    """The given operators in topological order, and the receivers of their output ports.

    `first_actions` are those of the run's sources, by which a writer knows that the source before it has no records.
    """
    specs = []
    receivers: dict[Port, tuple[Port, ...]] = {}
    for name, operator in pipeline.operators.items():
        if name not in members:
            continue
        inside, outside = pipeline.lineage_ports(name)
        logic = _logic(pipeline, name, operator, connections, routes_of)
        if isinstance(logic, StatelessLogic) and isinstance(operator, ActionWriter):
            logic.empty_schema = _empty_schema(pipeline, name, first_actions)
        replay = pipeline.replays(name)
        if replay and logic is not None:
            logic = ReplayLogic(name, logic)
        specs.append(
            OperatorSpec(
                name=name,
                inputs=tuple(operator.inputs),
                outputs=tuple(operator.outputs),
                logic=logic,
                lineage_in=frozenset(inside),
                lineage_out=frozenset(outside),
                lineage_starts=pipeline.lineage_starts(name),
                asynchronous=operator.mode is ExecutionMode.EXECUTORS or isinstance(operator, FrameWindowOperator),
                reads_state=operator.reads_state,
                stateless=isinstance(operator, StatelessOperator),
                replayable=getattr(operator, "replayable", True),
                forgets=forgets(operator),
                port_order=tuple(operator.port_order),
                sends_after_writes=operator.sends_after_writes,
                evaluated=operator.mode is ExecutionMode.DATAFRAME,
                quarantines=operator.on_error == "quarantine",
                replay=replay,
                closes=isinstance(operator, ActionWriter) and operator.closes,
            )
        )
        for port in operator.outputs:
            receivers[Port(name, port)] = pipeline.receivers(Port(name, port))
    return specs, receivers


def captured_inputs(pipeline: Pipeline) -> frozenset[Port]:
    """Input ports of the whole pipeline for which lineage is captured (IN of Section 3.1)."""
    return frozenset(Port(name, port) for name in pipeline.operators for port in pipeline.lineage_ports(name)[0])


def _logic(
    pipeline: Pipeline, name: str, operator: Operator, connections: Connections, routes_of: RoutesOf
) -> Logic | None:
    if isinstance(operator, Dispatcher):
        return DispatcherLogic(pipeline.name, name, operator, connections, routes_of)
    if isinstance(operator, FrameWindowOperator):
        return FrameWindowLogic(pipeline.name, name, operator, connections)
    if operator.mode is ExecutionMode.DATAFRAME and operator.inputs:
        return FrameLogic(pipeline.name, name, operator, connections)
    if isinstance(operator, StatelessOperator):
        return StatelessLogic(pipeline.name, name, operator, connections)
    if isinstance(operator, StatefulOperator):
        return StatefulLogic(pipeline.name, name, operator, connections)
    return None


def _empty_schema(pipeline: Pipeline, writer: str, first_actions: Mapping[str, Mapping[str, Any]]) -> pa.Schema | None:
    """The schema of the source right before a writer, if its files have no rows."""
    senders = [pipeline.sender(Port(writer, port)).operator for port in pipeline.operators[writer].inputs]
    for sender in senders:
        if isinstance(pipeline.operators[sender], ParquetSource) and SCHEMA in first_actions.get(sender, {}):
            return schema_of(first_actions[sender][SCHEMA])
    return None


def replay_of(
    pipeline: Pipeline,
    connections: Connections,
    session: GroupSession,
    bodies: Bodies,
    is_rebuilding: Callable[[], bool],
    offers: Offers | None = None,
) -> Replay:
    """The replay of one epoch (Section 5, ADR-106): any driver can make the events of any replay operator again.

    `offers` is what senders hand over directly. It waits for a log that is unavailable while memory `is_rebuilding`;
    delivery asks again by itself, or ends. Without replay operators it costs nothing.
    """
    known: dict[str, Logic] = {}

    def logic_of(operator: str) -> Logic:
        if operator not in known:
            (spec,), _ = specs_of(pipeline, [operator], connections)
            assert spec.logic is not None, f"{operator} is a source"
            known[operator] = spec.logic
        return known[operator]

    input_sets = partial(session.input_sets, still_wanted=is_rebuilding)
    return Replay(logic_of, input_sets, bodies.unpacked, contents, size, offers)
