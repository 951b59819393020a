"""`logio logs`: what the drivers of a group have printed: their files, or elsewhere what they have sent to the log."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, RunArgument, err, opened, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.launch.driver_log import LogReader, SentReader
from airflow_logio.launch.processes import is_gone, this_host
from airflow_logio.protocol.states import ENDED
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverRecord, Submission
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.clusters.manager_answers import shared_answers

INTERRUPTED = 130
POLL_SECONDS = 0.5
LAST_WORDS_SECONDS = 5.0
"""How long --follow waits for a driver to end after its group has."""


def register(app: typer.Typer) -> None:
    app.command("logs")(logs)


def logs(
    run: RunArgument,
    group: Annotated[str, typer.Argument(help="Group, or a replica of one")],
    log: LogOption = None,
    incarnation: Annotated[int | None, typer.Option(help="Which incarnation. Default: the latest", min=1)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing, recoveries included, until the group has ended")
    ] = False,
) -> None:
    """Print the log of a group's driver, to which Python, Spark and the JVM write.

    On the machine where the driver was launched this is all of it. Elsewhere, and of a driver on a cluster, it is the last
    megabyte that the driver has sent, without secrets.
    """
    if follow and incarnation is not None:
        raise typer.BadParameter("it follows the latest incarnation; leave --incarnation out", param_hint="--follow")
    with opened(ConnectionUrls.load(warn).log_url(log)) as store:
        found = store.find_run(run)
        store.group(found.run_id, group)  # its error says which groups there are
        try:
            if follow:
                _follow(store, found, group)
            else:
                _print(_reader(store, found, _driver(store, found, group, incarnation)).read())
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _follow(store: LogStore, run: Run, group: str) -> None:
    """One incarnation after the other, each to its end."""
    reader: LogReader | SentReader | None = None
    shown = 0
    left = LAST_WORDS_SECONDS
    while True:
        latest = _latest(store, run, group)
        has_ended = store.group(run.run_id, group).state in ENDED
        added = _read(reader) if reader is not None else b""
        _print(added)
        if not added and latest is not None and latest.incarnation != shown:
            _say(latest)
            reader, shown = _reader(store, run, latest, following=True), latest.incarnation
            continue
        if has_ended and not added:
            if reader is None:
                raise _no_driver(run, group)
            if left <= 0 or _is_silent(store, run, group):
                return
            left -= POLL_SECONDS
        time.sleep(POLL_SECONDS)


def _is_silent(store: LogStore, run: Run, group: str) -> bool:
    """Whether the last driver of the group prints nothing any more."""
    identity = store.group(run.run_id, group).identity
    return identity is None or is_gone(identity) is True


def _latest(store: LogStore, run: Run, group: str) -> DriverRecord | None:
    of_group = [one for one in store.drivers(run.run_id) if one.group == group]
    launched = [one for one in of_group if one.log_path is not None or one.submission is not None]
    return launched[-1] if launched else None


def _driver(store: LogStore, run: Run, group: str, incarnation: int | None) -> DriverRecord:
    """Raises `ConfigurationError` if there is none."""
    if incarnation is None:
        if (latest := _latest(store, run, group)) is None:
            raise _no_driver(run, group)
        return latest
    of_group = {one.incarnation: one for one in store.drivers(run.run_id) if one.group == group}
    if incarnation not in of_group:
        known = f"it has {', '.join(map(str, of_group))}" if of_group else "none was launched yet"
        raise ConfigurationError(f"group {group!r} of run {run.spec.key} has no incarnation {incarnation}: {known}")
    return of_group[incarnation]


def _no_driver(run: Run, group: str) -> ConfigurationError:
    return ConfigurationError(
        f"group {group!r} of run {run.spec.key} has no driver with a log yet: none was launched, or another launcher keeps "
        "what it prints"
    )


def _reader(store: LogStore, run: Run, driver: DriverRecord, *, following: bool = False) -> LogReader | SentReader:
    """`following`: a driver on another machine may have sent nothing yet.

    Raises `ConfigurationError` if the log is on another machine, or was removed, and the driver has sent nothing of it.
    """
    where = f"the log of group {driver.group!r}, incarnation {driver.incarnation},"
    if driver.submission is not None:
        warn(
            f"{where} is on its node. This is what the driver has sent of it, without secrets; what its JVM has printed, its "
            f"manager keeps: {_command_for_output(driver.submission)}"
        )
        return SentReader(store, run.run_id, driver)
    if driver.log_path is None:
        raise ConfigurationError(
            f"{where} does not exist: spark-submit was not started, or its launcher keeps it elsewhere"
        )
    path = Path(driver.log_path)
    if path.is_file():
        return LogReader(path)
    is_elsewhere = driver.host not in (None, this_host())
    if (is_elsewhere and following) or store.output.parts(run.run_id, driver.group, driver.incarnation):
        place = f"is {path} on {driver.host}" if is_elsewhere else f"was {path}, and was removed"
        warn(f"{where} {place}. This is what the driver has sent of it, without secrets")
        return SentReader(store, run.run_id, driver)
    if is_elsewhere:
        raise ConfigurationError(
            f"{where} is {path} on {driver.host}, and this is {this_host()}: run this command there. The driver has sent "
            "nothing of it to the log"
        )
    raise ConfigurationError(
        f"{where} was {path} on this machine, and is no longer there: files of drivers are removed by `logio gc`, and by "
        "later launches"
    )


def _command_for_output(submission: Submission) -> str:
    try:
        return shared_answers().managers.at(submission).output_command(submission)
    except ManagerUnavailable as error:
        return f"{submission.manager} at {submission.address}, {submission.id or submission.name} ({error})"


def _read(reader: LogReader | SentReader) -> bytes:
    try:
        return reader.read()
    except OSError:  # removed meanwhile
        return b""


def _say(driver: DriverRecord) -> None:
    on_cluster = None if driver.submission is None else driver.submission.id or driver.submission.name
    place = driver.log_path or on_cluster
    err.print(f"== {driver.group}, incarnation {driver.incarnation}: {place}", style="bold", markup=False)


def _print(text: bytes) -> None:
    sys.stdout.write(text.decode(errors="replace"))
    sys.stdout.flush()
