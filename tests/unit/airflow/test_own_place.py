"""Groups whose task has a queue, a pool or an executor of its own: nothing else launches their drivers (ADR-104)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException
from airflow.serialization.serialized_objects import BaseSerialization

from airflow_logio.cli import retry
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError, ProtocolViolation
from airflow_logio.launch.launcher import launch_group
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, KilledTask
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.findings import FailureFinder
from airflow_logio.supervision.task_notes import Meaning, note_killed, resolve_kill
from airflow_logio.triggers.group import LogioGroupTrigger
from tests.support.logs import finish
from tests.support.waiting import eventually
from tests.unit.airflow.support import DAG_ID, RUN_ID, FakeLauncher, context, deferred, fired, run_started

REF = "pipelines.sales_scaled:sales_scaled"
PARAMS = {"transactions": ""}
ONE, TWO, THREE = REPLICAS = ("hourly.1", "hourly.2", "hourly.3")


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.fixture
def elsewhere() -> Iterator[FakeLauncher]:
    """Where the supervisor of the run, and tasks that recover or scale, work."""
    place = FakeLauncher()
    yield place
    place.end_all()


@pytest.fixture(autouse=True)
def two_places(launcher: FakeLauncher, elsewhere: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: launcher)
    for kind in (LogioScaleOperator, LogioSuperviseOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(kind, "make_launcher", lambda self: elsewhere)


def task(group: str = "totals", **arguments: Any) -> LogioSparkOperator:
    return LogioSparkOperator(
        **{
            "task_id": group,
            "group": group,
            "pipeline": REF,
            "poll_interval": 0.01,
            "queue": "large",
            "retries": 3,
            **arguments,
        }
    )


def status(log: LogStore, run: Run, group: str = "totals") -> GroupStatus:
    return log.group(run.run_id, group)


def ready(log: LogStore, launcher: FakeLauncher, group: str) -> GroupRef:
    """The last driver that was launched for it registers, and is warm."""
    number, claim = [(n, one) for n, one in enumerate(launcher.claims) if one.group == group][-1]
    ref = log.register(claim, launcher.identity(number))
    log.heartbeat(ref, 1, ready=True, rss_bytes=1)
    return ref


def kill(launcher: FakeLauncher, group: str) -> None:
    launcher.kill([n for n, one in enumerate(launcher.claims) if one.group == group][-1])


# --- which tasks have one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"queue": "default"}, False),
        ({"queue": "large"}, True),
        ({"queue": "default", "pool": "spark"}, True),
        ({"queue": "default", "executor": "CeleryExecutor"}, True),
        ({"queue": "default", "executor_config": {"overrides": {"cpu": 4}}}, True),
        ({"queue": "large", "own_place": False}, False),
        ({"queue": "default", "own_place": True}, True),
    ],
)
def test_a_task_has_one_if_its_author_names_where_it_runs(named: Mapping[str, Any], expected: bool) -> None:
    assert task(**named).own_place is expected


@pytest.mark.parametrize("name", ["pool", "queue", "executor", "executor_config"])
def test_what_default_args_say_is_no_place_of_its_own(name: str) -> None:
    """It holds for the task of the supervisor, too; but what the task itself says does count."""
    usual = {name: {"overrides": {"cpu": 4}} if name == "executor_config" else "large"}
    with DAG("d", schedule=None, params=PARAMS, default_args=usual) as dag:
        LogioPipelineGroup(REF, connections={"warehouse": "warehouse_db"}, groups={"totals": {"pool": "own"}})
        LogioSparkOperator.partial(task_id="mapped", pipeline=REF).expand(group=["ingest"])
        LogioSparkOperator.partial(task_id="named", pipeline=REF, pool="own").expand(group=["ingest"])
    found: dict[str, Any] = dag.task_dict
    for task_id in ("sales_scaled.ingest", "sales_scaled.supervise"):
        assert getattr(found[task_id], name) == usual[name]
    assert (found["sales_scaled.ingest"].own_place, found["sales_scaled.totals"].own_place) == (False, True)
    mapped, named = (found[one].unmap({"group": "ingest"}) for one in ("mapped", "named"))
    assert (mapped.own_place, named.own_place) == (False, True)


def test_the_log_knows_of_it_and_a_trigger_of_an_earlier_version_does_not(
    log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    assert not status(log, run).own_place
    waiting = deferred(lambda: task().execute(context()))
    assert status(log, run).own_place
    path, arguments = waiting.trigger.serialize()
    stored = BaseSerialization.deserialize(BaseSerialization.serialize(arguments))
    assert LogioGroupTrigger(**stored).serialize() == (path, arguments) and arguments["own_place"] is True
    del arguments["own_place"]
    assert not LogioGroupTrigger(**arguments).own_place


# --- recoveries -------------------------------------------------------------------------------------------------------


def test_a_death_wakes_its_task_which_recovers_it_and_nothing_else_does(
    log: LogStore, run: Run, launcher: FakeLauncher, elsewhere: FakeLauncher
) -> None:
    told: list[Any] = []
    supervise = LogioSuperviseOperator(
        task_id="supervise", pipeline=REF, poll_interval=0.01, on_recovery_callback=told.append
    )
    waiting = deferred(lambda: task().execute(context()))
    deferred(lambda: supervise.execute(context()))
    ready(log, launcher, "totals")
    log.note_supervisor("task supervise", run_uid=run.uid)  # else its task would recover it after a while in any case
    event = fired(waiting.trigger, lambda: kill(launcher, "totals"))
    assert (event["state"], event["group"], event["incarnation"]) == ("dead", "totals", 1)

    found = FailureFinder(log, run_uid=run.uid).look()
    assert found.failed == () and found.going_on > 0, "a supervisor has nothing to do, and looks on"
    deferred(lambda: supervise.execute(context(attempt=2)))
    assert elsewhere.claims == []

    deferred(lambda: task().resume(context(), event))
    assert [(one.group, one.incarnation) for one in launcher.claims] == [("totals", 1), ("totals", 2)]
    assert [one.is_recovery for one in log.drivers(run.run_id)] == [False, True], "it has cost its budget one recovery"
    deferred(lambda: supervise.execute(context(attempt=3)))
    assert [one["notice"]["incarnation"] for one in told] == [2], "callbacks hear of it all the same"


def test_what_was_found_before_its_task_said_so_is_left_to_it(
    log: LogStore, run: Run, launcher: FakeLauncher, elsewhere: FakeLauncher
) -> None:
    deferred(lambda: task(own_place=False).execute(context()))
    ready(log, launcher, "totals")
    kill(launcher, "totals")
    [failed] = FailureFinder(log, run_uid=run.uid).look().failed or ()
    deferred(lambda: task().execute(context(attempt=2)))
    kill(launcher, "totals")
    finder = FailureFinder(log, run_uid=run.uid)
    eventually(
        lambda: finder.look().failed == () and status(log, run).state is GroupState.DEAD, what="it is dead again"
    )
    stale = {**failed.as_dict(), "incarnation": 2}
    recovery = LogioRecoverGroupOperator(task_id="recover", finding=stale).execute(context())
    assert (recovery["outcome"], recovery["why"]) == ("not needed", "only its own task launches it")
    assert elsewhere.claims == [] and status(log, run).state is GroupState.DEAD


def test_its_budget_parks_it_and_its_task_is_red(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    waiting = deferred(lambda: task().execute(context()))
    for _ in range(RecoveryBudget().recoveries):
        ready(log, launcher, "totals")
        event = fired(waiting.trigger, lambda: kill(launcher, "totals"))
        waiting = deferred(lambda event=event: task().resume(context(), event))  # type: ignore[misc]
    ready(log, launcher, "totals")
    event = fired(waiting.trigger, lambda: kill(launcher, "totals"))
    with pytest.raises(AirflowFailException, match="is parked"):
        task().resume(context(), event)
    assert status(log, run).state is GroupState.PARKED


def test_on_a_worker_it_recovers_without_being_woken(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    """Killed again and again while the task holds its slot; it is then ended by its budget."""
    ended: list[BaseException] = []

    def work() -> None:
        try:
            task(deferrable=False, own_place=True).execute(context())
        except AirflowFailException as error:
            ended.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    for number in range(1, RecoveryBudget().recoveries + 2):
        eventually(lambda number=number: len(launcher.claims) == number, what=f"driver {number}")  # type: ignore[misc]
        ready(log, launcher, "totals")
        kill(launcher, "totals")
    worker.join(90)
    assert len(ended) == 1 and "is parked" in str(ended[0])


def test_a_person_may_launch_it_anywhere_and_a_supervisor_is_told_why_it_may_not(
    log: LogStore, run: Run, launcher: FakeLauncher, elsewhere: FakeLauncher
) -> None:
    deferred(lambda: task().execute(context()))
    ready(log, launcher, "totals")
    kill(launcher, "totals")
    FailureFinder(log, run_uid=run.uid).look()
    recipe = log.launch_recipe(run.run_id, "totals")
    assert recipe is not None
    there = Launching(log, "logio_default", elsewhere).context(run, "totals", recipe)
    with pytest.raises(ProtocolViolation, match=r"launched by its own task only.*has ended, clear it"):
        launch_group(there, "totals", expected=1, reason="test")
    assert launch_group(there, "totals", expected=1, reason="logio retry", by_user=True).incarnation == 2
    assert len(elsewhere.claims) == 1


# --- replicas ---------------------------------------------------------------------------------------------------------


def test_new_replicas_are_launched_by_the_task_of_their_group(
    log: LogStore, run: Run, launcher: FakeLauncher, elsewhere: FakeLauncher
) -> None:
    watching = deferred(lambda: task("hourly").execute(context()))
    ready(log, launcher, ONE)
    scale = LogioScaleOperator(task_id="up", pipeline=REF, group="hourly", replicas=3)
    scaling: list[Any] = []
    event = fired(watching.trigger, lambda: scaling.append(deferred(lambda: scale.execute(context()))))
    assert (event["state"], event["cause"]) == ("running", "a replica is asked for")
    assert elsewhere.claims == [] and FailureFinder(log, run_uid=run.uid).look().due == ()

    watching = deferred(lambda: task("hourly").resume(context(), event))
    assert [one.group for one in launcher.claims] == [ONE, TWO, THREE]
    assert [one.is_recovery for one in log.drivers(run.run_id)] == [False] * 3
    for name in (TWO, THREE):
        ready(log, launcher, name)
    woken = fired(scaling[0].trigger)
    result = scale.resume(context(), woken, **scaling[0].kwargs) if scaling[0].kwargs else None
    assert result is not None and "3 replicas of hourly: " in result["result"]
    assert {slot.owner for slot in log.slots(run.run_id, "hourly")} == set(REPLICAS)
    assert elsewhere.claims == []

    event = fired(watching.trigger, lambda: kill(launcher, TWO))
    assert (event["state"], event["group"]) == ("dead", TWO)
    deferred(lambda: task("hourly").resume(context(), event))
    assert [(one.group, one.incarnation) for one in launcher.claims][3:] == [(TWO, 2)]


def test_a_replica_that_cannot_be_launched_there_ends_the_request(
    log: LogStore, run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = deferred(lambda: task("hourly").execute(context()))
    ready(log, launcher, ONE)
    event = fired(watching.trigger, lambda: log.request_scaling(run.run_id, "hourly", 2, by="a test"))

    def broken(*arguments: Any) -> None:
        raise ConfigurationError("spark-submit could not be started: no such file")

    monkeypatch.setattr(launcher, "launch", broken)
    deferred(lambda: task("hourly").resume(context(), event))
    [request] = log.scalings(run.run_id)
    assert request.state is ScalingState.REFUSED and "no such file" in request.note


# --- a task for each replica ------------------------------------------------------------------------------------------


@pytest.fixture
def places(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int | None, FakeLauncher]]:
    """Replica → the worker on which its task runs."""
    found: dict[int | None, FakeLauncher] = {1: launcher, 2: FakeLauncher(), 3: FakeLauncher()}
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: found[self.replica])
    yield found
    for place in found.values():
        place.end_all()


def replica(number: int, **arguments: Any) -> LogioSparkOperator:
    return task("hourly", **{"task_id": f"hourly_{number}", "replica": number, "queue": "default", **arguments})


def test_each_replica_is_launched_in_the_place_of_its_task(
    log: LogStore, run: Run, places: dict[int | None, FakeLauncher], elsewhere: FakeLauncher
) -> None:
    watching = {number: deferred(lambda number=number: replica(number).execute(context())) for number in (1, 2)}  # type: ignore[misc]
    assert [[one.group for one in places[number].claims] for number in (1, 2, 3)] == [[ONE], [], []]
    ready(log, places[1], ONE)
    scale = LogioScaleOperator(task_id="up", pipeline=REF, group="hourly", replicas=3)
    scaling: list[Any] = []
    event = fired(watching[2].trigger, lambda: scaling.append(deferred(lambda: scale.execute(context()))))
    assert (event["group"], event["cause"]) == (TWO, "a replica is asked for")
    watching[2] = deferred(lambda: replica(2).resume(context(), event))
    assert [one.group for one in places[2].claims] == [TWO], "and not the third, whose task waits for a slot"
    ready(log, places[2], TWO)
    assert {slot.owner for slot in log.slots(run.run_id, "hourly")} == {ONE}, "the request waits for it"

    watching[3] = deferred(lambda: replica(3).execute(context()))
    assert [one.group for one in places[3].claims] == [THREE]
    ready(log, places[3], THREE)
    woken = fired(scaling[0].trigger)
    result = scale.resume(context(), woken, **scaling[0].kwargs)
    assert "3 replicas of hourly: " in result["result"] and elsewhere.claims == []
    assert {slot.owner for slot in log.slots(run.run_id, "hourly")} == set(REPLICAS)

    event = fired(watching[3].trigger, lambda: kill(places[3], THREE))
    assert (event["state"], event["group"]) == ("dead", THREE)
    deferred(lambda: replica(3).resume(context(), event))
    assert [(one.group, one.incarnation) for one in places[3].claims] == [(THREE, 1), (THREE, 2)]
    assert len(places[1].claims) == len(places[2].claims) == 1


def test_it_waits_while_its_replica_is_not_in_use_and_is_green_when_the_group_is_done(
    log: LogStore, run: Run, places: dict[int | None, FakeLauncher]
) -> None:
    first, second = (deferred(lambda number=number: replica(number).execute(context())) for number in (1, 2))  # type: ignore[misc]
    ref = ready(log, places[1], ONE)
    assert fired(second.trigger, lambda: finish(log, ref)) == fired(first.trigger) == "success"
    results = [second.trigger._result, first.trigger._result]
    assert [one["replicas"] for one in results] == [{}, {ONE: 1}]
    assert [replica(number).execute(context(attempt=2)) for number in (2, 1)] == results, "where a worker is needed"


def test_a_task_that_is_killed_halts_its_replica_and_no_other(
    log: LogStore, run: Run, places: dict[int | None, FakeLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker dies before Airflow answers: what the supervisor finds is about this replica."""
    deferred(lambda: replica(1).execute(context()))
    ready(log, places[1], ONE)
    note = KilledTask(DAG_ID, RUN_ID, "hourly_1", of_replica=True)
    note_killed(log, run, ONE, note)
    [kill_] = FailureFinder(log, run_uid=run.uid).look().killed
    assert (kill_.group, kill_.task) == (ONE, note)
    log.request_scaling(run.run_id, "hourly", 2, by="a test")
    resolve_kill(log, run, kill_.group, kill_.task, lambda _: "failed", grace_seconds=0.1)
    assert status(log, run, ONE).state is GroupState.HALTED
    [request] = log.scalings(run.run_id)
    assert request.state is ScalingState.REQUESTED, "the group continues with the others"


def test_a_replica_that_there_is_not(log: LogStore, run: Run) -> None:
    """A worker says so where the number is a template."""
    numbered = replica(1)
    for number in ("4", 0):
        numbered.replica = number  # type: ignore[assignment]
        with pytest.raises(
            AirflowFailException, match=f"no replica {number} of group 'hourly': it has replicas 1 to 3"
        ):
            numbered.execute(context())
    numbered.group = "totals"
    with pytest.raises(AirflowFailException, match="no replica 0 of group 'totals': it is not replicated"):
        numbered.execute(context())
    with pytest.raises(ConfigurationError, match="leave own_place out"):
        replica(1, own_place=False)


def test_the_group_of_tasks_has_one_for_each() -> None:
    arguments: dict[str, Any] = {"connections": {"warehouse": "warehouse_db"}}
    each = {"task_per_replica": True, "pool": "spark"}
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(REF, groups={"hourly": each}, **arguments)
    names = [name for name in dag.task_dict if "hourly" in name]
    assert names == [f"sales_scaled.hourly_{number}" for number in (1, 2, 3)]
    assert [(dag.task_dict[name].replica, dag.task_dict[name].pool) for name in names] == [
        (n, "spark") for n in (1, 2, 3)
    ]
    assert dag.task_dict["sales_scaled.finish_run"].upstream_task_ids >= set(names)
    with (
        DAG("e", schedule=None, params=PARAMS),
        pytest.raises(PipelineDefinitionError, match=r"'totals' is not replicated.*\['hourly'\]"),
    ):
        LogioPipelineGroup(REF, groups={"totals": each}, **arguments)


# --- when its task ends -----------------------------------------------------------------------------------------------


def test_a_task_that_is_red_leaves_its_replicas_to_the_supervisor(
    log: LogStore, run: Run, launcher: FakeLauncher, elsewhere: FakeLauncher
) -> None:
    watching = deferred(lambda: task("hourly").execute(context()))
    ready(log, launcher, ONE)
    event = fired(watching.trigger, lambda: log.request_scaling(run.run_id, "hourly", 2, by="a test"))
    watching = deferred(lambda: task("hourly").resume(context(), event))
    ready(log, launcher, TWO)
    event = fired(watching.trigger, lambda: log.park(GroupRef(run.run_id, TWO, 1), "KeyError: 'department'"))
    with pytest.raises(AirflowFailException, match=r"replica 'hourly\.2' of group 'hourly'"):
        task("hourly").resume(context(), event)
    kill(launcher, ONE)
    supervise = LogioSuperviseOperator(task_id="supervise", pipeline=REF, poll_interval=0.01)
    waiting = deferred(lambda: supervise.execute(context()))
    found = fired(waiting.trigger)
    deferred(lambda: supervise.resume(context(), found))
    assert [(one.group, one.incarnation) for one in elsewhere.claims] == [(ONE, 2)]
    deferred(lambda: task("hourly").execute(context(attempt=2, max_tries=4)))
    assert status(log, run, ONE).own_place, "a clear takes the place again"
    assert (TWO, 2) in [(one.group, one.incarnation) for one in launcher.claims]


@pytest.mark.parametrize("attempt", [3, 4])
def test_what_its_task_cannot_launch_is_parked_by_the_supervisor_after_the_last_attempt(
    attempt: int, log: LogStore, run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred(lambda: task().execute(context()))
    ready(log, launcher, "totals")
    kill(launcher, "totals")

    def broken(*arguments: Any) -> None:
        raise ConfigurationError("spark-submit could not be started: no such file")

    for kind in (LogioSparkOperator, LogioSuperviseOperator):
        monkeypatch.setattr(
            kind, "make_launcher", lambda self: SimpleNamespace(launch=broken, check=lambda settings: None)
        )
    with pytest.raises(ConfigurationError):
        task().execute(context(attempt=attempt))
    supervise = LogioSuperviseOperator(task_id="supervise", pipeline=REF, poll_interval=0.01)
    waiting = deferred(lambda: supervise.execute(context()))
    is_last = attempt == 4
    assert status(log, run).own_place is not is_last
    if is_last:
        deferred(lambda: supervise.resume(context(), fired(waiting.trigger)))
        parked = status(log, run)
        assert parked.state is GroupState.PARKED and "no such file" in str(parked.error)


@pytest.mark.parametrize("attempt", [3, 4])
def test_a_trigger_that_cannot_watch_leaves_the_group_to_the_supervisor_after_the_last_attempt(
    attempt: int, log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    deferred(lambda: task().execute(context(attempt=attempt)))
    ready(log, launcher, "totals")
    with pytest.raises(AirflowException, match="the triggerer cannot watch group 'totals': no such connection"):
        task().resume(context(attempt=attempt), {"state": "error", "group": "totals", "cause": "no such connection"})
    assert status(log, run).own_place is (attempt == 3)


def test_a_failure_of_its_last_attempt_is_not_taken_for_a_persons(
    log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    """A death wakes it, and it may fail before it has launched anything: what is recovered by others keeps running."""
    last = context(attempt=4)
    trigger = deferred(lambda: task().execute(last)).trigger
    trigger.task_instance = SimpleNamespace(task_id="totals", dag_id=DAG_ID, run_id=RUN_ID, map_index=-1)
    ready(log, launcher, "totals")
    fired(trigger, lambda: kill(launcher, "totals"))
    note = status(log, run).killed
    assert note is not None and note.last_try
    assert resolve_kill(log, run, "totals", note, lambda _: "failed", grace_seconds=0.1) is Meaning.UNKNOWN


def test_a_mark_while_it_waits_for_a_worker_halts_the_group(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    trigger = deferred(lambda: task("hourly").execute(context())).trigger
    trigger.task_instance = SimpleNamespace(task_id="hourly", dag_id=DAG_ID, run_id=RUN_ID, map_index=-1)
    ready(log, launcher, ONE)
    fired(trigger, lambda: log.request_scaling(run.run_id, "hourly", 2, by="a test"))
    [note] = [one.killed for one in log.groups(run.run_id) if one.killed is not None]
    assert (note.task_id, note.dag_run_id) == ("hourly", RUN_ID) and note.ask_at is not None
    for state in ("scheduled", "queued"):
        resolve_kill(log, run, "hourly", note, lambda _, state=state: state, grace_seconds=0.1)  # type: ignore[misc]
        assert status(log, run, ONE).killed is not None, "it is asked again"
    resolve_kill(log, run, "hourly", note, lambda _: "success", grace_seconds=0.1)
    assert status(log, run, ONE).state is GroupState.HALTED


def test_a_request_behind_the_end_of_all_work_is_refused(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    deferred(lambda: task("hourly").execute(context()))
    finish(log, ready(log, launcher, ONE))
    log.request_scaling(run.run_id, "hourly", 2, by="a test")
    supervise = LogioSuperviseOperator(task_id="supervise", pipeline=REF, poll_interval=0.01)
    waiting = deferred(lambda: supervise.execute(context()))
    deferred(lambda: supervise.resume(context(), fired(waiting.trigger)))
    [request] = log.scalings(run.run_id)
    assert (request.state, request.note) == (ScalingState.REFUSED, "group hourly has finished all its work")


def test_a_launch_by_a_person_ends_it(log: LogStore, run: Run, launcher: FakeLauncher, elsewhere: FakeLauncher) -> None:
    deferred(lambda: task().execute(context()))
    assert log.park(ready(log, launcher, "totals"), "no")
    recipe = log.launch_recipe(run.run_id, "totals")
    assert recipe is not None
    assert retry._launch(Launching(log, "logio_default", elsewhere).context(run, "totals", recipe), "totals") == 2
    assert not status(log, run).own_place
