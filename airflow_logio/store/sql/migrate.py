"""Bringing a database to this code's schema."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from airflow_logio.store.sql.engines import beat_engine, describe, log_engine, writing
from airflow_logio.store.sql.revision import current, first_look, refuse_newer
from airflow_logio.store.sql.schema import REVISION, beat_metadata

UPGRADE_SECONDS = 600
"""How long an upgrade waits for one that another process has begun."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The newest revision among the migrations; a test holds it equal to `schema.REVISION`."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "the package has no migrations"
    return revision


def upgrade(url: str) -> str:
    """Create or migrate the tables; safe to call twice and by two processes at once. Returns the revision.

    If the tables of heartbeats are in a file of their own, they come first. A process that dies in between leaves a log
    that is still refused, with the command to run. Raises `ConfigurationError` if the database does not keep what
    transactions ask for.
    """
    engine = log_engine(url)
    beats = beat_engine(url, engine)
    try:
        with first_look(engine):
            pass
        with writing(engine) as connection:
            if connection.dialect.name == "postgresql":
                _wait_for_others(connection)
            refuse_newer(describe(engine), current(connection))
            command.upgrade(_config(connection), "head")
            if beats is engine:
                _upgrade_beats(connection)
            else:
                with writing(beats) as other:
                    _upgrade_beats(other)
    finally:
        engine.dispose()
        beats.dispose()
    return REVISION


def _wait_for_others(connection: Connection) -> None:
    """For other processes that upgrade: longer than for any other lock, since a large log needs minutes."""
    limit = sa.text("SELECT set_config('lock_timeout', :limit, true)")
    usual = connection.execute(sa.text("SHOW lock_timeout")).scalar_one()
    connection.execute(limit, {"limit": f"{UPGRADE_SECONDS}s"})
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('logio schema'))"))
    connection.execute(limit, {"limit": usual})


def _upgrade_beats(connection: Connection) -> None:
    """Make the tables of heartbeats match the schema. They have no revision: what they hold is soon replaced.

    New tables are made, and columns that are no longer declared are dropped. This happens under the lock of the log:
    otherwise two processes would find the same work to do.
    """
    beat_metadata.create_all(connection, checkfirst=True)
    operations = Operations(MigrationContext.configure(connection))
    for table in beat_metadata.sorted_tables:
        found = [column["name"] for column in sa.inspect(connection).get_columns(table.name)]
        if gone := [name for name in found if name not in table.c]:
            with operations.batch_alter_table(table.name) as batch:
                for name in gone:
                    batch.drop_column(name)
                batch.create_primary_key(f"pk_{table.name}", list(table.primary_key.columns.keys()))
