"""A DAG run begins anew only if a person gives its run up; and runs of one pipeline begin one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, TaskDeferred

from airflow_logio.errors import ConfigurationError, OtherRunUnfinished, PipelineDefinitionError, UnknownRun
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import ConcurrentRuns, Run
from tests.support.logs import SOMEBODY, finish
from tests.unit.airflow.support import DAG_ID, RUN_ID, FakeLauncher, context, write_transactions

REF = "pipelines.sales:sales"
PARAMS = {"transactions": ""}


@pytest.fixture
def start(log: LogStore, tmp_path: Path) -> Callable[..., Run]:
    """Task `start_run` of a DAG run."""
    params = {"transactions": str(write_transactions(tmp_path / "t.parquet"))}

    def begin(dag_run: str = RUN_ID, **arguments: Any) -> Run:
        given = context(params=params)
        given["dag_run"].run_id = dag_run
        task = LogioStartRunOperator(
            task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"}, **arguments
        )
        return log.find_run(task.execute(given))

    return begin


@pytest.fixture
def run(start: Callable[..., Run]) -> Run:
    return start()


def fresh(uid: str, **arguments: Any) -> dict[str, Any]:
    task = LogioFreshRunOperator(task_id="give_up", run_uid=uid, poll_interval=0.01, **arguments)
    return task.execute(context())


def test_a_clear_of_the_first_task_begins_nothing_anew_and_the_signal_does(
    log: LogStore, run: Run, start: Callable[..., Run]
) -> None:
    assert start().uid == run.uid
    assert fresh(run.uid[:8], deferrable=False) == {"run": run.uid, "given_up": True}
    assert log.find_run(run.uid).state is RunState.SUPERSEDED
    anew = start()
    assert (anew.uid != run.uid, anew.spec.key.generation) == (True, 2)
    assert fresh(run.uid) == {"run": run.uid, "given_up": False}, "a retry, or a clear, of the signal"
    assert start().uid == anew.uid


def test_a_clear_of_what_has_finished_says_how_to_compute_it_again(
    log: LogStore, run: Run, start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it is green again, and nothing was computed: that must not look like a result."""
    for name in run.spec.groups:
        finish(log, log.register(log.claim(run.run_id, name, expected=0, reason="test"), SOMEBODY))
        group = LogioSparkOperator(task_id=name, pipeline=REF)
        first = capsys.readouterr().out
        assert group.execute(context(attempt=2, max_tries=4))["incarnations"] == 1
        said = capsys.readouterr().out
        assert f"group '{name}' of run {run.spec.key} has finished, and nothing of it is computed again" in said
        assert f"`logio fresh {run.uid[:8]}`, or DAG `logio_fresh`" in said
        assert group.execute(context(attempt=2, max_tries=3))["incarnations"] == 1
        assert "computed again" not in first + capsys.readouterr().out, "not a person, but a retry of Airflow's own"
    assert log.finish_run(run.run_id)
    assert start().uid == run.uid
    said = capsys.readouterr().out
    assert f"run {run.spec.key}, uid {run.uid[:8]}, has finished, and nothing of it is computed again" in said
    assert f"Clear DAG run {RUN_ID} of {DAG_ID} from the task that starts the run onwards" in said
    assert fresh(run.uid)["given_up"] and start().uid != run.uid, "what it says does help"
    assert "computed again" not in capsys.readouterr().out


def test_drivers_are_halted_first(log: LogStore, run: Run) -> None:
    ref = log.register(log.claim(run.run_id, "ingest", expected=0, reason="test"), SOMEBODY)
    task = LogioFreshRunOperator(task_id="give_up", run_uid=run.uid, poll_interval=0.01)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert log.group(run.run_id, "ingest").desired is GroupState.HALTED
    assert log.find_run(run.uid).state is RunState.RUNNING, "not while its driver runs"
    assert log.halted(ref)
    states = {status.group: status.state.value for status in log.groups(run.run_id)}
    result = task.resume(context(), {"states": states}, **(deferred.value.kwargs or {}))
    assert result == {"run": run.uid, "given_up": True}


@pytest.mark.parametrize(
    ("name", "error"), [(RUN_ID, ConfigurationError), ("", ConfigurationError), ("0123456789", UnknownRun)]
)
def test_only_a_uid_names_the_run(log: LogStore, run: Run, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        fresh(name)
    assert log.find_run(run.uid).state is RunState.RUNNING


def test_the_tasks_of_a_run_that_was_given_up_say_so_and_launch_nothing(
    log: LogStore, run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.supersede(run.run_id)
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: launcher)
    group = LogioSparkOperator(task_id="totals", pipeline=REF, run_uid=run.uid, retries=3)
    cleared = context(attempt=2, max_tries=4)
    for task in (group, LogioFinishRunOperator(task_id="finish_run", pipeline=REF, run_uid=run.uid)):
        with pytest.raises(
            AirflowFailException, match=f"Clear DAG run {RUN_ID} of .* from the task that starts the run onwards"
        ):
            task.execute(cleared)
    assert (
        LogioSuperviseOperator(task_id="supervise", pipeline=REF, run_uid=run.uid).execute(cleared)["recoveries"] == {}
    )
    assert launcher.launched == []


def test_a_second_run_waits_for_the_first_one(log: LogStore, run: Run, start: Callable[..., Run]) -> None:
    for _ in range(2):  # a retry
        with pytest.raises(OtherRunUnfinished, match=f"run {RUN_ID} of sales, uid {run.uid[:8]}, has not finished"):
            start("scheduled__tomorrow")
    assert [found.uid for found in log.list_runs()] == [run.uid]
    for group in run.spec.groups:  # parked over night: what it has not written, it could never write
        claim = log.claim(run.run_id, group, expected=0, reason="test")
        assert log.park(GroupRef(claim.run_id, claim.group, claim.incarnation), "test")
    with pytest.raises(
        OtherRunUnfinished, match=r"ingest is parked.*writer '\w+' \(TableWriter of table .*on_new_run="
    ):
        start("scheduled__tomorrow")
    with pytest.raises(OtherRunUnfinished, match=r'concurrent_runs="isolated"'):
        start("scheduled__tomorrow", concurrent_runs="refuse")
    assert start("scheduled__tomorrow", concurrent_runs="isolated").state is RunState.RUNNING


def test_a_run_that_was_given_up_is_in_nobodys_way(log: LogStore, run: Run, start: Callable[..., Run]) -> None:
    assert log.supersede(run.run_id)
    assert start("scheduled__tomorrow").state is RunState.RUNNING


def test_what_the_author_declares_reaches_the_task_and_is_checked() -> None:
    def task_of(**arguments: Any) -> LogioStartRunOperator:
        with DAG("some_dag", schedule=None, params=PARAMS) as dag:
            LogioPipelineGroup(REF, connections={"warehouse": "warehouse_db"}, **arguments)
        found = dag.get_task("sales.start_run")
        assert isinstance(found, LogioStartRunOperator)
        return found

    assert task_of().concurrent_runs is ConcurrentRuns.DERIVED
    assert task_of(concurrent_runs="isolated").concurrent_runs is ConcurrentRuns.ISOLATED
    with pytest.raises(PipelineDefinitionError, match="concurrent_runs is 'yes'"):
        task_of(concurrent_runs="yes")
