"""`LogioScaleOperator`: changes the number of replicas of a group while its run continues."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, ManagerUnavailable, ProtocolViolation
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.launcher import Launcher, LocalProcessLauncher
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.pipeline_reference import is_template, known_at_parse, reference
from airflow_logio.operators._task.run_lookup import (
    check_which_run,
    find_run,
    identity,
    is_last_try,
    map_index,
    opened_log,
)
from airflow_logio.operators._task.scaling_round import GroupScaling, shown
from airflow_logio.supervision.scaling import Stage, Step
from airflow_logio.task_arguments import with_told_arguments
from airflow_logio.triggers.scale import LogioScaleTrigger

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.store.records.status_records import ScalingRequest


@with_told_arguments
class LogioScaleOperator(BaseOperator):
    """Request a number of replicas of a replicated group, and carry the request out.

    New replicas are launched, and get a share of the slots once they are ready. Replicas that leave give up their slots and
    retire. The rest of the run keeps running, and no event is lost or used twice. One task instance makes one request: a
    retry or a clear continues it, and changes nothing once it is done. If a newer request for the group exists, this one is
    refused. The request stands even if this task fails: the supervisor of the run carries it out as well.

    The run is chosen as for `LogioStopOperator`.

    :param group: the replicated group, by its name in the pipeline (templated).
    :param replicas: the number of active replicas (templated); 0 puts the group to sleep until there is work for it.
    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``. Not needed with `run_uid`.
    :param run_uid: uid of the run (templated).
    :param external_dag_id: the DAG whose run is meant (templated); default: this task's DAG.
    :param external_dag_run_id: the DAG run whose run is meant (templated).
    :param reason: why; stored with the request (templated).
    :param logio_conn_id: the connection of the log.
    :param deferrable: wait for drivers in the triggerer, where waiting holds no worker slot; default as for
        `LogioSparkOperator`.
    :param timeout: how long to wait, in seconds or as a timedelta; default: forever. Then the task fails; the request stands.
    :param poll_interval: seconds between two polls; default: option ``[logio] poll_interval``.

    Returns a dict with run, group, replicas, the number of the request, and the sentence that describes its result.
    """

    template_fields: ClassVar[Sequence[str]] = (
        "group",
        "replicas",
        "run_uid",
        "external_dag_id",
        "external_dag_run_id",
        "reason",
    )
    ui_color = "#dce8f7"

    def __init__(
        self,
        *,
        group: str,
        replicas: int | str,
        pipeline: Pipeline | str | None = None,
        run_uid: str | None = None,
        external_dag_id: str | None = None,
        external_dag_run_id: str | None = None,
        reason: str = "",
        logio_conn_id: str = LogioHook.default_conn_name,
        deferrable: bool | None = None,
        timeout: timedelta | float | None = None,
        poll_interval: float | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.group = group
        self.replicas = replicas
        self.pipeline = reference(pipeline) if pipeline is not None else None
        self.run_uid = run_uid
        self.external_dag_id = external_dag_id
        self.external_dag_run_id = external_dag_run_id
        self.reason = reason
        self.logio_conn_id = logio_conn_id
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        self.timeout_seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self.poll_interval = poll_interval
        self._check(None if pipeline is None else known_at_parse(pipeline))

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Make the request, or find the earlier one. Raises `UnknownRun`, `ConfigurationError`, AirflowFailException."""
        with opened_log(self.logio_conn_id) as store:
            run = store.patience.call("finding the run", lambda: self._find(store, context))
            request = store.patience.call("asking", lambda: self._ask(store, run, context))
            self.log.info(
                "Run %s, uid %s: request %d, %d replica(s) of %s, is %s %s",
                run.spec.key, run.uid, request.request_id, request.replicas, self.group, request.state.value, request.note,
            )  # fmt: skip
            return self._carry_out(store, run, request, context)

    def resume(
        self, context: Mapping[str, Any], event: Mapping[str, Any], run_uid: str, request_id: int
    ) -> dict[str, Any]:
        """The trigger has found that something can be done."""
        if event.get("error"):
            raise AirflowException(f"the triggerer cannot watch request {request_id}: {event['error']}")
        with opened_log(self.logio_conn_id) as store:
            run = store.patience.call("finding the run", lambda: store.find_run(run_uid))
            found = store.patience.call("finding the request", lambda: store.scalings(run.run_id, self.group))
            request = next((one for one in found if one.request_id == request_id), None)
            if request is None:
                raise AirflowException(f"request {request_id} is no longer in the log; the next attempt asks again")
            return self._carry_out(store, run, request, context)

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine."""
        return LocalProcessLauncher(_compat.work_dir())

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check(self, pipeline: Pipeline | None) -> None:
        """Report what is already wrong when the DAG is parsed."""
        check_which_run(self.pipeline, self.run_uid, self.external_dag_id, self.external_dag_run_id)
        for name, seconds in (("timeout", self.timeout_seconds), ("poll_interval", self.poll_interval)):
            if seconds is not None and seconds <= 0:
                raise ConfigurationError(f"{name} is {seconds}; give seconds above 0, or none for the default")
        if not isinstance(self.replicas, str):
            self._number()
        if pipeline is None or is_template(self.group):
            return
        if self.group not in pipeline.replicated:
            raise ConfigurationError(
                f"pipeline {pipeline.name!r} has no replicated group {self.group!r}, only {list(pipeline.replicated)}"
            )
        if not isinstance(self.replicas, str):
            shape = pipeline.replicated[self.group]
            if not shape.least <= self._number() <= shape.most:
                raise ConfigurationError(
                    f"group {self.group!r} of pipeline {pipeline.name!r} has between {shape.least} and {shape.most} "
                    f"replicas, not {self.replicas}"
                )

    def _number(self) -> int:
        """The number of replicas; a template renders it as text. Raises `ConfigurationError`."""
        try:
            number = -1 if isinstance(self.replicas, (bool, float)) else int(self.replicas)
        except (TypeError, ValueError):
            number = -1
        if number < 0:
            raise ConfigurationError(f"replicas is {self.replicas!r}; give a whole number, 0 or more")
        return number

    def _find(self, store: LogStore, context: Mapping[str, Any]) -> Run:
        return find_run(store, context, self.pipeline, self.run_uid, self.external_dag_id, self.external_dag_run_id)

    def _ask(self, store: LogStore, run: Run, context: Mapping[str, Any]) -> ScalingRequest:
        """The request of this task instance; raises AirflowFailException for one that could never be carried out."""
        dag_id, run_id = identity(context)
        by = f"task {self.task_id} of {dag_id}, {run_id}"
        number = map_index(context)
        key = by if number < 0 else f"{by}, {number}"
        try:
            return store.request_scaling(run.run_id, self.group, self._number(), by=by, reason=self.reason, key=key)
        except ProtocolViolation as error:
            raise AirflowFailException(str(error)) from error

    def _carry_out(
        self, store: LogStore, run: Run, request: ScalingRequest, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        interval = self.poll_interval or _compat.poll_interval()
        step = self._steps(store, run, request, interval)
        if step.stage is Stage.REFUSED:
            raise AirflowFailException(f"request {request.request_id} is refused: {step.sentence}")
        if step.stage is Stage.DONE:
            return {
                "run": run.uid,
                "group": self.group,
                "replicas": request.replicas,
                "request": request.request_id,
                "result": step.sentence,
            }
        trigger = LogioScaleTrigger(
            logio_conn_id=self.logio_conn_id,
            run_uid=run.uid,
            group=self.group,
            request_id=request.request_id,
            last_try=is_last_try(context["ti"]),
            poll_interval=interval,
        )
        timeout = None if self.timeout_seconds is None else timedelta(seconds=self.timeout_seconds)
        given = {"run_uid": run.uid, "request_id": request.request_id}
        self.defer(trigger=trigger, method_name="resume", kwargs=given, timeout=timeout)
        raise AssertionError("defer does not return")

    def _steps(self, store: LogStore, run: Run, request: ScalingRequest, interval: float) -> Step:
        """Take steps until the request is settled. If deferrable, stop at the first step that has to wait."""
        scaling = GroupScaling(Launching(store, self.logio_conn_id, self.make_launcher(), self.executor))
        deadline = float("inf") if self.timeout_seconds is None else time.monotonic() + self.timeout_seconds
        said = ""
        while True:
            is_answered = True
            try:
                step = store.patience.call("scaling", lambda: scaling.step(run, request))
            except ManagerUnavailable as error:  # the trigger would wake this task at once
                step, is_answered = Step(Stage.LAUNCHING, f"waiting for the cluster manager: {error}"), False
            if (sentence := shown(step)) != said:
                said = sentence
                self.log.info("Request %d: %s", request.request_id, sentence)
            if step.stage in (Stage.DONE, Stage.REFUSED) or (self.deferrable and is_answered):
                return step
            if time.monotonic() >= deadline:
                raise AirflowFailException(
                    f"request {request.request_id} is not done after {self.timeout_seconds:g} s: {step.sentence}. The "
                    "request stands: the supervisor of the run continues it, and so does this task once it is cleared"
                )
            time.sleep(interval)
