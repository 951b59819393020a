"""`LogioScalingController`: looks at replicated groups and scales them by policy, or as a person asks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

from airflow_logio import _compat
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, ManagerUnavailable, ProtocolViolation, UnknownRun
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.launcher import Launcher, LocalProcessLauncher
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.pipeline_reference import reference, resolve
from airflow_logio.operators._task.run_lookup import identity, is_last_try, opened_log
from airflow_logio.operators._task.scaling_round import GroupScaling, shown
from airflow_logio.protocol.replicas import replica_name
from airflow_logio.protocol.states import OPEN_SCALING
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.controller import LOOK_SECONDS, Counters, decide, read_counters
from airflow_logio.supervision.policies import Policy
from airflow_logio.supervision.scaling import Stage
from airflow_logio.task_arguments import with_told_arguments
from airflow_logio.triggers.scale import LogioScaleTrigger

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.status_records import ScalingRequest

Target = tuple[Run, str]
"""An unfinished run, and a replicated group of it."""


@with_told_arguments
class LogioScalingController(BaseOperator):
    """Look at each replicated group, request the number of replicas that the policy wants, and carry the request out.

    Use it in a DAG that is scheduled every minute or so (`build_controller_dag`). The task log explains every decision
    with its figures, even the decision to change nothing. The log keeps each change with its reason (`logio status`). The
    task waits only for drivers, in the triggerer. Several controllers, tasks and people may make requests at once: the
    newest counts. An open request is continued, whatever made it, and no other is made beside it.

    :param policy: `Threshold`, `DS2`, `Schedule`, or a `Policy` of your own.
    :param pipeline: a `Pipeline`, its location (``"module:attr"``) or its name (templated); default: every pipeline.
    :param run_uid: only this run, by its uid or the beginning of it (templated); default: every unfinished run.
    :param group: only this replicated group (templated); default: every one.
    :param replicas: what a person requests instead of the policy (templated), for one group of one run. A task instance makes
        one request; a retry continues it.
    :param logio_conn_id: the connection of the log.
    :param look_seconds: seconds between the two looks that rates are computed from.
    :param deferrable: wait in the triggerer, between the looks and for drivers; default as for `LogioSparkOperator`.
    :param timeout: how long to wait for drivers, in seconds or as a timedelta. Then the task fails; the request stands,
        and the supervisor of the run continues it.

    Returns a list of dicts with run, group, replicas, wanted, why, request (its number) and result.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline", "run_uid", "group", "replicas")
    ui_color = "#dce8f7"

    def __init__(
        self,
        *,
        policy: Policy,
        pipeline: Pipeline | str | None = None,
        run_uid: str | None = None,
        group: str | None = None,
        replicas: int | str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        look_seconds: float = LOOK_SECONDS,
        timeout: timedelta | float = timedelta(minutes=10),
        deferrable: bool | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.policy = policy
        self.pipeline = reference(pipeline) if isinstance(pipeline, Pipeline) else pipeline
        self.run_uid = run_uid
        self.group = group
        self.replicas = replicas
        self.logio_conn_id = logio_conn_id
        self.look_seconds = look_seconds
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        self.timeout_seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self._check(pipeline)

    def execute(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Look, decide, ask. Raises `ConfigurationError`, and AirflowFailException where a retry would not help."""
        with opened_log(self.logio_conn_id) as store:
            targets = self._targets(store)
            if self.replicas not in (None, ""):
                return self._carry_out(store, context, [self._by_hand(store, targets, context)])
            call = store.patience.call
            earlier = [
                {
                    "run": run.uid,
                    "group": group,
                    "counted": asdict(call("looking", partial(read_counters, store, run, group))),
                }
                for run, group in targets
            ]
        if not earlier:
            return []
        if self.deferrable:  # no worker slot is held between the two looks
            trigger = TimeDeltaTrigger(timedelta(seconds=self.look_seconds))
            self.defer(trigger=trigger, method_name="decide", kwargs={"earlier": earlier})
        time.sleep(self.look_seconds)
        return self.decide(context, earlier=earlier)

    def decide(
        self, context: Mapping[str, Any], event: Any = None, earlier: Sequence[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """The second look, which shows what has happened since the `earlier` one."""
        with opened_log(self.logio_conn_id) as store:
            return self._carry_out(store, context, self._by_policy(store, earlier))

    def resume(
        self, context: Mapping[str, Any], event: Mapping[str, Any], told: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The trigger has found that a request can take a step."""
        if event.get("error"):
            raise AirflowException(f"the triggerer cannot watch a request: {event['error']}")
        with opened_log(self.logio_conn_id) as store:
            return self._carry_out(store, context, told)

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine."""
        return LocalProcessLauncher(_compat.work_dir())

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check(self, pipeline: Pipeline | str | None) -> None:
        """Report what is already wrong when the DAG is parsed."""
        policy: object = self.policy
        if not isinstance(policy, Policy):
            raise ConfigurationError(f"policy is {policy!r}; give DS2(), Threshold(), Schedule({{...}}) or a Policy")
        for name, seconds in (("look_seconds", self.look_seconds), ("timeout", self.timeout_seconds)):
            if seconds <= 0:
                raise ConfigurationError(f"{name} is {seconds}; give seconds above 0")
        if not isinstance(pipeline, Pipeline) or not self.group or "{{" in self.group:
            return
        if self.group not in pipeline.replicated:
            raise ConfigurationError(
                f"pipeline {pipeline.name!r} has no replicated group {self.group!r}, only {list(pipeline.replicated)}"
            )

    def _targets(self, store: LogStore) -> list[Target]:
        """The groups to look at, those of the oldest run first. Raises AirflowFailException for an unknown run."""
        name, uid = self._pipeline_name(), self._uid(store)
        found = [target for target in _going_on(store, name, uid) if self.group in (None, "", target[1])]
        if not found:
            self.log.info("%s", self._nothing(store))
        return found

    def _uid(self, store: LogStore) -> str | None:
        if not self.run_uid:
            return None
        named = self.run_uid
        try:
            return str(store.patience.call("finding the run", lambda: store.find_run(named).uid))
        except UnknownRun as error:
            raise AirflowFailException(str(error)) from error

    def _nothing(self, store: LogStore) -> str:
        """Says that there is nothing to scale, and which groups there are instead."""
        asked = {"group": self.group, "pipeline": self.pipeline, "run": self.run_uid}
        what = ", ".join(f"{name} {value!r}" for name, value in asked.items() if value)
        found = _listed(_going_on(store))
        there = f"there are: {found}" if found else "no unfinished run has one"
        return f"no replicated group is found{f' for {what}' if what else ''}; {there}"

    def _pipeline_name(self) -> str | None:
        if not self.pipeline:
            return None
        return resolve(self.pipeline)[0].name if ":" in self.pipeline else self.pipeline

    def _by_policy(self, store: LogStore, earlier: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        call = store.patience.call
        told = []
        for one in earlier:
            run, group, before = (
                call("finding the run", partial(store.find_run, one["run"])),
                one["group"],
                one["counted"],
            )
            try:
                verdict = call(
                    "deciding",
                    partial(decide, store, run, group, self.policy, Counters(**before)),
                )
            except ProtocolViolation as error:
                self.log.info("Run %s, uid %s: no scaling is requested: %s", run.spec.key, run.uid, error)
                continue
            self.log.info("Run %s, uid %s: %s", run.spec.key, run.uid, verdict)
            told.append(
                _told(
                    run, group, verdict.replicas, verdict.decision.replicas, verdict.decision.sentence, verdict.request
                )
            )
        return told

    def _by_hand(self, store: LogStore, targets: Sequence[Target], context: Mapping[str, Any]) -> dict[str, Any]:
        """Make the request of a person. Raises AirflowFailException for one that could never be carried out."""
        if not targets:
            raise AirflowFailException(self._nothing(store))
        if len(targets) > 1:
            raise AirflowFailException(
                f"{self.replicas} replica(s) of which group? Name the pipeline, the run and the group so that one is left: "
                f"{_listed(targets)}"
            )
        run, group = targets[0]
        by = f"task {self.task_id} of {', '.join(identity(context))}"
        try:
            replicas = int(self.replicas or 0)
            request = store.patience.call(
                "asking",
                lambda: store.request_scaling(run.run_id, group, replicas, by=by, reason="asked for by hand", key=by),
            )
        except ValueError as error:
            raise AirflowFailException(f"replicas is {self.replicas!r}; give a whole number, 0 or more") from error
        except ProtocolViolation as error:
            raise AirflowFailException(str(error)) from error
        self.log.info(
            "Run %s, uid %s: %d replica(s) of %s are requested by hand", run.spec.key, run.uid, replicas, group
        )
        return {**_told(run, group, None, replicas, "asked for by hand", request), "by_hand": True}

    def _carry_out(
        self, store: LogStore, context: Mapping[str, Any], told: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Take steps of each open request. Then wait in the triggerer for the first of them."""
        deadline = time.monotonic() + self.timeout_seconds
        while waiting := self._steps(store, told):
            if self.deferrable:
                self._wait(waiting[0], told, last_try=is_last_try(context["ti"]))
            if time.monotonic() >= deadline:
                raise AirflowFailException(
                    f"request {waiting[0]['request']} is not done after {self.timeout_seconds:g} s. It stands: the "
                    "supervisor of the run continues it, and so does this task once it is cleared"
                )
            time.sleep(_compat.poll_interval())
        return told

    def _steps(self, store: LogStore, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take one step of each open request; those that have to wait for drivers are returned."""
        scaling = GroupScaling(Launching(store, self.logio_conn_id, self.make_launcher(), self.executor))
        waiting = []
        for one in told:
            if one["request"] is None or one["result"] is not None:
                continue
            run = store.patience.call("finding the run", partial(store.find_run, one["run"]))
            request = store.patience.call("finding the request", partial(_request, store, run, one))
            if _is_left_to_others(store, request):
                one["result"] = "left to the process that started the run"
                continue
            try:
                step = store.patience.call("scaling", partial(scaling.step, run, request))
            except ManagerUnavailable as error:
                self.log.warning(
                    "Run %s: request %d for %s waits: %s", run.uid, request.request_id, request.group, error
                )
                waiting.append(one)
                continue
            self.log.info("Run %s: request %d for %s: %s", run.uid, request.request_id, request.group, shown(step))
            if step.stage is Stage.REFUSED and one.get("by_hand"):
                raise AirflowFailException(f"request {request.request_id} is refused: {step.sentence}")
            if step.stage in (Stage.DONE, Stage.REFUSED):
                one["result"] = shown(step)
            else:
                waiting.append(one)
        return waiting

    def _wait(self, one: Mapping[str, Any], told: list[dict[str, Any]], *, last_try: bool) -> None:
        trigger = LogioScaleTrigger(
            logio_conn_id=self.logio_conn_id,
            run_uid=one["run"],
            group=one["group"],
            request_id=one["request"],
            last_try=last_try,
            poll_interval=_compat.poll_interval(),
        )
        timeout = timedelta(seconds=self.timeout_seconds)
        self.defer(trigger=trigger, method_name="resume", kwargs={"told": told}, timeout=timeout)


def _going_on(store: LogStore, pipeline: str | None = None, uid: str | None = None) -> list[Target]:
    runs = store.patience.call("looking for runs", lambda: store.unfinished(pipeline=pipeline, run_uid=uid))
    return [(run, group) for run, _ in runs for group in run.spec.replicated]


def _listed(targets: Sequence[Target]) -> str:
    return "; ".join(f"group {group} of run {run.spec.key}, uid {run.uid[:8]}" for run, group in targets)


def _told(
    run: Run, group: str, replicas: int | None, wanted: int, why: str, request: ScalingRequest | None
) -> dict[str, Any]:
    return {
        "run": run.uid,
        "group": group,
        "replicas": replicas,
        "wanted": wanted,
        "why": why,
        "request": None if request is None else request.request_id,
        "result": None,
    }


def _is_left_to_others(store: LogStore, request: ScalingRequest) -> bool:
    """Whether the log lacks a launch recipe for the replicas. If so, the process of `logio run` carries requests out."""
    run_id, group = request.run_id, replica_name(request.group, 1)
    recipe = store.patience.call("reading the recipe", lambda: store.launch_recipe(run_id, group))
    return recipe is None and request.state in OPEN_SCALING


def _request(store: LogStore, run: Run, told: Mapping[str, Any]) -> ScalingRequest:
    for one in store.scalings(run.run_id, told["group"]):
        if one.request_id == told["request"]:
            return one
    raise AirflowException(f"request {told['request']} is no longer in the log; the next attempt looks again")
