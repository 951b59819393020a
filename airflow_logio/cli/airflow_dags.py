"""What this machine can ask Airflow's own database, without Airflow: whether the DAG of a run is paused.

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
_QUERY = sa.text("SELECT is_paused FROM dag WHERE dag_id = :dag_id")


class AirflowDags:
    """The DAGs of the Airflow that this environment configures, if it does."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._url = _database_url(environment)
        self._answers: dict[str, tuple[float, bool]] = {}

    def is_paused(self, dag_id: str) -> bool:
        """Whether a DAG is known to be paused."""
        if self._url is None:
            return False
        known = self._answers.get(dag_id)
        if known is None or time.monotonic() - known[0] > KEPT_SECONDS:
            known = self._answers[dag_id] = (time.monotonic(), _asked(self._url, dag_id))
        return known[1]


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


def _asked(url: sa.URL, dag_id: str) -> bool:
    found: list[bool] = []

    def ask() -> None:
        with suppress(
            Exception
        ):  # a driver that is not installed, a database that is not reached, a table that is not there
            engine = sa.create_engine(url, poolclass=NullPool)
            with engine.connect() as connection:
                found.append(bool(connection.execute(_QUERY, {"dag_id": dag_id}).scalar()))

    thread = threading.Thread(target=ask, daemon=True, name="logio asks Airflow's database")
    thread.start()
    thread.join(ANSWER_SECONDS)
    return any(found)
