"""Migrations of the log's tables, by Alembic; numbered, append-only."""
