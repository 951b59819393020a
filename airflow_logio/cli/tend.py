"""`logio tend`: supervises the runs of a log as a daemon, beside Airflow's supervisors or instead of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls, variable
from airflow_logio.cli.preparation import reopen
from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.launch.processes import this_host
from airflow_logio.launch.spark_settings import (
    TOKEN_VARIABLE,
    SparkArguments,
    SparkSettings,
    SparkTarget,
    is_address,
    split_token,
)
from airflow_logio.protocol.states import RunState
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.supervision.keeping import Places, remove_old
from airflow_logio.supervision.run_tender import Round, RunTender, tend_once

AGAIN_SECONDS = 5.0


def register(app: typer.Typer) -> None:
    app.command("tend")(tend)


def tend(
    run: Annotated[str | None, typer.Argument(help="Only this run. Default: all runs of the log")] = None,
    log: LogOption = None,
    work_dir: Annotated[Path, typer.Option(help="Folder for the files of drivers that it launches")] = Path(
        ".logio/drivers"
    ),
    master: Annotated[
        str | None, typer.Option(help="Spark master of all drivers. Default: that of each group's Spark connection")
    ] = None,
    poll: Annotated[float, typer.Option(help="Seconds between two looks", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Take one round of the run, and end")] = False,
) -> None:
    """Supervise runs: recover groups that die, carry out requests to scale, end drivers of this machine that are void.

    It does what task `supervise` and the recovery DAG do, by the same functions, and needs neither Airflow's scheduler nor
    its triggerer. Beside them it does no harm: one of two recoveries of the same failure is refused. Drivers keep running
    when it ends. A run of `logio run` is left to its own process.
    """
    known = ConnectionUrls.load(warn)
    if once:
        if run is None:
            raise typer.BadParameter("name the run: logio tend RUN --once", param_hint="--once")
        with opened(known.log_url(log)) as store:
            found = _tended(store, run)
            tend_once(store, found, lambda one, group: _context(store, log, known, one, group, master, work_dir))
        return
    _Daemon(log, known, run, _round_command(log, master, work_dir)).work(poll)


def _tended(store: LogStore, name: str) -> Run:
    """Raises `UnknownRun`, and `ConfigurationError` for a run that has another supervisor of its own."""
    run = store.find_run(name)
    if run.spec.supervision is Supervision.PROCESS:
        raise ConfigurationError(
            f"run {run.spec.key} was started by `logio run`, which supervises it; if that has ended, "
            f"`logio retry {run.uid[:8]}` continues the run"
        )
    if run.state is not RunState.RUNNING:
        raise ConfigurationError(f"run {run.spec.key} has ended, it is {run.state.value}: there is nothing to tend")
    return run


def _round_command(log: str | None, master: str | None, work_dir: Path) -> list[str]:
    options = [*(["--log", log] if log else []), *(["--master", master] if master else [])]
    return ["--once", "--work-dir", str(work_dir.absolute()), *options]


class _Child(Round):
    """A round as a process, whose output is this one's."""

    def __init__(self, uid: str, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "airflow_logio.cli", "tend", uid, *options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def ended(self) -> bool | None:
        code = self._process.poll()
        return None if code is None else code == 0


class _Daemon:
    """Opens the log as soon as it answers, and works until SIGTERM or Ctrl-C."""

    def __init__(self, log: str | None, known: ConnectionUrls, run: str | None, options: Sequence[str]) -> None:
        self._log = log
        self._known = known
        self._run = run
        self._options = options
        self._stop = threading.Event()

    def work(self, poll: float) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        while not self._stop.is_set():
            try:
                with opened(self._known.log_url(self._log)) as store:
                    uid = None if self._run is None else _tended(store, self._run).uid
                    name = f"logio tend on {this_host()}"
                    out.print(f"{name}: {'all runs' if uid is None else f'run {uid[:8]}'}", markup=False)
                    places = Places(self._known.payloads(self._log), self._known.find)
                    old = partial(remove_old, store, places) if uid is None else None
                    tender = RunTender(store, name, lambda one: _Child(one, self._options), run_uid=uid, old=old)
                    tender.tend(self._stop, poll)
            except LogUnavailable as error:
                warn(f"{error}; again in {AGAIN_SECONDS:.0f} s")
                self._stop.wait(AGAIN_SECONDS)


def _context(
    store: LogStore, log: str | None, known: ConnectionUrls, run: Run, group: str, master: str | None, work_dir: Path
) -> LaunchContext:
    """As the group's own task launches it, with connections as this machine knows them. Raises `ConfigurationError`."""
    recipe = store.launch_recipe(
        run.run_id, members_of(run, group)[0]
    )  # a replicated group is scaled as its first replica is
    if recipe is None:
        raise ConfigurationError(
            f"the log does not say how group {group!r} of run {run.spec.key} is launched: its task has not run yet"
        )
    ids = {**run.spec.connections, **recipe.connections}
    return reopen(
        store, known.log_url(log), known.payloads(log), run, known, _settings(known, recipe, master), ids, work_dir
    )


def _settings(known: ConnectionUrls, recipe: LaunchRecipe, master: str | None) -> SparkSettings:
    conn_id = recipe.spark_conn_id
    found = master or (None if conn_id is None else known.find(conn_id))
    if conn_id is not None and found is None:
        raise ConfigurationError(
            f"the Spark connection {conn_id!r} is not known here: set {variable(conn_id)} to the master (such as local[1] or "
            f'spark://HOST:7077), add {conn_id} = "..." to section [connections] of the connection file, or give --master'
        )
    if found is None:
        return SparkArguments.from_given(recipe.arguments).settings(SparkTarget())
    address, token = split_token(found)
    target = SparkTarget(address, token=token or (os.environ.get(TOKEN_VARIABLE) if is_address(address) else None))
    return SparkArguments.from_given(recipe.arguments).settings(target)
