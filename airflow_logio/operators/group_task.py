"""What the task of a group does on its worker: look, launch what needs it, and put the end into words."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

from airflow.sdk.log import redact

from airflow_logio.errors import (
    BudgetSpent,
    Fenced,
    LogUnavailable,
    ProtocolViolation,
)
from airflow_logio.operators.runs import driver_log
from airflow_logio.protocol.states import WAITING, GroupState
from airflow_logio.runtime.launch import LaunchContext, launch_group
from airflow_logio.runtime.supervise import launch_if_new, recover_if_dead
from airflow_logio.runtime.supervision import SupervisionWatch
from airflow_logio.runtime.watch import GroupWatcher, Observation
from airflow_logio.store.records import GroupStatus

log = logging.getLogger(__name__)

ASKED = "asked for: the task was cleared"


def asked_by_person(task_instance: Any, retries: int) -> bool:
    """Whether this attempt is the first after a clear: a clear grants `retries` more, counted from the last attempt."""
    first = task_instance.max_tries - retries + 1
    return bool(task_instance.try_number > 1 and task_instance.try_number == first)


@dataclass(slots=True)
class GroupTask:
    """One group, seen from one attempt of its task."""

    context: LaunchContext
    group: str
    watcher: GroupWatcher
    asked: bool = False
    """A person wants it to run, even if it was parked or halted; spent by one launch."""
    supervision: SupervisionWatch = field(init=False)
    _is_dead: bool = False

    def __post_init__(self) -> None:
        self.supervision = SupervisionWatch(self.context.store, self.context.run)

    def advance(self, *, recovers: bool) -> tuple[Observation, bool]:
        """Look once and launch what needs it; returns what was seen, and whether a driver was launched.

        A group that is dead is recovered here only if the caller says so (`recovers`): it has a supervisor for that.
        Nothing is done on what cannot be seen. Raises `ConfigurationError`.
        """
        observation = self.watcher.poll()
        status = observation.status
        self._is_dead = observation.is_dead
        if status is None:
            return observation, False
        try:
            if status.state in WAITING and self.asked:
                self.asked = False
                return observation, self._restart(status)
            if observation.is_dead and recovers:
                log.warning("Group %s is dead: %s\n%s", self.group, observation.cause, driver_log(status))
                return observation, recover_if_dead(self.context, self.group, observation)
            return observation, launch_if_new(self.context, self.group, observation)
        except LogUnavailable as error:
            log.warning("Group %s: the log went away during a launch: %s", self.group, error)
            return replace(observation, status=None), False

    def is_left(self) -> bool:
        """Whether nobody else recovers the group, which was dead when it was last looked at."""
        if (warning := self.supervision.warning()) is not None:
            log.warning("Group %s: %s", self.group, warning)
        return self.supervision.is_left(dead=self._is_dead)

    def must_stay(self, status: GroupStatus | None) -> bool:
        """Whether a person's wish is still open: the driver was told to halt before this attempt, which wants it to run.

        Then this task waits for the halt itself, and launches.
        """
        return self.asked and (status is None or status.desired is GroupState.HALTED)

    def _restart(self, status: GroupStatus) -> bool:
        try:
            launch_group(self.context, self.group, expected=status.incarnation, reason=ASKED, by_user=True)
        except (Fenced, BudgetSpent, ProtocolViolation) as error:
            log.warning("Group %s was not launched: %s", self.group, error)
            return False
        log.info("Group %s was %s and is launched again", self.group, status.state.value)
        return True

    def log_settings(self) -> None:
        """The effective Spark settings, before anything starts; what looks like a secret is masked by its name."""
        settings = self.context.settings
        shown = {
            name: getattr(settings, name)
            for name in settings.__slots__
            if name not in ("conf", "env_vars") and getattr(settings, name) not in (None, False)
        }
        conf = settings.effective_conf(self.context.pipeline.groups[self.group].spark)
        log.info("Group %s: Spark settings %s, environment %s", self.group, shown, sorted(settings.env_vars))
        log.info("Group %s: Spark properties %s", self.group, redact(conf))

    def summary(self, status: GroupStatus) -> dict[str, Any]:
        """The result of the task: small, and no secrets."""
        members = self.context.pipeline.groups[self.group].operators
        progress = self.context.store.progress(self.context.run.run_id)
        return {
            "run": self.context.run.uid,
            "group": self.group,
            "incarnations": status.incarnation,
            "recoveries": status.recoveries,
            "records": {f"{p.port} {p.direction}": p.records for p in progress if p.port.operator in members},
        }

    def failure(self, status: GroupStatus) -> str:
        """Why the group does not run, and what to do."""
        run = self.context.run
        if status.state is GroupState.HALTED:
            return (
                f"group {self.group!r} of run {run.spec.key} was halted on request (incarnation {status.incarnation}). "
                "It has lost nothing: clear this task, and it goes on where it stopped"
            )
        return (
            f"group {self.group!r} of run {run.spec.key} is parked (incarnation {status.incarnation}, "
            f"{status.recoveries} recoveries): {status.error}\n"
            f"Mend the cause, then clear this task: it goes on where it stopped.\n{driver_log(status)}"
        )
