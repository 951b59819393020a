"""An observer of one group alone, with a lease of the test's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunSight
from airflow_logio.supervision.look import Observation, Watcher


class GroupWatcher:
    def __init__(self, store: LogStore, run: Run, group: str, lease: Lease | None = None, **settings: Any) -> None:
        self._group = group
        self._run = run if lease is None else replace(run, spec=replace(run.spec, lease=lease))
        self._watcher = Watcher(store, self._run, [group], **settings)

    def poll(self) -> Observation:
        return self._watcher.look().observations[self._group]

    def judge(self, status: GroupStatus, asked_at: float) -> Observation:
        return self._watcher.judge(RunSight(self._run, [status]), asked_at).observations[self._group]
