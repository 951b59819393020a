"""`logio retry` and `logio stop`: decisions that only a person makes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, RunArgument, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.left_runs import check_goes_on, check_supervised, declare_lost, supervised_by, takes_over
from airflow_logio.cli.preparation import CLI_DAG_ID, reopen, take_new_code
from airflow_logio.cli.run import supervise
from airflow_logio.cli.spark_options import (
    ConfOption,
    ConnectOption,
    MasterOption,
    MemoryOption,
    SparkOptions,
    options_for,
)
from airflow_logio.errors import Fenced, ProtocolViolation
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.launch.processes import this_host, this_person
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import Retried
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.retry import STARTABLE, check_destinations, nothing_to_retry
from airflow_logio.supervision.stop_run import States, StopMode, StopRun, await_stop, not_ended
from airflow_logio.supervision.task_notes import give_up_place


class Code(StrEnum):
    """Which code `logio retry` launches groups with."""

    KEPT = "kept"
    NEW = "new"


HALT_SECONDS = 30.0


def register(app: typer.Typer) -> None:
    app.command("retry")(retry)
    app.command("stop")(stop)


def retry(
    run: RunArgument,
    group: Annotated[str | None, typer.Argument(help="Group; default: all that can be retried")] = None,
    log: LogOption = None,
    master: MasterOption = None,
    driver_memory: MemoryOption = None,
    conf: ConfOption = None,
    connect: ConnectOption = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Launch the drivers and exit; refused if no supervisor would look after them"),
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file")] = None,
    code: Annotated[
        Code,
        typer.Option(help="new: the next drivers get the pipeline's code as it is now"),
    ] = Code.KEPT,
) -> None:
    """Relaunch parked, halted or dead groups, at no cost to their recovery budget, and put back quarantined Input Sets.

    In a run that `logio run` started, this command supervises all groups: those that were halted when one was parked
    resume, too, and so do those whose drivers were killed with its terminal. In a run of Airflow, it supervises only the
    retried ones. Finished groups behind a retried Input Set resume. Drivers get the Spark options with which the run was
    started.
    """
    given = SparkOptions.given(master, driver_memory, conf, connect)
    known = ConnectionUrls.load(warn)
    log_url = known.log_url(log)
    with opened(log_url) as store:
        found = store.find_run(run)
        if detach:
            check_supervised(store, found, group)
        mine = found.spec.key.dag_id == CLI_DAG_ID
        if mine and group is not None:
            check_goes_on(store, found, group)
        if code is Code.NEW:
            _take_new_code(store, found, group)
        settings = options_for(found, given).settings()
        context = reopen(store, log_url, known.payloads(log), found, known, settings)
        check_destinations(context, {one.operator for one in store.quarantined(found.run_id, group)})
        retried = store.retry_quarantined(found.run_id, group)
        if retried.input_sets:
            out.print(f"{len(retried.input_sets)} quarantined Input Set(s) are retried", markup=False)
        if mine:
            declare_lost(store, found, group, lambda said: out.print(said, markup=False))
        names = _to_launch(store, found, group, retried)
        for name in names:
            incarnation = _launch(context, name)
            if detach:
                out.print(f"group {name} of {found.spec.key}: incarnation {incarnation} launched", markup=False)
        if detach or not (names or takes_over(store, found)):
            return
        raise typer.Exit(supervise(context, None if mine else names, json_path))


def _take_new_code(store: LogStore, run: Run, group: str | None) -> None:
    """For the groups that may get another driver; written into the log, so that lineage can tell what it has made.

    A group that has finished gets another one if a quarantined Input Set is retried, its own or one before it.
    """
    statuses = store.groups(run.run_id) if group is None else [store.group(run.run_id, group)]
    reopens = group is not None or bool(store.quarantined(run.run_id))
    for status in statuses:
        if status.state in CONCLUDED and not reopens:
            continue
        number = take_new_code(store, run, status.group, f"logio retry --code new by {this_person()} on {this_host()}")
        said = f"its next driver gets code {number}"
        if number == status.code:
            said = f"{run.spec.bundle_root} holds no other code than code {number}, which it has"
        elif status.state in ALIVE:
            said += f"; the one that is {status.state} keeps code {status.code}"
        out.print(f"group {status.group}: {said}", markup=False)


def _launch(context: LaunchContext, group: str) -> int:
    """Launch the group; returns the incarnation. A launch by `logio run` in another terminal is as good."""
    store, run_id = context.store, context.run.run_id
    status = store.group(run_id, group)
    if status.state in ALIVE:
        return status.incarnation
    try:
        give_up_place(store, context.run, replicated_group(group))  # a person has chosen another
        return launch_group(context, group, expected=status.incarnation, reason="logio retry", by_user=True).incarnation
    except Fenced:
        return store.group(run_id, group).incarnation


def _to_launch(store: LogStore, run: Run, group: str | None, retried: Retried) -> list[str]:
    """The groups to launch; none if the run is only to be supervised again. Raises `ProtocolViolation` if there is nothing
    to retry."""
    statuses = {status.group: status for status in store.groups(run.run_id)}
    if group is not None and group not in statuses:
        store.group(run.run_id, group)  # its error says which groups there are
    asked = [group] if group is not None else list(statuses)
    # What `logio run` did not come to launch, nobody else launches; new groups of Airflow have a task that does.
    is_left = group is None and run.spec.key.dag_id == CLI_DAG_ID
    startable = (*STARTABLE, GroupState.NEW) if is_left else STARTABLE
    names = [name for name in asked if statuses[name].state in startable]
    names += [name for name in retried.to_launch if name not in names]
    if not names and not retried.input_sets and (group is not None or not takes_over(store, run)):
        nothing = nothing_to_retry(run, statuses, asked, startable)
        raise ProtocolViolation(f"{nothing}{supervised_by(store, run, statuses)}")
    return names


def stop(
    run: RunArgument,
    group: Annotated[str | None, typer.Argument(help="Group; default: all groups")] = None,
    log: LogOption = None,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Stop reading sources, process what they have read, then finish the run"),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the end. Default: 30, or for as long as a drain takes")
    ] = None,
) -> None:
    """Halt a run, or one group: drivers commit what they have and end. `logio run --run-id` or `logio retry` resumes it.

    With --drain, the run finishes instead, with an exact result: everything that was read is processed. The supervisor of
    the run keeps supervising it until then. A single group can be drained only if it has a source.
    """
    known = ConnectionUrls.load(warn)
    mode = StopMode.DRAIN if drain else StopMode.HALT
    seconds = timeout if timeout is not None else float("inf") if drain else HALT_SECONDS
    with opened(known.log_url(log)) as store:
        found = store.find_run(run)
        if drain and (left := missing(found, last_look(store.supervisors(), found))) is not None:
            warn(left)
        stopping = StopRun(store, found, mode, group)
        states = watch_stop(stopping, seconds)
    if not stopping.has_succeeded(states):
        warn(
            f"a group that is not running holds up the others: fix the cause, then `logio retry {found.uid[:8]}` lets the "
            "drain continue"
        )
        raise typer.Exit(1)


def watch_stop(stopping: StopRun, seconds: float) -> States:
    """Request a stop and print its progress. Returns the states at its end; exits with 1 if it does not end in time."""
    states = await_stop(stopping, seconds, StopProgress().seen)
    if not stopping.is_over(states):
        warn(not_ended(states, seconds))
        raise typer.Exit(1)
    return states


class StopProgress:
    """Prints every change of a group's state."""

    def __init__(self) -> None:
        self._known: States = {}

    def seen(self, states: States) -> None:
        for name, state in states.items():
            if self._known.get(name) is not state:
                out.print(f"{name}: {state.value}", markup=False)
        self._known = states
