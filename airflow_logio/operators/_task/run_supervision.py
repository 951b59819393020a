"""What task `supervise` does on its worker: it recovers and scales what was found, tells its callbacks, and waits again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, LogUnavailable, ManagerUnavailable
from airflow_logio.operators._task.callbacks import Teller, parameter
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.pipeline_reference import launching_tasks, resolve
from airflow_logio.operators._task.recovery_round import GroupRecovery, explain_kill
from airflow_logio.operators._task.run_lookup import identity, is_last_try, opened_log, run_of, task_key
from airflow_logio.operators._task.scaling_round import GroupScaling
from airflow_logio.operators._task.status_page import say_status
from airflow_logio.protocol.states import WAITING
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.findings import (
    DueScaling,
    FailedGroup,
    FailureFinder,
    Finding,
    Findings,
    UnexplainedKill,
    finding_of,
    only_watched,
)
from airflow_logio.supervision.notices import Notice, NoticeKind, Seen, recovery_notice
from airflow_logio.supervision.tend import RecoveryOutcome
from airflow_logio.triggers.base import SETTLING_SECONDS
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger

if TYPE_CHECKING:
    from airflow_logio.operators.supervise import LogioSuperviseOperator

MOST_REST_SECONDS = 60.0
"""The longest time between two questions to Airflow whether a task may launch a group of a run in which all have stopped:
each one takes a worker."""
TELL_SECONDS = 10.0
"""How often a task that waits on a worker looks for what it has to tell."""


@dataclass(frozen=True, slots=True)
class RunSupervision:
    """One segment of the task, between two deferrals."""

    task: LogioSuperviseOperator
    context: Mapping[str, Any]

    def work(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """`event` is that of the trigger; empty at the beginning of an attempt. Defers, or returns the end of the run."""
        try:
            return self._look_after(event)
        except ConfigurationError as error:  # many retries would not help
            raise AirflowFailException(f"the run is not supervised: {error}") from error

    def _look_after(self, event: Mapping[str, Any]) -> dict[str, Any]:
        with opened_log(self.task.logio_conn_id) as store:
            run = self._run(store)
            launching = Launching(store, self.task.logio_conn_id, self.task.make_launcher(), self.task.executor)
            teller = self._teller(store, run, event.get("seen"))
            parked, unanswered = self._act_on(launching, [finding_of(one) for one in event.get("findings", ())])
            for notice in (
                *map(Notice.of, event.get("notices", ())),
                *parked,
            ):  # after what is urgent: these may take long
                teller.tell(notice)
            teller.look()  # what this task has just launched is in the log, too, in its order
            look = FailureFinder(store, run_uid=run.uid).look if self.task.recover else partial(_watched, store, run)
            found, told_at, asked_at = look(), time.monotonic(), time.monotonic()
            ended = self._is_over(found, store, run)
            while not self.task.deferrable and not ended:
                if self.task.recover:
                    with suppress(LogUnavailable):  # a refused note is no reason to stop looking
                        store.note_supervisor(self._name(), run_uid=run.uid)
                parked, _ = self._act_on(launching, found.items)
                for notice in parked:
                    teller.tell(notice)
                if found.items or time.monotonic() - told_at >= TELL_SECONDS:
                    told_at = time.monotonic()
                    teller.look()
                time.sleep(self.task.poll_interval or _compat.poll_interval())
                was_stopped, found = _has_stopped(found), look()
                if not was_stopped or time.monotonic() - asked_at >= SETTLING_SECONDS:
                    asked_at = time.monotonic()
                    ended = self._is_over(found, store, run)
            # The trigger finds what failed meanwhile. The groups of the run may all have ended.
            if ended:
                teller.look(is_last=True)
                summary = self._summary(store, run)
                store.patience.call("taking leave", partial(store.forget_supervisor, self._name()))
        if ended:
            return summary
        rested = event.get("rested")
        rest = SETTLING_SECONDS if rested is None else min(2 * float(rested), MOST_REST_SECONDS)
        self._wait(run, teller, rest if _has_stopped(found) else None, unanswered)

    def _is_over(self, found: Findings, store: LogStore, run: Run) -> bool:
        """Whether all groups have ended, and no task may launch one that has stopped.

        A person who clears the task of such a group clears this one with it, and this one may be the faster. A group that
        waits for its input is launched by the retries of its task. If Airflow does not say, that is no proof: this task
        looks again, for as long as Airflow lets it.
        """
        if not _has_stopped(found):
            return False
        states = store.patience.call("reading the groups", lambda: [one.state for one in store.groups(run.run_id)])
        launching = self._launching_tasks()
        if WAITING.isdisjoint(states) or not launching:
            return True
        active = _compat.active_tasks(*identity(self.context), launching)
        if active == []:
            return True
        why = "Airflow does not say whether a task is about to launch one" if active is None else ", ".join(active)
        self.task.log.info("All groups have stopped, and the run stays supervised: %s", why)
        return False

    def _launching_tasks(self) -> set[str]:
        """The tasks before this one, and those that launch groups of the pipeline, wherever they lie."""
        return launching_tasks(self.task, self.task.pipeline).union(self.task.upstream_task_ids)

    def _teller(self, store: LogStore, run: Run, seen: Seen | None) -> Teller:
        callbacks = {kind: getattr(self.task, parameter(kind)) for kind in NoticeKind}
        return Teller(callbacks, self.context, store, run, task_key(self.context, self.task.task_id), seen)

    def _act_on(self, launching: Launching, items: Sequence[Finding]) -> tuple[list[Notice], list[str]]:
        """Returns the notices that the log does not lead to, of recoveries that have parked their group instead; and the keys
        of what waits for a cluster manager that does not answer."""
        parked, unanswered = [], []
        for one in items:
            if isinstance(one, UnexplainedKill):
                explain_kill(launching.store, one)
                continue
            try:
                if isinstance(one, DueScaling):
                    self._scale(launching, one)
                    continue
                recovery = self._recover(launching, one)
            except ManagerUnavailable as error:
                self.task.log.warning("%s: nothing is launched for now, and no recovery is spent: %s", one, error)
                unanswered.append(one.key)
                continue
            if recovery["outcome"] == RecoveryOutcome.PARKED.value:
                parked.append(recovery_notice(recovery))
        return parked, unanswered

    def _name(self) -> str:
        dag_id, run_id = identity(self.context)
        return f"task {self.task.task_id} of {dag_id}, {run_id}"

    def _run(self, store: LogStore) -> Run:
        if self.task.run_uid:
            uid = self.task.run_uid
            return store.patience.call("finding the run", lambda: store.find_run(uid))
        pipeline, _ = resolve(self.task.pipeline)
        return store.patience.call("finding the run", lambda: run_of(store, pipeline.name, self.context, None))

    def _scale(self, launching: Launching, due: DueScaling) -> None:
        launching.store.patience.call(f"scaling {due}", lambda: GroupScaling(launching).carry_on(due))

    def _recover(self, launching: Launching, failed: FailedGroup) -> dict[str, Any]:
        call = launching.store.patience.call
        recovery = call(f"recovering {failed}", lambda: GroupRecovery(launching).recover(failed))
        if recovery["outcome"] == RecoveryOutcome.NOT_NEEDED.value:
            self.task.log.info("%s: %s", failed, recovery["why"])
            return recovery
        if recovery["outcome"] == RecoveryOutcome.PARKED.value:
            self.task.log.error("%s is parked: %s", failed, recovery["why"])
        else:
            self.task.log.warning("%s is launched as incarnation %s", failed, recovery["launched_incarnation"])
        say_status(self.task.log, launching.store, failed.run_uid, self.task.logio_conn_id)
        return recovery

    def _summary(self, store: LogStore, run: Run) -> dict[str, Any]:
        groups = store.patience.call("reading the groups", lambda: store.groups(run.run_id))
        states = {group.group: group.state.value for group in groups}
        recoveries = {group.group: group.recoveries for group in groups if group.recoveries}
        self.task.log.info("All groups have ended: %s; recoveries: %s", states, recoveries or "none")
        say_status(self.task.log, store, run.uid, self.task.logio_conn_id)
        return {"run": run.uid, "states": states, "recoveries": recoveries}

    def _wait(self, run: Run, teller: Teller, rest_seconds: float | None, unanswered: Sequence[str] = ()) -> NoReturn:
        trigger = LogioFailedGroupTrigger(
            logio_conn_id=self.task.logio_conn_id,
            supervisor=self._name() if self.task.recover else None,
            run_uid=run.uid,
            poll_interval=self.task.poll_interval or _compat.poll_interval(),
            rest_seconds=rest_seconds,
            kinds=teller.kinds,
            seen=teller.seen,
            last_try=is_last_try(self.context["ti"]),
            recovers=self.task.recover and not self.task.has_place,
            unanswered=list(unanswered),
        )
        self.task.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer does not return")


def _has_stopped(found: Findings) -> bool:
    """Whether it is known that nothing of a run is under way."""
    return found.failed is not None and not found.going_on


def _watched(store: LogStore, run: Run) -> Findings:
    """A look of a task that recovers nothing."""
    try:
        return only_watched(next(iter(store.sight([run.uid])), None))
    except LogUnavailable as error:
        return Findings(None, unavailable=str(error))
