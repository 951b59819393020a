"""Where Airflow shows the page, and under which addresses."""

from __future__ import annotations

from urllib.parse import quote

NAME = "LOG.io"
PREFIX = "/logio"
ROUTES = {"nav": "logio", "dag": "logio_dag", "dag_run": "logio_run", "task_instance": "logio_task"}
"""Where Airflow shows the page → part of the address there. Airflow takes each route once."""


def page_of_run(airflow_url: str, dag_id: str, dag_run_id: str) -> str:
    """The address of a DAG run's tab, in an Airflow at `airflow_url`."""
    run = f"dags/{quote(dag_id, safe='')}/runs/{quote(dag_run_id, safe='')}"
    return f"{airflow_url.rstrip('/')}/{run}/plugin/{ROUTES['dag_run']}"
