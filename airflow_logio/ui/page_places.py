"""Addresses of the page: its places in Airflow, and its built files (`ui/`) under names with a hash of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

NAME = "LOG.io"
PREFIX = "/logio"
ROUTES = {"nav": "logio", "dag": "logio_dag", "dag_run": "logio_run", "task_instance": "logio_task"}
"""Where Airflow shows the page → part of the address there. Airflow takes each route once."""


def page_of_run(airflow_url: str, dag_id: str, dag_run_id: str) -> str:
    """The address of a DAG run's tab, in an Airflow at `airflow_url`."""
    run = f"dags/{quote(dag_id, safe='')}/runs/{quote(dag_run_id, safe='')}"
    return f"{airflow_url.rstrip('/')}/{run}/plugin/{ROUTES['dag_run']}"


FOLDER = Path(__file__).parent / "built"
PLUGIN = "plugin.js"
"""For Airflow, which has React."""
ALONE = "alone.js"
"""For `logio ui`, with React in it."""


@cache
def served() -> Mapping[str, Path]:
    """Name in an address → file."""
    return {address(name): FOLDER / name for name in (PLUGIN, ALONE)}


@cache
def address(name: str) -> str:
    """The name under which a built file is served. Raises `OSError` if it is not installed."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:16]
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{digest}.{suffix}"
