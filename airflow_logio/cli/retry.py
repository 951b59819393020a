"""`logio retry`: a person resumes what is parked, halted, dead or quarantined: of one run, or of each day of a range."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.common import RUN_HELP, LogOption, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.partitions import Begun, Partitions, newest_of
from airflow_logio.cli.preparation import CLI_DAG_ID, reopen, take_new_code
from airflow_logio.cli.run import supervise, supervise_range
from airflow_logio.cli.spark_options import (
    ConfOption,
    ConnectOption,
    DeployModeOption,
    MasterOption,
    MemoryOption,
    SparkOptions,
    options_for,
)
from airflow_logio.commands import counted
from airflow_logio.errors import ConfigurationError, Fenced, ProtocolViolation
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.launch.processes import this_host, this_person
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState, RunState
from airflow_logio.status.condition import LEFT_SECONDS, is_left
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.records.upkeep_records import Retried
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.retry import STARTABLE, check_days, check_destinations, find_lost, nothing_to_retry
from airflow_logio.supervision.task_notes import give_up_place


def register(app: typer.Typer) -> None:
    app.command("retry")(retry)


class Code(StrEnum):
    """Which code `logio retry` launches groups with."""

    KEPT = "kept"
    NEW = "new"


def retry(
    run: Annotated[str | None, typer.Argument(help=RUN_HELP, metavar="RUN")] = None,
    group: Annotated[str | None, typer.Argument(help="Group; default: all that can be retried")] = None,
    partition: Annotated[
        str | None, typer.Option(help="Instead: the newest run of this day or hour, or of each in A..B")
    ] = None,
    pipeline: Annotated[str | None, typer.Option(help="Whose partition; needed if several pipelines have it")] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="Of a range of partitions: how many runs may be alive at a time")
    ] = 1,
    log: LogOption = None,
    master: MasterOption = None,
    driver_memory: MemoryOption = None,
    conf: ConfOption = None,
    connect: ConnectOption = None,
    deploy_mode: DeployModeOption = None,
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
    started. With --partition A..B it does so for the newest run of each day; those that have finished stay as they are.
    """
    if (run is None) == (partition is None):
        raise typer.BadParameter("name a run, or partitions with --partition", param_hint="RUN")
    if partition is not None and detach:
        raise typer.BadParameter("runs of partitions are supervised here: leave it out", param_hint="--detach")
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        way = _Way(store, known, log, SparkOptions.given(master, driver_memory, conf, connect, deploy_mode), code)
        if run is None:
            raise typer.Exit(_retry_range(way, str(partition), pipeline, at_once, json_path))
        found = store.find_run(run)
        if detach:
            check_supervised(store, found, group)
        context, launched = way.launch(found, group)
        if detach:
            for name, incarnation in launched.items():
                out.print(f"group {name} of {found.spec.key}: incarnation {incarnation} launched", markup=False)
        elif launched or takes_over(store, found):
            raise typer.Exit(supervise(context, _supervised(found, launched), json_path))


@dataclass(frozen=True, slots=True)
class _Way:
    """How runs are retried: the log, connections, what replaces their Spark options, and which code they get."""

    store: LogStore
    known: ConnectionUrls
    log: str | None
    spark: SparkOptions
    code: Code

    def launch(self, run: Run, group: str | None) -> tuple[LaunchContext, dict[str, int]]:
        """Put quarantined Input Sets back and launch what can be launched; returns the incarnations of those groups."""
        store, mine = self.store, is_mine(run)
        if mine and group is not None:
            check_goes_on(store, run, group)
        if self.code is Code.NEW:
            _take_new_code(store, run, group)
        settings = options_for(run, self.spark).settings()
        payloads = self.known.payloads(self.log)
        context = reopen(store, self.known.log_url(self.log), payloads, run, self.known, settings)
        check_destinations(context, {one.operator for one in store.quarantined(run.run_id, group)})
        check_days(context, run.spec.groups if group is None else [group])
        retried = store.retry_quarantined(run.run_id, group)
        if retried.input_sets:
            out.print(f"{len(retried.input_sets)} quarantined Input Set(s) are retried", markup=False)
        if mine:
            declare_lost(store, run, group, lambda said: out.print(said, markup=False))
        return context, {name: _launch(context, name) for name in _to_launch(store, run, group, retried)}


def is_mine(run: Run) -> bool:
    """Whether `logio run` began it, so that a command like this one supervises all of it."""
    return run.spec.key.dag_id == CLI_DAG_ID


def _supervised(run: Run, launched: Mapping[str, int]) -> list[str] | None:
    """The groups that this command supervises; None: all."""
    return None if is_mine(run) else list(launched)


def _retry_range(way: _Way, written: str, pipeline: str | None, at_once: int, json_path: Path | None) -> int:
    """Retry the newest run of each partition that is named, unless it has finished; returns the exit code."""
    found = newest_of(way.store, written, pipeline)
    newest = [run for run in found if isinstance(run, Run)]
    if gone := len(found) - len(newest):
        out.print(f"{counted(gone, 'run')} of {written} had ended, and the log has removed them", markup=False)
    runs = {str(run.partition): run for run in newest if run.state is not RunState.FINISHED}
    if done := len(newest) - len(runs):
        out.print(f"{counted(done, 'run')} of {written} finished before", markup=False)

    def begun(partition: str) -> Begun:
        run = runs[partition]
        context, launched = way.launch(run, None)
        return Begun(context, _supervised(run, launched), is_launched=True)

    if not runs:
        return 0
    return supervise_range(
        Partitions(list(runs), begun, at_once), "partition", f"`logio retry --partition {written}`", json_path
    )


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
            said = f"{run.spec.bundle_root} has no other code than code {number}, which the group has already"
        elif status.state in ALIVE:
            said += f"; the one that is {status.state} keeps code {status.code}"
        of = "" if run.partition is None else f" of {run.partition}"
        out.print(f"group {status.group}{of}: {said}", markup=False)


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
    # Groups that `logio run` has not launched yet have no other launcher; new groups of Airflow have their tasks.
    is_left = group is None and is_mine(run)
    startable = (*STARTABLE, GroupState.NEW) if is_left else STARTABLE
    names = [name for name in asked if statuses[name].state in startable]
    names += [name for name in retried.to_launch if name not in names]
    if not names and not retried.input_sets and (group is not None or not takes_over(store, run)):
        nothing = nothing_to_retry(run, statuses, asked, startable)
        raise ProtocolViolation(f"{nothing}{supervised_by(store, run, statuses)}")
    return names


# --- who supervises the run -------------------------------------------------------------------------------------------


def check_supervised(store: LogStore, run: Run, group: str | None) -> None:
    """Refuse to launch drivers that no supervisor looks after. Raises `ConfigurationError`, `LogUnavailable`."""
    seen = last_look(store.supervisors(), run)
    command = f"logio retry {run.uid[:8]}" + (f" {group}" if group else "")
    if run.spec.supervision is Supervision.PROCESS:
        if seen is not None and seen.age_seconds <= LEFT_SECONDS:
            return
        raise ConfigurationError(
            f"run {run.spec.key} was started by `logio run`, and no process supervises it now: a driver that dies would "
            f"stay dead, and the run would not be finished. Leave --detach out: `{command}` launches, supervises and finishes"
        )
    if missing(run, seen) is not None:
        raise ConfigurationError(
            f"no process supervises run {run.spec.key} now: a driver that dies would stay dead. Leave --detach out "
            f"(`{command}` supervises what it launches), or start `logio tend {run.uid[:8]}` or clear task `supervise` of "
            "the DAG run first"
        )


def check_goes_on(store: LogStore, run: Run, group: str) -> None:
    """Raises `ProtocolViolation` if another group is parked: a command that supervises all groups would end at once."""
    parked = [one.group for one in store.groups(run.run_id) if one.state is GroupState.PARKED and one.group != group]
    if parked:
        raise ProtocolViolation(
            f"group {group!r} of run {run.spec.key} cannot continue alone: {', '.join(parked)} is parked, too. Fix the "
            f"causes, then `logio retry {run.uid[:8]}` launches all"
        )


def declare_lost(store: LogStore, run: Run, group: str | None, say: Callable[[str], None]) -> None:
    """Declare drivers dead that were killed together with the process that supervised them: nothing else does."""
    lost = find_lost(store, run, run.spec.groups if group is None else [group])
    for name, cause in lost.items():
        say(f"group {name} is dead: {cause}")


def takes_over(store: LogStore, run: Run) -> bool:
    """Whether the process that supervised the run is gone, so that another one may supervise it."""
    return is_left(run, last_look(store.supervisors(), run), time.time())


def supervised_by(store: LogStore, run: Run, statuses: Mapping[str, GroupStatus]) -> str:
    """Half a sentence, perhaps empty: what supervises a run of `logio run`, in case the reader knows that it is gone."""
    seen = last_look(store.supervisors(), run)
    alive = any(status.state in ALIVE for status in statuses.values())
    if run.spec.supervision is not Supervision.PROCESS or seen is None or not alive:
        return ""
    left = max(1.0, LEFT_SECONDS - seen.age_seconds)
    return (
        f". {seen.name} supervised it {seen.age_seconds:.0f} s ago: if that is gone, the same command takes the run over in "
        f"{left:.0f} s"
    )
