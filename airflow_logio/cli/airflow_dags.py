"""What this machine can ask Airflow's own database, without Airflow: which DAGs are paused.

The log does not know that, because Airflow tells no task of it. Where the database is not known, or does not answer in time,
nothing is said.
"""

from __future__ import annotations

import configparser
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
ANSWER_SECONDS = 3.0
KEPT_SECONDS = 5.0
"""For so long an answer holds: `--watch` looks every second."""
_DAGS = sa.table("dag", sa.column("dag_id", sa.String), sa.column("is_paused", sa.Boolean))


class AirflowDags:
    """The DAGs of the Airflow that this environment configures, if it does."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._url = _database_url(environment)
        self._asked_at = float("-inf")
        self._paused: frozenset[str] = frozenset()

    def is_paused(self, dag_id: str) -> bool:
        """Whether a DAG is known to be paused. One question answers for all DAGs: a list has many."""
        if self._url is not None and time.monotonic() - self._asked_at > KEPT_SECONDS:
            self._paused = _asked(self._url)
            self._asked_at = time.monotonic()
        return dag_id in self._paused


def _database_url(environment: Mapping[str, str]) -> sa.URL | None:
    """As Airflow finds it: in the environment, or in ``airflow.cfg``. None for an SQLite file that is not there."""
    home = Path(environment.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    configured = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        configured.read(environment.get("AIRFLOW_CONFIG", home / "airflow.cfg"))
    text = environment.get(VARIABLE) or configured.get("database", "sql_alchemy_conn", fallback="")
    if not text and not (home / "airflow.db").is_file():
        return None
    try:
        url = sa.make_url(text or f"sqlite:///{home / 'airflow.db'}")
    except sa.exc.ArgumentError:
        return None
    is_file = url.get_backend_name() == "sqlite"
    return None if is_file and not Path(url.database or "").is_file() else url


def _asked(url: sa.URL) -> frozenset[str]:
    found: set[str] = set()

    def ask() -> None:
        with suppress(
            Exception
        ):  # a driver that is not installed, a database that is not reached, a table that is not there
            engine = sa.create_engine(url, poolclass=NullPool)
            with engine.connect() as connection:
                found.update(connection.scalars(sa.select(_DAGS.c.dag_id).where(_DAGS.c.is_paused)))

    thread = threading.Thread(target=ask, daemon=True, name="logio asks Airflow's database")
    thread.start()
    thread.join(ANSWER_SECONDS)
    return frozenset(found)
