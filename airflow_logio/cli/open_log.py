"""Opening the log from the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.rules.patience import Patience

TERMINAL_PATIENCE = Patience(total_seconds=30)
"""Somebody sits in front of it."""


@contextmanager
def opened(url: str, *, create: bool = False) -> Iterator[LogStore]:
    """The log, closed at the end; `create` as in `open_store`."""
    store = open_store(url, application="logio cli", patience=TERMINAL_PATIENCE, create=create)
    try:
        yield store
    finally:
        store.dispose()
