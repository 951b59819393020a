"""What the commands share: the terminal, options, ``key=value`` pairs, and how they open the log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from airflow_logio.commands import with_log
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import Allowed
from airflow_logio.store.rules.session_rules import Patience

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore

PIPE_WIDTH = 200
"""Width of output to a pipe or a file, in columns: wide, so that nothing is wrapped."""


@dataclass(slots=True)
class GlobalOptions:
    """What was given for all commands."""

    debug: bool = False
    log: str | None = None


options = GlobalOptions()


def written(text: str) -> str:
    """A sentence as this terminal shows it: its commands ask the log that was asked now."""
    return with_log(text, options.log)


class _Terminal(Console):
    """Texts are `written`. What is in tables, or has a style of its own, is so already."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(written(one) if isinstance(one, str) else one for one in objects), **how)


def _console(stream: TextIO, *, stderr: bool = False) -> Console:
    return _Terminal(stderr=stderr, highlight=False, soft_wrap=True, width=None if stream.isatty() else PIPE_WIDTH)


out = _console(sys.stdout)
err = _console(sys.stderr, stderr=True)

TERMINAL_PATIENCE = Patience(total_seconds=30)
"""Short, because a person is waiting."""


def _note_log(log: str | None) -> str | None:
    options.log = log
    return log


LogOption = Annotated[
    str | None,
    typer.Option(
        "--log", help="Connection id of the log. Default: LOGIO_URL, else .logio/logio.db", callback=_note_log
    ),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="Day or hour that the run is for, where the pipeline has one run for each; or A..B for a range",
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="The run that begins, and no later one, replaces the day that another pipeline, or one of another log, owns",
    ),
]
EmptyOption = Annotated[
    bool,
    typer.Option(
        "--empty",
        help="The run that begins, and no later one, may leave its day empty although there are rows of before",
    ),
]
RUN_HELP = "Run: its uid, the beginning of it, its run id, or pipeline@partition, of which the newest is meant"
RunArgument = Annotated[str, typer.Argument(help=RUN_HELP)]


def allowed_by(*, take_over: bool, empty: bool) -> frozenset[Allowed]:
    """What options of a command let a run do."""
    said = {Allowed.TAKE_OVER: take_over, Allowed.EMPTY: empty}
    return frozenset(one for one, is_said in said.items() if is_said)


def warn(text: str) -> None:
    err.print(f"warning: {text}", style="yellow", markup=False)


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a mapping. Anything else is a usage error."""
    result: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint=option)
        if name in result:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        result[name] = value
    return result


@contextmanager
def opened(url: str, *, create: bool = False) -> Iterator[LogStore]:
    """Open the log, and close it at the end; `create` is as in `open_store`."""
    store = open_store(url, application="logio cli", patience=TERMINAL_PATIENCE, create=create)
    try:
        yield store
    finally:
        store.dispose()
