"""`logio mend`, `stop`, `scale`, `fresh` and `again`: decisions about a run that only a person makes."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from airflow_logio.cli.common import EmptyOption, LogOption, RunArgument, TakeOverOption, allowed_by, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.partitions import newest_of
from airflow_logio.cli.preparation import reopen
from airflow_logio.cli.spark_options import (
    MasterOption,
    SparkOptions,
    options_for,
)
from airflow_logio.errors import ConfigurationError, LogUnavailable, RunRemoved, UnknownRun
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.launch.processes import this_host, this_person
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.rules.allowed_rules import check_allowed
from airflow_logio.supervision.mending import Remedy, broken, said_of
from airflow_logio.supervision.mending import mend as mend_body
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.scaling import Stage, Step, asked_for, carry_out
from airflow_logio.supervision.stop_run import (
    States,
    StopMode,
    StopRun,
    await_stop,
    check_nothing_said,
    computed_from,
    give_up,
    give_up_removed,
    not_ended,
    run_to_give_up,
)
from airflow_logio.systems.payloads import Payloads

HALT_SECONDS = 30.0
POLL_SECONDS = 0.25


def register(app: typer.Typer) -> None:
    app.command("mend")(mend)
    app.command("stop")(stop)
    app.command("scale")(scale)
    app.command("fresh")(fresh)
    app.command("again")(again)


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
        found = [_again(store, run)] if run is not None else newest_of(store, str(partition), pipeline)
        for one in found:
            if isinstance(one, RemovedRun):
                check_nothing_said(one, allowed, above)
            else:
                check_allowed(one.spec, allowed)
        for one in found:
            if isinstance(one, RemovedRun):
                said = give_up_removed(store, one)
            else:
                said = give_up(store, one, timeout, StopProgress().seen, because=because, above=above, allowed=allowed)
            out.print(said, markup=False)
            if (readers := computed_from(store, one.uid)) is not None:
                out.print(readers, markup=False)


def _again(store: LogStore, name: str) -> Run | RemovedRun:
    """As `run_to_give_up`, also of a run that was removed."""
    try:
        return run_to_give_up(store, name, "again")
    except RunRemoved:
        removed = store.removed_run(name)
        if removed is None or not removed.uid.startswith(name):
            raise
        return removed


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
