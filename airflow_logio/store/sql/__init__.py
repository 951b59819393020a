"""The SQL adapter of the store port: SQLite and PostgreSQL from the same SQLAlchemy code."""
