"""Bringing a database to this code's schema, and refusing one that is at another."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from airflow_logio.errors import SchemaMismatch
from airflow_logio.store.sql.engines import beat_engine, describe, log_engine, translated, writing
from airflow_logio.store.sql.schema import beat_metadata

VERSION_TABLE = "logio_alembic_version"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision that this code expects."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "the package has no migrations"
    return revision


def current(connection: Connection) -> str | None:
    """The revision a database is at; None if it has no LOG.io tables."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def upgrade(url: str) -> str:
    """Create or migrate the tables; safe to call twice and by two processes at once. Returns the revision."""
    engine = log_engine(url)
    try:
        with writing(engine) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('logio schema'))"))
            _refuse_newer(connection)
            command.upgrade(_config(connection), "head")
        beats = beat_engine(url, engine)
        with writing(beats) as connection:
            beat_metadata.create_all(connection, checkfirst=True)
        if beats is not engine:
            beats.dispose()
    finally:
        engine.dispose()
    return head()


def check(url: str) -> None:
    """Raise `SchemaMismatch` unless the database is at this code's revision."""
    engine = log_engine(url)
    try:
        with translated(engine), engine.connect().execution_options(logio_writes=False) as connection:
            _refuse_newer(connection)
            found = current(connection)
    finally:
        engine.dispose()
    if found != head():
        raise SchemaMismatch(
            f"{describe(engine)} is at schema {found or 'none'}, this version of airflow_logio needs {head()}; "
            "run `logio db upgrade` while no run is active"
        )


def _refuse_newer(connection: Connection) -> None:
    found = current(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaMismatch(
            f"{describe(connection.engine)} is at schema {found}, which is newer than this version of airflow_logio "
            f"(it knows {head()}); upgrade airflow_logio on this machine"
        )
