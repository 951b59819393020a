"""Replicated groups under Airflow: one task for all replicas, scaling tasks, and supervisors that carry out requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from typer.testing import CliRunner

from airflow_logio.cli import preparation
from airflow_logio.cli.app import commands
from airflow_logio.errors import ConfigurationError
from airflow_logio.operators import scale as scale_module
from airflow_logio.operators._task.run_lookup import work_left
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.effects import Delivery, FinishGroup, LogEvent
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, KilledTask
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision import presence
from airflow_logio.supervision.findings import DueScaling, FailureFinder
from airflow_logio.supervision.task_notes import note_killed
from airflow_logio.triggers import group as group_module
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from airflow_logio.triggers.group import GroupReporter, LogioGroupTrigger
from airflow_logio.triggers.scale import LogioScaleTrigger
from pipelines.sales_scaled import sales_scaled
from tests.support.bundle import by_the_clock
from tests.unit.airflow.support import DAG_ID, RUN_ID, FakeLauncher, cancelled, context, run_started, write_transactions

REF = "pipelines.sales_scaled:sales_scaled"
ONE, TWO, THREE = "hourly.1", "hourly.2", "hourly.3"


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (LogioSparkOperator, LogioScaleOperator, LogioSuperviseOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(kind, "make_launcher", lambda self: launcher)


class Drivers:
    """The test speaks for the drivers of the replicas."""

    def __init__(self, log: LogStore, run: Run, launcher: FakeLauncher) -> None:
        self.log, self.run, self.launcher = log, run, launcher

    def ready(self, name: str) -> GroupRef:
        """The last driver that was launched for this replica registers, and is warm."""
        number, claim = [(n, one) for n, one in enumerate(self.launcher.claims) if one.group == name][-1]
        ref = self.log.register(claim, self.launcher.identity(number))
        self.log.heartbeat(ref, 1, ready=True, rss_bytes=1)
        return ref

    def kill(self, name: str) -> None:
        self.launcher.kill([n for n, one in enumerate(self.launcher.claims) if one.group == name][-1])

    def finish(self, ref: GroupRef) -> None:
        session = self.log.session(ref)
        session.open()
        session.commit([FinishGroup()])
        session.close()

    def launched(self) -> list[tuple[str, int]]:
        return [(claim.group, claim.incarnation) for claim in self.launcher.claims]

    def status(self, name: str) -> GroupStatus:
        return self.log.group(self.run.run_id, name)

    def states(self) -> list[str]:
        return [self.status(name).state.value for name in (ONE, TWO, THREE)]

    def owners(self) -> list[str | None]:
        found = {slot.owner for slot in self.log.slots(self.run.run_id, "hourly") if not slot.done}
        return sorted(found, key=str)


@pytest.fixture
def drivers(log: LogStore, run: Run, launcher: FakeLauncher) -> Drivers:
    return Drivers(log, run, launcher)


def deferred(action: Callable[[], object]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        action()
    return caught.value


def task(**arguments: Any) -> LogioSparkOperator:
    return LogioSparkOperator(**{"task_id": "hourly", "pipeline": REF, "retries": 3, **arguments})


def scaling(replicas: int | str, task_id: str = "scale", **arguments: Any) -> LogioScaleOperator:
    return LogioScaleOperator(
        **{"task_id": task_id, "pipeline": REF, "group": "hourly", "replicas": replicas, **arguments}
    )


def looks(trigger: Any, seconds: float = 0.7) -> Mapping[str, Any] | None:
    """The event of a trigger that fires within so long; None if it continues looking."""

    async def first() -> Mapping[str, Any] | None:
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        try:
            return (await asyncio.wait_for(asyncio.shield(waiting), seconds)).payload  # type: ignore[no-any-return]
        except TimeoutError:
            return None
        finally:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting
            await trigger.cleanup()

    return asyncio.run(first())


def found_by(trigger: Any) -> Mapping[str, Any]:
    """The event of a trigger that has something to tell, however slow the machine is."""
    event = looks(trigger, 30)
    assert event is not None, "nothing was found"
    return event


def three(drivers: Drivers) -> None:
    """The group's task has launched the first replica, and a scaling task the others, all at work."""
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    deferred(lambda: scaling(3, "up").execute(context()))
    drivers.ready(TWO)
    drivers.ready(THREE)
    scaling(3, "up").execute(context(attempt=2))
    assert drivers.owners() == [ONE, TWO, THREE]


# --- the example of docs/how-to/scale.md ------------------------------------------------------------------------------


def test_the_clock_scales_the_run_of_another_dag(
    log: LogStore, launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = BundleDagBag(dag_folder=by_the_clock.__file__, bundle_path=Path(by_the_clock.__file__).parent)
    assert (scaled.import_errors, set(scaled.dags)) == ({}, {"shops_open", "shops_close"})
    stored = {name: DagSerialization.from_dict(DagSerialization.to_dict(dag)) for name, dag in scaled.dags.items()}
    crons = {name: dag.timetable.summary for name, dag in stored.items()}
    assert crons == {"shops_open": "0 8 * * 1-6", "shops_close": "0 20 * * 1-6"}

    def of(dag_id: str, **arguments: Any) -> dict[str, Any]:
        return {**context(**arguments), "dag_run": SimpleNamespace(dag_id=dag_id, run_id="r")}

    pipeline_dag = of("logio_sales_scaled", params={"transactions": str(write_transactions(tmp_path / "t.parquet"))})
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    drivers = Drivers(log, log.find_run(start.execute(pipeline_dag)), launcher)
    deferred(lambda: task().execute(pipeline_dag))
    drivers.ready(ONE)
    opens, closes = (scaled.dags[name].get_task("scale") for name in ("shops_open", "shops_close"))
    deferred(lambda: opens.execute(of("shops_open")))
    drivers.ready(TWO)
    drivers.ready(THREE)
    assert opens.execute(of("shops_open", attempt=2))["replicas"] == 3
    assert drivers.owners() == [ONE, TWO, THREE]
    assert closes.execute(of("shops_close"))["replicas"] == 1
    assert drivers.owners() == [ONE]
    assert {one.by for one in log.scalings(drivers.run.run_id)} == {
        "task scale of shops_open, r",
        "task scale of shops_close, r",
    }


# --- the task of a replicated group -----------------------------------------------------------------------------------


def test_it_launches_the_replicas_in_use_and_says_how_to_launch_all(drivers: Drivers, log: LogStore, run: Run) -> None:
    watch = deferred(lambda: task(driver_memory="1g").execute(context()))
    assert drivers.launched() == [(ONE, 1)]
    assert watch.trigger.serialize()[1]["incarnations"] == {ONE: 1, TWO: 0, THREE: 0}
    recipes = [log.launch_recipe(run.run_id, name) for name in (ONE, TWO, THREE)]
    assert [recipe and recipe.arguments for recipe in recipes] == [{"driver_memory": "1g"}] * 3


def test_it_is_green_when_every_slot_is_done(drivers: Drivers) -> None:
    watch = deferred(lambda: task().execute(context()))
    trigger = watch.trigger
    ref = drivers.ready(ONE)
    assert looks(trigger) is None
    drivers.finish(ref)
    found_by(trigger)
    summary = trigger._result
    assert (summary["group"], summary["incarnations"], summary["replicas"]) == ("hourly", 1, {ONE: 1})
    event = found_by(LogioGroupTrigger(**{**trigger.serialize()[1], "ends_task": False}))
    assert (event["state"], event["group"], event["incarnation"]) == ("finished", ONE, 1)
    assert task().resume(context(), event) == summary, "where a worker is needed"


def test_scaled_to_zero_it_waits(drivers: Drivers, log: LogStore, run: Run) -> None:
    watch = deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    result = scaling(0, "to_zero").execute(context())
    assert "0 replicas of hourly: 16 slots moved, hourly.1 retired" in result["result"]
    assert drivers.states() == ["retired"] * 3
    assert looks(watch.trigger) is None
    deferred(lambda: task().execute(context(attempt=2)))
    assert drivers.launched() == [(ONE, 1)]


@pytest.mark.parametrize("state", [GroupState.PARKED, GroupState.HALTED])
def test_a_replica_that_is_parked_or_halted_makes_it_red_until_a_person_clears_it(
    state: GroupState, drivers: Drivers, log: LogStore, run: Run
) -> None:
    three(drivers)
    status = drivers.status(TWO)
    ref = GroupRef(run.run_id, TWO, status.incarnation)
    assert log.park(ref, "KeyError: 'department'") if state is GroupState.PARKED else log.halted(ref)
    event = found_by(LogioGroupTrigger(logio_conn_id="logio_default", run_uid=run.uid, group="hourly"))
    assert (event["state"], event["group"]) == (state.value, TWO)
    with pytest.raises(AirflowFailException, match=r"(?s)replica 'hourly\.2' of group 'hourly'.*clear this task"):
        task().resume(context(), event)
    with pytest.raises(AirflowFailException):
        task().execute(context(attempt=2))
    deferred(lambda: task().execute(context(attempt=3, max_tries=5)))
    assert drivers.launched()[3:] == [(TWO, 2)]
    assert drivers.owners() == [ONE, TWO, THREE]


def test_a_task_that_was_marked_halts_all_replicas_and_refuses_what_was_asked_for(
    drivers: Drivers, log: LogStore, run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(drivers)
    request = log.request_scaling(run.run_id, "hourly", 2, by="somebody")
    trigger = LogioGroupTrigger(logio_conn_id="logio_default", run_uid=run.uid, group="hourly")
    trigger.incarnations = {ONE: 1, TWO: 1, THREE: 1}

    async def marked(task_instance: Any) -> str:
        return "failed"

    monkeypatch.setattr(group_module, "aget_task_state", marked)
    monkeypatch.setattr(group_module, "HALT_GRACE_SECONDS", 0.2)
    trigger.task_instance = SimpleNamespace(task_id="hourly", dag_id=DAG_ID, run_id=RUN_ID, map_index=-1)

    async def kill() -> None:
        await cancelled(trigger)
        await asyncio.gather(*group_module._following)

    monkeypatch.setattr(group_module, "FOLLOW_SECONDS", 0.0)
    asyncio.run(kill())
    assert drivers.states() == ["halted"] * 3
    assert [child.poll() is None for child in launcher.children] == [False] * 3, "nothing is left running"
    [settled] = [one for one in log.scalings(run.run_id) if one.request_id == request.request_id]
    assert (settled.state, settled.note) == (ScalingState.REFUSED, "the group was halted")


def test_a_stop_of_the_group_stops_its_replicas(drivers: Drivers, log: LogStore, run: Run) -> None:
    three(drivers)
    deferred(lambda: LogioStopOperator(task_id="stop", pipeline=REF, group="hourly", mode="halt").execute(context()))
    assert [drivers.status(name).desired for name in (ONE, TWO, THREE)] == [GroupState.HALTED] * 3


def test_progress_is_that_of_all_replicas(drivers: Drivers, log: LogStore, run: Run) -> None:
    three(drivers)
    said: list[str] = []
    GroupReporter(run, "hourly", said.append).report(
        log.groups(run.run_id), log.figures([run.run_id])[run.run_id], at_once=True
    )
    [line] = said
    assert line.startswith("hourly, 3 replica(s): in 0 events (0 records)"), line


def test_without_a_supervisor_a_dead_replica_is_the_tasks_business(
    drivers: Drivers, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(drivers)
    monkeypatch.setattr(presence, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(presence, "LEFT_SECONDS", 0.0)
    drivers.kill(THREE)
    event = found_by(
        LogioGroupTrigger(logio_conn_id="logio_default", run_uid=run.uid, group="hourly", poll_interval=0.01)
    )
    assert (event["state"], event["group"]) == ("dead", THREE)
    deferred(lambda: task().resume(context(), event))
    assert drivers.launched()[3:] == [(THREE, 2)]


# --- a scaling task ---------------------------------------------------------------------------------------------------


def test_up_and_down(drivers: Drivers, log: LogStore, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    waiting = deferred(lambda: scaling(3, reason="it is slow").execute(context()))
    assert drivers.launched() == [(ONE, 1), (TWO, 1), (THREE, 1)]
    assert looks(waiting.trigger) is None, "drivers are on their way"
    assert "hourly.2, hourly.3 launched; waiting for hourly.2, hourly.3 to be ready" in capsys.readouterr().out
    drivers.ready(TWO)
    assert looks(waiting.trigger) is None
    drivers.ready(THREE)
    assert found_by(waiting.trigger) == {}
    result = scaling(3).resume(context(), {}, **(waiting.kwargs or {}))
    assert result["result"] == "3 replicas of hourly: 10 slots moved"
    assert drivers.owners() == [ONE, TWO, THREE]
    down = scaling("1", "down", deferrable=False).execute(context())
    assert (down["replicas"], drivers.owners(), drivers.states()) == (1, [ONE], ["running", "retired", "retired"])
    first, second = log.scalings(run.run_id)
    assert (second.reason, second.by) == ("it is slow", f"task scale of {DAG_ID}, {RUN_ID}")
    assert first.by == f"task down of {DAG_ID}, {RUN_ID}"


def test_a_retry_or_a_clear_goes_on_with_the_same_request(drivers: Drivers, log: LogStore, run: Run) -> None:
    three(drivers)
    scaling(1, "down").execute(context())
    assert scaling(3, "up").execute(context(attempt=5))["replicas"] == 3, "it was done, and is not asked for again"
    assert drivers.owners() == [ONE]
    assert len(log.scalings(run.run_id)) == 2


def test_it_waits_for_the_task_of_the_group_and_for_no_longer_than_it_is_told(
    drivers: Drivers, log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = deferred(lambda: scaling(2).execute(context()))
    assert looks(waiting.trigger) is None
    assert drivers.launched() == []
    monkeypatch.setattr(scale_module, "time", SimpleNamespace(sleep=lambda _: None, monotonic=iter(range(99)).__next__))
    with pytest.raises(AirflowFailException, match=r"not done after 3 s.*The request stands"):
        scaling(2, deferrable=False, timeout=3).execute(context())
    deferred(lambda: task().execute(context()))
    assert found_by(waiting.trigger) == {}


def test_what_is_refused_fails_with_the_note(drivers: Drivers, log: LogStore, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="cannot have 4 replicas"):
        scaling("4").execute(context())
    with pytest.raises(ConfigurationError, match="has between 0 and 3 replicas, not 4"):
        scaling(4)
    deferred(lambda: task().execute(context()))
    ref = drivers.ready(ONE)
    waiting = deferred(lambda: scaling(2).execute(context()))
    log.request_scaling(run.run_id, "hourly", 1, by="somebody")
    with pytest.raises(AirflowFailException, match="superseded by request"):
        scaling(2).resume(context(), {}, **(waiting.kwargs or {}))
    drivers.finish(ref)
    with pytest.raises(AirflowFailException, match="has finished all its work"):
        scaling(2, "late").execute(context())
    with pytest.raises(AirflowException, match="cannot watch request 7: no file"):
        scaling(2).resume(context(), {"error": "no file"}, run.uid, 7)


def test_what_another_process_has_settled_wakes_it(drivers: Drivers, log: LogStore, run: Run) -> None:
    """In a run of `logio run` its own process does: no task has said there how to launch the group."""
    waiting = deferred(lambda: scaling(2).execute(context()))
    assert looks(waiting.trigger) is None
    [request] = log.scalings(run.run_id)
    assert log.settle_scaling(request.request_id, ScalingState.ACCEPTED)
    assert log.settle_scaling(request.request_id, ScalingState.DONE, "2 replicas of hourly: 5 slots moved")
    assert found_by(waiting.trigger) == {}
    result = scaling(2).resume(context(), {}, **(waiting.kwargs or {}))
    assert result["result"] == "2 replicas of hourly: 5 slots moved"
    assert scaling(2, deferrable=False).execute(context(attempt=2))["replicas"] == 2


def test_the_end_of_one_replica_does_not_hide_the_note_of_a_killed_task(
    drivers: Drivers, log: LogStore, run: Run
) -> None:
    three(drivers)
    note_killed(log, run, "hourly", KilledTask(DAG_ID, RUN_ID, "hourly"))
    log.park(GroupRef(run.run_id, ONE, 1), "KeyError: 'department'")
    assert [one.group for one in FailureFinder(log, run_uid=run.uid).look().killed] == ["hourly"]
    for name in (TWO, THREE):
        log.park(GroupRef(run.run_id, name, 1), "KeyError: 'department'")
    assert FailureFinder(log, run_uid=run.uid).look().killed == ()


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_group_that_sleeps_in_a_run_that_was_given_up_ends(
    deferrable: bool, drivers: Drivers, log: LogStore, run: Run
) -> None:
    watching = deferred(lambda: task(deferrable=True).execute(context()))
    drivers.ready(ONE)
    scaling(0, "down", deferrable=False).execute(context())
    assert drivers.states() == ["retired"] * 3 and looks(watching.trigger) is None
    for status in log.groups(run.run_id):
        if status.state not in (GroupState.NEW, GroupState.RETIRED):
            log.declare_dead(GroupRef(run.run_id, status.group, status.incarnation), "test")
    assert log.supersede(run.run_id)
    if deferrable:
        assert found_by(watching.trigger)["state"] == "retired"
    with pytest.raises(AirflowFailException, match="was given up for a fresh run: it does not resume"):
        task(deferrable=deferrable, run_uid=run.uid).execute(context(attempt=2))


def test_a_run_with_open_slots_is_not_finished(drivers: Drivers, log: LogStore, run: Run) -> None:
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    scaling(0, "down", deferrable=False).execute(context())
    left = work_left(log, run)
    assert "16 slot(s) of hourly are not done" in left
    with pytest.raises(AirflowFailException, match=r"is not finished: .*16 slot\(s\) of hourly are not done\. Clear"):
        LogioFinishRunOperator(task_id="finish_run", pipeline=REF).execute(context())


def test_what_cannot_be_launched_is_refused(log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred(lambda: task().execute(context()))
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with pytest.raises(AirflowFailException, match=r"cannot be carried out: .*spark_default"):
        scaling(2).execute(context())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"pipeline": None}, "which run is meant"),
        ({"pipeline": None, "run_uid": "x", "external_dag_id": "y"}, "leave out external_dag_id"),
        ({"replicas": -1}, "whole number, 0 or more"),
        ({"replicas": 1.5}, "whole number, 0 or more"),
        ({"replicas": 4, "pipeline": sales_scaled}, "between 0 and 3"),
        ({"group": "totals", "pipeline": sales_scaled}, r"no replicated group 'totals', only \['hourly'\]"),
        ({"timeout": 0}, "timeout is 0"),
        ({"poll_interval": 0}, "poll_interval is 0"),
    ],
)
def test_bad_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        scaling(**{"replicas": 2, **arguments})


def test_the_trigger_survives_serialization() -> None:
    trigger = LogioScaleTrigger(logio_conn_id="x", run_uid="y", group="hourly", request_id=3, poll_interval=2.0)
    path, arguments = trigger.serialize()
    assert path == f"{LogioScaleTrigger.__module__}.{LogioScaleTrigger.__qualname__}"
    assert LogioScaleTrigger(**arguments).serialize() == (path, arguments)
    with pytest.raises(ValueError, match="poll_interval"):
        LogioScaleTrigger(**{**arguments, "poll_interval": 0})


# --- what supervises --------------------------------------------------------------------------------------------------


def supervisor() -> LogioSuperviseOperator:
    return LogioSuperviseOperator(task_id="supervise", pipeline=REF)


def trigger(run: Run) -> LogioFailedGroupTrigger:
    return LogioFailedGroupTrigger(
        logio_conn_id="logio_default", supervisor="test", run_uid=run.uid, poll_interval=0.01
    )


def test_a_supervisor_recovers_replicas_and_carries_out_what_anybody_asks_for(
    drivers: Drivers, log: LogStore, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    assert looks(trigger(run)) is None
    log.request_scaling(run.run_id, "hourly", 2, by="logio scale")
    found = found_by(trigger(run))
    assert [DueScaling.of(one).replicas for one in found["findings"]] == [2]
    deferred(lambda: supervisor().resume(context(), found))
    assert drivers.launched() == [(ONE, 1), (TWO, 1)]
    assert looks(trigger(run)) is None, "the driver is on its way, no task is woken"
    drivers.ready(TWO)
    deferred(lambda: supervisor().resume(context(), found_by(trigger(run))))
    assert drivers.owners() == [ONE, TWO]
    assert looks(trigger(run)) is None
    drivers.kill(TWO)
    found = found_by(trigger(run))
    assert [one["group"] for one in found["findings"]] == [TWO]
    with caplog.at_level(logging.WARNING):
        deferred(lambda: supervisor().resume(context(), found))
    assert drivers.launched()[2:] == [(TWO, 2)]
    assert f"group {TWO} of" in caplog.text


def test_so_does_a_daemon_without_airflow(
    drivers: Drivers, log: LogStore, run: Run, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logio tend`: the log says how replicas are launched, and nothing of the group as a whole."""
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    log.request_scaling(run.run_id, "hourly", 2, by="somebody")
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("LOGIO_CONN_WAREHOUSE_DB", f"{sqlite_url}.warehouse")
    monkeypatch.setenv("LOGIO_CONN_SPARK_DEFAULT", "local[1]")
    monkeypatch.setattr(preparation, "LocalProcessLauncher", lambda _: drivers.launcher)
    arguments = ["tend", run.uid, "--once", "--work-dir", str(tmp_path)]
    result = CliRunner().invoke(commands(), arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert drivers.launched() == [(ONE, 1), (TWO, 1)]


def test_a_recovery_dag_does_so_as_well(drivers: Drivers, log: LogStore, run: Run) -> None:
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    log.request_scaling(run.run_id, "hourly", 0, by="somebody")
    sensor = LogioFailedGroupSensor(task_id="failed_groups")
    [item] = sensor.resume(context(), found_by(deferred(lambda: sensor.execute(context())).trigger))
    result = LogioRecoverGroupOperator(task_id="recover", finding=item).execute(context())
    assert (result["outcome"], result["launched_incarnation"]) == ("done", None)
    assert LogioRecoverGroupOperator(task_id="recover", finding=item).execute(context())["outcome"] == "done"
    assert drivers.states() == ["retired"] * 3


def test_a_group_that_sleeps_is_woken_by_the_end_of_its_stream_unless_a_person_has_halted_the_run(
    drivers: Drivers, log: LogStore, run: Run
) -> None:
    deferred(lambda: task().execute(context()))
    drivers.ready(ONE)
    scaling(0, "to_zero").execute(context())
    claim = log.claim(run.run_id, "ingest", expected=0, reason="test")
    ref = log.register(claim, drivers.launcher.identity())
    session = log.session(ref)
    session.open()
    end = Event(Port("dispatch(slow)", "slot0"), 1, Kind.END, body=b"")
    assert looks(trigger(run)) is None, "nothing waits yet"
    session.commit([LogEvent(end, (Delivery(Port("slow[0]", "in")),))])
    log.request(run.run_id, "publish", GroupState.HALTED)
    assert FailureFinder(log, run_uid=run.uid).look().due == ()
    log.request(run.run_id, "publish", GroupState.RUNNING)
    found = found_by(trigger(run))
    assert [DueScaling.of(one).replicas for one in found["findings"]] == [1]
    deferred(lambda: supervisor().resume(context(), found))
    assert drivers.launched() == [(ONE, 1), (ONE, 2)]


def test_a_replica_that_was_parked_before_it_got_a_slot_is_retired_when_all_work_is_done(
    drivers: Drivers, log: LogStore, run: Run
) -> None:
    deferred(lambda: task().execute(context()))
    ref = drivers.ready(ONE)
    log.request_scaling(run.run_id, "hourly", 2, by="somebody")
    deferred(lambda: supervisor().resume(context(), found_by(trigger(run))))
    assert log.park(drivers.ready(TWO), "no memory")
    drivers.finish(ref)
    FailureFinder(log, run_uid=run.uid).look()
    assert drivers.states() == ["finished", "retired", "retired"]
    assert task().execute(context(attempt=2))["replicas"] == {ONE: 1, TWO: 1}
