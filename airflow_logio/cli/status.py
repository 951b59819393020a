"""`logio status`: what the log says about runs, groups, connections and drivers, once or repeatedly."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from airflow_logio.cli import run_tables
from airflow_logio.cli.airflow_dags import AirflowDags
from airflow_logio.cli.common import RUN_HELP, LogOption, err, opened, options, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.display import Progress
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.states import RunState
from airflow_logio.run_report import as_json as documents
from airflow_logio.run_report.as_json import document
from airflow_logio.run_report.report import Report, Reporter
from airflow_logio.status.condition import awaits_airflow
from airflow_logio.status.recoveries import RecoveryNews
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import RunSight
from airflow_logio.supervision.overdue import overdue
from airflow_logio.supervision.presence import last_look

INTERRUPTED = 130
FINISHING_SECONDS = 30.0
"""How long to wait for a run to be marked as finished after all its groups have finished."""


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    run: Annotated[str | None, typer.Argument(help=RUN_HELP)] = None,
    log: LogOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Machine-readable, on standard output; with --watch one object per line")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Keep looking until the run has ended, or until Ctrl-C")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two updates of --watch", min=0.1)] = 1.0,
    pipeline: Annotated[str | None, typer.Option(help="Only runs of this pipeline")] = None,
    most: Annotated[int, typer.Option(help="How many runs, the newest ones", min=1)] = 50,
    due: Annotated[
        bool,
        typer.Option("--due", help="Instead: days and hours that are late (`due=`); exits with 1 if there are any"),
    ] = False,
) -> None:
    """Show the runs of the log, the newest first; or one run with its groups, connections, ports, drivers and recoveries."""
    if watching and run is None:
        raise typer.BadParameter("name the run to watch: logio status RUN --watch", param_hint="--watch")
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        if due:
            raise typer.Exit(_due(store, pipeline, as_json=as_json))
        if run is None:
            _runs(store, pipeline, most, as_json=as_json)
            return
        reporter = Reporter(store, run, log=options.log, is_paused=AirflowDags().is_paused)
        if watching:
            _watch(reporter, interval, as_json=as_json)
        else:
            _show(reporter.look(), as_json=as_json)


def _due(store: LogStore, pipeline: str | None, *, as_json: bool) -> int:
    """The partitions of the last week that are late; returns the exit code."""
    late = overdue(store, pipeline=pipeline)
    if as_json:
        typer.echo(json.dumps([{**asdict(one), "due": one.due.timestamp()} for one in late], indent=2))
    elif not late:
        promised = [name for name in store.pipelines_due() if pipeline in (None, name)]
        out.print(f"nothing is late: {', '.join(promised)}" if promised else "no pipeline says when its days are due")
    else:
        for one in late:
            out.print(str(one), markup=False)
    return 1 if late else 0


def _runs(store: LogStore, pipeline: str | None, most: int, *, as_json: bool) -> None:
    looks = store.supervisors()
    found = store.list_runs(pipeline=pipeline, limit=most + 1)
    has_older, found = len(found) > most, found[:most]
    seen = {one.run.uid: one for one in store.sight([run.uid for run in found])}
    sights = [seen.get(run.uid) or RunSight(run, ()) for run in found]  # one that is being removed has no groups
    runs = [(one.run, one.groups, last_look(looks, one.run)) for one in sights]
    read = store.days_read([run.run_id for run, _, _ in runs if run.state is not RunState.SUPERSEDED])
    stale = {run_id: [day for day in days if day.is_stale] for run_id, days in read.items()}
    dags = AirflowDags()
    paused = {run.uid for run, _, _ in runs if awaits_airflow(run) and dags.is_paused(run.spec.key.dag_id)}
    if as_json:
        listed = [
            documents.listed_run(*one, options.log, is_paused=one[0].uid in paused, stale=stale.get(one[0].run_id, ()))
            for one in runs
        ]
        typer.echo(json.dumps(listed, indent=2))
    else:
        out.print(run_tables.runs(runs, paused, stale) if runs else "no runs")
    if has_older:
        err.print(f"the newest {most:,} runs; the log has older ones: `logio status --most {10 * most}`", markup=False)


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


def watch(
    look: Callable[[], Report],
    screen: Screen,
    interval: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Look and show every `interval` seconds; returns when the run has ended. Raises `UnknownRun`."""
    finishing_since: float | None = None
    away_since: float | None = None
    while True:
        try:
            report = look()
        except LogUnavailable as error:
            away_since = time.time() if away_since is None else away_since
            screen.away(away_since, error)
        else:
            away_since = None
            screen.show(report)
            if report.has_ended:
                return
            if not report.is_finishing:
                finishing_since = None
            elif finishing_since is None:
                finishing_since = clock()
            elif clock() - finishing_since >= FINISHING_SECONDS:
                return
        sleep(interval)


# --- where looks go: a live page, plain lines, or one JSON object per line --------------------------------------------


class Screen(ABC):
    """Use as a context."""

    @abstractmethod
    def show(self, report: Report) -> None: ...

    @abstractmethod
    def away(self, since: float, error: LogUnavailable) -> None:
        """The log is unavailable; `since` is the time of the first failed look, in seconds since the epoch."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(  # noqa: B027  # most screens have nothing to restore
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TerminalScreen(Screen):
    """A page that is repainted. While the log is unavailable, the last page stays and says so."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._page: RenderableType = Text("looking")

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, report: Report) -> None:
        self._page = run_tables.page(report)
        self._live.update(self._page, refresh=True)

    def away(self, since: float, error: LogUnavailable) -> None:
        note = Text(f"{_away(since)} ({time.time() - since:.0f} s): {error}", style="bold red")
        self._live.update(Group(self._page, Text(), note), refresh=True)


class PlainScreen(Screen):
    """Plain lines: groups when they change or every few seconds, recoveries and outages when they begin and end."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(console)
        self._news = RecoveryNews()
        self._away_since: float | None = None
        self._is_left = False

    def show(self, report: Report) -> None:
        if self._away_since is not None:
            self._progress.say(f"the log is back after {report.at - self._away_since:.0f} s")
            self._away_since = None
        self._say_if_left(report)
        begun, committed = self._news.of(report.drivers)
        for recovery in begun:
            self._progress.say(f"{recovery.group}: recovery by incarnation {recovery.incarnation}: {recovery.cause}")
        for recovery in committed:
            self._progress.say(
                f"{recovery.group}: recovered, first commit {recovery.seconds:.1f} s after the death was seen"
            )
        if report.has_ended:
            self._progress.say(run_tables.last_line(report))
        else:
            self._progress.show(report.snapshot)

    def _say_if_left(self, report: Report) -> None:
        """Say so once each time that the run loses its supervisor."""
        unsupervised = report.unsupervised
        if unsupervised is not None and not self._is_left:
            self._progress.say(f"warning: {unsupervised}")
        self._is_left = unsupervised is not None

    def away(self, since: float, error: LogUnavailable) -> None:
        if self._away_since is None:
            self._away_since = since
            self._progress.say(f"{_away(since)}: {error}")


class JsonScreen(Screen):
    """One line per look, as `--json` prints it. During an outage of the log, only ``log_away_since`` and the error."""

    def show(self, report: Report) -> None:
        typer.echo(json.dumps(document(report)))

    def away(self, since: float, error: LogUnavailable) -> None:
        typer.echo(json.dumps({"at": time.time(), "log_away_since": since, "error": str(error)}))


def _away(since: float) -> str:
    return f"log unavailable since {run_tables.clock_time(since)} UTC"
