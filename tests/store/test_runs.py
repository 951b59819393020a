"""Runs: get-or-create, lookup, end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_logio.errors import IncompatibleRun, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from tests.support.logs import contents, spec, start_driver
from tests.support.racing import race


def test_a_run_is_created_once(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    again = log_store.start_run(spec("a", "b"))
    assert again == run
    assert run.spec == spec("a", "b")
    assert run.state is RunState.RUNNING
    assert [group.group for group in log_store.groups(run.run_id)] == ["a", "b"]
    assert {group.state for group in log_store.groups(run.run_id)} == {GroupState.NEW}


def test_many_starters_at_once_get_the_same_run(log_store: LogStore) -> None:
    runs = race(*[lambda: log_store.start_run(spec("a", "b"))] * 6)
    assert all(isinstance(run, Run) for run in runs), runs
    assert len({run.uid for run in runs if isinstance(run, Run)}) == 1
    assert len(log_store.list_runs()) == 1


def test_another_dag_run_is_another_run(log_store: LogStore) -> None:
    runs = [log_store.start_run(spec()), log_store.start_run(spec(dag_run="run-2"))]
    assert len({run.run_id for run in runs}) == len({run.uid for run in runs}) == 2


def test_another_graph_is_refused_and_changes_nothing(log_store: LogStore) -> None:
    log_store.start_run(spec("a"))
    before = contents(log_store)
    with pytest.raises(IncompatibleRun, match="graph-1, now graph-2"):
        log_store.start_run(spec("a", "new", graph="graph-2"))
    assert contents(log_store) == before


def test_changed_code_alone_is_the_same_run(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    assert log_store.start_run(replace(spec(), code_fingerprint="code-2")).uid == run.uid


def test_runs_are_found_by_uid_its_beginning_and_dag_run(log_store: LogStore) -> None:
    first = log_store.start_run(spec())
    second = log_store.start_run(spec(dag_run="run-2"))
    assert log_store.find_run(first.uid).uid == first.uid
    assert log_store.find_run(second.uid[:20]).uid == second.uid
    assert log_store.find_run("run-2").uid == second.uid
    assert [run.uid for run in log_store.list_runs()] == [second.uid, first.uid]
    assert log_store.list_runs(limit=1)[0].uid == second.uid
    assert log_store.list_runs(pipeline="another") == []


def test_a_dag_run_named_as_a_runs_uid_does_not_take_its_place(log_store: LogStore) -> None:
    first = log_store.start_run(spec())
    log_store.start_run(spec(dag_run=first.uid))
    assert log_store.find_run(first.uid).uid == first.uid


def test_runs_are_listed_by_dag_and_dag_run(log_store: LogStore) -> None:
    first, second = (log_store.start_run(spec(dag_run=name)) for name in ("run-1", "run-2"))
    dag_id = first.spec.key.dag_id
    assert [run.uid for run in log_store.list_runs(dag_ids=[dag_id, "another"])] == [second.uid, first.uid]
    assert [run.uid for run in log_store.list_runs(dag_ids={dag_id}, dag_run_id="run-1")] == [first.uid]
    assert log_store.list_runs(dag_ids=["another"]) == log_store.list_runs(dag_ids=[]) == []
    assert log_store.list_runs(dag_run_id="run-3") == []
    assert log_store.request(first.run_id, "g", GroupState.HALTED) and log_store.supersede(first.run_id)
    assert [run.uid for run in log_store.list_runs(state=RunState.RUNNING)] == [second.uid]
    assert [run.uid for run in log_store.list_runs(state=RunState.SUPERSEDED)] == [first.uid]


def test_runs_are_found_by_parts_of_their_names(log_store: LogStore) -> None:
    first = log_store.start_run(spec(dag_run="Manual_1%"))
    second = log_store.start_run(spec(dag_run="manual-2"))
    named = {
        part: [run.uid for run in log_store.list_runs(named=part)] for part in ("MANUAL", "al_", "%", "sal", "dag")
    }
    assert named["MANUAL"] == named["sal"] == named["dag"] == [second.uid, first.uid]
    assert named["al_"] == named["%"] == [first.uid], "signs of SQL are only signs"
    third = log_store.start_run(spec(dag_run="ÜBUNG_3"))
    assert [run.uid for run in log_store.list_runs(named="ÜBUNG")] == [third.uid]
    assert log_store.list_runs(named="x'; --\x00") == []
    assert log_store.list_runs(named="manual", dag_ids=["another"]) == []


@pytest.mark.parametrize("name", ["nobody", "%", "_", "run-"])
def test_an_unknown_run_is_said_to_be_unknown(log_store: LogStore, name: str) -> None:
    log_store.start_run(spec())
    with pytest.raises(UnknownRun, match=name):
        log_store.find_run(name)


def test_an_ambiguous_beginning_is_refused(log_store: LogStore) -> None:
    log_store.start_run(spec())
    log_store.start_run(spec(dag_run="run-2"))
    with pytest.raises(UnknownRun, match="2 runs"):
        log_store.find_run("")


def test_an_unknown_group_is_said_to_be_unknown(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a"))
    with pytest.raises(UnknownRun, match="'b'"):
        log_store.group(run.run_id, "b")


def test_a_run_finishes_when_all_groups_have(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    start_driver(log_store, group="a", run=run).session.commit([fx.FinishGroup()])
    assert not log_store.finish_run(run.run_id)
    assert log_store.find_run(run.uid).state is RunState.RUNNING
    start_driver(log_store, group="b", run=run).session.commit([fx.FinishGroup()])
    assert log_store.finish_run(run.run_id)
    finished = log_store.find_run(run.uid)
    assert finished.state is RunState.FINISHED
    assert finished.ended_at is not None
    assert log_store.finish_run(run.run_id)
    assert log_store.find_run(run.uid).ended_at == finished.ended_at, "the end is the first end"
