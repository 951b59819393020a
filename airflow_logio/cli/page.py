"""`logio ui`: the page of the log's runs in a browser on this machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_logio.cli.airflow_dags import AirflowDags
from airflow_logio.cli.common import RUN_HELP, LogOption, opened, options, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.errors import ConfigurationError, ProtocolViolation
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.payloads import Payloads

if TYPE_CHECKING:
    from airflow_logio.ui.actions import Retrying

RETRY_SECONDS = 120.0


def register(app: typer.Typer) -> None:
    app.command("ui")(ui)


def ui(
    run: Annotated[str | None, typer.Argument(help=RUN_HELP)] = None,
    log: LogOption = None,
    port: Annotated[int, typer.Option(help="Port on this machine. Default: a free one", min=0, max=65535)] = 0,
) -> None:
    """Show the runs of the log in a browser: prints an address that works on this machine, until Ctrl-C."""
    try:
        from airflow_logio.ui.alone import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the page needs {error.name}, which is not installed: pip install 'airflow-logio[ui]'"
        ) from error
    from airflow_logio.ui.looks import LogSource

    known = ConnectionUrls.load(warn)

    def payloads() -> Payloads | None:
        root = known.payloads(log)
        return Payloads(root) if root else None

    with opened(known.log_url(log)) as store:
        uid = None if run is None else store.find_run(run).uid
        dags = AirflowDags()
        # Two, because a retry holds up no look.
        source, changed = (LogSource(lambda: store, options.log, dags.is_paused) for _ in range(2))
        say = partial(out.print, markup=False)
        serve(source, retrying(log), port, say, run=uid, payloads=payloads, changed=changed)


def retrying(log: str | None) -> Retrying:
    """How the page of `logio ui` launches groups again, with the log of that connection id."""
    from airflow_logio.ui.actions import Retrying

    def retry(_store: LogStore, run: Run, group: str | None) -> str:
        """`logio retry --detach`, in a process of its own: it loads the author's code as it is now, and may end."""
        named = [run.uid, *([group] if group else []), *(["--log", log] if log else [])]
        command = [sys.executable, "-m", "airflow_logio.cli", "retry", *named, "--detach"]
        with tempfile.TemporaryFile() as output:  # a pipe would be held open by the drivers that it launches
            try:
                code = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, timeout=RETRY_SECONDS
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise ProtocolViolation(
                    f"`logio retry` has not ended after {RETRY_SECONDS:g} s, and was ended: it may have launched some "
                    "groups, as the run shows; retry the others"
                ) from error
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if code:
            raise ProtocolViolation(said.rpartition("logio: ")[2] or f"`logio retry` has ended with code {code}")
        return said

    return Retrying(
        retry,
        "It is relaunched on this machine, with the code that it has, as by `logio retry --detach`: it resumes where the log "
        "ends, at no cost to its recovery budget. Quarantined Input Sets are put back.",
    )
