"""Where the looks of `logio status --watch` go: a live page, plain lines, or one JSON object per line."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from types import TracebackType

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from airflow_logio.cli.display import Progress
from airflow_logio.cli.status import run_tables
from airflow_logio.errors import LogUnavailable
from airflow_logio.run_report.as_json import document
from airflow_logio.run_report.report import Report
from airflow_logio.status.recoveries import RecoveryNews


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
        """Once each time that nobody supervises the run any more."""
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
