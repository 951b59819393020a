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
from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.states import ENDED, GroupState
from airflow_logio.runtime.launch import launch_group
from airflow_logio.runtime.spark_submit import SparkSettings
from airflow_logio.runtime.watch import GroupWatcher
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import GroupRef, Run

STARTABLE = (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)


def register(app: typer.Typer) -> None:
    app.command("retry")(retry)
    app.command("stop")(stop)


def retry(
    run: RunArgument,
    group: Annotated[str, typer.Argument(help="Group")],
    log: LogOption = None,
    master: Annotated[str, typer.Option(help="Spark master")] = "local[1]",
    detach: Annotated[
        bool, typer.Option("--detach", help="Launch the driver and end; somebody else watches it")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file")] = None,
) -> None:
    """Launch a parked, halted or dead group again, at no cost to its recovery budget, and supervise it.

    Of a run that `logio run` started, all groups are supervised from here: those that were halted when this one was
    parked go on, too. Of a run of Airflow only this group is.
    """
    known = Connections.load(warn)
    log_url = known.log_url(log)
    with opened(log_url) as store:
        found = store.find_run(run)
        status = store.group(found.run_id, group)
        if status.state not in STARTABLE:
            states = ", ".join(STARTABLE)
            raise ProtocolViolation(
                f"group {group!r} of run {found.spec.key} is {status.state.value}; only a group that is one of "
                f"{states} is retried"
            )
        context = reopen(store, log_url, found, known, SparkSettings(master=master))
        launch_group(context, group, expected=status.incarnation, reason="logio retry", by_user=True)
        if detach:
            out.print(f"group {group} of {found.spec.key}: incarnation {status.incarnation + 1} launched", markup=False)
            return
        mine = found.spec.key.dag_id == CLI_DAG_ID
        raise typer.Exit(supervise(context, None if mine else [group], json_path))


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
