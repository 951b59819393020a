"""The few calls of Airflow's REST API that the demonstration needs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, ClassVar
from urllib.parse import quote

from airflow_logio.errors import LogioError

_HEALTHY = ("metadatabase", "scheduler", "triggerer", "dag-processor")


class AirflowRefused(LogioError):
    """Airflow's REST API answered with an error."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class AirflowUnavailable(LogioError):
    """Airflow's REST API does not answer (yet)."""


class Airflow:
    """One Airflow instance. When a call needs a token, `login` supplies user and password."""

    timeout_seconds: ClassVar[float] = 15.0
    """After so long without an answer, Airflow is unavailable."""

    def __init__(self, url: str, login: Callable[[], tuple[str, str] | None]) -> None:
        self._url = url
        self._login = login
        self._token: str | None = None

    def is_healthy(self) -> bool:
        """Whether every component is healthy; False also if Airflow does not answer."""
        health = self.health()
        return all(health.get(name) == "healthy" for name in _HEALTHY)

    def health(self) -> dict[str, str]:
        """Component (``dag-processor``) → ``healthy``, ``unhealthy`` or another word; empty if Airflow does not answer."""
        try:
            found = self._send("GET", "/api/v2/monitor/health", None, token=None)
        except (AirflowUnavailable, AirflowRefused):
            return {}
        return {name.replace("_", "-"): str((one or {}).get("status")) for name, one in found.items()}

    def has_dag(self, dag_id: str) -> bool:
        """False as long as the DAG is not parsed."""
        try:
            self._call("GET", f"/api/v2/dags/{quote(dag_id)}")
        except AirflowRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    def import_errors(self) -> list[str]:
        """Tracebacks of DAG files that cannot be imported."""
        found = self._call("GET", "/api/v2/importErrors").get("import_errors", [])
        return [f"{one.get('filename')}: {one.get('stack_trace')}" for one in found]

    def unpause(self, dag_id: str) -> None:
        self._call("PATCH", f"/api/v2/dags/{quote(dag_id)}", {"is_paused": False})

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> None:
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        self._call("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", body)

    def backfill_days(self, dag_id: str, first: date, last: date, conf: Mapping[str, Any]) -> dict[date, str]:
        """Begin a DAG run for each day, whatever was there before. Returns day → its DAG run."""
        for one in self._call("GET", f"/api/v2/backfills?dag_id={quote(dag_id)}").get("backfills", []):
            if one["completed_at"] is None:  # of an earlier instance that was ended in the middle
                self._call("PUT", f"/api/v2/backfills/{one['id']}/cancel")
        dates = {"from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
        body = {"dag_id": dag_id, **dates, "dag_run_conf": dict(conf), "reprocess_behavior": "completed"}
        self._call("POST", "/api/v2/backfills", body)
        number = (last - first).days + 1
        found = self._call("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns?run_type=backfill&order_by=-id&limit={number}")
        return {date.fromisoformat(run["partition_key"]): str(run["dag_run_id"]) for run in found["dag_runs"]}

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """All tasks of the DAG run, with the newest code."""
        body = {"dry_run": False, "only_failed": False, "run_on_latest_version": True}
        self._call("POST", f"{self._run(dag_id, run_id)}/clear", body)

    def active_runs(self, dag_id: str) -> list[str]:
        """Runs that are queued or running."""
        found = self._call("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns?state=running&state=queued&limit=50")
        return [str(run["dag_run_id"]) for run in found.get("dag_runs", [])]

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self._call("GET", self._run(dag_id, run_id)).get("state"))

    def fail_run(self, dag_id: str, run_id: str) -> None:
        self._call("PATCH", self._run(dag_id, run_id), {"state": "failed"})

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        found = self._call("GET", f"{self._run(dag_id, run_id)}/taskInstances").get("task_instances", [])
        return {str(task["task_id"]): str(task["state"]) for task in found}

    @staticmethod
    def _run(dag_id: str, run_id: str) -> str:
        return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self._token is None:
            self._token = self._new_token()
        return self._send(method, path, body, token=self._token)

    def _new_token(self) -> str:
        login = self._login()
        if login is None:
            raise AirflowUnavailable("Airflow has not created its login yet")
        answer = self._send("POST", "/auth/token", {"username": login[0], "password": login[1]}, token=None)
        return str(answer["access_token"])

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, *, token: str | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_seconds) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")[:500]
            raise AirflowRefused(f"Airflow: {method} {path}: {error.code} {text}", error.code) from None
        except OSError as error:
            raise AirflowUnavailable(f"Airflow: {method} {path}: {error}") from error
        result: dict[str, Any] = json.loads(content) if content else {}
        return result
