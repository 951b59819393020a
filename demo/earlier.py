"""Unfinished runs of earlier demonstrations in this folder, which would block the next one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.local_run import DriverEnder


def unfinished(store: LogStore, drivers: Path, dag_run_ids: Collection[str]) -> list[Run]:
    """Unfinished runs of these DAG runs, or with drivers that worked in the folder `drivers`; no other runs."""
    return [
        run
        for run in store.list_runs()
        if run.state is RunState.RUNNING and (run.spec.key.dag_run_id in dag_run_ids or (drivers / run.uid).is_dir())
    ]


def give_up(store: LogStore, run: Run, drivers: Path, halt_seconds: float) -> None:
    """End its drivers, and leave its tables to the next run. Raises `LogioError` if the log does not give it up."""
    DriverEnder(store, run, run.spec.groups, drivers, halt_seconds).end()
    store.supersede(run.run_id)
