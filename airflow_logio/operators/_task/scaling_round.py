"""Carries out requests to scale a group from an Airflow task; used by scaling tasks and by the supervisor of the run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_logio.errors import ConfigurationError, IncompatibleRun, PipelineDefinitionError, ProtocolViolation
from airflow_logio.launch.launcher import launch_group
from airflow_logio.operators._task.launches import Launching
from airflow_logio.protocol.states import ScalingState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.supervision.findings import DueScaling
from airflow_logio.supervision.scaling import Stage, Step, found_settled, next_step

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupScaling:
    """Scales groups of any run of a log."""

    launching: Launching

    def step(self, run: Run, request: ScalingRequest) -> Step:
        """Take the next step of a request, without waiting. Raises `LogUnavailable`, and `ManagerUnavailable`: a launch that
        is due waits for its cluster manager, and the request stays.

        A request that cannot be carried out because of wrong configuration is refused with that error: another attempt
        would not help.
        """
        store = self.launching.store
        if (settled := found_settled(store, request)) is not None:
            return settled
        recipe = store.launch_recipe(run.run_id, run.spec.replicated[request.group].replicas[0])
        if recipe is None:
            # In a run of `logio run`, its own process carries the request out.
            return Step(
                Stage.LAUNCHING,
                f"waiting for the task of group {request.group}, or for the process that launches its drivers",
            )
        try:
            return next_step(store, run, request, partial(self._launch, run))
        except (ConfigurationError, IncompatibleRun, PipelineDefinitionError, AirflowNotFoundException) as error:
            why = f"it cannot be carried out: {type(error).__name__}: {error}"
            store.settle_scaling(request.request_id, ScalingState.REFUSED, why)
            return Step(Stage.REFUSED, why)

    def _launch(self, run: Run, replica: str, **asked: Any) -> None:
        """Raises `ProtocolViolation` if a task of its own launches that replica, or is to say how."""
        store = self.launching.store
        recipe = store.launch_recipe(run.run_id, replica)
        if recipe is None or recipe.own_place:
            raise ProtocolViolation("its own task launches it")
        launch_group(self.launching.context(run, replica, recipe), replica, **asked)

    def carry_on(self, due: DueScaling) -> dict[str, Any]:
        """Take one step of a request that was found. Returns the outcome as plain data without secrets.

        The outcome reads like a recovery that launched nothing, so that tasks which follow up recoveries ignore it.
        """
        store = self.launching.store
        run = store.find_run(due.run_uid)
        found = store.scalings(run.run_id, due.group)
        request = next((one for one in found if one.request_id == due.request_id), None)
        step = Step(Stage.REFUSED, "the request is gone") if request is None else self.step(run, request)
        log.log(logging.WARNING if step.stage is Stage.REFUSED else logging.INFO, "%s: %s", due, shown(step))
        return {
            **due.as_dict(),
            "outcome": step.stage.value,
            "why": step.sentence,
            "launched": list(step.launched),
            "launched_incarnation": None,
        }


def shown(step: Step) -> str:
    """A step as a sentence for a task log."""
    launched = f"{', '.join(step.launched)} launched; " if step.launched else ""
    return f"{step.stage.value}: {launched}{step.sentence}"
