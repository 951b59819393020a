"""`logio fresh`: gives a run up, so that its DAG run, or its --run-id, can start over."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.control import HALT_SECONDS, StopProgress
from airflow_logio.errors import ConfigurationError, UnknownRun
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.stop_run import give_up, run_to_give_up


def register(app: typer.Typer) -> None:
    app.command("fresh")(fresh)


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
