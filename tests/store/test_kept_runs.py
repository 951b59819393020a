"""Descriptions of runs that a process keeps: bounded, however long it reads."""

from __future__ import annotations

import pytest

from airflow_logio.store import open_store
from airflow_logio.store.sql import runs as run_rows
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import spec


def test_a_reader_of_many_runs_keeps_few(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_rows, "MOST_RUNS", 3)
    store = open_store(sqlite_url)
    assert isinstance(store, SqlLogStore)
    runs = [store.start_run(spec("g", dag_run=f"run-{number}")) for number in range(6)]
    for run in [*runs, runs[0]]:
        (seen,) = store.sight([run.uid])
        assert seen.run.uid == run.uid
    kept = store._runs.of(run.run_id for run in runs)
    assert list(kept) == [runs[0].run_id, runs[4].run_id, runs[5].run_id], "those that were used last"
    assert {one.run.uid for one in store.sight(None)} == {run.uid for run in runs}, "a look at more than are kept"
    store.dispose()
