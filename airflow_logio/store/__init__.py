"""The log: tables, transactions, fencing, delivery, lineage (SQLAlchemy; SQLite, PostgreSQL, and one in memory)."""
