"""Turns a command line into a `LaunchContext`. Everything is checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.input_wait import InputWait, resumes
from airflow_logio.cli.spark_options import SparkOptions
from airflow_logio.databases import sqlite_url
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey, partitioning_of
from airflow_logio.dataflow.sources import DeltaSource, FolderSource, ParquetSource
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.errors import ConfigurationError, LogioError
from airflow_logio.launch import bundle, spark_submit
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle, collect, load_kept, newest, take_new
from airflow_logio.launch.days_read import with_days_read
from airflow_logio.launch.driver_config import has_frames
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher, environment_of
from airflow_logio.launch.spark_settings import SparkSettings, is_on_cluster
from airflow_logio.launch.start_run import (
    check_beside_log,
    check_connections,
    check_published_places,
    check_table_databases,
    run_spec,
)
from airflow_logio.protocol.states import CONCLUDED
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, RunSpec
from airflow_logio.store.rules.run_rules import check_graph, why_not_beside
from airflow_logio.systems.inspection import check_sql_urls

CLI_DAG_ID = "logio run"
"""Replaces the DAG id in the key of runs that no DAG started."""
WORK_DIR = Path(".logio/drivers")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run as a command line requests it."""

    pipeline_ref: str
    params: Mapping[str, str]
    connection_ids: Mapping[str, str]
    run_id: str | None = None
    hold_sources: bool = False
    spark: SparkOptions = field(default_factory=SparkOptions)
    """For a continued run: what replaces the options that it was started with."""
    replay_seconds: float | None = None
    """None: the default, or for a continued run, the value that it was started with."""
    alone: bool = False
    """Whether another unfinished run of the pipeline is a reason not to start this one."""
    partition: str | None = None
    """The partition that the run is for, as it was written."""
    allowed: frozenset[Allowed] = frozenset()


def prepare(
    store: LogStore,
    log_url: str,
    payloads: str | None,
    wanted: Wanted,
    known: ConnectionUrls,
    say: Callable[[str], None],
) -> LaunchContext:
    """Get or create the run. Raises `ConfigurationError`, `PipelineDefinitionError`, `IncompatibleRun`,
    `OtherRunUnfinished`.

    Missing values come from the pipeline's `local_defaults`, if it has any.
    """
    spark_submit.check(wanted.spark.settings())
    loaded = load(wanted, known)
    (partition,) = partitions_of(loaded.pipeline, wanted.partition)
    input_of(loaded, partition).until_there(store, CLI_DAG_ID, name_of(wanted, loaded, partition), say)
    return begin(store, log_url, payloads, wanted, describe(payloads, wanted, loaded, partition, say), say)


def begin(
    store: LogStore,
    log_url: str,
    payloads: str | None,
    wanted: Wanted,
    described: Described,
    say: Callable[[str], None],
) -> LaunchContext:
    """Get or create the run that is described. Raises as `prepare`."""
    check_beside_log(described.pipeline, described.urls.__getitem__, log_url)
    spec = with_days_read(
        described.pipeline,
        described.spec,
        described.urls.__getitem__,
        lambda: resumes(store, described.pipeline.name, CLI_DAG_ID, described.spec.key.dag_run_id),
    )
    run = store.start_run(spec, concurrent=_beside(wanted, spec), code=described.code.kept())
    if run.spec.code_digest not in (None, described.code.digest):
        say(
            f"run {run.spec.key} continues with the code that it has, not with that of {described.ref.bundle_root}; to take "
            f"the new code: `logio retry {run.uid[:8]} --code new`"
        )
    code = newest(store, run)
    pipeline, ref = load_kept(store, run, lambda: (described.pipeline, described.ref), code)
    if others := shut_out(store, run):
        say(
            f"{len(others)} other run(s) of pipeline {described.pipeline.name!r} have not finished, the latest is "
            f"{others[-1].spec.key}, uid {others[-1].uid[:8]}: a table belongs to the run that was started last; the others "
            f"can no longer write to it. `logio retry {others[-1].uid[:8]}` would continue it, "
            f"`logio fresh {others[-1].uid[:8]}` gives it up"
        )
    if wanted.replay_seconds is not None and run.spec.replay_seconds != wanted.replay_seconds:
        say(f"run {run.spec.key} keeps the replay seconds it was started with: {run.spec.replay_seconds:g}")
    kept = SparkOptions.kept(run)
    spark = wanted.spark.over(kept)
    if spark.to_keep() != run.spec.spark:
        say(
            f"run {run.spec.key} keeps the Spark options it was started with: {str(kept) or 'none'}; those of now are for "
            "the drivers of this command"
        )
    for name in spark.not_kept:
        say(
            f"run {run.spec.key} was started with --conf {name}=..., which may be a secret and was not kept: give it again "
            "if its drivers need it"
        )
    return _context(store, log_url, payloads, run, pipeline, ref, described.urls, spark.settings(), code=code)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline with its connections, checked as far as that is the same for all its partitions."""

    ref: PipelineRef
    pipeline: Pipeline
    params: Mapping[str, Any]
    ids: Mapping[str, str]
    """The pipeline's connection name → connection id."""
    urls: Mapping[str, str]
    """The pipeline's connection name → URL."""
    code: CodeBundle
    is_local: bool
    """Whether something of it is assumed (`local_defaults`)."""


@dataclass(frozen=True, slots=True)
class Described:
    """A run that could be started: everything that can be known without its log and its external systems is checked."""

    ref: PipelineRef
    pipeline: Pipeline
    spec: RunSpec
    urls: Mapping[str, str]
    """The pipeline's connection name → URL."""
    code: CodeBundle


def load(wanted: Wanted, known: ConnectionUrls) -> Loaded:
    """Load the pipeline, and check what is wanted of all its runs. Raises `ConfigurationError`, `PipelineDefinitionError`."""
    ref = bundle.parse_ref(wanted.pipeline_ref)
    pipeline = bundle.load(ref)
    settings = wanted.spark.settings()  # refused now, not when the first group is launched
    if not is_on_cluster(settings):  # there, nodes have them
        environment_of(pipeline.name, pipeline.environment, settings)
    for group in pipeline.applications:
        spark_submit.group_properties(settings, pipeline, group, frames=has_frames(pipeline, group))
    ids = {name: name for name in pipeline.connections} | dict(wanted.connection_ids)
    check_connections(pipeline, ids)
    assumed = {name: make() for name, make in pipeline.local.params.items() if name not in wanted.params}
    params = _absolute(pipeline, {**assumed, **wanted.params})
    urls, files = _urls(ids, known, pipeline)
    check_sql_urls(pipeline, urls)
    check_table_databases(pipeline, urls.__getitem__)
    check_published_places(pipeline, urls.__getitem__)
    return Loaded(ref, pipeline, params, ids, urls, collect(ref), is_local=bool(assumed or files))


def describe(
    payloads: str | None, wanted: Wanted, loaded: Loaded, partition: PartitionKey | None, say: Callable[[str], None]
) -> Described:
    """The run of a partition, or the one that is wanted of a pipeline without them. Raises as `load`."""
    pipeline = loaded.pipeline
    spec = run_spec(
        pipeline,
        loaded.ref,
        dag_id=CLI_DAG_ID,
        dag_run_id=name_of(wanted, loaded, partition) or f"{pipeline.name}__{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}",
        params=loaded.params,
        partition=partition,
        connections=loaded.ids,
        hold_sources=wanted.hold_sources,
        replay_seconds=wanted.replay_seconds,
        payloads=payloads,
        code=loaded.code,
        spark=wanted.spark.to_keep(),
        allowed=wanted.allowed,
    )
    if loaded.is_local and pipeline.local.prepare is not None and (said := pipeline.local.prepare(loaded.urls)):
        say(said)
    return Described(loaded.ref, pipeline.for_run(spec.params), spec, loaded.urls, loaded.code)


def check_together(payloads: str | None, wanted: Wanted, loaded: Loaded, keys: Sequence[PartitionKey]) -> None:
    """Raises `ConfigurationError` if runs of two of these partitions must not live at once."""
    if len(keys) < 2:
        return
    try:
        first, second = (describe(payloads, wanted, loaded, key, lambda _: None).spec for key in keys[:2])
    except LogioError:
        return  # that one alone is refused
    found = why_not_beside(first, second)
    if found is not None:
        raise ConfigurationError(
            f"--at-once: two runs of pipeline {loaded.pipeline.name!r} cannot live at once, because the earlier one "
            f"{found[0]}. Leave --at-once out, and they run one after the other{found[1]}"
        )


def is_range(text: str | None) -> bool:
    """Whether a command names partitions by the first and the last of them."""
    return text is not None and ".." in text


def partitions_of(pipeline: Pipeline, text: str | None) -> Sequence[PartitionKey | None]:
    """The partitions that a command names, one or a range; None alone if it names none.

    Raises `ConfigurationError` if the pipeline has no such partitions, and if one of them has not ended.
    """
    if text is None:
        return [None]
    partitioning = partitioning_of(pipeline.name, pipeline.partition, text)
    found, now = partitioning.range_of(text), datetime.now(UTC)
    for key in found:
        partitioning.check_ended(key, now)
    return found


def name_of(wanted: Wanted, loaded: Loaded, partition: PartitionKey | None) -> str | None:
    """The name by which a run is found again: that of a partition is the same each time. None: it gets one of its own."""
    return wanted.run_id or (None if partition is None else f"{loaded.pipeline.name}__{partition.text}")


def input_of(loaded: Loaded, partition: PartitionKey | None) -> InputWait:
    """What the run of a partition waits for, from now on."""
    return InputWait(loaded.pipeline, loaded.params, loaded.ids, loaded.urls, partition)


def _beside(wanted: Wanted, spec: RunSpec) -> ConcurrentRuns:
    """Without partitions, the user decides what may run beside: `logio run` only warns about other runs."""
    if wanted.alone:
        return ConcurrentRuns.REFUSE
    return ConcurrentRuns.ISOLATED if spec.partition is None else ConcurrentRuns.DERIVED


def shut_out(store: LogStore, run: Run) -> list[Run]:
    """Other runs of the same pipeline with an unfinished group which must not live beside this one, the latest last."""
    return [
        other
        for other, groups in store.unfinished(pipeline=run.spec.key.pipeline)
        if other.uid != run.uid
        and any(group.state not in CONCLUDED for group in groups)
        and why_not_beside(run.spec, other.spec) is not None
    ]


def reopen(
    store: LogStore,
    log_url: str,
    payloads: str | None,
    run: Run,
    known: ConnectionUrls,
    settings: SparkSettings,
    connection_ids: Mapping[str, str] | None = None,
    work_dir: Path = WORK_DIR,
) -> LaunchContext:
    """The context of a run in the log, with its own connection ids unless others are given. Raises as `prepare` does."""
    spark_submit.check(settings)
    ref = bundle.parse_ref(run.spec.pipeline_ref, Path(run.spec.bundle_root))
    code = newest(store, run)
    pipeline, ref = load_kept(store, run, lambda: (bundle.load(ref), ref), code)
    check_graph(run, pipeline.fingerprint()["graph"], pipeline.describe())
    urls, _ = _urls(connection_ids or run.spec.connections, known, pipeline)
    check_sql_urls(pipeline, urls)
    check_table_databases(pipeline, urls.__getitem__)
    check_beside_log(pipeline, urls.__getitem__, log_url)
    return _context(store, log_url, payloads, run, pipeline, ref, urls, settings, work_dir, code=code)


def take_new_code(store: LogStore, run: Run, group: str, by: str) -> int:
    """Give a group's next drivers the code as it is now; returns its number. Raises `ConfigurationError`,
    `IncompatibleRun`."""
    ref = bundle.parse_ref(run.spec.pipeline_ref, Path(run.spec.bundle_root))
    pipeline = bundle.load(ref)
    check_graph(run, pipeline.fingerprint()["graph"], pipeline.describe())
    return take_new(store, run, group, (pipeline, ref), by=by)


def _absolute(pipeline: Pipeline, params: Mapping[str, Any]) -> dict[str, Any]:
    """Make paths absolute that are relative to this terminal's folder: a driver works in a folder of its own."""
    files = [source for source in pipeline.operators.values() if isinstance(source, ParquetSource)]
    folders = [source.path for source in pipeline.operators.values() if isinstance(source, FolderSource | DeltaSource)]
    begins = [*folders, *(path for source in files for path in source.paths)]
    return {
        name: os.path.abspath(value)
        if any(path.startswith(f"{{{name}}}") for path in begins) and "://" not in str(value)
        else value
        for name, value in params.items()
    }


def _urls(ids: Mapping[str, str], known: ConnectionUrls, pipeline: Pipeline) -> tuple[dict[str, str], list[str]]:
    """The pipeline's connection name → URL, and the connections that are files or folders of its `local_defaults`.

    These replace a connection that was given no id and is not known on this machine.
    """
    writers = [
        one for one in pipeline.operators.values() if isinstance(one, DatasetWriter | DeltaWriter | ParquetWriter)
    ]
    folders = {writer.connection for writer in writers}
    files = [
        name
        for name, conn_id in ids.items()
        if name in pipeline.local.connections and conn_id == name and known.find(conn_id) is None
    ]
    urls = {
        name: _local_url(pipeline.local.connections[name], is_folder=name in folders)
        if name in files
        else known.get(conn_id)
        for name, conn_id in ids.items()
    }
    return urls, files


def _local_url(path: Path, *, is_folder: bool) -> str:
    """An SQLite file, or a folder, which is made."""
    if not is_folder:
        return sqlite_url(path)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return str(path.absolute())


def _context(
    store: LogStore,
    log_url: str,
    payloads: str | None,
    run: Run,
    pipeline: Pipeline,
    ref: PipelineRef,
    urls: Mapping[str, str],
    settings: SparkSettings,
    work_dir: Path = WORK_DIR,
    *,
    code: int,
) -> LaunchContext:
    return LaunchContext(
        code=code,
        store=store,
        log_url=log_url,
        run=run,
        imported=pipeline,
        ref=ref,
        connections=urls,
        launcher=LocalProcessLauncher(work_dir.absolute()),
        settings=settings,
        payloads=payloads,
    )
