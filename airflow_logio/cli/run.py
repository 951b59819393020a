"""`logio run`: the same pipeline and the same drivers as in Airflow, supervised from this terminal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from airflow_logio.cli.common import (
    EmptyOption,
    LogOption,
    PartitionOption,
    TakeOverOption,
    allowed_by,
    err,
    opened,
    options,
    out,
    pairs,
    warn,
)
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.display import Progress
from airflow_logio.cli.lookback import look_back, wanted_again
from airflow_logio.cli.partitions import Begun, OnePartition, Partitions, RangeProgress, table_of
from airflow_logio.cli.preparation import (
    CLI_DAG_ID,
    Wanted,
    begin,
    check_together,
    describe,
    input_of,
    is_range,
    load,
    name_of,
    partitions_of,
    prepare,
)
from airflow_logio.cli.spark_options import (
    ConfOption,
    ConnectOption,
    DeployModeOption,
    MasterOption,
    MemoryOption,
    SparkOptions,
)
from airflow_logio.cli.upkeep import say_removed
from airflow_logio.commands import counted, with_log
from airflow_logio.dataflow.pipeline.days import partitioning_of
from airflow_logio.errors import ConfigurationError, LogioError
from airflow_logio.launch import spark_submit
from airflow_logio.launch.driver_log import tail
from airflow_logio.launch.input_arrival import Waiting
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import CONCLUDED, ENDED, GroupState, RunState
from airflow_logio.status.authored_figures import ports_seen
from airflow_logio.status.condition import step_after
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.local_run import LocalRun
from airflow_logio.supervision.lookback import Left

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HALTING = b"\nHalting the drivers; press Ctrl-C again to kill them.\n"
MAX_QUARANTINED = 10
CHANGED = "if you have changed the code, with --code new"
"""A run keeps its code (ADR-63)."""


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    pipeline: Annotated[str, typer.Argument(help="path/to/file.py:name or module.path:name", metavar="PIPELINE")],
    param: Annotated[list[str] | None, typer.Option("--param", help="Run parameter, name=value")] = None,
    connection: Annotated[
        list[str] | None, typer.Option("--connection", help="name=conn_id; default: the id is the name")
    ] = None,
    partition: PartitionOption = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="Of a range of partitions: how many runs may be alive at a time")
    ] = 1,
    lookback: Annotated[
        bool, typer.Option("--lookback", help="When it has finished, compute the partition before again, once")
    ] = False,
    take_over: TakeOverOption = False,
    empty: EmptyOption = False,
    log: LogOption = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Name of the run; an earlier run of that name is continued")
    ] = None,
    hold_sources: Annotated[
        bool, typer.Option("--hold-sources/--no-hold-sources", help="Sources wait until all drivers are ready")
    ] = False,
    replay_seconds: Annotated[
        float | None,
        typer.Option(help="How long to wait for an unavailable external system before its group is parked"),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Refuse to start while another run of the pipeline is unfinished")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file")] = None,
    master: MasterOption = None,
    driver_memory: MemoryOption = None,
    conf: ConfOption = None,
    connect: ConnectOption = None,
    deploy_mode: DeployModeOption = None,
) -> None:
    """Run a pipeline without Airflow until it has finished. Ctrl-C halts it; the same --run-id resumes it.

    A range of partitions has a run for each; one that fails does not stop the others. The same command begins or resumes
    those that are left, and exits with 0 when all have finished.
    """
    if lookback and (partition is None or is_range(partition)):
        raise typer.BadParameter(
            "it is for the run of one partition: name it with --partition", param_hint="--lookback"
        )
    if is_range(partition):
        _check_range_options(run_id, alone=alone, at_once=at_once)
    wanted = Wanted(
        pipeline_ref=pipeline,
        params=pairs("--param", param or ()),
        connection_ids=pairs("--connection", connection or ()),
        run_id=run_id,
        hold_sources=hold_sources,
        spark=SparkOptions.given(master, driver_memory, conf, connect, deploy_mode),
        replay_seconds=replay_seconds,
        alone=alone,
        partition=partition,
        allowed=allowed_by(take_over=take_over, empty=empty),
    )
    known = ConnectionUrls.load(warn)
    log_url = known.log_url(log)
    if is_range(partition):
        raise typer.Exit(_run_range(log_url, known.payloads(log), wanted, known, at_once, json_path))
    with opened(log_url, create=True) as store:
        context = prepare(store, log_url, known.payloads(log), wanted, known, _say)
        if context.run.state is RunState.FINISHED:
            step = with_log(f"`logio again {context.run.uid[:8]}`", options.log)
            _say(
                f"this run has finished before: nothing is computed now. To compute it again: {step}, then this command"
            )
        code = supervise(context, None, json_path)
        if lookback and code == 0:
            code = _look_back(store, log_url, known.payloads(log), wanted, known, context)
        say_removed(store, known, known.payloads(log), context.run.spec.key.pipeline)
        raise typer.Exit(code)


def _look_back(
    store: LogStore, log_url: str, payloads: str | None, wanted: Wanted, known: ConnectionUrls, done: LaunchContext
) -> int:
    """The partition before that of a finished run, again; returns the exit code. `done` is finished in any case."""
    partitioning = partitioning_of(done.pipeline.name, done.pipeline.partition, str(wanted.partition))
    key = partitioning.key_of(wanted.partition)
    before = partitioning.preceding(key)
    found = look_back(store, done.run, before)
    if isinstance(found, Left):
        _say(f"lookback: {found.why}")
        return 0
    again = wanted_again(wanted, found, before, done.pipeline.params)
    try:
        context = prepare(store, log_url, payloads, again, known, _say)
    except LogioError as error:
        _say(
            f"{key.text} is finished. {before.text}, which it has computed again, is not begun: {error}. What was written "
            "for that stays; the same command begins it"
        )
        return 1
    return supervise(context, None, None)


def _say(text: str) -> None:
    err.print(text, markup=False)


def _check_range_options(run_id: str | None, *, alone: bool, at_once: int) -> None:
    """Raises BadParameter for options that contradict a range."""
    if run_id is not None:
        raise typer.BadParameter("each run of a range has a name of its own: leave it out", param_hint="--run-id")
    if alone and at_once > 1:
        raise typer.BadParameter("with --at-once, runs of the pipeline are not alone", param_hint="--alone")


def _run_range(
    log_url: str, payloads: str | None, wanted: Wanted, known: ConnectionUrls, at_once: int, json_path: Path | None
) -> int:
    """A run for each partition of the range that is wanted; returns the exit code."""
    spark_submit.check(wanted.spark.settings())
    loaded = load(wanted, known)
    keys = [key for key in partitions_of(loaded.pipeline, wanted.partition) if key is not None]
    if at_once > 1:
        check_together(payloads, wanted, loaded, keys)
    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            _say(text)

    with opened(log_url, create=True) as store:
        waits = {key.text: (key, input_of(loaded, key)) for key in keys}

        def begun(text: str) -> Begun | Waiting:
            key, wait = waits[text]
            if waiting := wait.look(store, CLI_DAG_ID, name_of(wanted, loaded, key)):
                return waiting
            described = describe(payloads, wanted, loaded, key, say_once)
            return Begun(begin(store, log_url, payloads, wanted, described, say_once))

        partitions = Partitions(list(waits), begun, at_once)
        what = "partition" if loaded.pipeline.partition is None else loaded.pipeline.partition.what
        code = supervise_range(partitions, what, f"`logio retry --partition {wanted.partition}`", json_path)
        say_removed(store, known, payloads, loaded.pipeline.name)
        return code


def supervise_range(partitions: Partitions, what: str, retry: str, json_path: Path | None) -> int:
    """Supervise runs of partitions in the foreground; returns the exit code. `what` a partition is called; `retry` is the
    command that resumes those that are parked."""
    with halting(partitions.halt) as signals, RangeProgress(out) as progress:
        partitions.run(progress.show)
    report_range(out, what, partitions.all, retry, debug=options.debug)
    if json_path is not None:
        _write_json(json_path, {"partitions": [one.as_json() for one in partitions.all]})
    if signals:
        return INTERRUPTED
    return 0 if all(one.is_finished for one in partitions.all) else 1


def supervise(context: LaunchContext, groups: Sequence[str] | None, json_path: Path | None) -> int:
    """Supervise groups of a run in the foreground; returns the exit code."""
    local = LocalRun(context, groups)
    key = context.run.spec.key
    uid = context.run.uid[:8]
    page = with_log(f"`logio ui {uid}` shows it in a browser", options.log)
    out.print(f"run {key.dag_run_id} of {key.pipeline}, uid {uid}; {page}", markup=False)
    with halting(local.halt) as signals, Progress(out) as progress:
        summary = local.run(progress.show)
    report(out, summary, debug=options.debug)
    if json_path is not None:
        write_json(json_path, summary)
    if signals:
        return INTERRUPTED
    return 0 if summary.outcome is Outcome.FINISHED else 1


@contextmanager
def halting(halt: Callable[[], None]) -> Iterator[list[int]]:
    """Call `halt` on each signal; it must be safe in a signal handler. Yields the list of signals received."""
    came: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        halt()
        if len(came) == 1:
            os.write(2, HALTING)  # not through the console: its lock may be held

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the report at the end --------------------------------------------------------------------------------------------


def report(console: Console, summary: RunSummary, *, debug: bool = False) -> None:
    """Ports, seconds and drivers; for a parked group, its cause; and the command that comes next.

    Of an error in the author's code the cause has the author's frames; the end of the driver's log, with ours around them,
    is shown with `debug`, and where the cause has none.
    """
    console.print(_ports(summary))
    seconds, rate = summary.event_seconds, summary.records_per_second
    if seconds is not None:
        speed = f", {rate:,.0f} records/s" if rate else ""
        console.print(f"first to last event {seconds:.1f} s{speed}; {summary.seconds:.1f} s in all", highlight=False)
    drivers = counted(len(summary.drivers), "driver")
    console.print(f"{drivers} launched, {summary.recoveries} of them recoveries", highlight=False)
    _causes(console, summary, debug=debug)


def report_range(
    console: Console, what: str, partitions: Sequence[OnePartition], retry: str, *, debug: bool = False
) -> None:
    """A table of all partitions; then, for each that has not finished, why, and the commands that come next."""
    console.print(table_of(what, partitions))
    refused: dict[str, list[str]] = {}
    for one in partitions:
        if one.why:
            refused.setdefault(f"{one.state}: {one.why}", []).append(one.key)
        elif one.summary is not None and not one.is_finished:
            console.print(f"{one.key}, run {one.summary.run.spec.key.dag_run_id}:", style="bold", markup=False)
            _causes(console, one.summary, debug=debug)
    for why, keys in refused.items():
        more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
        console.print(f"{keys[0]}{more} {why}", style="bold red", markup=False)
    finished = sum(one.is_finished for one in partitions)
    stuck = sum(one.waits_for_a_person for one in partitions)
    rest = "; the same command begins or resumes the others" if finished + stuck < len(partitions) else ""
    console.print(f"{finished:,} of {counted(len(partitions), what)} finished{rest}", markup=False)
    if stuck:
        console.print(f"{stuck:,} wait for you: fix the cause, then {retry} ({CHANGED})", markup=False)


def _causes(console: Console, summary: RunSummary, *, debug: bool) -> None:
    """Of a run that has not simply finished."""
    for group in summary.parked:
        _parked(console, group, debug=debug)
    for one in summary.quarantined[:MAX_QUARANTINED]:
        console.print(f"quarantined: {one.error}", style="bold red", markup=False)
    for line in _next(summary):
        console.print(line, markup=False, highlight=False)


def _parked(console: Console, group: GroupStatus, *, debug: bool) -> None:
    console.print(f"group {group.group} is parked: {group.error}", style="bold red", markup=False)
    if debug or not _has_frames(group.error):
        for line in tail(group.log_path):
            console.print(f"  | {line}", markup=False, highlight=False)
    if group.log_path:
        console.print(f"Everything it has printed: {group.log_path}", markup=False, highlight=False)


def _next(summary: RunSummary) -> Iterator[str]:
    """How the run has ended, where that is not plain, and what to type."""
    uid = summary.run.uid[:8]
    retry = f"`logio retry {uid}`"
    if len(summary.parked) == 1:
        step = f"Fix the cause, then: `logio retry {uid} {summary.parked[0].group}` ({CHANGED})"
    else:  # they are retried together: while one is parked, `logio retry` of another one ends at once
        step = f"Fix the causes, then: {retry} ({CHANGED})"
    if summary.parked:
        step = step_after(summary.parked, step)
        yield f"{step[0].upper()}{step[1:]}"
    aside = len(summary.quarantined)
    if aside > MAX_QUARANTINED:
        yield f"... and {aside - MAX_QUARANTINED:,} more quarantined: `logio status {uid} --json` shows all"
    if aside:
        is_over = "finished with quarantine: " if summary.outcome is Outcome.QUARANTINED else ""
        yield f"{is_over}{aside:,} Input Set(s) are set aside. Fix the operator, then: {retry} ({CHANGED})"
    if summary.outcome is Outcome.HALTED:
        yield f"{_halted(summary)} To continue: {retry}"
    elif summary.outcome is not Outcome.PARKED and (left := _states(summary.groups, CONCLUDED)):
        yield f"These groups have finished; the run continues: {left}"


def _halted(summary: RunSummary) -> str:
    left = _states(summary.groups, ENDED | {GroupState.NEW, GroupState.DEAD})
    return f"halted; as the log last knew, not ended: {left}." if left else "halted; every driver has ended."


def _states(groups: Sequence[GroupStatus], besides: Collection[GroupState]) -> str:
    return ", ".join(f"{group.group} {group.state.value}" for group in groups if group.state not in besides)


def _has_frames(error: str | None) -> bool:
    return error is not None and '\n  File "' in error


def _ports(summary: RunSummary) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, justify in (("port", "left"), ("", "left"), ("events", "right"), ("records", "right"), ("MB", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    for row in ports_seen(summary.run, summary.ports):
        size = f"{row.bytes / 2**20:,.1f}" if row.bytes else ""
        table.add_row(str(row.port), row.direction, f"{row.events:,}", f"{row.records:,}", size)
    return table


def write_json(path: Path, summary: RunSummary) -> None:
    """Raises `ConfigurationError` if the file cannot be written."""
    _write_json(path, summary.as_json(), f" {summary.run.uid[:8]}")


def _write_json(path: Path, document: dict[str, Any], run: str = "") -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigurationError(
            f"the summary cannot be written to {path}: {error}. The run itself has ended as it says above; `logio status"
            f"{run} --json` has its figures"
        ) from error
