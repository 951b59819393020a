"""Starting a run: everything that can be wrong is checked before the log knows of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_logio.databases import read_url, sqlite_file
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.dataflow.pipeline.validation import check_session_zone
from airflow_logio.dataflow.sources import TableSource
from airflow_logio.dataflow.unavailability import check_replay_seconds, is_missing_input
from airflow_logio.dataflow.windows.zones import SESSION_ZONE, UTC_ITSELF
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.bucket_urls import check_place
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.run_shapes import writer_shapes
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, LogioError, authored_frames
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.launch.driver_config import has_frames
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import (
    REPLAY_SECONDS,
    Allowed,
    BacklogBound,
    OperatorShape,
    ReplicatedShape,
    RunKey,
    RunSpec,
    ScopeShape,
    Supervision,
)
from airflow_logio.store.rules.allowed_rules import check_allowed
from airflow_logio.systems.bucket_roots import check_library
from airflow_logio.systems.databases.table_names import check_schema_of_sqlite
from airflow_logio.systems.payload_roots import HOW_TO_CONFIGURE, check_shared
from airflow_logio.systems.rising_columns import not_followed
from airflow_logio.systems.warehouse import CONDITIONAL, not_conditional


def run_spec(
    pipeline: Pipeline,
    ref: PipelineRef,
    *,
    dag_id: str,
    dag_run_id: str,
    params: Mapping[str, Any],
    connections: Mapping[str, str],
    partition: PartitionKey | None = None,
    run_after: datetime | None = None,
    budget: RecoveryBudget | None = None,
    lease: Lease | None = None,
    backlog: BacklogBound | None = None,
    hold_sources: bool = False,
    replay_seconds: float | None = None,
    payloads: str | None = None,
    supervision: Supervision = Supervision.PROCESS,
    code: CodeBundle | None = None,
    spark: Mapping[str, Any] | None = None,
    allowed: Collection[Allowed] = (),
) -> RunSpec:
    """The description of a run, checked: parameters, connections (name → connection id), readable sources.

    `partition` is what the run is for, if the pipeline has partitions; one that has not ended is refused. It has by
    `run_after`, when a scheduler let the run begin, or by the clock of this host.
    `replay_seconds` is by default `REPLAY_SECONDS`. `payloads` is the root of the deployment's payload store
    (`payload_root`); it is not part of the description. `code` is what drivers will import: give it to `start_run`, too.
    `spark` is kept for later launches; it holds no secrets. `allowed` is what a person lets the run do.

    Raises `ConfigurationError` or `PipelineDefinitionError`, naming what is wrong.
    """
    pipeline, checked = given_to(pipeline, params, connections, partition, run_after)
    check_replay_seconds(replay_seconds)
    sources = {name: op for name, op in pipeline.operators.items() if isinstance(op, SourceOperator)}
    _check_storable(pipeline, sources, payloads)
    _check_shared(pipeline, payloads)
    for group in pipeline.groups.values():
        check_session_zone(group, pipeline.operators, group.spark.get(SESSION_ZONE, UTC_ITSELF))
    actions = {name: _first_action(name, source, checked) for name, source in sources.items()}
    fingerprint = pipeline.fingerprint()
    spec = RunSpec(
        key=RunKey(pipeline.name, dag_id, dag_run_id),
        pipeline_ref=str(ref),
        bundle_root=str(ref.bundle_root),
        groups=pipeline.applications,
        params=checked,
        connections=dict(connections),
        graph_fingerprint=fingerprint["graph"],
        code_fingerprint=fingerprint["code"],
        graph=pipeline.describe(),
        budget=budget or RecoveryBudget(),
        lease=lease or Lease(),
        actions=actions,
        backlog=backlog or BacklogBound(),
        hold_sources=hold_sources,
        replay_seconds=REPLAY_SECONDS if replay_seconds is None else float(replay_seconds),
        operators=operator_shapes(pipeline),
        scopes=tuple(
            ScopeShape(str(scope.start), str(scope.target), scope.retention_seconds) for scope in pipeline.scopes
        ),
        supervision=supervision,
        replicated=replicated_shapes(pipeline),
        code_digest=None if code is None else code.digest,
        spark=dict(spark or {}),
        partition=None if partition is None else partition.text,
        writers=writer_shapes(
            {base_operator(name): operator for name, operator in pipeline.operators.items()},
            connections,
            () if pipeline.partition is None else pipeline.partition.names,
        ),
        drivers_at_once=pipeline.drivers_at_once,
        keep_seconds=pipeline.keep_seconds,
        due=None if pipeline.partition is None else pipeline.partition.promise(),
        allowed=frozenset(allowed),
    )
    check_allowed(spec, spec.allowed)
    return spec


def given_to(
    pipeline: Pipeline,
    params: Mapping[str, Any],
    connections: Mapping[str, str],
    partition: PartitionKey | None,
    run_after: datetime | None,
) -> tuple[Pipeline, dict[str, Any]]:
    """The pipeline as a run has it, and the checked values of its parameters. Arguments and errors as of `run_spec`; what the
    run reads is not looked at."""
    checked = pipeline.check_params(params, partition)
    if partition is not None and pipeline.partition is not None:
        pipeline.partition.check_ended(partition, datetime.now(UTC), run_after)
    pipeline = pipeline.for_run(checked)
    check_connections(pipeline, connections)
    return pipeline, checked


def check_connections(pipeline: Pipeline, connections: Mapping[str, str]) -> None:
    """Raises `ConfigurationError` if these (name → connection id) are not the connections of the pipeline."""
    missing = [name for name in pipeline.connections if name not in connections]
    unknown = [name for name in connections if name not in pipeline.connections]
    if missing or unknown:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} needs connections {list(pipeline.connections)}: "
            f"{'missing ' + ', '.join(missing) if missing else 'unknown ' + ', '.join(unknown)}"
        )


def _first_action(name: str, source: SourceOperator, params: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return source.action(params)
    except ConfigurationError as error:
        raise ConfigurationError(f"source {name!r}: {error}") from error
    except LogioError:
        raise
    except Exception as error:  # of an author's own
        late = ". What it reads is not there yet" if is_missing_input(error) else ""
        cause = f"{type(error).__name__}: {error}{late}{authored_frames(error)}"
        raise ConfigurationError(f"source {name!r} cannot say what it reads: {cause}") from error


def check_table_databases(pipeline: Pipeline, url_of: Callable[[str], str]) -> None:
    """Raise `ConfigurationError` if a `TableWriter` names a database in which it cannot write exactly once, or a
    `TableSource` one that it cannot follow.

    `url_of` gives the URL of a connection of the pipeline; it is called for those of its tables only. Asks no database.
    """
    for name, operator in pipeline.operators.items():
        if not isinstance(operator, TableWriter | TableSource):
            continue
        kind = "writer" if isinstance(operator, TableWriter) else "source"
        try:
            backend = read_url(url_of(operator.connection)).get_backend_name()
            if backend == "sqlite":
                check_schema_of_sqlite(operator.table)
        except ConfigurationError as error:
            raise ConfigurationError(f"{kind} {name!r}, connection {operator.connection!r}: {error}") from None
        if backend not in CONDITIONAL:
            refused = not_conditional if isinstance(operator, TableWriter) else not_followed
            raise ConfigurationError(f"{kind} {name!r}: {refused(operator.connection, backend)}")


def check_published_places(pipeline: Pipeline, url_of: Callable[[str], str]) -> None:
    """Raise `ConfigurationError` if a `DatasetWriter` names a place of which what counts could not be told for sure.

    `url_of` as in `check_table_databases`; it is called for connections of these writers only. Asks no place.
    """
    for name, operator in pipeline.operators.items():
        if isinstance(operator, DatasetWriter):
            check_place(f"writer {name!r}: connection {operator.connection!r}", url_of(operator.connection))


def check_beside_log(pipeline: Pipeline, url_of: Callable[[str], str], log_url: str) -> None:
    """Raise `ConfigurationError` if a writer that closes has the SQLite file of the log as its database: while its one
    transaction replaces all rows, which may take long, no driver could commit to the log.

    `url_of` as in `check_table_databases`; it is called for connections of writers that close, which need not be databases.
    """
    log_file = sqlite_file(log_url)
    if log_file is None:
        return
    for name, operator in pipeline.operators.items():
        if not isinstance(operator, ActionWriter) or not operator.closes:
            continue
        file = sqlite_file(url_of(operator.connection))
        if file is not None and file.resolve() == log_file.resolve():
            raise ConfigurationError(
                f"writer {name!r}, connection {operator.connection!r}: {file} is the file of the log, too. This writer "
                "closes: it replaces all rows in one transaction, and no driver could commit to the log until its end. Give "
                "the connection a file of its own, or keep the log on PostgreSQL"
            )


def _check_storable(pipeline: Pipeline, sources: Mapping[str, SourceOperator], payloads: str | None) -> None:
    stored = [name for name, source in sources.items() if not source.replayable]
    if payloads is not None:
        check_library(payloads)
    if stored and payloads is None:
        raise ConfigurationError(
            f"source {stored[0]!r} of pipeline {pipeline.name!r} cannot be replayed: the effect of its reads must be stored "
            f"outside the log before it is used, and this deployment has no payload store. To give it one, {HOW_TO_CONFIGURE}"
        )


def _check_shared(pipeline: Pipeline, payloads: str | None) -> None:
    name = next((name for name in pipeline.groups if has_frames(pipeline, name)), None)
    if name is None:
        return
    if payloads is None:
        raise ConfigurationError(
            f"group {name!r} of pipeline {pipeline.name!r} has operators of mode 'dataframe': their records are in files "
            f"outside the log, and this deployment has no payload store. To give it one, {HOW_TO_CONFIGURE}"
        )
    check_shared(payloads)


def operator_shapes(pipeline: Pipeline) -> dict[str, OperatorShape]:
    """The graph of a pipeline as a run remembers it, in topological order."""
    shapes = {}
    for name, operator in pipeline.operators.items():
        inside, outside = pipeline.lineage_ports(name)
        shapes[name] = OperatorShape(
            group=pipeline.home(name),
            inputs={port: str(pipeline.sender(Port(name, port))) for port in operator.inputs},
            outputs=tuple(operator.outputs),
            lineage_in=tuple(sorted(inside)),
            lineage_out=tuple(sorted(outside)),
            lineage_starts=tuple(sorted(pipeline.lineage_starts(name))),
            rules=operator.record_rules(),
        )
    return shapes


def replicated_shapes(pipeline: Pipeline) -> dict[str, ReplicatedShape]:
    """Its replicated groups as a run remembers them."""
    return {
        name: ReplicatedShape(one.replicas, one.slots, one.initial, one.least)
        for name, one in pipeline.replicated.items()
    }
