"""`logio db`: the tables of the log."""

from __future__ import annotations

import typer

from airflow_logio.cli.common import LogOption, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.databases import parse_url
from airflow_logio.store.sql.revision import check as check_schema

app = typer.Typer(help="The tables of the log.", no_args_is_help=True)


@app.command()
def upgrade(log: LogOption = None) -> None:
    """Create the tables of the log, or upgrade them to this version. No run may be active."""
    from airflow_logio.store.sql import migrate

    url = ConnectionUrls.load(warn).log_url(log)
    revision = migrate.upgrade(url)
    out.print(f"{parse_url(url).render_as_string(hide_password=True)} is at schema {revision}", markup=False)


@app.command()
def check(log: LogOption = None) -> None:
    """Check whether the log has the tables that this version needs."""
    url = ConnectionUrls.load(warn).log_url(log)
    check_schema(url)
    out.print(
        f"{parse_url(url).render_as_string(hide_password=True)} has the tables that this version needs", markup=False
    )
