"""An auth manager of Airflow's kind in which each user reads the DAGs of one name: its own."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class OwnDagManager(SimpleAuthManager):
    """User ``dag`` reads DAG ``dag``, and nothing else."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        return method == "GET" and details is not None and details.id == user.username
