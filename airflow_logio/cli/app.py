"""`logio` and its commands. An error of this package prints one sentence and exits with 1; wrong usage exits with 2."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import Annotated

import typer

from airflow_logio.cli.common import err, options, out
from airflow_logio.errors import LogioError

app = typer.Typer(
    name="logio",
    help="Runs pipelines on Spark with exactly-once recovery, and shows and steers their runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Lines:
    """A log stream that prints above a live display instead of into it."""

    def write(self, text: str) -> None:
        if text.strip():
            out.print(text.rstrip("\n"), style="yellow", markup=False)

    def flush(self) -> None: ...


class _FirstLine(logging.Formatter):
    """Prints only the first line; the rest (causes of earlier recoveries, tracebacks) is in the report at the end."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).partition("\n")[0]


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks, and a detailed log on standard error")] = False,
) -> None:
    """Options of all commands."""
    options.debug = debug
    handler = logging.StreamHandler(_Lines())
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s") if debug else _FirstLine("%(message)s"))
    logging.basicConfig(level=logging.INFO if debug else logging.WARNING, handlers=[handler])


@cache
def commands() -> typer.Typer:
    """The application with all its commands, which are imported only when they are needed."""
    from airflow_logio.cli import (
        adopt,
        check,
        control,
        days,
        forget,
        lineage,
        logs,
        page,
        retry,
        run,
        simulate,
        status,
        tend,
        upkeep,
    )

    for module in (
        check,
        run,
        status,
        days,
        page,
        logs,
        lineage,
        retry,
        control,
        tend,
        upkeep,
        forget,
        adopt,
        simulate,
    ):
        module.register(app)
    return app


def main() -> None:
    """Entry point of the command `logio`."""
    try:
        commands()()
    except LogioError as error:
        if options.debug:
            raise
        err.print(f"logio: {error}", style="red", markup=False)
        sys.exit(1)
