"""`logio run`: the same pipeline and the same drivers as in Airflow, supervised from this terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from airflow_logio.cli import reports
from airflow_logio.cli.common import LogOption, err, opened, options, out, pairs, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.display import Progress
from airflow_logio.cli.preparation import Wanted, prepare
from airflow_logio.cli.spark_options import ConfOption, ConnectOption, MasterOption, MemoryOption, SparkOptions
from airflow_logio.commands import with_log
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.status.run_summary import Outcome
from airflow_logio.supervision.local_run import LocalRun

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HALTING = b"\nHalting the drivers; press Ctrl-C again to kill them.\n"


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    pipeline: Annotated[str, typer.Argument(help="path/to/file.py:name or module.path:name", metavar="PIPELINE")],
    param: Annotated[list[str] | None, typer.Option("--param", help="Run parameter, name=value")] = None,
    connection: Annotated[
        list[str] | None, typer.Option("--connection", help="name=conn_id; default: the id is the name")
    ] = None,
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
) -> None:
    """Run a pipeline without Airflow until it has finished. Ctrl-C halts it; the same --run-id resumes it."""
    wanted = Wanted(
        pipeline_ref=pipeline,
        params=pairs("--param", param or ()),
        connection_ids=pairs("--connection", connection or ()),
        run_id=run_id,
        hold_sources=hold_sources,
        spark=SparkOptions.given(master, driver_memory, conf, connect),
        replay_seconds=replay_seconds,
        alone=alone,
    )
    known = ConnectionUrls.load(warn)
    log_url = known.log_url(log)
    with opened(log_url, create=True) as store:
        context = prepare(
            store, log_url, known.payloads(log), wanted, known, lambda text: err.print(text, markup=False)
        )
        raise typer.Exit(supervise(context, None, json_path))


def supervise(context: LaunchContext, groups: Sequence[str] | None, json_path: Path | None) -> int:
    """Supervise groups of a run in the foreground; returns the exit code."""
    local = LocalRun(context, groups)
    key = context.run.spec.key
    uid = context.run.uid[:8]
    page = with_log(f"`logio ui {uid}` shows it in a browser", options.log)
    out.print(f"run {key.dag_run_id} of {key.pipeline}, uid {uid}; {page}", markup=False)
    with halting(local.halt) as signals, Progress(out) as progress:
        summary = local.run(progress.show)
    reports.report(out, summary, debug=options.debug)
    if json_path is not None:
        reports.write_json(json_path, summary)
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
