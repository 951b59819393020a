"""Progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report.report import WORKING
from airflow_logio.status.condition import condition_of, silent_seconds
from airflow_logio.status.snapshot import GroupView, Snapshot
from airflow_logio.store.records.driver_records import WAIT
from airflow_logio.store.records.status_records import GroupStatus

BAR_CELLS = 20
PLAIN_LINE_SECONDS = 5.0
_STYLES = {
    GroupState.RUNNING: "cyan",
    GroupState.FINISHED: "green",
    GroupState.DEAD: "bold red",
    GroupState.PARKED: "bold red",
    GroupState.HALTED: "yellow",
    GroupState.RETIRED: "dim",
}


class Progress:
    """Use as a context. `show` displays a snapshot; `say` prints a line that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None
        self._lines: dict[str, _Lines] = {}
        """Of each run that is shown, by what its lines begin with."""

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        if self._live:
            self._live.update(table(snapshot))
        else:
            self._say_news("", snapshot)

    def show_each(self, snapshots: Mapping[str, Snapshot], done: str) -> None:
        """Of several runs, by their names, one line each; `done` says in short how many are behind."""
        if self._live:
            lines = [Text(f" {name}  {line(snapshot)}") for name, snapshot in snapshots.items()]
            self._live.update(Group(*lines, Text(f" {done} done", style="dim")))
            return
        for name, snapshot in snapshots.items():
            self._say_news(f"{name}: ", snapshot)

    def _say_news(self, begin: str, snapshot: Snapshot) -> None:
        for text in self._lines.setdefault(begin, _Lines()).of(snapshot):
            self.say(f"{begin}{text}")


class _Lines:
    """Plain lines of a run: what is new, and now and then how far it is."""

    def __init__(self) -> None:
        self._said_at = float("-inf")
        self._states: dict[str, tuple[GroupState, int]] = {}
        self._waits: dict[str, str] = {}

    def of(self, snapshot: Snapshot) -> Iterator[str]:
        waits = dict(waiting(snapshot))
        yield from (f"{name}: in {wait}" for name, wait in waits.items() if wait != self._waits.get(name))
        self._waits = waits
        states = {view.name: (view.status.state, view.status.incarnation) for view in snapshot.groups}
        if states != self._states or time.monotonic() - self._said_at >= PLAIN_LINE_SECONDS:
            self._states, self._said_at = states, time.monotonic()
            yield line(snapshot)


def style(status: GroupStatus) -> str:
    return _STYLES[GroupState.DEAD] if silent_seconds(status) is not None else _STYLES.get(status.state, "")


def table(snapshot: Snapshot) -> RenderableType:
    """One row per group, in the order of the data."""
    grid = Table.grid(padding=(0, 2))
    for view in snapshot.rows:
        shown = style(view.status)
        grid.add_row(
            Text(f" {view.name}", style=shown),
            Text(bar(view.done), style=shown or "dim"),
            amount(view),
            lag(view),
            _memory(view),
            f"inc {view.status.incarnation}",
            Text(condition(view), style=shown or "dim"),
        )
    waits = [Text(f" {name}: in {wait}", style="yellow") for name, wait in waiting(snapshot)]
    return Group(grid, *waits, Text(f" {snapshot.seconds:.0f} s", style="dim"))


def waiting(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """(group, what waits for an external system, since when and why), of drivers that run."""
    for view in snapshot.groups:
        load = view.status.load
        if view.status.state in WORKING and load is not None and load.call.startswith(WAIT):
            yield view.name, load.call


def line(snapshot: Snapshot) -> str:
    """The same in one line."""
    parts = []
    for view in snapshot.rows:
        condition_ = condition_of(view.status)
        state = "" if condition_ == GroupState.RUNNING else f" {condition_}"
        again = f" inc {view.status.incarnation}" if view.status.incarnation > 1 else ""
        share = f" {view.done:.0%}" if view.done is not None else ""
        events = "" if view.is_replica else f" {view.measured.events:,} events"
        parts.append(f"{view.name}{state}{again}{share}{events}")
    return f"{snapshot.seconds:6.1f} s  " + " | ".join(parts)


def bar(done: float | None) -> str:
    if done is None:
        return " " * BAR_CELLS
    full = int(done * BAR_CELLS)
    return "█" * full + "░" * (BAR_CELLS - full)


def amount(view: GroupView) -> str:
    """What the group has done, in the most telling unit. Empty for a replica: the row of its group has the total."""
    if view.is_replica:
        return ""
    if view.writes:
        return f"{view.writes:,} writes"
    if view.total_records is not None:
        return f"{view.measured.records:,} / {view.total_records:,} records"
    return f"{view.measured.events:,} events, {view.sent.events:,} out"


def lag(view: GroupView) -> str:
    if not view.lag.events:
        return f"{view.rate / 1000:,.0f} k/s" if view.rate else ""
    seconds = "" if view.lag_seconds is None else f" ({view.lag_seconds:.1f} s)"
    return f"lag {view.lag.events:,} events{seconds}"


def condition(view: GroupView) -> str:
    words = condition_of(view.status)
    if words == GroupState.RUNNING:
        ago = view.recovered_seconds_ago
        return "" if ago is None else f"recovered {time.strftime('%H:%M:%S', time.gmtime(ago))} ago"
    return words


def _memory(view: GroupView) -> str:
    return f"{view.status.rss_bytes / 2**20:,.0f} MB" if view.status.rss_bytes else ""
