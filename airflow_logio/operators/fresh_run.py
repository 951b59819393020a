"""`LogioFreshRunOperator`: gives a run up, so that its DAG run can start over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.run_lookup import opened_log
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.protocol.states import RunState
from airflow_logio.store.rules.run_rules import how_to_begin_anew
from airflow_logio.supervision.stop_run import States, StopMode, run_to_give_up
from airflow_logio.task_arguments import with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run


@with_told_arguments
class LogioFreshRunOperator(LogioStopOperator):
    """Halt a run and give it up for good. Clear its DAG run from the first task on, and it starts over from scratch.

    Put it into a DAG of its own that a person triggers (`build_fresh_dag`). The run is named by its uid and never taken
    from this task's own DAG run. So a retry or a clear of this task finds the old run given up, and spares the fresh one.

    :param run_uid: uid of the run to give up, or at least its first eight digits (templated).
    :param logio_conn_id: the connection of the log.
    :param deferrable: wait for the halt in the triggerer; default as for `LogioSparkOperator`.
    :param timeout: how long to wait for the halt, in seconds or as a timedelta; default: forever. Then the task fails.
    :param poll_interval: seconds between two polls; default: option ``[logio] poll_interval``.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid",)

    def __init__(
        self,
        *,
        run_uid: str,
        logio_conn_id: str = LogioHook.default_conn_name,
        deferrable: bool | None = None,
        timeout: timedelta | float | None = None,
        poll_interval: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            run_uid=run_uid,
            mode=StopMode.HALT.value,
            logio_conn_id=logio_conn_id,
            deferrable=deferrable,
            timeout=timeout,
            poll_interval=poll_interval,
            **kwargs,
        )

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `UnknownRun`, `ConfigurationError` for a name that is not a uid, AirflowFailException."""
        with opened_log(self.logio_conn_id) as store:
            run = store.patience.call("finding the run", lambda: self._find(store, context))
        if run.state is RunState.SUPERSEDED:
            self.log.info("Run %s, uid %s, was given up before. %s", run.spec.key, run.uid, how_to_begin_anew(run))
            return {"run": run.uid, "given_up": False}
        return super().execute(context)

    def _find(self, store: LogStore, context: Mapping[str, Any]) -> Run:
        return run_to_give_up(store, self.run_uid or "")

    def _result(self, run_uid: str, states: States) -> dict[str, Any]:
        """Give the run up, now that its groups have ended.

        Raises `ProtocolViolation` if a person has relaunched one; a retry halts it.
        """
        super()._result(run_uid, states)
        with opened_log(self.logio_conn_id) as store:
            run = store.patience.call("finding the run", lambda: store.find_run(run_uid, damaged=True))
            given_up = store.patience.call("giving the run up", lambda: store.supersede(run.run_id))
        self.log.info("Run %s, uid %s, is given up. %s", run.spec.key, run.uid, how_to_begin_anew(run))
        return {"run": run.uid, "given_up": given_up}
