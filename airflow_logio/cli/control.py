"""`logio retry` and `logio stop`: what only a person decides."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.app import LogOption, RunArgument, out, warn
from airflow_logio.cli.connections import Connections
from airflow_logio.cli.logs import opened
from airflow_logio.cli.preparing import CLI_DAG_ID, reopen
from airflow_logio.cli.running import supervise
from airflow_logio.errors import Fenced, ProtocolViolation
from airflow_logio.protocol.states import ALIVE, ENDED, GroupState
from airflow_logio.runtime.launch import LaunchContext, launch_group
from airflow_logio.runtime.spark_submit import SparkSettings
from airflow_logio.runtime.watch import GroupWatcher
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import GroupRef, Retried, Run

STARTABLE = (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)


def register(app: typer.Typer) -> None:
    app.command("retry")(retry)
    app.command("stop")(stop)


def retry(
    run: RunArgument,
    group: Annotated[str | None, typer.Argument(help="Group; default: all that wait for it")] = None,
    log: LogOption = None,
    master: Annotated[str, typer.Option(help="Spark master")] = "local[1]",
    detach: Annotated[
        bool, typer.Option("--detach", help="Launch the drivers and end; somebody else watches them")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file")] = None,
) -> None:
    """Launch parked, halted or dead groups again, at no cost to their recovery budget, and put back quarantined Input Sets.

    Of a run that `logio run` started, all groups are supervised from here: those that were halted when one was parked go
    on, too. Of a run of Airflow only the retried ones are. Groups behind a retried Input Set that had finished go on.
    """
    known = Connections.load(warn)
    log_url = known.log_url(log)
    with opened(log_url) as store:
        found = store.find_run(run)
        context = reopen(store, log_url, known.payloads(log), found, known, SparkSettings(master=master))
        retried = store.retry_quarantined(found.run_id, group)
        if retried.input_sets:
            out.print(f"{len(retried.input_sets)} quarantined Input Set(s) are retried", markup=False)
        names = _to_launch(store, found, group, retried)
        for name in names:
            incarnation = _launch(context, name)
            if detach:
                out.print(f"group {name} of {found.spec.key}: incarnation {incarnation} launched", markup=False)
        if detach or not names:
            return
        mine = found.spec.key.dag_id == CLI_DAG_ID
        raise typer.Exit(supervise(context, None if mine else names, json_path))


def _launch(context: LaunchContext, group: str) -> int:
    """Returns the incarnation. `logio run` in another terminal may have seen first that the group waits: that is as good."""
    store, run_id = context.store, context.run.run_id
    status = store.group(run_id, group)
    if status.state in ALIVE:
        return status.incarnation
    try:
        return launch_group(context, group, expected=status.incarnation, reason="logio retry", by_user=True).incarnation
    except Fenced:
        return store.group(run_id, group).incarnation


def _to_launch(store: LogStore, run: Run, group: str | None, retried: Retried) -> list[str]:
    """The groups to launch; raises `ProtocolViolation` if there is nothing to retry."""
    statuses = {status.group: status for status in store.groups(run.run_id)}
    if group is not None and group not in statuses:
        store.group(run.run_id, group)  # says which groups there are
    asked = [group] if group is not None else list(statuses)
    names = [name for name in asked if statuses[name].state in STARTABLE]
    names += [name for name in retried.to_launch if name not in names]
    if not names and not retried.input_sets:
        states = ", ".join(f"{name} is {statuses[name].state.value}" for name in asked)
        raise ProtocolViolation(
            f"run {run.spec.key} has nothing to retry: {states}, and no Input Set of theirs is quarantined; only a group "
            f"that is one of {', '.join(STARTABLE)} is launched again"
        )
    return names


def stop(
    run: RunArgument,
    group: Annotated[str | None, typer.Argument(help="Group; default: all groups")] = None,
    log: LogOption = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the drivers")] = 30.0,
) -> None:
    """Halt a run, or one group of it: drivers commit what they have and end. `logio run --run-id` or retry go on."""
    known = Connections.load(warn)
    with opened(known.log_url(log)) as store:
        found = store.find_run(run)
        names = [group] if group is not None else [status.group for status in store.groups(found.run_id)]
        for name in names:
            store.group(found.run_id, name)
            store.request(found.run_id, name, GroupState.HALTED)
        left = _wait_until_ended(store, found, names, timeout)
        for name in names:
            out.print(f"{name}: {store.group(found.run_id, name).state.value}", markup=False)
        if left:
            warn(f"{', '.join(left)}: still not ended after {timeout:g} s; it halts with the driver's next heartbeat")
            raise typer.Exit(1)


def _wait_until_ended(store: LogStore, run: Run, names: list[str], timeout: float) -> list[str]:
    """The groups that have not ended in time; a group without a living driver is marked halted here."""
    watchers = {name: GroupWatcher(store, run.run_id, name, run.spec.lease) for name in names}
    deadline = time.monotonic() + timeout
    while True:
        left = []
        for name, watcher in watchers.items():
            status = watcher.poll().status
            if status is not None and status.state in (GroupState.NEW, GroupState.DEAD):
                store.halted(GroupRef(run.run_id, name, status.incarnation, status.replica))
            elif status is None or status.state not in ENDED:
                left.append(name)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.25)
