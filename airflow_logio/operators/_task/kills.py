"""What the task of a group does when it is killed on its worker: SIGTERM, or its `execution_timeout`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_logio import _compat
from airflow_logio.operators._task.run_lookup import identity, is_last_try, map_index
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import KilledTask
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.task_notes import REMOVED, Meaning, meaning, note_killed, on_its_way, resolve_kill

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 4.0
"""Airflow sends SIGKILL five seconds after SIGTERM."""
GRACE_SECONDS = 1.5
"""How long the driver may take to halt by itself."""


@dataclass(frozen=True, slots=True)
class KillGuard:
    """One attempt's knowledge of what it watches. A signal handler may use it: it needs no lock of the interrupted thread."""

    log_url: str
    run: Run
    group: str
    task: KilledTask

    def act(self) -> None:
        """Leave a note in the log; then, if Airflow answers in time, do what follows, and take the note away.

        It works in a thread of its own with a connection of its own. What is not done in time is left to the note.
        """
        thread = threading.Thread(target=self._act, name="logio on_kill", daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)

    def _act(self) -> None:
        try:
            store = open_store(self.log_url, application="logio airflow", connections=1)
            try:
                note_killed(store, self.run, self.group, self.task)
                found = resolve_kill(
                    store, self.run, self.group, self.task, _compat.get_task_state, grace_seconds=GRACE_SECONDS
                )
            finally:
                store.dispose()
        except Exception as error:
            log.warning(
                "Group %s keeps running: why its task was killed is not known (%s). The next attempt, or the supervisor of "
                "the run, finds out", self.group, error,
            )  # fmt: skip
            return
        log.warning(
            "Group %s %s: %s", self.group, "is halted" if found is Meaning.HALT else "keeps running", found.value
        )

    def deferring(self, store: LogStore) -> KillGuard:
        """The guard from now on: the task is about to defer. Raises `LogUnavailable`.

        The note covers what happens until its trigger looks for the first time.
        """
        task = on_its_way(self.task)
        note_killed(store, self.run, self.group, task)
        return replace(self, task=task)

    def is_ended(self, store: LogStore) -> bool:
        """Whether a person has ended the task by now; then its group is halted. False as well if Airflow does not answer.

        It is asked at each deferral. So that Airflow does not know the task is no reason to halt here; it is, where the note
        is read. Raises `LogUnavailable`.
        """
        try:
            state = _compat.get_task_state(self.task)
        except Exception as error:
            log.debug("Group %s: Airflow does not say what its task has become: %s", self.group, error)
            return False
        if state == REMOVED or meaning(state, self.task) is not Meaning.HALT:
            return False
        resolve_kill(store, self.run, self.group, self.task, lambda _: state, grace_seconds=GRACE_SECONDS)
        return True


def killed_task(context: Mapping[str, Any], task_id: str, *, of_replica: bool = False) -> KilledTask:
    """This task instance, as it is asked after."""
    dag_id, run_id = identity(context)
    last_try = is_last_try(context["ti"])
    return KilledTask(dag_id, run_id, task_id, map_index(context), last_try=last_try, of_replica=of_replica)
