"""`logio days`: the days or hours of a pipeline as a small calendar: done, running, red and why, replaced, missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_logio.cli.airflow_dags import AirflowDags
from airflow_logio.cli.common import LogOption, opened, options, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.run_tables import add_row, new_table, spaced
from airflow_logio.commands import counted
from airflow_logio.run_report.calendar import Calendar, CalendarReader, Day, DayState, calendar_document

MOST_LINES = 30
"""Partitions of which something is said below the calendar, the last ones."""
MOST_NAMED = 3
"""Partitions that brought records of one."""
_SIGNS = {
    DayState.DONE: ("✓", ""),
    DayState.RUNNING: ("▶", "green"),
    DayState.RED: ("✗", "bold red"),
    DayState.GIVEN_UP: ("○", "yellow"),
    DayState.REMOVED: ("~", "dim"),
    DayState.MISSING: ("-", "bold red"),
    DayState.NO_RUN_YET: (".", "dim"),
}
_REPLACED = "↻"
"""Of a partition that is done, and was computed again."""
_STALE = "≠", "yellow"
"""Of one that is done, from a day that was replaced since."""


def register(app: typer.Typer) -> None:
    app.command("days")(days)


def days(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline")],
    log: LogOption = None,
    first: Annotated[str | None, typer.Option("--from", help="First day or hour. Default: the first one known")] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="Last day or hour. Default: the last one that has ended")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on standard output")] = False,
) -> None:
    """Show the days or hours of a pipeline: which are done, run, have stopped and why, were computed again, or are missing.

    A day is as its youngest run is. It is missing if it has no run in the log, and days before and after it have one. Late
    records are told twice: with the run that they came with, and for the day that they are of, until that is computed again.
    """
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        reader = CalendarReader(store, options.log, AirflowDags().is_paused)
        calendar = reader.read(pipeline, first, last)
    if as_json:
        typer.echo(json.dumps(calendar_document(calendar), indent=2))
    else:
        out.print(calendar_page(calendar))


def calendar_page(calendar: Calendar) -> Group:
    """A line for each month, or day of hours, then what is to be said of single partitions."""
    parts: list[RenderableType] = [_heading(calendar), _grid(calendar), _legend(calendar)]
    said = [day for day in calendar.days if _remark(day)]
    if said:
        table = new_table(calendar.partitioning.what, "state", "run", "")
        for day in _told(said):
            run = day.youngest
            sign, style = _sign(day)
            state = Text(f"{sign} {day.state.value}", style=style)
            add_row(table, day.key.text, state, "" if run is None else run.uid[:8], _remark(day))
        parts.append(table)
    if len(said) > MOST_LINES:
        parts.append(Text(f"and {len(said) - MOST_LINES:,} others: give --from and --to, or --json", style="dim"))
    if late := [day for day in calendar.days if day.came]:
        parts.append(_late_hint(calendar, late))
    return spaced(parts)


def _told(days: Sequence[Day]) -> Sequence[Day]:
    """Those of which a line is said: rather one that is red or was replaced than one of which only late records are told."""
    first = [day for day in days if not _is_only_late(day)][-MOST_LINES:]
    late = [day for day in days if _is_only_late(day)]
    left = max(0, len(late) - (MOST_LINES - len(first)))
    return sorted(first + late[left:], key=lambda day: day.key.start)


def _is_only_late(day: Day) -> bool:
    return day.state is DayState.DONE and not (day.replaced or day.stale)


def _late_hint(calendar: Calendar, days: Sequence[Day]) -> Text:
    what, records = calendar.partitioning.what, sum(day.came_for_it for day in days)
    again = f"logio again --partition {days[-1].key.text} --pipeline {calendar.pipeline}"
    return Text(
        f"{counted(records, 'late record')} came for {counted(len(days), what)} of these with runs of others. Where the "
        f"source finds them, compute the {what} again: `{again}`. A lookback does that by itself for the {what} before"
    )


def _heading(calendar: Calendar) -> Text:
    what, ends = calendar.partitioning.what, (calendar.days[0].key.text, calendar.days[-1].key.text)
    text = f"{calendar.pipeline}: {what}s of {calendar.partitioning.zone}, {ends[0]} to {ends[1]}"
    if calendar.has_earlier or calendar.has_later:
        text += f", of {calendar.known.first} to {calendar.known.last}"
    return Text(text, style="bold")


def _grid(calendar: Calendar) -> Text:
    return Text("\n").join(_lines(calendar))


def _lines(calendar: Calendar) -> Iterator[Text]:
    for row in calendar.rows():
        line = Text(f"{row.name}  " + "  " * row.before)
        for day in row.days:
            sign, style = _sign(day)
            line.append(sign, style).append(" ")
        yield line


def _sign(day: Day) -> tuple[str, str]:
    if day.state is DayState.DONE and day.stale:
        return _STALE
    sign, style = _SIGNS[day.state]
    return (_REPLACED if day.state is DayState.DONE and day.replaced else sign), style


def _legend(calendar: Calendar) -> Text:
    """How many there are of each; done ones that were computed again have a sign of their own."""
    kinds = Counter((_sign(day), day.state.value) for day in calendar.days)
    words = {_REPLACED: ", computed again", _STALE[0]: ", from a day that was replaced since"}
    done, *others = _SIGNS.values()
    shown = [done, (_REPLACED, ""), _STALE, *others]
    said = [
        Text(f"{sign} {many:,} {state}{words.get(sign, '')}", style)
        for (sign, style), state in sorted(kinds, key=lambda kind: shown.index(kind[0]))
        if (many := kinds[(sign, style), state])
    ]
    if calendar.others:
        said.append(Text(f"{counted(calendar.others, 'run')} of other partitions", "dim"))
    return Text("   ").join(said)


def _remark(day: Day) -> str:
    """What there is to say of it, beside its state."""
    said = []
    if day.state is DayState.RED:
        said.append(str(day.cause or day.condition.word))
        if day.condition.next_step:
            said.append(f"next: {day.condition.next_step}")
    if day.replaced:
        why = f" ({day.because})" if day.because else ""
        said.append(f"{counted(day.replaced, 'run')} before{why}")
    elif day.state is DayState.GIVEN_UP and day.because:
        said.append(day.because)
    said += [f"computed from {one}" for one in day.stale]
    if day.late:
        said.append(f"{counted(day.late, 'late record')} came with it")
    if day.came:
        after = "" if day.youngest is None else ", after its run"
        said.append(f"{counted(day.came_for_it, 'late record')} came for it with {_came_with(day)}{after}")
    return "; ".join(said)


def _came_with(day: Day) -> str:
    """The partitions whose runs brought records of it, the last ones."""
    brought = [f"{one.came_with} ({one.records:,})" for one in sorted(day.came, key=lambda one: one.came_with)]
    *others, last = (
        [f"{len(brought) - MOST_NAMED} others", *brought[-MOST_NAMED:]] if len(brought) > MOST_NAMED else brought
    )
    return f"{', '.join(others)} and {last}" if others else last
