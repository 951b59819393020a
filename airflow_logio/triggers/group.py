"""`LogioGroupTrigger`: watches a group from the triggerer, with all incarnations and replicas, until a task has work to do.

It costs no worker slot. It launches nothing: a dead group is recovered by its supervisor. While the log cannot be
reached, the state of the group is unknown, and the trigger keeps trying.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent, aget_task_state
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.states import WAITING, GroupState
from airflow_logio.runtime.supervision.halt import Halt, halt_all_for_good
from airflow_logio.runtime.supervision.presence import SupervisionWatch
from airflow_logio.runtime.supervision.whole_watch import Sighting, WholeWatcher
from airflow_logio.store.records import Run
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.reporting import GroupReporter

WAKING = WAITING | {GroupState.FINISHED, GroupState.NEW}
"""States of a group that wake its task. A group that is scaled to zero wakes up by itself."""
STOPPING = frozenset({"failed", "success", "skipped", "removed"})
"""States of the task instance if a person stopped it, rather than cleared it to resume the group."""
HALT_GRACE_SECONDS = 10.0
"""How long a driver may take to halt by itself."""
LOG_AWAY_SECONDS = 900.0
"""How long a halt waits for a log that cannot be reached; drivers wait as long."""
_SILENT_POLLS = 60
_T = TypeVar("_T")
_following: set[asyncio.Task[None]] = set()
"""Work in progress for tasks that people acted on. An event loop by itself keeps no task alive."""


class LogioGroupTrigger(LogTrigger):
    """Fires one event: ``{"state": ..., "group": ..., "incarnation": ..., "cause": ...}``, or state ``error``.

    If the group is replicated, `group` of the event names the replica that it is about. `incarnations` are those that the
    task saw last.
    """

    arguments = ("run_uid", "group", "incarnations")

    def __init__(
        self,
        *,
        logio_conn_id: str,
        run_uid: str,
        group: str,
        incarnations: Mapping[str, int] | None = None,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__(logio_conn_id, poll_interval)
        self.run_uid = run_uid
        self.group = group
        self.incarnations = dict(incarnations or {})
        self._run: Run | None = None
        self._supervision: SupervisionWatch | None = None
        self._reporter: GroupReporter | None = None
        self._is_left_dead = False
        self._watcher: WholeWatcher | None = None
        self._failed_polls = 0
        self._follows: asyncio.Task[None] | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread."""
        while True:
            try:
                sighting = await self._in_thread(self._look)
            except (LogioError, AirflowException) as error:
                yield TriggerEvent({"state": "error", **self._who(), "cause": f"{type(error).__name__}: {error}"})
                return
            self.incarnations |= sighting.incarnations
            if (one := sighting.decides) is not None and one.status is not None:
                state = sighting.state
                if state in WAKING or self._is_left_dead:
                    name, cause = one.status.group, one.cause or one.status.error
                    yield TriggerEvent({"state": str(state), **self._who(name), "cause": cause})
                    return
            await asyncio.sleep(self.poll_interval)

    async def on_kill(self) -> None:
        """A person acted on the task. If it was marked, the group halts; if it was cleared, the next attempt takes it up.

        Airflow calls this method in both cases, so the state of the task instance decides. The triggerer cancels this call
        in each of its rounds (one per second) and gives up after 30 seconds. Its first answer may take longer, because it
        builds an API server in its own process then. So work that has begun continues in the triggerer when this call is
        cancelled. Airflow does not call it when the triggerer restarts.
        """
        self._follows = asyncio.create_task(self._follow_task())
        _following.add(self._follows)
        self._follows.add_done_callback(_following.discard)
        await asyncio.shield(self._follows)

    async def cleanup(self) -> None:
        """As in the base, but keeps what is still needed to halt the group."""
        if self._follows is None or self._follows.done():
            await super().cleanup()

    async def _follow_task(self) -> None:
        """Do what `on_kill` says. An error is logged here, since no task may be waiting any more."""
        unhalted = "Group %s is not halted, and its task may have been marked: %s. `logio stop %s %s` halts it"
        try:
            await self._halt_if_marked()
        except asyncio.CancelledError:
            self.log.error(unhalted, self.group, "the triggerer is stopping", self.run_uid[:8], self.group)
            raise
        except Exception as error:
            self.log.exception(unhalted, self.group, error, self.run_uid[:8], self.group)
        finally:
            await super().cleanup()

    async def _halt_if_marked(self) -> None:
        """Halt all running drivers of the group for a marked task, round by round, until no new one appears.

        The answer may take long. Meanwhile recoveries and scaling continue, and what they launch belongs to the task, too.
        So incarnations are read before the task's state: if it is still marked, no newer attempt can have launched them. A
        halted group is not recovered, and its requests are refused, so one more round finds no other.
        """
        halted: Mapping[str, int] | None = None
        while True:
            present = await self._as_soon_as_the_log_answers(self._present)
            state = await aget_task_state(self.task_instance)
            if state not in STOPPING:
                self.log.info("Group %s keeps running: its task was cleared (state %s)", self.group, state)
                return
            if present == halted:
                return
            self.log.info("Group %s: its task is %s, so it is halted", self.group, state)
            halts = await self._as_soon_as_the_log_answers(partial(self._halt, present))
            for name, halt in halts.items():
                self.log.info("Group %s: its task is %s; it is %s", name, state, halt.value)
            halted = present

    async def _as_soon_as_the_log_answers(self, act: Callable[[], _T]) -> _T:
        """Run `act` in a thread, as soon as the log answers. Waiting for the log holds no thread: a triggerer has few."""
        deadline = time.monotonic() + LOG_AWAY_SECONDS
        while True:
            try:
                return await self._in_thread(act)
            except LogUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(self.poll_interval)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _look(self) -> Sighting:
        try:
            sighting = self._watch().poll()
        except LogUnavailable:
            sighting = Sighting()
        if sighting.statuses:
            self._failed_polls = 0
            self._look_for_supervisor(sighting)
            self._report(sighting)
            return sighting
        if self._failed_polls % _SILENT_POLLS == 0:
            self.log.warning("Group %s: the log cannot be reached, so its state is unknown; retrying", self.group)
        self._failed_polls += 1
        return sighting

    def _watch(self) -> WholeWatcher:
        if self._store is None or self._watcher is None:
            self._watcher = self._open()
        return self._watcher

    def _open(self) -> WholeWatcher:
        store, self._run = self._open_run(self.run_uid)
        self._supervision = SupervisionWatch(store, self._run)
        self._reporter = GroupReporter(store, self._run, self.group, self.log.info)
        return WholeWatcher(store, self._run, self.group)

    def _look_for_supervisor(self, sighting: Sighting) -> None:
        if self._supervision is None:
            return
        if (warning := self._supervision.warning()) is not None:
            self.log.warning("Group %s: %s", self.group, warning)
        self._is_left_dead = self._supervision.is_left(dead=sighting.is_dead)

    def _report(self, sighting: Sighting) -> None:
        if self._reporter is not None:
            self._reporter.report(at_once=sighting.state in WAKING)

    def _present(self) -> dict[str, int]:
        """Group or replica → incarnation."""
        members = self._watch().members
        assert self._store is not None and self._run is not None
        return {one.group: one.incarnation for one in self._store.groups(self._run.run_id) if one.group in members}

    def _halt(self, incarnations: Mapping[str, int]) -> dict[str, Halt]:
        self._watch()
        assert self._store is not None and self._run is not None
        return halt_all_for_good(self._store, self._run, self.group, incarnations, grace_seconds=HALT_GRACE_SECONDS)

    def _who(self, name: str | None = None) -> dict[str, Any]:
        name = self.group if name is None else name
        return {"group": name, "incarnation": self.incarnations.get(name, 0)}
