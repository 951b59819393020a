"""An interrupted demonstration does not keep the next one from starting."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_logio.errors import OtherRunUnfinished
from airflow_logio.launch import processes
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import ConcurrentRuns
from demo import demonstration
from tests.support.logs import spec


def test_what_was_interrupted_is_given_up_and_what_is_somebody_elses_is_not(sqlite_url: str, tmp_path: Path) -> None:
    store = open_store(sqlite_url)
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        mine, active, other = (store.start_run(spec("a", "b", dag_run=name)) for name in ("mine", "active", "other"))
        (tmp_path / mine.uid).mkdir()
        identity = processes.identity_of(child.pid)
        assert identity is not None
        store.register(store.claim(mine.run_id, "a", expected=0, reason="test"), identity)
        found = demonstration.unfinished_runs(store, tmp_path, ["active"])
        assert {run.uid for run in found} == {mine.uid, active.uid}
        for run in found:
            demonstration.give_up_run(store, run, tmp_path, 0.2)
        assert processes.is_gone(identity), "its driver is ended"
        states = {run.uid: run.state for run in store.list_runs()}
        assert states == {
            mine.uid: RunState.SUPERSEDED,
            active.uid: RunState.SUPERSEDED,
            other.uid: RunState.RUNNING,
        }
        with pytest.raises(OtherRunUnfinished, match="run other of sales"):
            store.start_run(spec(dag_run="next"), concurrent=ConcurrentRuns.REFUSE)
        store.supersede(other.run_id)
        assert store.start_run(spec(dag_run="next"), concurrent=ConcurrentRuns.REFUSE).state is RunState.RUNNING
    finally:
        child.kill()
        child.wait()
        store.dispose()
