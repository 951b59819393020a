"""`logio forget`: one day of a pipeline is deleted on request, with all that the log knows of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_logio.cli.common import LogOption, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.upkeep import discard_files
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import bundle
from airflow_logio.launch.driver_folders import folders_of
from airflow_logio.store.port import LogStore
from airflow_logio.supervision.keeping import Places

if TYPE_CHECKING:
    from airflow_logio.supervision.forgetting import Forgetting


def register(app: typer.Typer) -> None:
    app.command("forget")(forget)


def forget(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline")],
    partition: Annotated[str, typer.Option(help="The day or hour")],
    log: LogOption = None,
    rest_by_hand: Annotated[
        bool,
        typer.Option("--rest-by-hand", help="What writers that own no day have written is removed by you, by hand"),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Delete one day: its rows and files, wherever runs own it, then all its runs with their lineage and payloads.

    The day becomes empty at once for readers, and other days stay as they are. What is read again fills it: remove the input
    of the day, too. The log keeps that there were runs of it. If the command is interrupted, give it again.
    """
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        forgetting = _forgetting(store, known, log, pipeline, partition)
        forgetting.check(rest_by_hand=rest_by_hand)
        _ask(forgetting.key.text, pipeline, yes=yes)
        for said in forgetting.empty():
            out.print(said, markup=False)
        discard_files([one for run in forgetting.runs() for one in folders_of(run.uid, store.drivers(run.run_id))])
        removed, staying = forgetting.remove()
    out.print(f"{removed} run(s) of {forgetting.key.text} removed from the log, with their lineage", markup=False)
    for said in staying:
        warn(said)
    if staying:
        raise typer.Exit(1)


def _forgetting(store: LogStore, known: ConnectionUrls, log: str | None, name: str, partition: str) -> Forgetting:
    """Raises `ConfigurationError` for a pipeline, a day or a connection that is not known here."""
    from airflow_logio.supervision.forgetting import Forgetting, owns_its_day  # with what writes to lakes

    newest = store.list_runs(pipeline=name, limit=1)
    if not newest:
        raise ConfigurationError(f"the log has no run of pipeline {name!r}; `logio status` lists the runs")
    spec = newest[0].spec
    made = bundle.load(bundle.parse_ref(spec.pipeline_ref, Path(spec.bundle_root)))
    if made.partition is None:
        raise ConfigurationError(f"pipeline {name!r} has no partitions: `logio gc` removes its runs")
    writers = (one for one in made.operators.values() if isinstance(one, ActionWriter))
    needed = {one.connection for one in writers if owns_its_day(one)}
    urls = {name: known.get(spec.connections.get(name, name)) for name in sorted(needed)}
    return Forgetting(store, made, made.partition.key_of(partition), urls, Places(known.payloads(log), known.find))


def _ask(day: str, pipeline: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"deleting {day} of {pipeline} cannot be undone: say --yes where nothing can be asked")
    if not typer.confirm(f"Delete {day} of pipeline {pipeline}, and all that the log knows of it?"):
        raise typer.Exit(1)
