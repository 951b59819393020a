"""An earlier demonstration does not keep the next one from starting: one that was interrupted, or was of an older version."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError, OtherRunUnfinished, SchemaMismatch
from airflow_logio.launch import processes
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import ConcurrentRuns
from airflow_logio.store.sql import migrate, schema
from demo import demonstration
from demo.places import Places
from tests.store.test_older_logs import LAST, leave, recorded
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


def in_folder(folder: Path, log_url: str) -> Places:
    return Places(folder, folder / "dags", log_url, "sqlite:///warehouse.db")


def test_a_log_of_an_older_version_in_its_own_folder_is_upgraded(tmp_path: Path) -> None:
    places, said = in_folder(tmp_path, f"sqlite:///{tmp_path}/logio.db"), list[str]()
    leave(places.log_url, LAST)
    before = len(recorded(LAST)["logio_run"])
    for _ in range(2):
        store = demonstration.opened_log(places, said.append)
        assert len(store.list_runs()) == before > 0, "its runs are given up as others that were interrupted"
        store.dispose()
    assert said == [f"the log of earlier demonstrations was upgraded to schema {schema.REVISION}"]


def test_a_log_elsewhere_may_be_that_of_others_and_is_left_as_it_is(tmp_path: Path) -> None:
    places = in_folder(tmp_path / ".demo", f"sqlite:///{tmp_path}/logio.db")
    leave(places.log_url, LAST)
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match="run `logio db upgrade`"):
            demonstration.opened_log(places, lambda _: None)


def test_a_log_of_a_later_version_says_what_to_remove(tmp_path: Path) -> None:
    places = in_folder(tmp_path, f"sqlite:///{tmp_path}/logio.db")
    migrate.upgrade(places.log_url)
    with closing(sqlite3.connect(tmp_path / "logio.db")) as connection, connection:
        connection.execute("UPDATE logio_alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match=rf"9999, which is newer .*; or remove {tmp_path},"):
        demonstration.opened_log(places, lambda _: None)
