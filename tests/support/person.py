"""What a person sees and does in Airflow's UI, through the REST API that the UI uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any
from urllib.parse import quote

from demo.rest import Airflow, AirflowRefused, AirflowUnavailable
from tests.support.waiting import eventually


class Person(Airflow):
    """An API server that is unavailable shows nothing. A person waits when the machine is busy."""

    timeout_seconds = 120.0

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Again after an answer 5xx: Airflow's own database is an SQLite file, and was locked for long.

        If such a call was carried out all the same, the next one is told that there is such a thing already.
        """
        was_locked = False

        def answered() -> list[dict[str, Any]]:
            nonlocal was_locked
            try:
                return [super(Person, self)._call(method, path, body)]
            except AirflowRefused as error:
                if error.status < 500:
                    if was_locked and error.status == 409:
                        return [{}]
                    raise
                was_locked = True
                return []

        [answer] = eventually(answered, what=f"Airflow answers {method} {path}", timeout=60, every=0.5)
        return answer

    # --- runs of DAGs --------------------------------------------------------------------------------------------------

    def begin(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        self.unpause(dag_id)
        self.trigger(dag_id, run_id, conf)

    def pause(self, dag_id: str) -> None:
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": True})

    def run_state(self, dag_id: str, run_id: str) -> str:
        try:
            return super().run_state(dag_id, run_id)
        except AirflowUnavailable:
            return ""

    def runs(self, dag_id: str) -> list[str]:
        """The latest first."""
        found = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?order_by=-id&limit=50").get("dag_runs", [])
        return [str(run["dag_run_id"]) for run in found]

    def backfill(self, dag_id: str, first: date, last: date, conf: Mapping[str, Any], *, at_once: int) -> None:
        """`at_once`: how many of its DAG runs may be active at a time."""
        dates = {"from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
        body = {"dag_id": dag_id, **dates, "dag_run_conf": dict(conf), "max_active_runs": at_once}
        self._call("POST", "/api/v2/backfills", body)

    def audited(self, dag_id: str, run_id: str) -> list[tuple[str, str]]:
        """(what was done, by whom) with a DAG run, as Airflow's audit log has it, the first one first."""
        path = f"/api/v2/eventLogs?dag_id={quote(dag_id)}&run_id={quote(run_id)}&order_by=id&limit=100"
        return [(str(one["event"]), str(one["owner"])) for one in self._call("GET", path)["event_logs"]]

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Airflow refuses it, with 409, while the run is running."""
        self._call("DELETE", self._run(dag_id, run_id))

    def missed_deadlines(self, dag_id: str, run_id: str) -> list[bool]:
        """For each deadline of the run that Airflow knows (one that was met is forgotten): was it missed?"""
        path = self._run(dag_id, run_id).replace("/api/v2/", "/ui/")
        return [bool(one["missed"]) for one in self._call("GET", f"{path}/deadlines")["deadlines"]]

    # --- tasks ---------------------------------------------------------------------------------------------------------

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self._call("GET", f"{self._run(dag_id, run_id)}/taskInstances")[
                "task_instances"
            ]
        except AirflowUnavailable:
            return []
        return found

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        return {task["task_id"]: str(task["state"]) for task in self.tasks(dag_id, run_id)}

    def mark(self, dag_id: str, run_id: str, task: str, state: str) -> None:
        self._call("PATCH", f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}", {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task: str) -> None:
        """With the tasks behind it."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task],
            "only_failed": False,
            "include_downstream": True,
        }
        self._call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def waits_for_answer(self, dag_id: str, run_id: str, task: str) -> str | None:
        """The text of the question that a task asks a person; None while it asks nothing."""
        if self.states(dag_id, run_id).get(task) != "awaiting_input":
            return None
        return str(self._call("GET", f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}/-1/hitlDetails")["body"])

    def answer(self, dag_id: str, run_id: str, task: str, option: str) -> None:
        path = f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}/-1/hitlDetails"
        self._call("PATCH", path, {"chosen_options": [option]})

    def result(self, dag_id: str, run_id: str, task: str, map_index: int = -1) -> Any:
        path = f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}/xcomEntries/return_value"
        return self._call("GET", f"{path}?deserialize=true&map_index={map_index}")["value"]

    def links(self, dag_id: str, run_id: str, task: str) -> dict[str, str | None]:
        """Name of each link of the task → where it leads; None: nowhere."""
        path = f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}/links"
        found: dict[str, str | None] = self._call("GET", path)["extra_links"]
        return found

    def log(self, dag_id: str, run_id: str, task: str) -> str:
        """The task's log as one text, that of every attempt which Airflow keeps.

        An attempt that a busy scheduler has given up before it began, is kept by no table of Airflow's.
        """
        attempts = self._call("GET", f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}")["try_number"]
        return "\n".join(self._attempt(dag_id, run_id, task, attempt) for attempt in range(1, attempts + 1))

    def _attempt(self, dag_id: str, run_id: str, task: str, attempt: int) -> str:
        path = f"{self._run(dag_id, run_id)}/taskInstances/{quote(task)}/logs/{attempt}?full_content=true"
        try:
            lines = self._call("GET", path)["content"]
        except AirflowRefused as error:
            if error.status != 404:
                raise
            return ""
        return "\n".join(
            line if isinstance(line, str) else str(line.get("event", "")) + json.dumps(line.get("error_detail", ""))
            for line in lines
        )
