"""The launch of a driver that a cluster manager has started: its claim, code and needs from the log, secrets from its node.

What comes of it is what a launcher would have written into the driver's file on its own machine (`Launch.config`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from airflow_logio import __version__
from airflow_logio.databases import read_url
from airflow_logio.dataflow.pipeline.definition import variable_values
from airflow_logio.errors import ConfigurationError, Fenced, UnknownRun
from airflow_logio.launch import bundle, processes
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle, code_for
from airflow_logio.launch.driver_arguments import DriverArguments
from airflow_logio.launch.driver_config import DriverConfig, DriverKind, Launch, needs_of
from airflow_logio.launch.driver_process import with_code
from airflow_logio.launch.nodes.node_connections import NodeConnections
from airflow_logio.launch.processes import this_host
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupNeeds, LaunchRecipe
from airflow_logio.store.records.run_records import Run


def claim_of(store: LogStore, told: DriverArguments, node: NodeConnections) -> tuple[Run, Claim]:
    """The run, and the claim that the driver may register. Whether the nonce is that of the claim, registering says.

    Raises `UnknownRun` if the log is another one, and `Fenced` if the claim has been registered, or has ended.
    """
    try:
        run = store.find_run(told.run_uid)
    except UnknownRun as error:
        raise UnknownRun(f"{error}. {node.place} of {this_host()} names the log: is it that of the run?") from None
    found = [
        one
        for one in store.drivers(run.run_id)
        if (one.group, one.incarnation) == (told.group, told.incarnation) and run.uid == told.run_uid
    ]
    who = f"incarnation {told.incarnation} of group {told.group!r} of run {told.run_uid}"
    if not found:
        raise UnknownRun(f"the log knows no {who}. {node.place} of {this_host()} names the log: is it that of the run?")
    record = found[0]
    if record.registered_at is not None or record.ended_at is not None:
        has = "has ended" if record.ended_at is not None else "is the claim of a driver that has registered"
        raise Fenced(f"{who} {has}: this driver exits before its first read")
    return run, Claim(run.run_id, run.uid, told.group, told.incarnation, told.nonce, record.is_recovery, record.code)


def config_of(
    store: LogStore, run: Run, claim: Claim, told: DriverArguments, node: NodeConnections, folder: Path
) -> DriverConfig:
    """What the driver works with; its code is unpacked into `folder`. Raises `ConfigurationError`, and what raises when the
    pipeline is imported: then its group cannot work here, and is to say why."""
    _check_version(told.version)
    recipe, ref, code = store.patience.call("reading the launch", lambda: _noted(store, run, claim))
    ref, archive = with_code(folder, code, ref)
    needs = recipe.needs
    if needs is None or needs.code != claim.code:
        with _with_variables(node.environment):
            needs = needs_of(bundle.load(ref), claim.group, claim.code)
    launch = Launch(
        settings=SparkSettings(),
        conf={},
        kind=DriverKind.SPARK_SUBMIT if processes.own_identity().parent_pid else DriverKind.PYTHON,
        code=code,
        code_number=claim.code,
        ref=ref,
        log_url=node.log_url,
        connections=_urls(run, recipe, needs, node),
        payloads=node.payloads,
        needs_spark=needs.spark,
        has_frames=needs.frames,
        standby=None,
        environment=_variables(run, needs, node),
    )
    return replace(launch.config(claim), executor_code=None if archive is None else str(archive))


def _noted(store: LogStore, run: Run, claim: Claim) -> tuple[LaunchRecipe, PipelineRef, CodeBundle]:
    recipe = store.launch_recipe(run.run_id, claim.group) or LaunchRecipe()
    ref = _ref(run, is_kept=store.code(run.run_id, claim.code).archive is not None)
    return recipe, ref, code_for(store, run, ref, claim.code)


def _check_version(told: str) -> None:
    if told != __version__:
        raise ConfigurationError(
            f"the driver was submitted by airflow_logio {told or 'of another version'}, and node {this_host()} has "
            f"{__version__}: install the same version on all nodes and wherever drivers are launched, then `logio retry`"
        )


def _ref(run: Run, *, is_kept: bool) -> PipelineRef:
    """What the log does not keep is installed on the node, maybe in another folder than where the run was started."""
    ref = bundle.parse_ref(run.spec.pipeline_ref, Path(run.spec.bundle_root))
    if is_kept or bundle.module_file(ref.bundle_root, ref.module) is not None:
        return ref
    found = bundle.parse_ref(run.spec.pipeline_ref)
    if bundle.module_file(found.bundle_root, found.module) is None:
        raise ConfigurationError(
            f"the log keeps no copy of {found}, because it was installed where the run began, and node {this_host()} does "
            f"not have module {found.module!r}: install the same package on all nodes, then `logio retry`"
        )
    return found


def _urls(run: Run, recipe: LaunchRecipe, needs: GroupNeeds, node: NodeConnections) -> dict[str, str]:
    """The pipeline's connection name → URL."""
    ids, urls = {**run.spec.connections, **recipe.connections}, {}
    for name, is_sql in needs.connections.items():
        conn_id = ids[name]
        if conn_id not in node.connections:
            called = "" if conn_id == name else f" (the pipeline calls it {name!r})"
            raise ConfigurationError(
                f"pipeline {run.spec.key.pipeline!r} needs connection {conn_id!r}{called}, which is not under `connections` "
                f"in {node.place} of node {this_host()}: add its URL there, on every node, then `logio retry`"
            )
        urls[name] = node.connections[conn_id]
        if is_sql:
            try:
                read_url(urls[name])
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"{node.place} of node {this_host()}, connection {conn_id!r}: {error}"
                ) from None
    return urls


def _variables(run: Run, needs: GroupNeeds, node: NodeConnections) -> dict[str, str]:
    """Those that the pipeline names. What the node's file says precedes what the environment has."""
    lack = (
        f"neither under `environment` in {node.place} of node {this_host()}, nor in the environment of the driver: add it "
        "there, on every node, then `logio retry`"
    )
    return variable_values(run.spec.key.pipeline, needs.environment, {**os.environ, **node.environment}, lack=lack)


@contextmanager
def _with_variables(given: Mapping[str, str]) -> Iterator[None]:
    """Within the block, the environment has these: which of them a pipeline names is known when it is imported."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
