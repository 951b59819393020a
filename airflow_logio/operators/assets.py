"""`LogioAssetsOperator`: asset events for what a pipeline has written (ADR-99)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator
from airflow.sdk import Asset, AssetAlias

from airflow_logio import _compat
from airflow_logio.asset_uris import create_asset
from airflow_logio.dataflow.operators import WriterOperator
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import imported, reference, resolve
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.states import RunState
from airflow_logio.task_arguments import mapping_of, with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run

FINISHED, QUARANTINED, RUNNING = "finished", "finished with quarantine", "running"
WRITE = "write"
EVENTS_SEARCHED = 500
RUNS_SEARCHED = 20
"""The newest ones, of which one may have ended since the last event."""
UNFINISHED_SEARCHED = 1_000
CLOCKS_APART_SECONDS = 60.0
"""Between the database of the log and that of Airflow."""
_OF_ONE_RUN = {RunState.RUNNING: RUNNING, RunState.FINISHED: FINISHED, RunState.QUARANTINED: QUARANTINED}


@with_told_arguments
class LogioAssetsOperator(BaseOperator):
    """An event for each table and dataset that the pipeline writes, when the log says that its run has finished.

    In ``extra`` each event says which run it is about (``run``), with which parameters (``params``), how many records
    that has written, and the number of the last write action of each writer. A task that is run again makes an event
    only for assets that have changed. A run with quarantined Input Sets gets none, because its result is incomplete.

    Events of a pipeline with a partition have its key as their ``partition_key``, always in the form of the log
    (``2026-03-01``), and another one when the partition is computed again. A DAG with a ``PartitionedAssetTimetable``
    has a run for each of them; Airflow starts no DAG that is scheduled on the assets alone.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``; it is imported when the DAG is parsed.
    :param connections: the pipeline's connection names → Airflow connection ids.
    :param assets: writer → asset or URI; by default ``logio://<connection id>/<table or folder>``.
    :param run_uid: uid of the run (templated); by default the run that this DAG run has of the pipeline.
    :param logio_conn_id: the connection of the log.
    :param with_quarantine: also for a run that has quarantined Input Sets.
    :param while_running: for a pipeline that never finishes, in a DAG that is scheduled every few minutes
        (`build_assets_dag`): events for its unfinished runs that have written something since the last ones, and a last
        one when such a run has ended.

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
        known = imported(pipeline)
        self.assets = assets_of(known, mapping_of("connections", connections), mapping_of("assets", assets))
        by_uri = {asset.uri: asset for asset in self.assets.values()}
        self.partition = None if known.partition is None else known.partition.name
        if self.partition is not None and while_running:
            raise ConfigurationError(
                f"assets: pipeline {known.name!r} has a run for each {self.partition!r}, and an event says that one is "
                "complete: leave while_running out, and give LogioPipelineGroup(..., assets=True)"
            )
        if self.partition is not None and not _compat.may_give_partition_keys():
            raise ConfigurationError(
                f"assets: pipeline {known.name!r} has a run for each {self.partition!r}, and only tasks of Airflow 3.3 or "
                "later say which one an event is about: leave assets out, or upgrade Airflow"
            )
        # An alias makes an event only where the task adds one, and only with the partition key of the DAG run. An asset
        # gets the key that the task gives, and an event whenever the task succeeds, unless `_add` takes it from the outlets.
        told = list(by_uri.values()) if self.partition is not None else [AssetAlias(uri) for uri in by_uri]
        super().__init__(inlets=told, outlets=told, **kwargs)
        self.pipeline = reference(pipeline)
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id
        self.with_quarantine = with_quarantine
        self.while_running = while_running

    def execute(self, context: Mapping[str, Any]) -> None:
        """Raises `UnknownRun`, AirflowException if the run is not finished."""
        from airflow_logio.operators._task.run_lookup import opened_log

        name = resolve(self.pipeline)[0].name
        with opened_log(self.logio_conn_id) as store:
            runs = store.patience.call("finding the run", lambda: self._runs(store, name, context))
            for run, state in runs:
                told = partial(self._told, store, run, state)
                self._add(context, store, run, store.patience.call("reading the counters", told))

    def _runs(self, store: LogStore, pipeline: str, context: Mapping[str, Any]) -> list[tuple[Run, str]]:
        """The runs to look at, and what they are."""
        from airflow_logio.operators._task.run_lookup import check_current, run_of, work_left

        if self.while_running:
            unfinished = store.list_runs(pipeline=pipeline, state=RunState.RUNNING, limit=UNFINISHED_SEARCHED)
            latest = store.list_runs(pipeline=pipeline, limit=RUNS_SEARCHED)
            runs = sorted({run.uid: run for run in (*unfinished, *latest)}.values(), key=lambda run: -run.run_id)
            for damaged in (run for run in runs if run.damage is not None):
                self.log.error("No event of it: %s", damaged.damage)
            whole = [run for run in reversed(runs) if run.damage is None]
            return [(run, _OF_ONE_RUN[run.state]) for run in whole if run.state in _OF_ONE_RUN]
        run = run_of(store, pipeline, context, self.run_uid)
        check_current(run)
        if left := work_left(store, run):
            raise AirflowException(f"run {run.spec.key} is not finished: {', '.join(left)}")
        aside = len(store.quarantined(run.run_id))
        if aside and not self.with_quarantine:
            self.log.warning("Run %s is incomplete: %d Input Set(s) are in quarantine. No event", run.spec.key, aside)
            return []
        return [(run, QUARANTINED if aside else FINISHED)]

    def _told(self, store: LogStore, run: Run, state: str) -> list[tuple[Asset, dict[str, Any]]]:
        """One event per asset, also where several writers share one."""
        found = extras(store, run, self.assets, state)
        events: dict[str, tuple[Asset, dict[str, Any]]] = {}
        for name, asset in self.assets.items():
            extra = dict(found[name])
            if asset.uri in events:
                other = events[asset.uri][1]
                extra["records"] += other["records"]
                extra["last_write_action"] = other["last_write_action"] | extra["last_write_action"]
            events[asset.uri] = asset, extra
        return list(events.values())

    def _add(
        self, context: Mapping[str, Any], store: LogStore, run: Run, events: Sequence[tuple[Asset, dict[str, Any]]]
    ) -> None:
        from airflow_logio.operators._task.run_lookup import task_key

        if self.partition is not None:
            self.outlets: list[Asset] = []  # of this process, whose outlets Airflow reads when the task has ended
        tried = None if self.while_running else _Tried(store, run, task_key(context, self.task_id))
        for asset, extra in events:
            try:
                last = self._last_of(context, run, asset)
            except Exception as error:  # whatever Airflow raises
                if not self._may_tell(tried, asset, error):
                    continue
                last = None
            # An event of an earlier version says less.
            known = last is not None and all(extra.get(name) == value for name, value in last.items())
            if known or (last is None and not self._is_first(extra)):
                self.log.info("Asset %s: nothing new of run %s (%s)", asset.uri, run.uid[:8], extra["state"])
                continue
            if tried is not None:
                tried.keep(asset.uri)
            self._tell(context, run, asset, extra)
            self.log.info(
                "Asset %s: run %s, %s, %s records", asset.uri, run.uid[:8], extra["state"], f"{extra['records']:,}"
            )

    def _may_tell(self, tried: _Tried | None, asset: Asset, error: Exception) -> bool:
        """Where Airflow cannot read the events that are there: 3.3.2 cannot while a DAG run that one of them has started is
        queued. Raises AirflowException if an earlier attempt may have told of this run."""
        said = f"Airflow cannot read the events of asset {asset.uri} ({type(error).__name__}: {error})"
        if tried is None:
            self.log.warning("%s; the next DAG run looks again", said)
            return False
        if tried.may_be_told(asset.uri):
            raise AirflowException(
                f"{said}, and an earlier attempt of this task may have told of run {tried.run_uid[:8]}. Airflow may be "
                "unable to read them while a DAG run that they have started is queued: clear this task when it has begun"
            ) from error
        self.log.warning("%s; no attempt of this task has told of the run yet", said)
        return True

    def _tell(self, context: Mapping[str, Any], run: Run, asset: Asset, extra: dict[str, Any]) -> None:
        if self.partition is None:
            context["outlet_events"][AssetAlias(asset.uri)].add(asset, extra=extra)
            return
        event = context["outlet_events"][asset]
        event.extra = extra
        event.add_partitions(run.partition)
        self.outlets.append(asset)

    def _is_first(self, extra: Mapping[str, Any]) -> bool:
        """Whether a run that has had no event gets this one. A finished one in passing: its own DAG has told of it."""
        return not self.while_running or (extra["state"] == RUNNING and bool(extra["last_write_action"]))

    def _last_of(self, context: Mapping[str, Any], run: Run, asset: Asset) -> Mapping[str, Any] | None:
        """What the last event of this run said. Those of one that has ended are looked for from its end on."""
        events = context["inlet_events"][AssetAlias(asset.uri) if self.partition is None else asset]
        ended_at = run.ended_at if not self.while_running else None
        begins_at = datetime.fromtimestamp((ended_at or run.created_at) - CLOCKS_APART_SECONDS, UTC)
        events = events.after(begins_at.isoformat()).ascending(ended_at is not None).limit(EVENTS_SEARCHED)
        found = [event.extra for event in events if event.extra.get("run") == run.uid]
        return (found[-1] if ended_at is not None else found[0]) if found else None


class _Tried:
    """The assets that an attempt of this task has told Airflow of, or was about to. Waits for the log."""

    def __init__(self, store: LogStore, run: Run, task: str) -> None:
        self._store = store
        self._task = task
        self._run = run
        kept = store.patience.call("reading what was told", partial(store.told_by, run.run_id, task))
        self.uris = [uri for uri in kept if isinstance(uri, str)] if isinstance(kept, list) else []

    @property
    def run_uid(self) -> str:
        return self._run.uid

    def may_be_told(self, uri: str) -> bool:
        """Whether an earlier attempt may have told of it."""
        return uri in self.uris

    def keep(self, uri: str) -> None:
        """Before it is told: the event comes with the end of the task."""
        if uri not in self.uris:
            self.uris.append(uri)
            noted = partial(self._store.note_told, self._run.run_id, self._task, self.uris)
            self._store.patience.call("noting what is told", noted)


def assets_of(
    pipeline: Pipeline, connections: Mapping[str, str], named: Mapping[str, str | Asset] | None = None
) -> dict[str, Asset]:
    """Writer → the asset that it writes: ``logio://<connection id>/<table or folder>``, or as `named` by writer.

    These are the writers of tables and of datasets; others only if they are named. Raises `ConfigurationError`.
    """
    operators = pipeline.operators.items()
    writers = {base_operator(name): one for name, one in operators if isinstance(one, WriterOperator)}
    ready_made = [one for one in writers.values() if isinstance(one, OwningWriter)]
    if missing := sorted({one.connection for one in ready_made} - connections.keys()):
        raise ConfigurationError(
            f"assets: pipeline {pipeline.name!r} needs a connection id for {', '.join(missing)}: "
            f'connections={{"{missing[0]}": "<Airflow connection id>"}}'
        )
    found = {
        name: create_asset(connection_id=connections[operator.connection], place=_place(operator))
        for name, operator in writers.items()
        if isinstance(operator, OwningWriter) and name not in (named or {})
    }
    for name, given in (named or {}).items():
        if name not in writers:
            raise ConfigurationError(
                f"assets: pipeline {pipeline.name!r} has no writer {name!r}; it has {sorted(writers)}"
            )
        found[name] = given if isinstance(given, Asset) else Asset(_without_password(given))
    if not found:
        raise ConfigurationError(
            f"assets: pipeline {pipeline.name!r} writes no table and no dataset; name what its writers write: "
            'assets={"<writer>": "<URI>"}'
        )
    return found


def extras(store: LogStore, run: Run, assets: Mapping[str, Asset], state: str) -> dict[str, dict[str, Any]]:
    """Writer → what an event says: which run, and how much of it has been applied at the destination."""
    records, last = dict.fromkeys(assets, 0), {name: dict[str, int]() for name in assets}
    for row in store.progress(run.run_id):
        name = base_operator(row.port.operator)
        if row.direction == WRITE and name in assets:
            records[name] += row.records
            last[name][row.port.operator] = row.events
    key = run.spec.key
    partition = {} if run.partition is None else {"partition": run.partition, "generation": key.generation}
    return {
        name: {
            "pipeline": key.pipeline,
            "dag_id": key.dag_id,
            "dag_run_id": key.dag_run_id,
            "run": run.uid,
            "state": state,
            "params": dict(run.spec.params),
            "records": records[name],
            "last_write_action": last[name],
            **partition,
        }
        for name in assets
    }


def _place(operator: OwningWriter) -> str:
    return operator.folder if isinstance(operator, DatasetWriter) else str(vars(operator)["table"])


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.password or any("password" in name.lower() for name, _ in parse_qsl(parts.query)):
        raise ConfigurationError("assets: a URI has a password in it; everyone who sees the asset would see it, too")
    return uri
