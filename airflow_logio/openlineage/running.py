"""RUNNING events of a group's task, at most every five minutes, from whatever watches the group (ADR-101).

They say what the log says of the group (`LogioRunFacet`), and nothing of datasets: those were in the START event. So the
triggerer, which must not import an author's pipeline, can make them, and no worker is woken for them. A thread of their
own makes them. A transport that hangs delays the next event, and nothing else: an event that had to wait is dropped, because
COMPLETE or FAIL may be sent meanwhile, and each has the time of the look that it tells of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures

if TYPE_CHECKING:
    from airflow_logio.openlineage.run_facet import LogioRunFacet

EVENT_SECONDS = 300.0
STALE_SECONDS = 30.0
"""An event that has waited for so long is not sent."""
log = logging.getLogger(__name__)
_sending = ThreadPoolExecutor(1, thread_name_prefix="logio OpenLineage")
"""One for all groups of a triggerer: a server for lineage that hangs must not hold many threads."""


class RunningEvents:
    """The RUNNING events of one group. `task` identifies its task: `TaskIdentity.given`; None: there are none."""

    def __init__(
        self, task: Mapping[str, Any] | None, run: Run, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task = task
        self._run = run
        self._group = group
        self._clock = clock
        self._last = clock()
        self._event: Future[None] | None = None
        self._is_closed = False
        self._has_failed = False

    def is_due(self) -> bool:
        """Whether five minutes have passed since the last event was sent, or since the beginning, and none is on its way."""
        if self._task is None or self._is_closed or self._clock() - self._last < EVENT_SECONDS:
            return False
        return self._event is None or self._event.done()

    def ask(self, store: LogStore) -> None:
        """As `look`, for code that does not read these figures anyway."""
        run_id = self._run.run_id
        self._try(lambda: self.look(store.groups(run_id), store.figures([run_id])[run_id]))

    def look(self, statuses: Sequence[GroupStatus], figures: RunFigures) -> None:
        """Send an event if one is due. Never raises, never waits."""
        if self.is_due():
            self._try(lambda: self._submit(statuses, figures))

    def close(self) -> None:
        """Send no more: the task is about to end. An event that is being sent has the time of an earlier look."""
        self._is_closed = True
        if self._event is not None:
            self._event.cancel()

    def _submit(self, statuses: Sequence[GroupStatus], figures: RunFigures) -> None:
        self._event = _sending.submit(self._send, statuses, figures, datetime.now(UTC), self._clock())

    def _try(self, act: Callable[[], None]) -> None:
        """Lineage stops no watching. While the log does not answer, nothing is sent."""
        try:
            act()
            self._has_failed = False
        except Exception as error:
            if not self._has_failed:  # each look would say it again
                self._warn(error)
            self._has_failed = True

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _send(self, statuses: Sequence[GroupStatus], figures: RunFigures, at: datetime, asked: float) -> None:
        """An error here is no error of the group: this process may have no OpenLineage at all."""
        if self._task is None or self._is_closed or self._clock() - asked > STALE_SECONDS:
            return
        try:
            from airflow_logio.openlineage.run_facet import run_facet

            TaskIdentity.of_given(self._task).emit_running(run_facet(self._run, self._group, statuses, figures), at)
        except Exception as error:
            self._warn(error)
        self._last = self._clock()

    def _warn(self, error: Exception) -> None:
        log.warning("Group %s: no RUNNING event of OpenLineage: %s: %s", self._group, type(error).__name__, error)


# --- the task of an event ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """A run in the sense of OpenLineage, and its job."""

    run_id: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """What an event about a task needs that is made elsewhere, in the triggerer: the attempt, its DAG run, and their root."""

    task: Identity
    parent: Identity
    root: Identity

    @classmethod
    def of(cls, task_instance: Any) -> TaskIdentity:
        """The identity of a task that is running on this worker, as the provider's own events name it."""
        from airflow.providers.openlineage.plugins import macros
        from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter

        namespace = macros.lineage_job_namespace()
        dag_run = task_instance.get_template_context()["dag_run"]
        parent = OpenLineageAdapter.build_dag_run_id(
            dag_id=task_instance.dag_id,
            logical_date=dag_run.logical_date or dag_run.run_after,
            clear_number=dag_run.clear_number,
        )
        return cls(
            Identity(str(macros.lineage_run_id(task_instance)), namespace, str(macros.lineage_job_name(task_instance))),
            Identity(str(parent), namespace, str(task_instance.dag_id)),
            Identity(
                str(macros.lineage_root_run_id(task_instance)),
                str(macros.lineage_root_job_namespace(task_instance)),
                str(macros.lineage_root_job_name(task_instance)),
            ),
        )

    @classmethod
    def of_given(cls, given: Mapping[str, Any]) -> TaskIdentity:
        """From `given`."""
        return cls(**{name: Identity(**one) for name, one in given.items()})

    def given(self) -> dict[str, Any]:
        """As plain data, which the arguments of a trigger are."""
        return asdict(self)

    def emit_running(self, facet: LogioRunFacet, at: datetime) -> None:
        """Send a RUNNING event through the provider, which redacts it and knows the transport. Waits for that."""
        from airflow.providers.openlineage.api.core import emit
        from airflow.providers.openlineage.plugins.adapter import _PRODUCER
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import parent_run

        from airflow_logio.openlineage.run_facet import NAME

        parent = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=self.parent.run_id),
            job=parent_run.Job(namespace=self.parent.namespace, name=self.parent.name),
            root=parent_run.Root(
                run=parent_run.RootRun(runId=self.root.run_id),
                job=parent_run.RootJob(namespace=self.root.namespace, name=self.root.name),
            ),
        )
        emit(
            RunEvent(
                eventType=RunState.RUNNING,
                eventTime=at.isoformat(),
                run=Run(runId=self.task.run_id, facets={"parent": parent, NAME: facet}),
                job=Job(namespace=self.task.namespace, name=self.task.name),
                producer=_PRODUCER,
            )
        )
