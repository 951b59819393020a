"""An auth manager of Airflow's kind in which each user reads the DAGs of one name, its own, and may change their runs."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class OwnDagManager(SimpleAuthManager):
    """User ``dag`` reads all of DAG ``dag``, and nothing else; ``dag-RUN`` all but its runs, and so for each entity.
    ``dag+`` also changes its runs, and clears its tasks."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        dag_id, _, without = user.username.partition("-")
        entity = None if access_entity is None else access_entity.name
        allowed = method == "GET" or (method == "PUT" and entity in ("RUN", "TASK_INSTANCE") and dag_id.endswith("+"))
        is_kept_back = entity is not None and entity == without
        return allowed and details is not None and details.id == dag_id.rstrip("+") and not is_kept_back
