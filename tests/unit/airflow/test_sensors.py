"""The two sensors as sensors of Airflow: in the triggerer, on a worker, and rescheduled; timeouts, soft failures, results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    TaskDeferred,
)
from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferralTimeout

from airflow_logio.launch import processes
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.protocol.liveness import BEAT_SECONDS
from airflow_logio.protocol.states import GroupState
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from tests.support.logs import finish
from tests.unit.airflow.support import FakeLauncher, context, register, write_transactions

REF = "pipelines.sales:sales"
EVERY = {"poke_interval": 0.01}
SOON = {**EVERY, "timeout": 0.05}


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    for operator in (LogioSparkOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}
    start = LogioStartRunOperator(
        task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"}, lease_seconds=2
    )
    return log.find_run(start.execute(context(params=params)))


@pytest.fixture
def totals(run: Run, log: LogStore, launcher: FakeLauncher) -> GroupRef:
    """It runs."""
    with pytest.raises(TaskDeferred):
        LogioSparkOperator(task_id="totals", pipeline=REF).execute(context())
    return register(log, launcher)


@pytest.fixture
def recovery(run: Run, totals: GroupRef, launcher: FakeLauncher) -> Any:
    """What the task returned that recovered the group."""
    launcher.kill()
    [finding] = failed(deferrable=False, **EVERY).execute(context())
    return LogioRecoverGroupOperator(task_id="recover", finding=finding).execute(context())


def failed(**arguments: Any) -> LogioFailedGroupSensor:
    return LogioFailedGroupSensor(task_id="failed_groups", **arguments)


def recovered(recovery: Any, **arguments: Any) -> LogioRecoveredGroupSensor:
    return LogioRecoveredGroupSensor(task_id="recovered", recovery=recovery, **arguments)


def timed_out(sensor: BaseSensorOperator) -> None:
    """As Airflow resumes a task whose deferral has timed out."""
    sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, context())


MADE: list[Callable[..., BaseSensorOperator]] = [failed, lambda **given: recovered("{{ dag_run.conf }}", **given)]


@pytest.mark.parametrize("made", MADE)
def test_they_have_what_sensors_have(made: Callable[..., BaseSensorOperator]) -> None:
    sensor = made(timeout=60, poke_interval=timedelta(seconds=5), soft_fail=True, mode="reschedule", deferrable=False)
    assert isinstance(sensor, BaseSensorOperator)
    assert (sensor.timeout, sensor.poke_interval, sensor.soft_fail, sensor.mode) == (60, 5, True, "reschedule")
    with pytest.raises(ValueError, match="above 0 seconds"):
        made(poke_interval=0)
    assert made().poke_interval == 0.01, "[logio] poll_interval"


@pytest.mark.parametrize("made", MADE)
def test_they_defer_unless_the_deployment_does_not(
    made: Callable[..., BaseSensorOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made().deferrable
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "False")
    assert not made().deferrable
    assert made(deferrable=True).deferrable


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(("soft_fail", "raised"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_deferral_that_times_out(
    soft_fail: bool, raised: type[Exception], made: Callable[..., BaseSensorOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = made(soft_fail=soft_fail)

    def late(*_: object) -> None:
        raise TaskDeferralTimeout("Trigger timeout")

    monkeypatch.setattr("airflow.sdk.bases.operator.BaseOperator.resume_execution", late)
    with pytest.raises(raised):
        timed_out(sensor)


def test_the_triggerer_is_told_the_timeout(run: Run, recovery: Any) -> None:
    for sensor in (failed(timeout=60, deferrable=True), recovered(recovery, timeout=60, deferrable=True)):
        with pytest.raises(TaskDeferred) as waiting:
            sensor.execute(context())
        assert waiting.value.timeout == timedelta(seconds=60)


def test_on_a_worker_it_finds_what_has_failed(
    run: Run, totals: GroupRef, log: LogStore, launcher: FakeLauncher
) -> None:
    with pytest.raises(AirflowSensorTimeout):
        failed(deferrable=False, **SOON).execute(context())
    with pytest.raises(AirflowSkipException):
        failed(deferrable=False, soft_fail=True, **SOON).execute(context())
    given_up = failed(deferrable=False, give_up_after=timedelta(seconds=0.05), **EVERY)
    assert given_up.execute(context()) == []
    assert [one.name for one in log.supervisors()] == ["DAG logio_sales, task failed_groups"], "it is seen to look"
    launcher.kill()
    [found] = failed(deferrable=False, **EVERY).execute(context())
    assert (found["run_uid"], found["group"], found["incarnation"]) == (run.uid, "totals", 1)


def rescheduled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    given = context()
    given["ti"] = SimpleNamespace(get_first_reschedule_date=lambda _: None)
    return given


def test_rescheduled_it_watches_a_silent_driver_for_its_whole_lease(
    run: Run, totals: GroupRef, log: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poke is a process of its own: what only a lease shows must be seen by one of them."""
    monkeypatch.setattr(processes, "is_gone", lambda _: None)  # on another machine
    log.heartbeat(totals, 1, ready=True, rss_bytes=0)
    sensor = failed(deferrable=False, mode="reschedule", poke_interval=0.3)
    with pytest.raises(AirflowRescheduleException):
        sensor.execute(rescheduled(monkeypatch))
    silence = run.spec.lease.seconds + BEAT_SECONDS
    age(log, silence)
    [found] = failed(deferrable=False, mode="reschedule", poke_interval=0.3).execute(rescheduled(monkeypatch))
    assert "gave no heartbeat for" in found["cause"]
    assert log.group(run.run_id, "totals").state is GroupState.DEAD


def age(log: Any, seconds: float) -> None:
    """The last heartbeats are older by so much."""
    with log.beats.begin() as connection:
        connection.exec_driver_sql(f"UPDATE logio_heartbeat SET at = at - {seconds}")


def test_it_does_not_give_up_between_two_processes() -> None:
    with pytest.raises(ValueError, match="not rescheduled"):
        failed(deferrable=False, mode="reschedule", give_up_after=timedelta(seconds=5))


def test_on_a_worker_it_waits_for_the_first_commit(recovery: Any, log: LogStore, launcher: FakeLauncher) -> None:
    with pytest.raises(AirflowSensorTimeout):
        recovered(recovery, deferrable=False, **SOON).execute(context())
    finish(log, register(log, launcher))
    assert 0 <= (recovered(recovery, deferrable=False, **EVERY).execute(context()) or 0.0) < 60


@pytest.mark.parametrize(("soft_fail", "raised"), [(False, AirflowFailException), (True, AirflowSkipException)])
def test_on_a_worker_a_recovery_that_fails(
    soft_fail: bool, raised: type[Exception], recovery: Any, run: Run, log: LogStore
) -> None:
    assert log.park(GroupRef(run.run_id, "totals", 2), "no memory")
    with pytest.raises(raised):
        recovered(recovery, deferrable=False, soft_fail=soft_fail, **EVERY).execute(context())
