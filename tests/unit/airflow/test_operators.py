"""The tasks of a pipeline on a real log in SQLite, with drivers that the test speaks for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException, TaskDeferred

from airflow_logio.driver.endings import cause_of as ending_error
from airflow_logio.errors import (
    ConfigurationError,
    IncompatibleRun,
    InputMissing,
    LogUnavailable,
    RunRemoved,
    UnknownRun,
)
from airflow_logio.launch.launcher import launch_group
from airflow_logio.operators._task import group_task, segment
from airflow_logio.operators._task.run_lookup import run_in_dag
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import KEPT_INCARNATIONS
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.sql import schema
from airflow_logio.testing.memory_log import MemoryLogStore
from pipelines.sales import sales
from tests.support.airflow_connections import connection
from tests.support.distributions import install
from tests.support.logs import finish, spec, start_driver
from tests.unit.airflow.support import DAG_ID, RUN_ID, FakeLauncher, context, register, write_transactions

REF = "pipelines.sales:sales"
WAREHOUSE = {"warehouse": "warehouse_db"}


@pytest.fixture
def params(tmp_path: Path) -> dict[str, str]:
    return {"transactions": str(write_transactions(tmp_path / "transactions.parquet")), "other": "of the DAG"}


@pytest.fixture
def run(log: LogStore, params: dict[str, str]) -> Run:
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections=WAREHOUSE)
    return log.find_run(start.execute(context(params=params)))


@pytest.fixture
def operator(run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LogioSparkOperator]:
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: launcher)

    def make(**arguments: Any) -> LogioSparkOperator:
        return LogioSparkOperator(**{"task_id": "totals", "pipeline": REF, "retries": 3, **arguments})

    return make


def deferred(action: Callable[[], object]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        action()
    return caught.value


def dead(state: str = "dead", cause: str = "killed") -> dict[str, Any]:
    return {"state": state, "group": "totals", "incarnation": 1, "cause": cause}


def status(log: LogStore, run: Run) -> GroupStatus:
    return log.group(run.run_id, "totals")


# --- which run --------------------------------------------------------------------------------------------------------


def test_the_run_of_a_dag_run_is_found_among_thousands() -> None:
    """An hourly DAG has a thousand runs after 41 days, and other DAGs may run the same pipeline."""
    store = MemoryLogStore()
    plain = spec()

    def start(dag: str, dag_run: str) -> Run:
        return store.start_run(replace(plain, key=replace(plain.key, dag_id=dag, dag_run_id=dag_run)))

    first, last = start("hourly", "hour 0"), start("hourly", "hour 1")
    for number in range(1_001):
        start("other", f"hour {number}")
    assert run_in_dag(store, "sales", "hourly", "hour 0") == first
    assert run_in_dag(store, "sales", "hourly", None) == last, "the newest of the DAG"
    assert store.supersede(first.run_id)
    again = start("hourly", "hour 0")
    assert run_in_dag(store, "sales", "hourly", "hour 0") == again, "the newest generation"
    for pipeline, dag, dag_run in (("sales", "hourly", "hour 2"), ("sales", "daily", None), ("other", "hourly", None)):
        with pytest.raises(UnknownRun, match=f"no run of pipeline {pipeline!r} for .*{dag!r}"):
            run_in_dag(store, pipeline, dag, dag_run)


# --- start ------------------------------------------------------------------------------------------------------------


def test_a_run_whose_tables_are_in_another_database_is_not_started(
    log: LogStore, params: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "mysql+pymysql://u:s3cret@127.0.0.1:1/d"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", connection("mysql", extra={"sqlalchemy_url": url}))
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections=WAREHOUSE)
    with pytest.raises(ConfigurationError, match="connection 'warehouse' is a database of kind 'mysql'") as refused:
        start.execute(context(params=params))
    assert "s3cret" not in str(refused.value)
    assert list(log.list_runs()) == []


def test_the_run_is_made_once(log: LogStore, run: Run, params: dict[str, str]) -> None:
    start = LogioStartRunOperator(task_id="start_run", pipeline=sales, connections=WAREHOUSE)
    assert start.execute(context(params=params)) == run.uid
    assert (run.spec.key.dag_id, run.spec.key.dag_run_id) == (DAG_ID, RUN_ID)
    assert (run.spec.pipeline_ref, run.spec.connections) == (REF, WAREHOUSE)
    assert run.spec.params == {"transactions": params["transactions"]}, "only what the pipeline declares"
    assert len(log.list_runs()) == 1


def test_a_run_keeps_what_it_was_made_with(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], log: LogStore
) -> None:
    other = {"transactions": str(write_transactions(tmp_path / "other.parquet"))}
    start = LogioStartRunOperator(task_id="s", pipeline=REF, connections=WAREHOUSE, pipeline_params=other)
    assert start.execute(context()) == run.uid
    assert "keeps what it was created with" in capsys.readouterr().out
    assert log.find_run(run.uid).spec.params == run.spec.params


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"transactions": None}, "needs parameter 'transactions'"),
        ({}, "needs parameter 'transactions'"),
        ({"transactions": "/nowhere.parquet"}, "nowhere.parquet"),
    ],
)
def test_what_is_wrong_is_said_before_the_log_knows(log: LogStore, params: dict[str, Any], message: str) -> None:
    start = LogioStartRunOperator(task_id="s", pipeline=REF, connections=WAREHOUSE)
    with pytest.raises(ConfigurationError, match=message):
        start.execute(context(params=params))
    assert list(log.list_runs()) == []


def test_how_long_external_systems_are_waited_for(
    log: LogStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}

    def start(seconds: float | None) -> Run:
        task = LogioStartRunOperator(task_id="s", pipeline=REF, connections=WAREHOUSE, replay_seconds=seconds)
        return log.find_run(task.execute(context(params=params)))

    assert start(30).spec.replay_seconds == 30.0
    assert start(30).spec.replay_seconds == 30.0
    assert "keeps what it was created with" not in capsys.readouterr().out
    assert start(None).spec.replay_seconds == 30.0
    assert "keeps what it was created with" in capsys.readouterr().out


def test_when_a_driver_is_dead_and_how_often_it_is_recovered(
    log: LogStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}

    def start(**settings: Any) -> Run:
        task = LogioStartRunOperator(task_id="s", pipeline=REF, connections=WAREHOUSE, **settings)
        return log.find_run(task.execute(context(params=params)))

    settings = {"lease_seconds": 5, "launch_seconds": 60.0, "recovery_budget": RecoveryBudget(3, 60, 1)}
    for _ in range(2):
        spec = start(**settings).spec
        assert (spec.lease, spec.budget) == (Lease(5.0, 60.0), RecoveryBudget(3, 60, 1))
    assert "keeps what it was created with" not in capsys.readouterr().out
    assert start().spec.lease == Lease(5.0, 60.0)
    assert "keeps what it was created with" in capsys.readouterr().out


def test_a_pipeline_that_is_not_there(log: LogStore) -> None:
    start = LogioStartRunOperator(task_id="s", pipeline="pipelines.nothing:sales")
    with pytest.raises(ConfigurationError, match=r"pipelines\.nothing.*DAG folder"):
        start.execute(context())


# --- launch and watch -------------------------------------------------------------------------------------------------


def test_it_launches_and_leaves_the_watching_to_the_trigger(
    operator: Callable[..., LogioSparkOperator], log: LogStore, run: Run, launcher: FakeLauncher, sqlite_url: str
) -> None:
    task = operator(driver_memory="1g", conf={"spark.a": "b"})
    watch = deferred(lambda: task.execute(context()))
    [(claim, launch)] = launcher.launched
    config, settings, conf = launch.config(claim), launch.settings, launch.conf
    assert (claim.run_uid, claim.group, claim.incarnation) == (run.uid, "totals", 1)
    assert (config.log_url, config.module, config.attr) == (sqlite_url, "pipelines.sales", "sales")
    assert Path(config.bundle_root).name == "dags"
    assert set(config.connections) == {"warehouse"}
    assert (settings.master, conf["spark.driver.memory"], conf["spark.a"]) == ("local[1]", "1g", "b")
    assert status(log, run).state is GroupState.SUBMITTED
    assert watch.method_name == "resume" and watch.timeout is None
    _, arguments = watch.trigger.serialize()
    assert arguments == {
        "logio_conn_id": "logio_default",
        "run_uid": run.uid,
        "group": "totals",
        "incarnations": {"totals": 1},
        "relayed": {},
        "own_place": False,
        "last_try": False,
        "ends_task": True,
        "waits_for_place": False,
        "lineage": None,
        "poll_interval": 0.01,
    }


def test_two_versions_of_spark_are_refused_before_anything_is_claimed(
    operator: Callable[..., LogioSparkOperator],
    log: LogStore,
    run: Run,
    launcher: FakeLauncher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, number in {"pyspark": "4.3.0", "pyspark-client": "4.2.0"}.items():
        install(tmp_path, name, number)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=r"pyspark 4\.3\.0 and pyspark-client 4\.2\.0 .*pip install pyspark==4\.2\.0"
    ):
        operator().execute(context())
    assert (status(log, run).incarnation, launcher.launched) == (0, [])


def test_a_group_gets_only_the_connections_it_uses(
    operator: Callable[..., LogioSparkOperator], launcher: FakeLauncher
) -> None:
    deferred(lambda: operator(task_id="sales.ingest").execute(context()))
    assert launcher.launched[0][1].connections == {}


def test_a_retry_takes_up_a_group_that_lives(
    operator: Callable[..., LogioSparkOperator], log: LogStore, launcher: FakeLauncher
) -> None:
    deferred(lambda: operator().execute(context()))
    register(log, launcher)
    deferred(lambda: operator().execute(context(attempt=2)))
    assert len(launcher.claims) == 1


def test_a_dead_driver_is_replaced_by_the_task_if_nobody_else_does(
    operator: Callable[..., LogioSparkOperator],
    log: LogStore,
    run: Run,
    launcher: FakeLauncher,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher.folder = tmp_path
    deferred(lambda: operator().execute(context()))
    register(log, launcher)
    launcher.kill()
    with caplog.at_level(logging.WARNING):
        watch = deferred(lambda: operator().resume(context(), dead()))
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]
    assert watch.trigger.incarnations == {"totals": 2}
    assert status(log, run).state is GroupState.RESTARTED
    assert "last words" in caplog.text, "the end of the dead driver's log is in the task's log"


def test_a_finished_group_is_green(
    operator: Callable[..., LogioSparkOperator], log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    deferred(lambda: operator().execute(context()))
    finish(log, register(log, launcher))
    summary = operator().resume(context(), dead("finished", ""))
    assert summary == {"run": run.uid, "group": "totals", "incarnations": 1, "recoveries": 0, "records": {}}
    assert operator().execute(context(attempt=2)) == summary, "a clear of a finished group does nothing again"
    assert len(launcher.claims) == 1


def test_without_deferral_the_worker_watches(
    operator: Callable[..., LogioSparkOperator],
    log: LogStore,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def let_the_driver_work(seconds: float) -> None:
        claim = launcher.claims[-1]
        state = log.group(claim.run_id, "totals").state
        if state is GroupState.SUBMITTED:
            register(log, launcher)
            launcher.kill()
        elif state is GroupState.DEAD:  # its supervisor recovers it
            again = log.claim(claim.run_id, "totals", expected=1, reason="a supervisor")
            launcher.launch(again)
            finish(log, register(log, launcher))

    monkeypatch.setattr(segment, "time", SimpleNamespace(sleep=let_the_driver_work))
    summary = operator(deferrable=False).execute(context())
    assert (summary["incarnations"], summary["recoveries"]) == (2, 1)


def test_a_trigger_that_cannot_watch_fails_the_attempt(operator: Callable[..., LogioSparkOperator]) -> None:
    with pytest.raises(AirflowException, match="cannot watch group 'totals': no file") as caught:
        operator().resume(context(), dead("error", "no file"))
    assert not isinstance(caught.value, AirflowFailException), "another attempt may help"


# --- parked, halted, asked for by a person ------------------------------------------------------------------------------


def park(
    log: LogStore,
    operator: Callable[..., LogioSparkOperator],
    launcher: FakeLauncher,
    error: str = "KeyError: 'department'",
) -> None:
    deferred(lambda: operator().execute(context()))
    ref = register(log, launcher)
    launcher.kill()
    assert log.park(ref, error)


def test_a_parked_group_is_red_and_says_why(
    operator: Callable[..., LogioSparkOperator], log: LogStore, launcher: FakeLauncher, tmp_path: Path
) -> None:
    launcher.folder = tmp_path
    launcher.log_text = "\n".join(f"line {number}" for number in range(100))
    park(log, operator, launcher)
    with pytest.raises(AirflowFailException) as caught:
        operator().resume(context(), dead("parked"))
    words = str(caught.value)
    assert "'totals'" in words and RUN_ID in words and "KeyError: 'department'" in words and "clear this task" in words
    assert "line 99" in words and "line 60" in words and "line 59" not in words


def test_airflows_own_retry_leaves_it_parked(
    operator: Callable[..., LogioSparkOperator], log: LogStore, launcher: FakeLauncher
) -> None:
    park(log, operator, launcher)
    with pytest.raises(AirflowFailException):
        operator().execute(context(attempt=2, max_tries=3))
    assert len(launcher.claims) == 1


def test_airflows_own_retry_looks_again_for_input_that_was_not_there(
    operator: Callable[..., LogioSparkOperator], log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    """Each attempt once: it fails as one that Airflow tries again, and the next one launches the group."""
    late = ending_error(
        InputMissing("pipeline 'sales', source 'read': [PATH_NOT_FOUND] Path does not exist: /data/today")
    )
    park(log, operator, launcher, late)
    with pytest.raises(AirflowException, match=r"(?s)waits for its input .*/data/today.*next attempt") as caught:
        operator().resume(context(), dead("parked"))
    assert not isinstance(caught.value, AirflowFailException), "which Airflow does not try again"
    assert len(launcher.claims) == 1, "the trigger's return begins no attempt"

    deferred(lambda: operator().execute(context(attempt=2, max_tries=3)))
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]
    assert status(log, run).recoveries == 0
    ref = register(log, launcher)
    launcher.kill()
    assert log.park(ref, late)
    with pytest.raises(AirflowException, match="waits for its input"):
        operator().resume(context(attempt=2, max_tries=3), dead("parked"))
    assert len(launcher.claims) == 2

    deferred(lambda: operator().execute(context(attempt=3, max_tries=3)))
    assert len(launcher.claims) == 3


def test_a_clear_restarts_it_and_spends_no_budget(
    operator: Callable[..., LogioSparkOperator], log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    """A clear at attempt 1 makes max_tries = 1 + retries: attempt 2 is the first that a person asked for."""
    park(log, operator, launcher)
    deferred(lambda: operator().execute(context(attempt=2, max_tries=4)))
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]
    assert status(log, run).state is GroupState.RESTARTED


def test_a_log_that_is_unavailable_meanwhile_does_not_use_up_the_wish(
    operator: Callable[..., LogioSparkOperator],
    log: LogStore,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    park(log, operator, launcher)
    tried: list[Any] = []

    def at_the_second_attempt(*arguments: Any, **named: Any) -> Any:
        tried.append(arguments)
        if len(tried) == 1:
            raise LogUnavailable("failover")
        return launch_group(*arguments, **named)

    monkeypatch.setattr(group_task, "launch_group", at_the_second_attempt)
    deferred(lambda: operator().execute(context(attempt=2, max_tries=4)))
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]


def test_a_spent_budget_parks(
    operator: Callable[..., LogioSparkOperator], log: LogStore, run: Run, launcher: FakeLauncher, tmp_path: Path
) -> None:
    """What each driver printed last is in the log, also of the one that has no successor."""
    budget, launcher.folder = RecoveryBudget().recoveries, tmp_path
    deferred(lambda: operator().execute(context()))
    for _ in range(budget):
        launcher.kill()
        deferred(lambda: operator().resume(context(), dead()))
    launcher.kill()
    with pytest.raises(AirflowFailException, match=f"recovered {budget} times"):
        operator().resume(context(), dead())
    assert len(launcher.claims) == budget + 1
    for incarnation in range(budget + 1 - KEPT_INCARNATIONS, budget + 2):
        [part] = log.output.parts(run.run_id, "totals", incarnation)
        assert part.text == launcher.log_text


def test_a_halted_group_is_red_until_the_task_is_cleared(
    operator: Callable[..., LogioSparkOperator], log: LogStore, launcher: FakeLauncher
) -> None:
    deferred(lambda: operator().execute(context()))
    assert log.halted(register(log, launcher))
    launcher.kill()
    with pytest.raises(AirflowFailException, match=r"halted on request.*clear this task"):
        operator().resume(context(), dead("halted"))
    deferred(lambda: operator().execute(context(attempt=2, max_tries=4)))
    assert len(launcher.claims) == 2


def test_a_clear_waits_for_a_halt_that_is_under_way(
    operator: Callable[..., LogioSparkOperator],
    log: LogStore,
    run: Run,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deferred(lambda: operator().execute(context()))
    ref = register(log, launcher)
    log.request(run.run_id, "totals", GroupState.HALTED)

    def obey(seconds: float) -> None:
        log.halted(ref)
        launcher.kill()

    monkeypatch.setattr(segment, "time", SimpleNamespace(sleep=obey))
    deferred(lambda: operator().execute(context(attempt=2, max_tries=4)))
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]
    assert status(log, run).desired is GroupState.RUNNING


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conn_id": "spark_typo"}, "no Spark connection 'spark_typo'"),
        ({"executor": "KubernetesExecutor"}, "ends the machine of a task"),
        ({"group": "{{ 'total' }}"}, r"no group \"{{ 'total' }}\""),
        ({"connections": {"werehouse": "x"}}, "no connection werehouse"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_claimed(
    arguments: dict[str, Any], message: str, operator: Callable[..., LogioSparkOperator], log: LogStore, run: Run
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        operator(**arguments).execute(context())
    assert {group.state for group in log.groups(run.run_id)} == {GroupState.NEW}


def test_a_run_that_was_never_started(operator: Callable[..., LogioSparkOperator], launcher: FakeLauncher) -> None:
    other = context()
    other["dag_run"].run_id = "another"
    with pytest.raises(UnknownRun, match="LogioStartRunOperator"):
        operator().execute(other)


def test_another_version_of_the_pipeline(
    operator: Callable[..., LogioSparkOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sales), "fingerprint", lambda self: {"graph": "other", "code": "other"})
    monkeypatch.setattr(type(sales), "describe", lambda self: {"operators": {}})
    with pytest.raises(IncompatibleRun, match="another version"):
        operator().execute(context())


def test_no_secret_in_what_airflow_keeps_or_shows(
    operator: Callable[..., LogioSparkOperator],
    log: LogStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = connection("postgres", host="db", schema="w", login="anna", password="p@ss:w/ord%")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", fields)
    secrets = {"conf": {"spark.hadoop.fs.s3a.secret.key": "k3y-of-s3"}, "env_vars": {"API_TOKEN": "t0ken"}}
    task = operator(group="hourly", **secrets)
    with caplog.at_level(logging.INFO, logger="airflow_logio.operators"):
        watch = deferred(lambda: task.execute(context()))
    kept = str(watch.trigger.serialize()) + str([getattr(task, name) for name in ("connections", "run_uid")])
    assert "p@ss" not in kept + caplog.text and "p%40ss" not in kept + caplog.text
    assert "k3y-of-s3" not in caplog.text and "t0ken" not in caplog.text
    assert "local[1]" in caplog.text, "the effective Spark settings are logged"
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="airflow_logio.operators"):
        deferred(lambda: operator(group="totals", **secrets).execute(context()))
    assert "Spark" not in caplog.text, "a group without Spark has no such settings"


# --- finish -------------------------------------------------------------------------------------------------------------


def test_the_run_finishes_when_all_groups_have(
    log: LogStore, run: Run, operator: Callable[..., LogioSparkOperator], launcher: FakeLauncher
) -> None:
    end = LogioFinishRunOperator(task_id="finish_run", pipeline=sales, run_uid=run.uid)
    for group in run.spec.groups:
        with pytest.raises(AirflowFailException, match=f"{group} is new"):
            end.execute(context())
        deferred(lambda group=group: operator(group=group).execute(context()))  # type: ignore[misc]
        finish(log, register(log, launcher))
    LogioFinishRunOperator(task_id="finish_run", pipeline=REF).execute(context())
    assert log.find_run(run.uid).state is RunState.FINISHED


def test_the_task_that_finishes_a_run_removes_old_ones(
    log: LogStore, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """As the youngest run of the pipeline says; who then asks for the run of that DAG run is told what became of it."""
    key = replace(run.spec.key, dag_run_id="long ago")
    old = log.start_run(replace(run.spec, key=key, keep_seconds=0.0))
    for one in (old, run):
        for group in one.spec.groups:
            driver = start_driver(log, group=group, run=one)
            driver.session.commit([fx.FinishGroup()])
            driver.session.close()
    assert log.finish_run(old.run_id)
    log.start_run(replace(run.spec, key=replace(key, dag_run_id="youngest"), keep_seconds=3600.0))
    with log.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(sa.update(schema.run).where(schema.run.c.run_id == old.run_id).values(ended_at=1.0))
    with caplog.at_level(logging.INFO, logger="airflow_logio"):
        LogioFinishRunOperator(task_id="finish_run", pipeline=REF).execute(context())
    assert "1 run(s) removed from the log by keep_runs='1h'" in caplog.text
    assert log.find_run(run.uid).state is RunState.FINISHED
    with pytest.raises(RunRemoved, match=r"run long ago of .*by keep_runs='1h'. Clear the task that starts it"):
        run_in_dag(log, run.spec.key.pipeline, run.spec.key.dag_id, "long ago")


def test_a_task_of_its_own_dag_finds_its_run_by_itself(
    log: LogStore, run: Run, operator: Callable[..., LogioSparkOperator], launcher: FakeLauncher
) -> None:
    with DAG("logio_sales", schedule=None):
        task = operator(run_uid=None)
    deferred(lambda: task.execute(context()))
    assert launcher.claims[0].run_uid == run.uid


def test_an_argument_that_no_task_has_is_told_with_the_one_that_was_meant() -> None:
    for task, given, meant in (
        (LogioSparkOperator, {"pipeline": "p:p", "group": "g", "connectoins": {}}, "connections"),
        (LogioStopOperator, {"gruop": "g"}, "group"),
        (LogioFailedGroupSensor, {"pipelin": "p:p"}, "pipeline"),
    ):
        with pytest.raises(
            TypeError, match=rf"{task.__name__} \(task_id: x\) has no argument .*Did you mean '{meant}'\?"
        ):
            task(task_id="x", **given)
    with pytest.raises(TypeError, match=r"LogioPipelineGroup has no argument 'parms'\. Did you mean 'params'\?"):
        LogioPipelineGroup(sales, connections={"warehouse": "wh"}, parms={})
    assert LogioStopOperator(task_id="x", run_uid="1", retries=2).retries == 2
