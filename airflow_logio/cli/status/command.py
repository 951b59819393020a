"""The command `logio status`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, err, opened, options, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.status import run_tables
from airflow_logio.cli.status.run_watch import watch
from airflow_logio.cli.status.screens import JsonScreen, PlainScreen, Screen, TerminalScreen
from airflow_logio.run_report import as_json as documents
from airflow_logio.run_report.report import Report, Reporter
from airflow_logio.store.port import LogStore
from airflow_logio.supervision.presence import last_look

INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    run: Annotated[str | None, typer.Argument(help="Run: its uid, the beginning of it, or its run id")] = None,
    log: LogOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Machine-readable, on standard output; with --watch one object per line")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Keep looking until the run has ended, or until Ctrl-C")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two updates of --watch", min=0.1)] = 1.0,
) -> None:
    """Show all runs of the log, the newest first; or one run with its groups, connections, ports, drivers and recoveries."""
    if watching and run is None:
        raise typer.BadParameter("name the run to watch: logio status RUN --watch", param_hint="--watch")
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        if run is None:
            _runs(store, as_json=as_json)
        elif watching:
            _watch(Reporter(store, run, log=options.log), interval, as_json=as_json)
        else:
            _show(Reporter(store, run, log=options.log).look(), as_json=as_json)


def _runs(store: LogStore, *, as_json: bool) -> None:
    looks = store.supervisors()
    runs = [(run, store.groups(run.run_id), last_look(looks, run)) for run in store.list_runs()]
    if as_json:
        typer.echo(json.dumps([documents.listed_run(*one, options.log) for one in runs], indent=2))
    else:
        out.print(run_tables.runs(runs) if runs else "no runs")


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(documents.document(report), indent=2))
        return
    out.print(run_tables.whole(report))
    for line in run_tables.errors(report):
        err.print(line)


def _watch(reporter: Reporter, interval: float, *, as_json: bool) -> None:
    screen: Screen = JsonScreen() if as_json else TerminalScreen(out) if out.is_terminal else PlainScreen(out)
    try:
        with screen:
            watch(reporter.look, screen, interval)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
