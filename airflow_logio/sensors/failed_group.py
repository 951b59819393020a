"""`LogioFailedGroupSensor`: waits for findings, which are failed groups and requests to scale a group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, BaseSensorOperator, PokeReturnValue

from airflow_logio import _compat
from airflow_logio.errors import LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.run_lookup import identity, is_last_try, opened_log
from airflow_logio.supervision.findings import FailedGroup, FailureFinder, Findings, finding_of
from airflow_logio.task_arguments import with_told_arguments
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore


@with_told_arguments
class LogioFailedGroupSensor(BaseSensorOperator):
    """Wait until at least one group is dead or has to be scaled, and return these findings.

    A group is dead if its driver process has ended although the log does not say that the group finished or is parked, if
    its lease has expired, or if it is stuck in a launch state past its deadline. While the log database is unreachable, no
    group is considered dead. Runs of `logio run` are left to the process that started them.

    A DAG that uses it with schedule ``@continuous`` needs a ``start_date``: without one, Airflow creates only its first run.

    :param run_uid: only this run (templated).
    :param pipeline: only runs of the pipeline of this name (templated). By default the runs of all pipelines.
    :param logio_conn_id: the connection of the log.
    :param poke_interval: seconds between two looks; by default ``[logio] poll_interval``. In the triggerer, with a log in
        PostgreSQL, a failure that the driver itself reports is found at once.
    :param give_up_after: return an empty list after this time without a failure; by default wait until `timeout`. Not with
        ``mode="reschedule"``.
    :param deferrable: wait in the triggerer; default as for `LogioSparkOperator`. Otherwise `mode` says how the worker waits.
        In mode ``reschedule`` a look at a driver that is silent takes as long as its lease: a death that only the lease
        shows must be watched without a gap.

    `timeout`, `soft_fail`, `never_fail`, `mode` and so on are those of every sensor of Airflow.

    Returns a list of findings, each a dict: ``expand`` `LogioRecoverGroupOperator` over it. There is one finding per failed
    group, with ``run_uid``, ``pipeline``, ``dag_run_id``, ``group``, ``incarnation``, ``cause`` and ``detected_at`` (seconds
    since the epoch). And there is one per request to scale a replicated group that can take its next step, with
    ``request_id`` and ``replicas`` instead of the last three; that operator takes the step.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid", "pipeline")
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        run_uid: str | None = None,
        pipeline: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        give_up_after: timedelta | None = None,
        deferrable: bool | None = None,
        poke_interval: timedelta | float | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        interval = _compat.poll_interval() if poke_interval is None else poke_interval
        super().__init__(poke_interval=interval, retries=retries, retry_delay=retry_delay, **kwargs)
        if self.poke_interval <= 0:
            raise ValueError(f"poke_interval is {poke_interval}; it must be above 0 seconds")
        if give_up_after is not None and give_up_after <= timedelta(0):
            raise ValueError(f"give_up_after is {give_up_after}; it must be above 0 seconds")
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        if give_up_after is not None and self.mode == "reschedule" and not self.deferrable:
            raise ValueError(
                "give_up_after needs a sensor that is not rescheduled; give timeout and soft_fail=True instead"
            )
        self.run_uid = run_uid
        self.pipeline = pipeline
        self.logio_conn_id = logio_conn_id
        self.give_up_after = give_up_after
        self._finder: FailureFinder | None = None
        self._began = 0.0

    def execute(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Defers at once: the first look of the trigger costs no more than one here. Or pokes."""
        if self.deferrable:
            trigger = LogioFailedGroupTrigger(
                logio_conn_id=self.logio_conn_id,
                supervisor=self._supervisor(context),
                pipeline=self.pipeline,
                run_uid=self.run_uid,
                poll_interval=self.poke_interval,
                give_up_after=None if self.give_up_after is None else self.give_up_after.total_seconds(),
                last_try=is_last_try(context["ti"]),
            )
            self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        self._began = time.monotonic()
        with opened_log(self.logio_conn_id) as store:
            self._finder = FailureFinder(store, pipeline=self.pipeline, run_uid=self.run_uid)
            self._store = store
            found: list[dict[str, Any]] = super().execute(context) or []
        return found

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """One look."""
        assert self._finder is not None
        self._note(self._store, context)
        findings = self._look(self._finder)
        items = [one.as_dict() for one in findings.items]
        all_ended = self.run_uid is not None and findings.failed is not None and not findings.going_on
        limit = None if self.give_up_after is None else self.give_up_after.total_seconds()
        given_up = limit is not None and time.monotonic() - self._began >= limit
        if items or all_ended or given_up:
            return PokeReturnValue(is_done=True, xcom_value=self._told(items))
        return PokeReturnValue(is_done=False)

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The trigger has found something, or has given up."""
        if event.get("error"):
            raise AirflowException(f"the triggerer cannot look for failed groups: {event['error']}")
        return self._told(list(event["findings"]))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _supervisor(self, context: Mapping[str, Any]) -> str:
        return f"DAG {identity(context)[0]}, task {self.task_id}"

    def _note(self, store: LogStore, context: Mapping[str, Any]) -> None:
        with suppress(LogUnavailable):  # a refused note is no reason to stop looking
            store.note_supervisor(self._supervisor(context), pipeline=self.pipeline, run_uid=self.run_uid)

    def _look(self, finder: FailureFinder) -> Findings:
        """Look once; a poke that is the only one of its process looks on while a driver is silent."""
        findings = finder.look()
        while self.reschedule and not findings.items and finder.suspects():
            time.sleep(self.poke_interval if self.poke_interval < 1 else 1.0)
            findings = finder.look()
        return findings

    def _told(self, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for one in findings:
            found = finding_of(one)
            if isinstance(found, FailedGroup):
                self.log.warning("Dead: %s: %s", found, found.cause)
            else:
                self.log.info("Asked for: %s", found)
        return findings
