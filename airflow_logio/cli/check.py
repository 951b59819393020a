"""`logio check`: what is wrong with a pipeline or its surroundings, in seconds, before a run is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from airflow_logio.cli.common import LogOption, PartitionOption, out, pairs, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.preparation import (
    Described,
    Loaded,
    Wanted,
    describe,
    input_of,
    is_range,
    load,
    partitions_of,
)
from airflow_logio.commands import counted
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.errors import LogioError
from airflow_logio.launch.days_read import with_days_read
from airflow_logio.launch.input_arrival import in_words
from airflow_logio.launch.start_run import check_beside_log
from airflow_logio.spark.publishing import inspect_folders
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.inspection import Finding, inspect_systems

REPLAY_SECONDS = 5.0
"""How long an unavailable system is waited for: a person is waiting, too."""


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    pipeline: Annotated[str, typer.Argument(help="path/to/file.py:name or module.path:name", metavar="PIPELINE")],
    param: Annotated[list[str] | None, typer.Option("--param", help="Run parameter, name=value")] = None,
    connection: Annotated[
        list[str] | None, typer.Option("--connection", help="name=conn_id; default: the id is the name")
    ] = None,
    events: Annotated[
        int, typer.Option("--try", min=0, help="Also run the first N events of each source, in this process")
    ] = 0,
    partition: PartitionOption = None,
    log: LogOption = None,
) -> None:
    """Check a pipeline with its parameters, connections, tables, columns and permissions; nothing is changed.

    No log is needed, and no run is started. With --try the first events go through the operators in this process; what
    they would write is inserted into tables in transactions that are rolled back, and written nowhere else. Of a range of
    partitions each is checked.
    """
    wanted = Wanted(
        pipeline_ref=pipeline,
        params=pairs("--param", param or ()),
        connection_ids=pairs("--connection", connection or ()),
        partition=partition,
    )
    known = ConnectionUrls.load(warn)
    loaded, payloads = load(wanted, known), known.payloads(log)
    check_beside_log(loaded.pipeline, loaded.urls.__getitem__, known.log_url(log))
    problems = 0
    for one in partitions_of(loaded.pipeline, partition):
        if one is None or not is_range(partition):
            if not _waits(loaded, one):
                problems += _check_run(describe(payloads, wanted, loaded, one, _said), events)
            continue
        out.print(f"{one.text}:", markup=False)
        try:
            if _waits(loaded, one):
                continue
            described = describe(payloads, wanted, loaded, one, _said)
        except LogioError as error:
            problems += _say(Finding(one.text, str(error)))
        else:
            problems += _check_run(described, events)
    if problems:
        out.print(f"{counted(problems, 'problem')} found", style="bold red")
        raise typer.Exit(1)
    out.print(f"pipeline {loaded.pipeline.name!r} can be run", style="bold green", markup=False)


def _waits(loaded: Loaded, partition: PartitionKey | None) -> bool:
    """Whether a run would wait for its input, which is told: until it is there, no more of the run can be checked."""
    waiting = input_of(loaded, partition).look_alone()
    if waiting is None:
        return False
    waited = in_words((waiting.until - waiting.since).total_seconds())
    out.print(f"waits    for {waited} at most, a run does: {waiting.what}", style="yellow", markup=False)
    return True


def _said(text: str) -> None:
    out.print(text, markup=False)


def _check_run(described: Described, events: int) -> int:
    """The number of problems of a run."""
    pipeline, params = described.pipeline, described.spec.params
    systems = Connections(pipeline.name, described.urls, WriterIdentity("check", 1, 0.0), REPLAY_SECONDS, params=params)
    try:
        for name in described.spec.actions:  # asked when the run was described
            _say(Finding(f"source {name!r}"))
        found = (
            *_days_read(described),
            *inspect_systems(pipeline, params, systems),
            *inspect_folders(pipeline, described.urls),
        )
        problems = sum(map(_say, found))
        return problems + (_try(pipeline, params, systems, events) if events and not problems else 0)
    finally:
        systems.close()


def _days_read(described: Described) -> Iterator[Finding]:
    """The days of tables that the run would read, as far as their database answers."""
    try:
        noted = with_days_read(described.pipeline, described.spec, described.urls.__getitem__).days_read
    except LogioError as error:
        yield Finding("days of tables", str(error))
    else:
        yield from (
            Finding(f"source {name!r}, {day.scope} of {day.place}") for name, days in noted.items() for day in days
        )


def _say(finding: Finding) -> bool:
    """Print it; True if it is a problem."""
    if finding.problem is None and finding.warning is not None:
        out.print(f"slow     {finding.what}: {finding.warning}", style="yellow", markup=False)
        return False
    if finding.problem is None:
        out.print(f"ok       {finding.what}", markup=False)
        return False
    out.print(f"problem  {finding.what}: {finding.problem}", style="red", markup=False)
    return True


def _try(pipeline: Pipeline, params: Mapping[str, Any], systems: Connections, events: int) -> int:
    """The number of problems."""
    from airflow_logio.testing.trial import try_events

    trial = try_events(pipeline, params, systems, events)
    for port, count in sorted(trial.events.items()):
        out.print(f"tried    {port}: {counted(count, 'event')}, {counted(trial.records[port], 'record')}", markup=False)
    for name, count in sorted(trial.written.items()):
        out.print(f"tried    writer {name!r}: {counted(count, 'record')} would be written", markup=False)
    for name in trial.left_out:
        out.print(
            f"not tried  operator {name!r}: it needs Spark or a program of its own, or gets its events from one that does",
            style="yellow",
            markup=False,
        )
    what = f"the first {counted(events, 'event')}"
    problems = sum(_say(Finding(f"{what}, set aside by quarantine", error)) for error in trial.quarantined)
    return problems + (trial.problem is not None and _say(Finding(what, str(trial.problem))))
