"""What tasks of Spark that reach a database have in common: how they get its URL, how many there are, what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_logio import errors
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.warehouse import Warehouse

MOST_SESSIONS = 16
"""Tasks of a job that reach the database: each of them has one session there."""


def may_hand(payloads: EpochPayloads) -> bool:
    """Whether executors can be handed a URL: not in a bucket, where others may read it, and which may keep what is removed.
    The driver does then what they would have done."""
    return payloads.files.keeps_secrets


@contextmanager
def handed_url(payloads: EpochPayloads, purpose: str, url: str) -> Iterator[str]:
    """A file of the payload store that has the URL, of mode 0600, for as long as jobs need it: its reference.

    So the URL is in no plan, setting, log or UI of Spark (ADR-86). Raises `LogUnavailable`.
    """
    reference = payloads.store(purpose, url.encode())
    try:
        yield str(reference)
    finally:
        payloads.discard([reference.path], reference.path.rpartition("/")[0])


def warehouse_of(root: str, connection: str, ref: str) -> Warehouse:
    """In a task: the database whose URL was handed by the reference `ref`, to be closed.

    Raises `ConfigurationError` if the executor does not see the file.
    """
    where = f"the URL of connection {connection!r}"
    if not os.path.isfile(os.path.join(root, Reference.parse(where, ref).path)):
        raise ConfigurationError(
            f"an executor does not see what the driver has written into the payload store {root}. Driver and all "
            "executors need it under one path, as one user"
        )
    return Warehouse(connection, Payloads(root).load(where, ref).decode())


def told(name: str, said: str) -> LogioError:
    """What a task has raised: the name of an error of this package, and what it said."""
    kind = getattr(errors, name)
    return ExternalUnavailable(said) if kind is errors.LogUnavailable else kind(said)
