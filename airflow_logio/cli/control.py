"""`logio retry`, `mend`, `stop`, `scale` and `fresh`: decisions about a run that only a person makes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.common import EmptyOption, LogOption, RunArgument, TakeOverOption, allowed_by, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
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
from airflow_logio.errors import ConfigurationError, Fenced, LogUnavailable, ProtocolViolation, UnknownRun
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.launch.processes import this_host, this_person
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState
from airflow_logio.protocol.values import Port
from airflow_logio.status.condition import LEFT_SECONDS, is_left
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest
from airflow_logio.store.records.upkeep_records import Retried
from airflow_logio.store.rules.allowed_rules import check_allowed
from airflow_logio.supervision.mending import Remedy, broken, said_of
from airflow_logio.supervision.mending import mend as mend_body
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.retry import STARTABLE, check_days, check_destinations, find_lost, nothing_to_retry
from airflow_logio.supervision.scaling import Stage, Step, asked_for, carry_out
from airflow_logio.supervision.stop_run import States, StopMode, StopRun, await_stop, give_up, not_ended, run_to_give_up
from airflow_logio.supervision.task_notes import give_up_place
from airflow_logio.systems.payloads import Payloads

HALT_SECONDS = 30.0
MOST_RUNS = 100_000
"""Of the days or hours that are to be computed again: a range has 10,000 at most, and each may have had several."""
POLL_SECONDS = 0.25


def register(app: typer.Typer) -> None:
    app.command("retry")(retry)
    app.command("mend")(mend)
    app.command("stop")(stop)
    app.command("scale")(scale)
    app.command("fresh")(fresh)
    app.command("again")(again)


# --- retry ------------------------------------------------------------------------------------------------------------


class Code(StrEnum):
    """Which code `logio retry` launches groups with."""

    KEPT = "kept"
    NEW = "new"


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
        check_days(context, found.spec.groups if group is None else [group])
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
            said = f"{run.spec.bundle_root} has no other code than code {number}, which the group has already"
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
    # Groups that `logio run` has not launched yet have no other launcher; new groups of Airflow have their tasks.
    is_left = group is None and run.spec.key.dag_id == CLI_DAG_ID
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


# --- mend -------------------------------------------------------------------------------------------------------------


def mend(
    run: RunArgument,
    port: Annotated[str, typer.Argument(help="operator.port of the event, or operator.write:connection")],
    event_id: Annotated[int, typer.Argument(min=1, help="Number of the event, or of the write action")],
    values: Annotated[
        Remedy | None,
        typer.Option(help="What becomes of them: null, replace (letters of text, by U+FFFD), or drop (their rows)"),
    ] = None,
    log: LogOption = None,
) -> None:
    """Mend an event that holds values that their type cannot have, such as text that is not UTF-8: without --values, show
    them.

    Earlier versions logged such values, and the groups behind the event are parked. The event gets a new body, whose header
    says what was done, when and by whom. Everything that was not made of it yet is made of the new one; drivers that are
    alive read it anew. `logio retry` then resumes the run.
    """
    operator, _, channel = port.partition(".")
    known = ConnectionUrls.load(warn)
    root = known.payloads(log)
    with opened(known.log_url(log)) as store:
        found = store.find_run(run)
        what = broken(store, found, Port(operator, channel), event_id, Payloads(root).load if root else None)
        if values is None:
            out.print(f"{what.where}: {said_of(what)}. Nothing was changed; --values does that", markup=False)
            return
        done = mend_body(store, found, what, values, f"{this_person()} on {this_host()}")
    out.print(f"{what.where}: {done}. `logio retry {found.uid[:8]}` resumes the run", markup=False)


# --- stop -------------------------------------------------------------------------------------------------------------


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


# --- scale ------------------------------------------------------------------------------------------------------------


def scale(
    run: RunArgument,
    group: Annotated[str, typer.Argument(help="Replicated group")],
    replicas: Annotated[int, typer.Argument(min=0, help="Number of active replicas; 0 puts the group to sleep")],
    log: LogOption = None,
    reason: Annotated[str, typer.Option(help="Reason; stored with the request")] = "logio scale",
    master: MasterOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only request it; the supervisor of the run carries it out")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the result")] = 300.0,
) -> None:
    """Change the number of replicas of a group. The rest of the run keeps running; no event is lost or used twice.

    New replicas are launched first, and get a share of the work when they are ready. Replicas that leave give up their
    work first. The command can be interrupted and repeated at any time.
    """
    known = ConnectionUrls.load(warn)
    log_url = known.log_url(log)
    with opened(log_url) as store:
        found = store.find_run(run)
        settings = options_for(found, SparkOptions.given(master)).settings()
        context = reopen(store, log_url, known.payloads(log), found, known, settings)
        request = store.request_scaling(found.run_id, group, replicas, by="logio scale", reason=reason)
        if detach:
            out.print(asked_for(request), markup=False)
            return
        step = _until_settled(context, request, time.monotonic() + timeout)
    if step is None:
        warn(f"{group} is not scaled yet after {timeout:g} s; the request stands, and `logio scale` can be repeated")
    if step is None or step.stage is Stage.REFUSED:
        raise typer.Exit(1)


def _until_settled(context: LaunchContext, request: ScalingRequest, deadline: float) -> Step | None:
    """Carry the request out and print each new sentence. Returns None if the time is up."""
    said = ""
    while time.monotonic() < deadline:
        try:
            step = carry_out(context, request)
        except LogUnavailable as error:
            warn(f"{error}; trying again")
            step = None
        if step is not None and step.sentence != said:
            said = step.sentence
            out.print(said, markup=False)
        if step is not None and step.stage in (Stage.DONE, Stage.REFUSED):
            return step
        time.sleep(POLL_SECONDS)
    return None


# --- fresh ------------------------------------------------------------------------------------------------------------


def fresh(
    run: Annotated[
        str,
        typer.Argument(help="The run to give up: its uid or the beginning of it, or its run id, which is asked about"),
    ],
    log: LogOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask whether the newest run of that run id is meant")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until its drivers have halted")] = HALT_SECONDS,
) -> None:
    """Give a run up for good, so that the same DAG run (or --run-id) can start over from scratch.

    Its drivers are halted, and nothing of it can be retried. Its lineage stays until `logio gc` removes the run. The fresh
    run treats tables as any new run does (`on_new_run`). Repeating this command for the same run changes nothing.
    """
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        found = _named(store, run, yes=yes)
        said = give_up(store, found, timeout, StopProgress().seen)
    out.print(said, markup=False)


def again(
    run: Annotated[str | None, typer.Argument(help="The run to compute again: its uid or the beginning of it")] = None,
    log: LogOption = None,
    partition: Annotated[
        str | None, typer.Option(help="Instead: the newest run of this day or hour, or of each in A..B")
    ] = None,
    pipeline: Annotated[str | None, typer.Option(help="Whose partition; needed if several pipelines have it")] = None,
    because: Annotated[str | None, typer.Option(help="Why: kept with the run that is replaced")] = None,
    above: Annotated[
        int, typer.Option(help="Next runs get a number above this one: after the log was restored from a copy", min=0)
    ] = 0,
    take_over: TakeOverOption = False,
    empty: EmptyOption = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until its drivers have halted")] = HALT_SECONDS,
) -> None:
    """Give runs up so that their days or hours are computed again; what they wrote stays until the next run replaces it.

    As `logio fresh`, also for runs that have finished. It says how the next run begins. Repeating it for the same run changes
    nothing, but for what the next run may do (--take-over, --empty), until that has begun.
    """
    if (run is None) == (partition is None):
        raise typer.BadParameter("name a run, or a partition with --partition", param_hint="RUN")
    known, allowed = ConnectionUrls.load(warn), allowed_by(take_over=take_over, empty=empty)
    with opened(known.log_url(log)) as store:
        found = (
            [run_to_give_up(store, run, "again")]
            if run is not None
            else _of_partitions(store, str(partition), pipeline)
        )
        for one in found:
            check_allowed(one.spec, allowed)
        for one in found:
            said = give_up(store, one, timeout, StopProgress().seen, because=because, above=above, allowed=allowed)
            out.print(said, markup=False)


def _of_partitions(store: LogStore, written: str, pipeline: str | None) -> list[Run]:
    """The newest run of each partition, in order. Raises `ConfigurationError` if there is none, or of several pipelines."""
    first, _, last = written.partition("..")
    newest: dict[tuple[str, str], Run] = {}
    for run in store.list_runs(pipeline=pipeline, partitions=(first, last or first), limit=MOST_RUNS):
        key = str(run.partition)
        place = (run.spec.key.pipeline, key)
        if place not in newest or run.ordinal > newest[place].ordinal:
            newest[place] = run
    if not newest:
        raise ConfigurationError(f"no run of partition {written} is in the log: `logio run --partition` begins one")
    if len(names := sorted({name for name, _ in newest})) > 1:
        raise ConfigurationError(
            f"pipelines {', '.join(names)} have runs of partition {written}: say which one with --pipeline"
        )
    return [newest[place] for place in sorted(newest)]


def _named(store: LogStore, name: str, *, yes: bool) -> Run:
    """The run that is meant. A run id also names the run that will follow: a person says that the newest one is meant."""
    try:
        return run_to_give_up(store, name)
    except UnknownRun:
        raise
    except ConfigurationError:
        found = store.find_run(name)
        if name != found.spec.key.dag_run_id or not (yes or sys.stdin.isatty()):
            raise
    if not yes:
        started = datetime.fromtimestamp(found.created_at, tz=UTC).strftime("%Y-%m-%d %H:%M")
        question = f"Give up run {found.spec.key}, uid {found.uid[:8]}, {found.state.value}, started {started} UTC?"
        if not typer.confirm(question):
            raise typer.Exit(1)
    return found
