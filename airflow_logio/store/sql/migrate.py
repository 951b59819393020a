"""Bringing a database to this code's schema."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from airflow_logio.store.sql.engines import beat_engine, describe, log_engine, writing
from airflow_logio.store.sql.revision import current, refuse_newer
from airflow_logio.store.sql.schema import REVISION, beat_metadata


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
    """Create or migrate the tables; safe to call twice and by two processes at once. Returns the revision."""
    engine = log_engine(url)
    beats = beat_engine(url, engine)
    try:
        with writing(engine) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('logio schema'))"))
            refuse_newer(describe(engine), current(connection))
            command.upgrade(_config(connection), "head")
            if beats is engine:  # under the same lock: two processes would both find the tables missing
                beat_metadata.create_all(connection, checkfirst=True)
        if beats is not engine:
            with writing(beats) as connection:
                beat_metadata.create_all(connection, checkfirst=True)
    finally:
        engine.dispose()
        beats.dispose()
    return REVISION
