"""Airflow's users on the page: those who may read a DAG's runs in Airflow see them here, and no others do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import Depends, Request

from airflow_logio import _compat
from airflow_logio.store.records.run_records import RunKey
from airflow_logio.ui.page_access import Access

_USER = Depends(_compat.user_dependency())


class AirflowAccess(Access):
    """Asks the auth manager of the deployment, as Airflow's own routes do."""

    async def user(self, request: Request, found: Any = _USER) -> Any:
        return found

    def may_read(self, user: Any, dag_id: str) -> bool:
        return _compat.may_read_runs(user, dag_id)

    def may_read_output(self, user: Any, dag_id: str) -> bool:
        return _compat.may_read_task_logs(user, dag_id)

    def may_read_data(self, user: Any, dag_id: str) -> bool:
        return _compat.may_read_data(user, dag_id)

    def may_change(self, user: Any, dag_id: str) -> bool:
        return _compat.may_change_runs(user, dag_id)

    def may_retry(self, user: Any, dag_id: str) -> bool:
        return self.may_change(user, dag_id) and _compat.may_clear_tasks(user, dag_id)

    def name_of(self, user: Any) -> str:
        return str(user.get_name())

    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        _compat.audit(user, f"logio_{action}", run.dag_id, run.dag_run_id, asked)

    def readable(self, user: Any) -> Collection[str] | None:
        return _compat.readable_dags(user)
