"""`logio ui`: the page of the log's runs in a browser on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_logio.cli.common import LogOption, opened, options, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.errors import ConfigurationError


def register(app: typer.Typer) -> None:
    app.command("ui")(ui)


def ui(
    run: Annotated[str | None, typer.Argument(help="Run: its uid, the beginning of it, or its run id")] = None,
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
    from airflow_logio.ui.log_source import LogSource

    with opened(ConnectionUrls.load(warn).log_url(log)) as store:
        uid = None if run is None else store.find_run(run).uid
        serve(LogSource(lambda: store, options.log), port, lambda text: out.print(text, markup=False), run=uid)
