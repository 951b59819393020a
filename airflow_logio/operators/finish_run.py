"""`LogioFinishRunOperator`: the last task of a pipeline's DAG run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_logio.commands import with_log
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import reference, resolve
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.task_arguments import with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.store.records.upkeep_records import QuarantinedInputSet


@with_told_arguments
class LogioFinishRunOperator(BaseOperator):
    """Mark the run as finished. Fails if groups are unfinished, and names them. The log decides, not the states of tasks.

    A run with quarantined Input Sets is marked "finished with quarantine" and fails this task, because it is incomplete.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param run_uid: uid of the run (templated); by default the run that this DAG run has of the pipeline.
    :param logio_conn_id: the connection of the log.
    :param fail_on_quarantine: whether quarantined Input Sets fail the task; they are logged in any case.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid",)
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        run_uid: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        fail_on_quarantine: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fail_on_quarantine = fail_on_quarantine
        self.pipeline = reference(pipeline)
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id

    def execute(self, context: Mapping[str, Any]) -> None:
        """Raises `UnknownRun`, AirflowFailException."""
        from airflow_logio.operators._task.run_lookup import check_current, opened_log, run_of, work_left
        from airflow_logio.operators._task.status_page import say_status
        from airflow_logio.supervision.tidying import clear_up

        pipeline, _ = resolve(self.pipeline)
        with opened_log(self.logio_conn_id) as store:
            call = store.patience.call
            run = call("finding the run", lambda: run_of(store, pipeline.name, context, self.run_uid))
            check_current(run)
            finished = call("finishing the run", lambda: store.finish_run(run.run_id))
            groups = call("reading the groups", lambda: store.groups(run.run_id))
            left = [] if finished else call("reading what is left", lambda: work_left(store, run))
            if finished:
                clear_up(LogioHook(self.logio_conn_id).get_payloads(), store, run)
            aside = call("looking for quarantine", lambda: store.quarantined(run.run_id))
            say_status(self.log, store, run.uid, self.logio_conn_id)
            if finished:
                self._remove_old(store, run)
        if not finished:
            raise AirflowFailException(
                f"run {run.spec.key} is not finished: {', '.join(left)}. Clear the tasks of these groups; "
                "they resume where they stopped"
            )
        self._report_quarantine(run, aside)
        recoveries = sum(group.recoveries for group in groups)
        self.log.info("Run %s is finished: %d groups, %d recoveries", run.spec.key, len(groups), recoveries)

    # --- for the OpenLineage provider, which calls these if it is installed and configured ----------------------------

    def get_openlineage_facets_on_start(self) -> Any:
        """An ``OperatorLineage``: what the whole run reads and writes, and the run facet."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """As at the start, with what the log has counted."""
        return self._lineage(task_instance, counts=True)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """As at the start: another attempt counts on from here, and tells the sum."""
        return self._lineage(task_instance)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _lineage(self, task_instance: Any | None, *, counts: bool = False) -> Any:
        from airflow_logio.operators._task.openlineage_answers import lineage_of

        return lineage_of(self, None, task_instance, counts=counts)

    def _remove_old(self, store: LogStore, run: Run) -> None:
        """Last, when all of this run is known that is told: whatever goes wrong with it is logged."""
        from airflow_logio.hooks.connections import known_url
        from airflow_logio.supervision.keeping import Places, remove_old

        places = Places(LogioHook(self.logio_conn_id).get_payloads(), known_url)
        remove_old(store, places, run.spec.key.pipeline)

    def _report_quarantine(self, run: Run, aside: Sequence[QuarantinedInputSet]) -> None:
        for one in aside:
            self.log.error(
                "Quarantined: operator %s, Input Set %s: %s", base_operator(one.operator), one.inset_id, one.error
            )
        if aside and self.fail_on_quarantine:
            said = (
                f"run {run.spec.key} is finished with quarantine: {len(aside)} Input Set(s) are set aside, listed above. "
                f"Fix the operator, run `logio retry {run.uid[:8]} --code new`, then clear this task"
            )
            raise AirflowFailException(with_log(said, self.logio_conn_id))
