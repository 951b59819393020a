"""`LogioStopOperator`: drains or halts a run, or a group of it, and waits until that has happened."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_logio import _compat
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import is_template, known_at_parse, reference
from airflow_logio.operators._task.run_lookup import check_which_run, find_run, is_last_try, opened_log
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.supervision.stop_run import States, StopMode, StopRun, shown, would_be_short
from airflow_logio.task_arguments import with_told_arguments
from airflow_logio.triggers.stop import LogioStopTrigger

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run


@with_told_arguments
class LogioStopOperator(BaseOperator):
    """Stop a run in an orderly way.

    With ``drain``, sources stop reading, what they have read is processed exactly once, and the run finishes. With ``halt``,
    drivers commit what they have and end; clear a group's task to resume it. The request stands even if this task fails:
    drivers obey with their next heartbeat, and recoveries respect it. A run whose writer closes (`by=`) is not drained: what
    it owns would be replaced by a part.

    `run_uid` names the run. Without it, the run is the newest one of `pipeline` in the DAG run `external_dag_run_id`; or,
    with `external_dag_id` alone, the newest one in that DAG; or else the one in this task's own DAG run.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``. Not needed with `run_uid`.
    :param run_uid: uid of the run (templated).
    :param external_dag_id: the DAG whose run is stopped (templated); default: this task's DAG.
    :param external_dag_run_id: the DAG run whose run is stopped (templated).
    :param group: only this group (templated). It can be drained only if it has a source.
    :param mode: ``drain`` or ``halt``.
    :param logio_conn_id: the connection of the log.
    :param deferrable: wait in the triggerer, where waiting holds no worker slot; default as for `LogioSparkOperator`.
    :param timeout: how long to wait, in seconds or as a timedelta; default: forever. Then the task fails.
    :param poll_interval: seconds between two polls; default: option ``[logio] poll_interval``.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid", "external_dag_id", "external_dag_run_id", "group")
    ui_color = "#f0e4e4"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str | None = None,
        run_uid: str | None = None,
        external_dag_id: str | None = None,
        external_dag_run_id: str | None = None,
        group: str | None = None,
        mode: str = StopMode.DRAIN.value,
        logio_conn_id: str = LogioHook.default_conn_name,
        deferrable: bool | None = None,
        timeout: timedelta | float | None = None,
        poll_interval: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = reference(pipeline) if pipeline is not None else None
        self.run_uid = run_uid
        self.external_dag_id = external_dag_id
        self.external_dag_run_id = external_dag_run_id
        self.group = group
        self.mode = mode
        self.logio_conn_id = logio_conn_id
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        self.timeout_seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self.poll_interval = poll_interval
        self._check(None if pipeline is None else known_at_parse(pipeline))

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Request the stop, and wait. Raises `UnknownRun`, `ProtocolViolation`, AirflowFailException."""
        interval = self.poll_interval or _compat.poll_interval()
        with opened_log(self.logio_conn_id) as store:
            call = store.patience.call
            run = call("finding the run", lambda: self._find(store, context))
            stop = StopRun(store, run, StopMode(self.mode), self.group)
            call("asking", stop.request)
            self.log.info("Run %s, uid %s: %s asked to %s", run.spec.key, run.uid, self.group or "it is", self.mode)
            states = self._wait(stop, interval)
        if states is not None:
            return self._result(run.uid, states)
        trigger = LogioStopTrigger(
            logio_conn_id=self.logio_conn_id,
            run_uid=run.uid,
            mode=self.mode,
            group=self.group,
            last_try=is_last_try(context["ti"]),
            poll_interval=interval,
        )
        timeout = None if self.timeout_seconds is None else timedelta(seconds=self.timeout_seconds)
        self.defer(trigger=trigger, method_name="resume", kwargs={"run_uid": run.uid}, timeout=timeout)
        raise AssertionError("defer does not return")

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any], run_uid: str) -> dict[str, Any]:
        """The trigger has seen that the stop is over."""
        if "error" in event:
            raise AirflowException(f"the triggerer cannot watch run {run_uid}: {event['error']}")
        return self._result(run_uid, {name: GroupState(state) for name, state in event["states"].items()})

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check(self, pipeline: Pipeline | None) -> None:
        """Report what is already wrong when the DAG is parsed."""
        if self.mode not in list(StopMode):
            raise ConfigurationError(f"mode is {self.mode!r}; a run can be stopped by 'drain' or 'halt'")
        check_which_run(self.pipeline, self.run_uid, self.external_dag_id, self.external_dag_run_id)
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise ConfigurationError(
                f"timeout is {self.timeout_seconds} s; give a time above 0, or none to wait for ever"
            )
        if self.poll_interval is not None and self.poll_interval <= 0:
            raise ConfigurationError(f"poll_interval is {self.poll_interval}; it must be above 0 seconds")
        if pipeline is None:
            return
        if self.group is None:
            self._check_closing(pipeline, pipeline.operators)
            return
        if is_template(self.group):
            return
        if any(self.group in shape.replicas for shape in pipeline.replicated.values()):
            return
        if self.group not in pipeline.groups:
            raise ConfigurationError(pipeline.no_group(self.group))
        names = pipeline.groups[self.group].operators
        members = [pipeline.operators[name] for name in names]
        sources = [one for one in members if isinstance(one, SourceOperator) or not one.inputs]
        if self.mode == StopMode.DRAIN and not sources:
            raise ConfigurationError(
                f"group {self.group!r} of pipeline {pipeline.name!r} has no source: it ends by itself when the groups before "
                "it have drained. Drain those, or the whole run"
            )
        self._check_closing(pipeline, names)

    def _check_closing(self, pipeline: Pipeline, members: Iterable[str]) -> None:
        if self.mode != StopMode.DRAIN:
            return
        sources = [name for name in members if not pipeline.operators[name].inputs]
        behind = {name for source in sources for name in pipeline.graph.downstream(source)}
        for name in pipeline.operators:
            writer = pipeline.operators[name]
            if name in behind and isinstance(writer, ActionWriter) and writer.closes:
                raise ConfigurationError(
                    f"pipeline {pipeline.name!r} cannot be drained: {would_be_short(name)}. Let its runs finish, or halt "
                    "them (mode='halt')"
                )

    def _find(self, store: LogStore, context: Mapping[str, Any]) -> Run:
        return find_run(store, context, self.pipeline, self.run_uid, self.external_dag_id, self.external_dag_run_id)

    def _wait(self, stop: StopRun, interval: float) -> States | None:
        """The states at the end; None if the triggerer is to wait."""
        deadline = float("inf") if self.timeout_seconds is None else time.monotonic() + self.timeout_seconds
        while True:
            states = stop.look()
            if states is not None and stop.is_over(states):
                return states
            if self.deferrable:
                return None
            if time.monotonic() >= deadline:
                raise AirflowFailException(
                    f"not over after {self.timeout_seconds:g} s: {shown(states) if states else 'the log does not answer'}. "
                    "The request stands: drivers keep carrying it out, and this task waits again once it is cleared"
                )
            time.sleep(interval)

    def _result(self, run_uid: str, states: States) -> dict[str, Any]:
        if self.mode == StopMode.DRAIN and not CONCLUDED.issuperset(states.values()):
            raise AirflowFailException(
                f"run {run_uid} is not drained: {shown(states)}. What was read is in the log; fix the cause and "
                "clear the tasks of the groups that are parked or halted: they continue to the end"
            )
        self.log.info("Run %s: %s", run_uid, shown(states))
        return {"run": run_uid, "mode": self.mode, "groups": {name: state.value for name, state in states.items()}}
