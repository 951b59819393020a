"""Alembic environment: runs on the connection it is given, never on one of its own."""

from __future__ import annotations

from alembic import context

from airflow_logio.store.sql.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
