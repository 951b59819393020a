"""An auth manager of Airflow's kind in which each user reads the DAGs of one name: its own."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class OwnDagManager(SimpleAuthManager):
    """User ``dag`` reads all of DAG ``dag``, and nothing else; ``dag-RUN`` all but its runs, and so for each entity."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        dag_id, _, without = user.username.partition("-")
        is_kept_back = access_entity is not None and access_entity.name == without
        return method == "GET" and details is not None and details.id == dag_id and not is_kept_back
