"""`LogioAssetsOperator`: asset events for what a pipeline has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, BaseOperator
from airflow.sdk import Asset

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import imported, reference, resolve
from airflow_logio.operators._task.run_lookup import check_current, opened_log, run_of
from airflow_logio.operators._task.written_assets import assets_of, extras
from airflow_logio.protocol.states import CONCLUDED, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run

FINISHED, QUARANTINED, RUNNING = "finished", "finished with quarantine", "running"
EVENTS_SEARCHED = 1000
_RUNS_SEARCHED = 100


class LogioAssetsOperator(BaseOperator):
    """An event for each table and dataset that the pipeline writes, when the log says that its run has finished.

    Each event says in ``extra`` which run it is about (``run``), how many records it has written, and the number of its last
    write action. A task that is run again for a run of which nothing is new is skipped, so that each finished run gets one
    event per asset. So is one whose run has quarantined Input Sets, because its result is incomplete.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``; it is imported when the DAG is parsed.
    :param connections: the pipeline's connection names → Airflow connection ids.
    :param assets: writer → asset or URI; by default ``logio://<connection id>/<table or folder>``.
    :param run_uid: uid of the run (templated); by default the run that this DAG run has of the pipeline.
    :param logio_conn_id: the connection of the log.
    :param with_quarantine: also for a run that has quarantined Input Sets.
    :param while_running: for a pipeline that never finishes, in a DAG that is scheduled every few minutes
        (`build_assets_dag`): an event for its newest unfinished run, if that has written something since the last one.

    Raises `ConfigurationError` while the DAG is parsed.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid",)
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        connections: Mapping[str, str],
        assets: Mapping[str, str | Asset] | None = None,
        run_uid: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        with_quarantine: bool = False,
        while_running: bool = False,
        **kwargs: Any,
    ) -> None:
        self.assets = assets_of(imported(pipeline), connections, assets)
        distinct = list({asset.uri: asset for asset in self.assets.values()}.values())
        super().__init__(inlets=distinct, outlets=distinct, **kwargs)
        self.pipeline = reference(pipeline)
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id
        self.with_quarantine = with_quarantine
        self.while_running = while_running

    def execute(self, context: Mapping[str, Any]) -> None:
        """Raises `UnknownRun`, AirflowException if the run is not finished, AirflowSkipException if there is nothing new."""
        name = resolve(self.pipeline)[0].name
        with opened_log(self.logio_conn_id) as store:
            run = store.patience.call("finding the run", lambda: self._run(store, name, context))
            state = store.patience.call("asking how the run is", lambda: self._state(store, run))
            found = store.patience.call("reading the counters", lambda: extras(store, run, self.assets, state))
        events = self._merged(found)
        nothing = self.while_running and not any(extra["last_write_action"] for _, extra in events)
        if nothing or all(self._last_of(context, run, asset) == extra for asset, extra in events):
            raise AirflowSkipException(f"run {run.spec.key} ({state}) has written nothing since its last asset event")
        for asset, extra in events:
            context["outlet_events"][asset].extra = extra
            self.log.info("Asset %s: run %s is %s, %s records", asset.uri, run.uid[:8], state, f"{extra['records']:,}")

    def _run(self, store: LogStore, pipeline: str, context: Mapping[str, Any]) -> Run:
        if not self.while_running:
            run = run_of(store, pipeline, context, self.run_uid)
            check_current(run)
            return run
        for run in store.list_runs(pipeline=pipeline, limit=_RUNS_SEARCHED):
            if run.state is RunState.RUNNING:
                return run
        raise AirflowSkipException(f"no run of pipeline {pipeline!r} is unfinished")

    def _state(self, store: LogStore, run: Run) -> str:
        if self.while_running:
            return RUNNING
        left = [f"{one.group} ({one.state.value})" for one in store.groups(run.run_id) if one.state not in CONCLUDED]
        if left:
            raise AirflowException(f"run {run.spec.key} is not finished: {', '.join(left)}")
        aside = len(store.quarantined(run.run_id))
        if aside and not self.with_quarantine:
            raise AirflowSkipException(f"run {run.spec.key} is incomplete: {aside} Input Set(s) are in quarantine")
        return QUARANTINED if aside else FINISHED

    def _merged(self, found: Mapping[str, Mapping[str, Any]]) -> list[tuple[Asset, dict[str, Any]]]:
        """One event per asset, also where several writers share one."""
        events: dict[str, tuple[Asset, dict[str, Any]]] = {}
        for name, asset in self.assets.items():
            extra = dict(found[name])
            if asset.uri in events:
                other = events[asset.uri][1]
                extra["records"] += other["records"]
                extra["last_write_action"] = other["last_write_action"] | extra["last_write_action"]
            events[asset.uri] = asset, extra
        return list(events.values())

    def _last_of(self, context: Mapping[str, Any], run: Run, asset: Asset) -> Mapping[str, Any] | None:
        """What the last event of this run said."""
        events = context["inlet_events"][asset].ascending(False).limit(EVENTS_SEARCHED)
        return next((event.extra for event in events if event.extra.get("run") == run.uid), None)
