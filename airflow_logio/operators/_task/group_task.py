"""What the task of a group does on its worker: it looks, launches what needs it, and describes the end."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.log import redact

from airflow_logio import metrics
from airflow_logio.errors import (
    BudgetSpent,
    ConfigurationError,
    Fenced,
    InputMissing,
    LogUnavailable,
    ManagerUnavailable,
    NoPlace,
    ProtocolViolation,
    WriteRefused,
)
from airflow_logio.launch.driver_config import has_frames, needs_spark
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.launch.spark_submit import is_guarded
from airflow_logio.operators._task.run_lookup import first_try
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, OPEN_SCALING, WAITING, GroupState, ScalingState
from airflow_logio.status.condition import step_after
from airflow_logio.status.last_words import last_words
from airflow_logio.status.whole_group import alert_figures, deciding, result
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.look import Look, Observation, Watcher
from airflow_logio.supervision.presence import SupervisionWatch
from airflow_logio.supervision.retry import check_days
from airflow_logio.supervision.scaling import launches_by_task, next_step
from airflow_logio.supervision.tend import launch_if_new, recover_if_dead

log = logging.getLogger(__name__)

ASKED = "asked for: the task was cleared"
SAY_AGAIN_SECONDS = 60.0


def asked_by_person(task_instance: Any, retries: int) -> bool:
    """Whether this attempt is the first after a clear."""
    return bool(task_instance.try_number > 1 and task_instance.try_number == first_try(task_instance, retries))


@dataclass(slots=True)
class GroupTask:
    """One group with all its replicas, or one replica of it, as one attempt of its task sees it."""

    context: LaunchContext
    group: str
    watcher: Watcher
    asked: bool = False
    """A person wants the group to run, even if it was parked or halted. One launch of each replica uses the wish up."""
    supervision: SupervisionWatch = field(init=False)
    own_place: bool = False
    """Only this task launches the group's drivers: it recovers, and it launches the replicas that are asked for."""
    _unasked: set[str] = field(default_factory=set)
    """Groups and replicas for which the person's wish is used up."""
    is_attempt: bool = False
    """An attempt begins, a retry for example: what waits for its input is launched once more, to look for it."""
    _late: set[str] | None = None
    """Groups and replicas that this attempt has found waiting for their input."""
    _is_dead: bool = False
    no_place: str | None = None
    """Why the run did not begin at the last look, if other runs of the pipeline have all places for drivers."""
    unanswered: str | None = None
    """Why nothing was launched at the last look, if a cluster manager does not answer."""
    _said_at: float = float("-inf")
    has_launched: bool = False
    """A driver was launched by this attempt."""
    _refused: str | None = None
    """Why the run must not be resumed, which a person has asked for."""

    def __post_init__(self) -> None:
        self.supervision = SupervisionWatch(self.context.store.supervisors, self.context.run)

    def advance(self, *, recovers: bool) -> tuple[Look, bool]:
        """Look once and launch what needs it. Returns what was seen, and whether a driver was launched.

        Dead drivers are recovered here only with `recovers`, or if the group has a place of its own; otherwise their
        supervisor does it. Unused replicas stay unused, unless one of them is asked for that only this task launches. If
        nothing can be seen, or a cluster manager does not answer, nothing is done. Raises `ConfigurationError`.
        """
        look = self.watcher.look()
        if self._late is None and look.statuses:
            self._late = {one.group for one in look.statuses if self.is_attempt and waits_for_input(one)}
        self._is_dead = look.is_dead
        waited, self.no_place, self.unanswered = self.no_place is not None, None, None
        try:
            recovers = recovers or self.own_place
            launched = [self._advance(name, one, recovers=recovers) for name, one in look.observations.items()]
            launched.append(self.own_place and self._launch_replicas(look))
        except LogUnavailable as error:
            log.warning("Group %s: the log became unavailable during a launch: %s", self.group, error)
            return Look(), False
        except ManagerUnavailable as error:
            self._say_unanswered(str(error))
            return look, False
        except NoPlace as error:
            self.no_place = str(error)
            if not waited:
                log.info("Group %s: %s. It begins when there is one", self.group, error)
            return look, False
        self.has_launched = self.has_launched or any(launched)
        return look, any(launched)

    def _say_unanswered(self, why: str) -> None:
        self.unanswered = why
        if time.monotonic() - self._said_at >= SAY_AGAIN_SECONDS:
            self._said_at = time.monotonic()
            log.warning(
                "Group %s is not launched for now, and no recovery is spent: %s. It is tried again", self.group, why
            )

    @property
    def waits(self) -> bool:
        """Whether nothing was launched at the last look that another one may launch: for want of a place, or of an answer."""
        return self.no_place is not None or self.unanswered is not None

    def _advance(self, name: str, observation: Observation, *, recovers: bool) -> bool:
        status = observation.status
        if status is None:
            return False
        if status.state in WAITING and (self._is_asked(name) or name in (self._late or ())):
            launched = self._restart(status)  # the wish stays if the log becomes unavailable meanwhile
            self._unasked.add(name)
            self._late = (self._late or set()) - {name}
            return launched
        if observation.is_dead and recovers:
            log.warning("Group %s is dead: %s\n%s", name, observation.cause, self._driver_log(status))
            return recover_if_dead(self.context, name, observation)
        return launch_if_new(self.context, name, observation)

    def _launch_replicas(self, look: Look) -> bool:
        """Take the next step of the open request to scale, if that is to launch replicas. True if it has launched one."""
        store, run, whole = self.context.store, self.context.run, replicated_group(self.group)
        if whole not in run.spec.replicated or not look.statuses:
            return False
        newest = next(iter(store.scalings(run.run_id, whole)), None)
        if newest is None or newest.state not in OPEN_SCALING:
            return False
        if not self.context.own.intersection(launches_by_task(run, store.groups(run.run_id), newest)):
            return False
        try:
            step = next_step(store, run, newest, self._launch_own)
        except ConfigurationError as error:  # another attempt would not help
            why = f"it cannot be carried out: {type(error).__name__}: {error}"
            store.settle_scaling(newest.request_id, ScalingState.REFUSED, why)
            log.error("Group %s, request %d to scale: %s", self.group, newest.request_id, why)
            return False
        log.info("Group %s, request %d to scale: %s", self.group, newest.request_id, step.sentence)
        return bool(step.launched)

    def _launch_own(self, group: str, **asked: Any) -> None:
        if group not in self.context.own:
            raise ProtocolViolation("another task launches it")
        launch_group(self.context, group, **asked)

    def _is_asked(self, name: str) -> bool:
        return self.asked and name not in self._unasked

    def run_now(self) -> Run:
        """The run as the log has it now. Raises `LogUnavailable`."""
        return self.context.store.find_run(self.context.run.uid)

    def is_left(self) -> bool:
        """Whether the group was dead at the last look, and no supervisor recovers it."""
        if (warning := self.supervision.warning()) is not None:
            log.warning("Group %s: %s", self.group, warning)
        return self.supervision.is_left(dead=self._is_dead)

    def must_stay(self, look: Look) -> bool:
        """Whether a person's wish is still open: a driver was told to halt before this attempt, which wants it to run, or a
        cluster manager does not answer.

        Then this task itself waits for the halt, or for the answer, and launches.
        """
        if not look.statuses:
            return self.asked and len(self._unasked) < len(self.watcher.members)
        return any(
            self._is_asked(status.group)
            and (
                (status.desired is GroupState.HALTED and status.state not in CONCLUDED)
                or (self.unanswered is not None and status.state in WAITING)
            )
            for status in look.statuses
        )

    def _driver_log(self, status: GroupStatus) -> str:
        return last_words(self.context.store, self.context.run, status)

    def _restart(self, status: GroupStatus) -> bool:
        try:
            with suppress(ConfigurationError):  # then the driver asks it
                check_days(self.context, [status.group])
            launch_group(self.context, status.group, expected=status.incarnation, reason=ASKED, by_user=True)
        except (Fenced, BudgetSpent, ProtocolViolation, WriteRefused) as error:
            log.warning("Group %s was not launched: %s", status.group, error)
            self._refused = str(error) if isinstance(error, WriteRefused) else None
            return False
        log.info("Group %s was %s and is launched again", status.group, status.state.value)
        return True

    def log_settings(self) -> None:
        """Log the effective Spark settings before anything starts. Values whose names look secret are masked.

        A group without Spark has none.
        """
        if not needs_spark(self.context.pipeline, replicated_group(self.group)):
            return
        settings = self.context.settings
        shown = {
            name: getattr(settings, name)
            for name in settings.__slots__
            if name not in ("conf", "env_vars", "keytab_content") and getattr(settings, name) not in (None, False)
        }
        pipeline = self.context.pipeline
        whole = replicated_group(self.group)
        own, frames = pipeline.groups[whole].spark, has_frames(pipeline, whole)
        conf = settings.effective_conf(own, frames=frames, guarded=is_guarded(settings))
        log.info("Group %s: Spark settings %s, environment %s", self.group, shown, sorted(settings.env_vars))
        log.info("Group %s: Spark properties %s", self.group, redact(conf))

    def summary(self, look: Look) -> dict[str, Any]:
        """The result of the task."""
        run = self.context.run
        return result(run, self.group, look.statuses, self.context.store.progress(run.run_id))

    def report_alerts(self) -> None:
        """Send the gauges that alerts are made of, once."""
        store, run, whole = self.context.store, self.context.run, replicated_group(self.group)
        with suppress(LogUnavailable):
            figures = store.figures([run.run_id])[run.run_id]
            found = alert_figures(run, whole, store.groups(run.run_id), figures)
            metrics.report_alert_figures(run.spec.key.pipeline, whole, found)

    @staticmethod
    def waits_for_input(look: Look) -> bool:
        """Whether another attempt may find what this one has missed."""
        return waits_for_input(deciding(look.statuses))

    def failure(self, look: Look) -> str:
        """Why the group, or a replica of it, is not running, and what to do."""
        run = self.context.run
        status = deciding(look.statuses)
        what = "group" if status.group == self.group else f"replica {status.group!r} of group"
        if self._refused is not None:
            return f"{what} {self.group!r} stays {status.state.value}: {self._refused}"
        if status.state is GroupState.HALTED:
            return (
                f"{what} {self.group!r} of run {run.spec.key} was halted on request (incarnation {status.incarnation}). "
                "Nothing is lost: clear this task, and it resumes where it stopped"
            )
        if waits_for_input(status):
            return (
                f"{what} {self.group!r} of run {run.spec.key} waits for its input (incarnation {status.incarnation}): "
                f"{status.error}\nThe next attempt of this task looks for it again. After the last one, clear this task when "
                f"the input is there.\n{self._driver_log(status)}"
            )
        return (
            f"{what} {self.group!r} of run {run.spec.key} is parked (incarnation {status.incarnation}, "
            f"{status.recoveries} recoveries): {status.error}\n"
            f"Next: {step_after([status], 'fix the cause, then clear this task: it resumes where it stopped')}.\n"
            f"{self._driver_log(status)}"
        )


def waits_for_input(status: GroupStatus) -> bool:
    """Whether a driver has found that what its source reads is not there yet."""
    return status.state is GroupState.PARKED and (status.error or "").startswith(f"{InputMissing.__name__}:")
