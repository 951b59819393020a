"""`LogioGroupTrigger`: watches a group from the triggerer, over its incarnations, until a task has something to do.

It costs no worker slot. It launches nothing, and a group that is dead is somebody else's business: its supervisor's. That
the log cannot be reached means that nothing is known; the trigger goes on asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent, aget_task_state
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.states import ENDED, GroupState
from airflow_logio.runtime.stopping import Halt, halt_for_good
from airflow_logio.runtime.supervision import SupervisionWatch
from airflow_logio.runtime.watch import GroupWatcher, Observation
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.reporting import GroupReporter

WAKING = ENDED | {GroupState.NEW}
"""States of a group that its task has to know of."""
STOPPING = frozenset({"failed", "success", "skipped", "removed"})
"""What the task instance has become if a person stopped it, rather than cleared it to go on."""
HALT_GRACE_SECONDS = 10.0
"""How long a driver may take to halt by itself; Airflow gives `on_kill` 30 seconds in all."""
_SILENT_POLLS = 60


class LogioGroupTrigger(LogTrigger):
    """Fires one event: ``{"state": ..., "incarnation": ..., "cause": ...}``, or state ``error`` if it cannot watch."""

    arguments = ("run_uid", "group", "incarnation")

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, group: str, incarnation: int = 0, poll_interval: float = 1.0
    ) -> None:
        super().__init__(logio_conn_id, poll_interval)
        self.run_uid = run_uid
        self.group = group
        self.incarnation = int(incarnation)
        self._run_id = 0
        self._supervision: SupervisionWatch | None = None
        self._reporter: GroupReporter | None = None
        self._is_left_dead = False
        self._watcher: GroupWatcher | None = None
        self._failed_polls = 0

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread."""
        while True:
            try:
                observation = await asyncio.to_thread(self._look)
            except (LogioError, AirflowException) as error:
                yield self._event("error", f"{type(error).__name__}: {error}")
                return
            if observation.status is not None:
                self.incarnation = observation.status.incarnation
                if observation.status.state in WAKING or self._is_left_dead:
                    cause = observation.cause or observation.status.error
                    yield self._event(observation.status.state.value, cause)
                    return
            await asyncio.sleep(self.poll_interval)

    async def on_kill(self) -> None:
        """A person acted on the task: marked, the group halts; cleared, it goes on, and the next attempt takes it up.

        Airflow calls this alike for both, so the task instance is asked what it has become. Not called when the
        triggerer restarts or hands the trigger over.
        """
        state = await aget_task_state(self.task_instance)
        if state not in STOPPING:
            self.log.info("Group %s goes on: its task was cleared (state %s)", self.group, state)
            return
        halt = await asyncio.to_thread(self._halt)
        self.log.info("Group %s: its task is %s; it is %s", self.group, state, halt.value)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _look(self) -> Observation:
        try:
            observation = self._watch().poll()
        except LogUnavailable:
            observation = Observation(None)
        if observation.status is not None:
            self._failed_polls = 0
            self._look_for_supervisor(observation)
            self._report(observation)
            return observation
        if self._failed_polls % _SILENT_POLLS == 0:
            self.log.warning("Group %s: the log cannot be reached, so nothing is known; asking on", self.group)
        self._failed_polls += 1
        return observation

    def _watch(self) -> GroupWatcher:
        if self._store is None or self._watcher is None:
            self._watcher = self._open()
        return self._watcher

    def _open(self) -> GroupWatcher:
        store, run = self._open_run(self.run_uid)
        self._run_id = run.run_id
        self._supervision = SupervisionWatch(store, run)
        self._reporter = GroupReporter(store, run, self.group, self.log.info)
        return GroupWatcher(store, run.run_id, self.group, run.spec.lease)

    def _look_for_supervisor(self, observation: Observation) -> None:
        if self._supervision is None:
            return
        if (warning := self._supervision.warning()) is not None:
            self.log.warning("Group %s: %s", self.group, warning)
        self._is_left_dead = self._supervision.is_left(dead=observation.is_dead)

    def _report(self, observation: Observation) -> None:
        if self._reporter is not None:
            self._reporter.report(at_once=observation.state in ENDED)

    def _halt(self) -> Halt:
        """Only the incarnation that this trigger watched: a later one belongs to somebody else."""
        self._watch()
        assert self._store is not None
        return halt_for_good(self._store, self._run_id, self.group, self.incarnation, grace_seconds=HALT_GRACE_SECONDS)

    def _event(self, state: str, cause: str | None) -> TriggerEvent:
        return TriggerEvent({"state": state, "incarnation": self.incarnation, "cause": cause})
