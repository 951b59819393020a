"""`LogioSuperviseOperator`: supervises one run from its own DAG run, and recovers the groups that fail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_logio import _compat
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.launcher import Launcher, LocalProcessLauncher
from airflow_logio.operators._task.callbacks import Callbacks, Teller, as_callbacks, parameter
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.pipeline_reference import reference, resolve
from airflow_logio.operators._task.recovery_round import GroupRecovery, explain_kill
from airflow_logio.operators._task.run_lookup import identity, is_last_try, opened_log, run_of
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
from airflow_logio.task_arguments import with_told_arguments
from airflow_logio.triggers.base import SETTLING_SECONDS
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger

MANY = 100
"""The task may be woken for as long as its run lasts. If it wakes before its worker has reported the deferral, which takes up
to five seconds, Airflow counts it as failed. The retry continues from the log, but such retries add up."""


SOON = timedelta(seconds=5)
MOST_REST_SECONDS = 60.0
"""The longest time between two questions to Airflow whether a task may launch a group of a run in which all have stopped:
each one takes a worker."""
TELL_SECONDS = 10.0
"""How often a task that waits on a worker looks for what it has to tell."""


@with_told_arguments
class LogioSuperviseOperator(BaseOperator):
    """Wait for failed groups of a run and recover them, until all its groups have ended. The run is that of this DAG run.

    It waits in the triggerer and holds no worker slot, unless it is told otherwise. A retry or a clear continues from the
    log. Its trigger recovers drivers that ran beside the triggerer (``[logio] recover_in_triggerer``), unless this task has a
    queue, a pool or an executor. It handles all others as `LogioRecoverGroupOperator` does. It also carries out all requests
    to scale a replicated group, and wakes a group that is scaled to zero when there is work for it.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param run_uid: uid of the run (templated); by default the run that this DAG run has of the pipeline.
    :param logio_conn_id: the connection of the log.
    :param poll_interval: seconds between two polls; by default ``[logio] poll_interval``.
    :param on_recovery_callback: called after a group was relaunched, by this task or otherwise, or parked by it. As all
        that follow: a function of the context, a notifier, or a list of them. ``context["notice"]`` says what has occurred.
    :param on_parked_callback: called after a group was parked, whatever parked it.
    :param on_halted_callback: called after a group was halted.
    :param on_quarantine_callback: called after Input Sets were set aside; of each group at most every ten minutes.
    :param on_scaling_callback: called after a request to scale a group was carried out or refused.
    :param on_budget_callback: called after a recovery that leaves the group one or none, or none at the place where its
        operator's code has failed.
    :param recover: False: only call callbacks; a recovery DAG recovers and scales.
    :param deferrable: False: look from the worker, which holds a slot for as long as the run lasts; default as for
        `LogioSparkOperator`.
    :param trigger_rule: by default ``"one_success"``: it begins once the task that starts the run has succeeded, although the
        tasks of the groups lie before it, too (``[start, *groups] >> supervise``). So it is cleared with any of them.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid",)
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        run_uid: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        poll_interval: float | None = None,
        on_recovery_callback: Callbacks = None,
        on_parked_callback: Callbacks = None,
        on_halted_callback: Callbacks = None,
        on_quarantine_callback: Callbacks = None,
        on_scaling_callback: Callbacks = None,
        on_budget_callback: Callbacks = None,
        recover: bool = True,
        deferrable: bool | None = None,
        retries: int = MANY,
        retry_delay: timedelta = SOON,
        trigger_rule: str | None = None,
        **kwargs: Any,
    ) -> None:
        if trigger_rule is None:
            trigger_rule = _trigger_rule(kwargs.get("dag"))
        super().__init__(retries=retries, retry_delay=retry_delay, trigger_rule=trigger_rule, **kwargs)
        self.pipeline = reference(pipeline)
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id
        self.poll_interval = poll_interval
        self.on_recovery_callback = as_callbacks("on_recovery_callback", on_recovery_callback)
        self.on_parked_callback = as_callbacks("on_parked_callback", on_parked_callback)
        self.on_halted_callback = as_callbacks("on_halted_callback", on_halted_callback)
        self.on_quarantine_callback = as_callbacks("on_quarantine_callback", on_quarantine_callback)
        self.on_scaling_callback = as_callbacks("on_scaling_callback", on_scaling_callback)
        self.on_budget_callback = as_callbacks("on_budget_callback", on_budget_callback)
        self.recover = recover
        self.has_place = _compat.has_own_place(kwargs, is_mapped=_compat.is_from_mapped(self))
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Raises AirflowFailException if there is no such run, or this version cannot use the log."""
        return self._work(context, {})

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        """The trigger has found something."""
        if event.get("error"):
            raise AirflowException(f"the triggerer cannot look for failed groups: {event['error']}")
        return self._work(context, event)

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine."""
        return LocalProcessLauncher(_compat.work_dir())

    # --- inside ------------------------------------------------------------------------------------------------------

    def _work(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._look_after(context, event)
        except ConfigurationError as error:  # many retries would not help
            raise AirflowFailException(f"the run is not supervised: {error}") from error

    def _look_after(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        """`event` is that of the trigger; empty at the beginning of an attempt."""
        with opened_log(self.logio_conn_id) as store:
            run = self._run(store, context)
            launching = Launching(store, self.logio_conn_id, self.make_launcher(), self.executor)
            teller = self._teller(context, run, event.get("seen"))
            parked = self._act_on(launching, [finding_of(one) for one in event.get("findings", ())])
            for notice in (
                *map(Notice.of, event.get("notices", ())),
                *parked,
            ):  # after what is urgent: these may take long
                teller.tell(notice)
            teller.look(store)  # what this task has just launched is in the log, too, in its order
            look = FailureFinder(store, run_uid=run.uid).look if self.recover else partial(_watched, store, run)
            found, told_at, asked_at = look(), time.monotonic(), time.monotonic()
            ended = self._is_over(found, store, run, context)
            while not self.deferrable and not ended:
                if self.recover:
                    with suppress(LogUnavailable):  # a refused note is no reason to stop looking
                        store.note_supervisor(self._name(context), run_uid=run.uid)
                parked = self._act_on(launching, found.items)
                for notice in parked:
                    teller.tell(notice)
                if found.items or time.monotonic() - told_at >= TELL_SECONDS:
                    told_at = time.monotonic()
                    teller.look(store)
                time.sleep(self.poll_interval or _compat.poll_interval())
                was_stopped, found = _has_stopped(found), look()
                if not was_stopped or time.monotonic() - asked_at >= SETTLING_SECONDS:
                    asked_at = time.monotonic()
                    ended = self._is_over(found, store, run, context)
            # The trigger finds what failed meanwhile. The groups of the run may all have ended.
            if ended:
                teller.look(store, is_last=True)
                summary = self._summary(store, run)
                store.patience.call("taking leave", partial(store.forget_supervisor, self._name(context)))
        if ended:
            return summary
        rested = event.get("rested")
        rest = SETTLING_SECONDS if rested is None else min(2 * float(rested), MOST_REST_SECONDS)
        self._wait(context, run, teller, rest if _has_stopped(found) else None)

    def _is_over(self, found: Findings, store: LogStore, run: Run, context: Mapping[str, Any]) -> bool:
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
        active = _compat.active_tasks(*identity(context), launching)
        if active == []:
            return True
        why = "Airflow does not say whether a task is about to launch one" if active is None else ", ".join(active)
        self.log.info("All groups have stopped, and the run stays supervised: %s", why)
        return False

    def _launching_tasks(self) -> set[str]:
        """The tasks before this one, and those that launch groups of the pipeline, wherever they lie."""
        dag = self.dag if self.has_dag() else None
        found = [one for one in (dag.tasks if dag is not None else ()) if _compat.launches_group(one)]
        launching = {one.task_id for one in found if _pipeline_of(one) in (None, self.pipeline)}
        return launching.union(self.upstream_task_ids)

    def _teller(self, context: Mapping[str, Any], run: Run, seen: Seen | None) -> Teller:
        callbacks = {kind: getattr(self, parameter(kind)) for kind in NoticeKind}
        return Teller(callbacks, context, run, seen)

    def _act_on(self, launching: Launching, items: Sequence[Finding]) -> list[Notice]:
        """Returns the notices that the log does not lead to: of recoveries that have parked their group instead."""
        parked = []
        for one in items:
            if isinstance(one, FailedGroup):
                recovery = self._recover(launching, one)
                if recovery["outcome"] == RecoveryOutcome.PARKED.value:
                    parked.append(recovery_notice(recovery))
            elif isinstance(one, UnexplainedKill):
                explain_kill(launching.store, one)
            else:
                self._scale(launching, one)
        return parked

    def _name(self, context: Mapping[str, Any]) -> str:
        dag_id, run_id = identity(context)
        return f"task {self.task_id} of {dag_id}, {run_id}"

    def _run(self, store: LogStore, context: Mapping[str, Any]) -> Run:
        if self.run_uid:
            uid = self.run_uid
            return store.patience.call("finding the run", lambda: store.find_run(uid))
        pipeline, _ = resolve(self.pipeline)
        return store.patience.call("finding the run", lambda: run_of(store, pipeline.name, context, None))

    def _scale(self, launching: Launching, due: DueScaling) -> None:
        launching.store.patience.call(f"scaling {due}", lambda: GroupScaling(launching).carry_on(due))

    def _recover(self, launching: Launching, failed: FailedGroup) -> dict[str, Any]:
        call = launching.store.patience.call
        recovery = call(f"recovering {failed}", lambda: GroupRecovery(launching).recover(failed))
        if recovery["outcome"] == RecoveryOutcome.NOT_NEEDED.value:
            self.log.info("%s: %s", failed, recovery["why"])
            return recovery
        if recovery["outcome"] == RecoveryOutcome.PARKED.value:
            self.log.error("%s is parked: %s", failed, recovery["why"])
        else:
            self.log.warning("%s is launched as incarnation %s", failed, recovery["launched_incarnation"])
        say_status(self.log, launching.store, failed.run_uid, self.logio_conn_id)
        return recovery

    def _summary(self, store: LogStore, run: Run) -> dict[str, Any]:
        groups = store.patience.call("reading the groups", lambda: store.groups(run.run_id))
        states = {group.group: group.state.value for group in groups}
        recoveries = {group.group: group.recoveries for group in groups if group.recoveries}
        self.log.info("All groups have ended: %s; recoveries: %s", states, recoveries or "none")
        say_status(self.log, store, run.uid, self.logio_conn_id)
        return {"run": run.uid, "states": states, "recoveries": recoveries}

    def _wait(self, context: Mapping[str, Any], run: Run, teller: Teller, rest_seconds: float | None) -> NoReturn:
        trigger = LogioFailedGroupTrigger(
            logio_conn_id=self.logio_conn_id,
            supervisor=self._name(context) if self.recover else None,
            run_uid=run.uid,
            poll_interval=self.poll_interval or _compat.poll_interval(),
            rest_seconds=rest_seconds,
            kinds=teller.kinds,
            seen=teller.seen,
            last_try=is_last_try(context["ti"]),
            recovers=self.recover and not self.has_place,
        )
        self.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer does not return")


def is_beside_groups(dag: Any) -> bool:
    """Whether this task cannot lie behind those of the groups: a DAG with ``fail_fast`` takes no rule but its own."""
    return bool(getattr(dag, "fail_fast", False))


def _trigger_rule(dag: Any) -> str:
    return "all_success" if is_beside_groups(dag) else "one_success"


def _has_stopped(found: Findings) -> bool:
    """Whether it is known that nothing of a run is under way."""
    return found.failed is not None and not found.going_on


def _pipeline_of(task: Any) -> str | None:
    """The location of the pipeline that a task, mapped or not, has a group of; None if it is not known."""
    given = getattr(task, "pipeline", None) or getattr(task, "partial_kwargs", {}).get("pipeline")
    return given if given is None or isinstance(given, str) else reference(given)


def _watched(store: LogStore, run: Run) -> Findings:
    """A look of a task that recovers nothing."""
    try:
        return only_watched(next(iter(store.sight([run.uid])), None))
    except LogUnavailable as error:
        return Findings(None, unavailable=str(error))
