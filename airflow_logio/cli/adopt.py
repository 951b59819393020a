"""`logio adopt`: rows that were in a table before belong to a partition, whose next run replaces them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.dataflow import DatasetWriter, Pipeline, TableWriter
from airflow_logio.dataflow.query_text import check_select, query_parameters
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch import bundle
from airflow_logio.protocol.scope_rules import DayRun
from airflow_logio.store.port import LogStore

ADOPTED = "adopted"
"""Stands where the uid of a run is, for rows that no run has written."""


def register(app: typer.Typer) -> None:
    app.command("adopt")(adopt)


def adopt(
    table: Annotated[str, typer.Argument(help="The table, as its writer names it")],
    connection: Annotated[str, typer.Option(help="The pipeline's name of the database")],
    pipeline: Annotated[str, typer.Option(help="The pipeline: its name in the log, or module.py:name")],
    partition: Annotated[str, typer.Option(help="The day or hour whose runs are to replace the rows")],
    where: Annotated[str, typer.Option(help="Which rows: a condition in SQL")],
    run_column: Annotated[str | None, typer.Option(help="As the writer says it. Default: logio_run")] = None,
    log: LogOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Let rows from before belong to a day or hour, for a writer with on_new_run="supersede": its next run replaces them.

    Only rows of no run, with null or 0 in the column of runs. They are counted first, and all of them change in one
    transaction.
    """
    from airflow_logio.systems.warehouse import Warehouse

    _check_condition(where)
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        made, ids = _pipeline(store, pipeline)
        log_uid = store.log_uid()
    if made.partition is None:
        raise ConfigurationError(f"pipeline {made.name!r} has no partitions: no run of it replaces rows of one")
    key = made.partition.key_of(partition)
    _check_is_table(made, connection, table, key.text)
    writer = TableWriter(connection, table, on_new_run="supersede", run_column=run_column)
    writer = writer.in_pipeline_by(made.partition.name).for_run(made.partition.parameters(key))
    run = DayRun(made.name, log_uid, 0, ADOPTED)
    warehouse = Warehouse(connection, known.get(ids.get(connection, connection)))
    try:
        found = warehouse.adopt(writer, run, where)
        if not found:
            raise ConfigurationError(f"no row of table {table!r} that belongs to no run fulfils {where!r}")
        _ask(f"{found:,} rows of table {table!r} are to belong to {key.text} of pipeline {made.name!r}", yes=yes)
        adopted = warehouse.adopt(writer, run, where, expected=found)
    finally:
        warehouse.close()
    out.print(f"{adopted:,} rows belong to {key.text} of {made.name}: the next run of it replaces them", markup=False)


def _check_is_table(made: Pipeline, connection: str, table: str, key: str) -> None:
    """Raises `ConfigurationError` for the folder of a writer: its files cannot be adopted.

    Which run has published a file is in its name and in a receipt, and no receipt is changed or removed. A file would have to
    be renamed and named in one, while readers that list the folder see each step.
    """
    if any(isinstance(one, DatasetWriter) and one.connection == connection for one in made.operators.values()):
        raise ConfigurationError(
            f"connection {connection!r} is a folder, and only rows of tables can be adopted: which run a file is of, its "
            f"name and a receipt say. Files in {table!r} that no run has published stay, and `published_files` does not "
            f"count them. When a run of {key} has finished, what is to be there is published: then remove the files from "
            "before that were of that day yourself, once. Those of runs with on_new_run='append' count until you move them"
        )


def _check_condition(where: str) -> None:
    """Raises `ConfigurationError` for what is visibly no condition; the database judges the rest."""
    if not where.strip():
        raise ConfigurationError("--where is empty: say which rows, or 1 = 1 for all")
    if names := query_parameters(where):
        raise ConfigurationError(f"--where has a parameter, {min(names)!r}: write the value itself")
    try:
        check_select(f"SELECT 1 FROM t WHERE ({where})", "the condition of --where")
    except PipelineDefinitionError as error:
        raise ConfigurationError(str(error)) from None


def _pipeline(store: LogStore, named: str) -> tuple[Pipeline, dict[str, str]]:
    """The pipeline, and the ids of its connections where they are other than their names."""
    if ":" in named:
        return bundle.load(bundle.parse_ref(named)), {}
    newest = store.list_runs(pipeline=named, limit=1)
    if not newest:
        raise ConfigurationError(
            f"the log has no run of pipeline {named!r}; name its file instead: --pipeline module.py:{named}"
        )
    spec = newest[0].spec
    return bundle.load(bundle.parse_ref(spec.pipeline_ref, Path(spec.bundle_root))), dict(spec.connections)


def _ask(what: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{what}: say --yes where nothing can be asked")
    if not typer.confirm(f"{what}, whose next run replaces them. Change them?"):
        raise typer.Exit(1)
