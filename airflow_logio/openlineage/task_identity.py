"""Who a task is for OpenLineage: what an event about it needs that is made elsewhere, in the triggerer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_logio.openlineage.run_facet import NAME, LogioRunFacet


@dataclass(frozen=True, slots=True)
class Identity:
    """A run of OpenLineage, and its job."""

    run_id: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """An attempt of a task, the DAG run that it belongs to, and what has started that, in the end."""

    task: Identity
    parent: Identity
    root: Identity

    @classmethod
    def of(cls, task_instance: Any) -> TaskIdentity:
        """Of a task that is running on this worker, as the provider's own events name it."""
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
