"""`logio scale`: changes the number of replicas of a group while its run continues."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, RunArgument, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.preparation import reopen
from airflow_logio.cli.spark_options import MasterOption, SparkOptions, options_for
from airflow_logio.errors import LogUnavailable
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.supervision.requests import Stage, Step, asked_for, carry_out

POLL_SECONDS = 0.25


def register(app: typer.Typer) -> None:
    app.command("scale")(scale)


def scale(
    run: RunArgument,
    group: Annotated[str, typer.Argument(help="Replicated group")],
    replicas: Annotated[int, typer.Argument(min=0, help="Number of active replicas; 0 puts the group to sleep")],
    log: LogOption = None,
    reason: Annotated[str, typer.Option(help="Reason; stored with the request")] = "logio scale",
    master: MasterOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only request it; the supervisor of the run carries it out")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the result")] = 300.0,
) -> None:
    """Change the number of replicas of a group. The rest of the run keeps running; no event is lost or used twice.

    New replicas are launched first, and get a share of the work when they are ready. Replicas that leave give up their
    work first. The command can be interrupted and repeated at any time.
    """
    known = ConnectionUrls.load(warn)
    log_url = known.log_url(log)
    with opened(log_url) as store:
        found = store.find_run(run)
        settings = options_for(found, SparkOptions.given(master)).settings()
        context = reopen(store, log_url, known.payloads(log), found, known, settings)
        request = store.request_scaling(found.run_id, group, replicas, by="logio scale", reason=reason)
        if detach:
            out.print(asked_for(request), markup=False)
            return
        step = _until_settled(context, request, time.monotonic() + timeout)
    if step is None:
        warn(f"{group} is not scaled yet after {timeout:g} s; the request stands, and `logio scale` can be repeated")
    if step is None or step.stage is Stage.REFUSED:
        raise typer.Exit(1)


def _until_settled(context: LaunchContext, request: ScalingRequest, deadline: float) -> Step | None:
    """Carry the request out and print each new sentence. Returns None if the time is up."""
    said = ""
    while time.monotonic() < deadline:
        try:
            step = carry_out(context, request)
        except LogUnavailable as error:
            warn(f"{error}; trying again")
            step = None
        if step is not None and step.sentence != said:
            said = step.sentence
            out.print(said, markup=False)
        if step is not None and step.stage in (Stage.DONE, Stage.REFUSED):
            return step
        time.sleep(POLL_SECONDS)
    return None
