"""Opening the log from the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_logio.errors import ConfigurationError
from airflow_logio.store.opening import open_store
from airflow_logio.store.patience import Patience
from airflow_logio.store.sql.engines import parse_url
from airflow_logio.store.sql.store import SqlLogStore

TERMINAL_PATIENCE = Patience(total_seconds=30)
"""Somebody sits in front of it."""


@contextmanager
def opened(url: str, *, create: bool = False) -> Iterator[SqlLogStore]:
    """The log, closed at the end; `create` as in `open_store`."""
    if not create:
        _must_exist(url)
    store = open_store(url, application="logio cli", patience=TERMINAL_PATIENCE, create=create)
    try:
        yield store
    finally:
        store.dispose()


def _must_exist(url: str) -> None:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
        raise ConfigurationError(
            f"there is no log {parsed.database} yet; `logio run` makes one, LOGIO_URL or --log name another"
        )
