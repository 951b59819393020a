"""Groups that the triggerer recovers by itself: which, how, and what becomes of them if it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.hooks.connections import connection_urls
from airflow_logio.launch import bundle, processes, start_run, surroundings
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.sql import group_log
from airflow_logio.store.sql.group_log import SqlGroupLog
from airflow_logio.supervision.findings import FailureFinder
from airflow_logio.triggers import recovery
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from tests.support.airflow_connections import connection
from tests.support.waiting import eventually
from tests.unit.airflow.support import (
    FakeLauncher,
    context,
    deferred,
    fired,
    register,
    run_started,
    watched,
)

REF = "pipelines.sales:sales"
GROUP = "totals"
ON_BOTH = pytest.mark.parametrize("log", ["sqlite", "postgres"], indirect=True)


@dataclass
class Beside(FakeLauncher):
    """Its drivers have folders of their own, with a note of what they got from the process that launched them."""

    def launch(self, claim: Claim, launch: Launch | None = None) -> Launched:
        launched = super().launch(claim, launch)
        assert self.folder is not None
        folder = folder_of(self, claim)
        folder.mkdir(parents=True)
        surroundings.note(folder)
        (folder / "driver.log").write_text(self.log_text)
        (folder / "claim.json").write_bytes(msgspec.json.encode(claim))
        return replace(launched, log_path=str(folder / "driver.log"))


def folder_of(launcher: FakeLauncher, claim: Claim) -> Path:
    assert launcher.folder is not None
    return launcher.folder / claim.run_uid / claim.group / str(claim.incarnation)


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLauncher]:
    folder = tmp_path / "drivers"
    folder.mkdir()
    monkeypatch.setenv("AIRFLOW__LOGIO__WORK_DIR", str(folder))
    fake = Beside(folder=folder)
    yield fake
    fake.end_all()


@pytest.fixture
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    """In SQLite, unless the test says otherwise."""
    url = str(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url"))
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"sqlalchemy_url": url}))
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", connection("sqlite", host=f"{tmp_path}/warehouse.db"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection("spark", host="local[1]"))
    store = open_store(url, application="test")
    yield store
    store.dispose()


@pytest.fixture
def run(log: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Its drivers give no heartbeat: they live until they are killed, however slow the machine is."""
    monkeypatch.setattr(start_run, "Lease", lambda: Lease(600.0))
    return run_started(log, REF, tmp_path)


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    for operator in (LogioSparkOperator, LogioSuperviseOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)
    monkeypatch.setattr(recovery, "make_launcher", lambda: launcher)


def launched(log: LogStore, launcher: FakeLauncher, **arguments: Any) -> None:
    """The group's own task has launched it, with arguments of its own, and its driver runs."""
    given = {"conf": {"spark.ui.enabled": False}, "driver_memory": "700m", "env_vars": {"A": 1}, **arguments}
    deferred(lambda: LogioSparkOperator(task_id=GROUP, pipeline=REF, **given).execute(context()))
    register(log, launcher)


@pytest.fixture
def totals(log: LogStore, run: Run, launcher: FakeLauncher) -> GroupStatus:
    launched(log, launcher)
    return status(log, run)


def status(log: LogStore, run: Run, group: str = GROUP) -> GroupStatus:
    return log.group(run.run_id, group)


def supervisor(**arguments: Any) -> LogioSuperviseOperator:
    return LogioSuperviseOperator(task_id="supervise", pipeline=REF, poll_interval=0.01, **arguments)


def trigger_of(task: LogioSuperviseOperator) -> LogioFailedGroupTrigger:
    waiting: TaskDeferred = deferred(lambda: task.execute(context()))
    assert isinstance(waiting.trigger, LogioFailedGroupTrigger)
    _, arguments = waiting.trigger.serialize()
    return LogioFailedGroupTrigger(**arguments)  # as another process makes it


@pytest.fixture
def trigger(totals: GroupStatus) -> LogioFailedGroupTrigger:
    return trigger_of(supervisor())


def recovered(log: LogStore, run: Run, launcher: FakeLauncher, incarnation: int = 2) -> None:
    launcher.kill()

    def is_launched() -> bool:
        found = status(log, run)
        return (found.state, found.incarnation) == (GroupState.RESTARTED, incarnation)

    eventually(is_launched, what="it is launched again")


_EARLIER: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _threads_of_others() -> Iterator[None]:
    """Those of other tests in this process are not this test's to end."""
    _EARLIER.update(threading.enumerate())
    yield
    _EARLIER.clear()


def poller_ended() -> None:
    """With what it had begun."""

    def ended() -> bool:
        return not [one for one in threading.enumerate() if "logio" in one.name and one not in _EARLIER]

    eventually(ended, what="no thread is left")


# --- what it launches ---------------------------------------------------------------------------------------------------


def test_it_launches_what_a_worker_would_and_wakes_no_task(
    log: LogStore,
    run: Run,
    trigger: LogioFailedGroupTrigger,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It imports no author's code for that."""
    before = dict(sys.modules)

    def imports(*_: object) -> None:
        raise AssertionError("the triggerer imports a pipeline")

    with monkeypatch.context() as here:
        here.setattr(bundle, "load", imports)
        watched(trigger, lambda: recovered(log, run, launcher))
    assert not [name for name in sys.modules.keys() - before.keys() if name.startswith("pipelines")]
    found = status(log, run)
    assert (found.state, found.incarnation, found.recoveries) == (GroupState.RESTARTED, 2, 1)
    eventually(lambda: "is launched as incarnation 2, by the triggerer" in caplog.text, what="it is said")
    assert "last words" in caplog.text
    register(log, launcher)
    launcher.kill()
    [failed] = fired(LogioFailedGroupTrigger(logio_conn_id="logio_default", supervisor="a worker", run_uid=run.uid))[
        "findings"
    ]
    assert LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())["outcome"] == "launched"
    (first, by_task), (second, by_triggerer), (third, by_worker) = launcher.launched
    assert [claim.incarnation for claim in (first, second, third)] == [1, 2, 3]
    roots = {launch.ref.bundle_root for launch in (by_task, by_triggerer, by_worker)}
    assert len(roots) == 1 and by_triggerer.settings.env_vars == {"A": "1"}
    assert by_task == by_triggerer == by_worker and by_task.code.digest == by_triggerer.code.digest


def test_all_groups_of_a_pipeline_are_launched_alike(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    """Those that need Spark, too."""
    for group in run.spec.groups:
        deferred(lambda group=group: LogioSparkOperator(task_id=group, pipeline=REF).execute(context()))  # type: ignore[misc]
        register(log, launcher)
    many = len(run.spec.groups)

    def all_die() -> None:
        for number in range(many):
            launcher.kill(number)
        eventually(lambda: len(launcher.claims) == 2 * many, what="all are launched again")

    watched(trigger_of(supervisor()), all_die)
    poller_ended()
    firsts = {claim.group: launch for claim, launch in launcher.launched[:many]}
    seconds = {claim.group: launch for claim, launch in launcher.launched[many:]}
    assert firsts == seconds
    assert {one.kind.value for one in firsts.values()} == {"spark-submit", "python"}


def test_with_always_its_machine_becomes_theirs(
    log: LogStore, run: Run, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LOGIO__RECOVER_IN_TRIGGERER", "always")
    note(launcher, host="another")
    watched(trigger, lambda: recovered(log, run, launcher))
    assert status(log, run).state is GroupState.RESTARTED


# --- what it leaves to a worker -----------------------------------------------------------------------------------------


def note(launcher: FakeLauncher, **other: Any) -> None:
    """The last driver had this, which the triggerer does not have."""
    path = folder_of(launcher, launcher.claims[-1]) / surroundings.NAME
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(surroundings.of_this_process(), **other)))


def without_note(launcher: FakeLauncher) -> None:
    (folder_of(launcher, launcher.claims[-1]) / surroundings.NAME).unlink()


Given = Callable[[LogStore, Run, FakeLauncher, pytest.MonkeyPatch], object]


def changed_recipe(**other: Any) -> Given:
    def change(log: LogStore, run: Run, _launcher: FakeLauncher, _patch: pytest.MonkeyPatch) -> None:
        recipe = log.launch_recipe(run.run_id, GROUP)
        assert recipe is not None and recipe.needs is not None
        needs = replace(recipe.needs, **other) if other else None
        log.note_launch(run.run_id, GROUP, replace(recipe, needs=needs))

    return change


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda log, run, launcher, patch: note(launcher, host="another"), "does not have the host"),
        (lambda log, run, launcher, patch: note(launcher, boot="boot/4026531836"), "the boot or container"),
        (lambda log, run, launcher, patch: note(launcher, user=4711), "does not have the user"),
        (lambda log, run, launcher, patch: note(launcher, limits="0::/a.slice"), "does not have the control group"),
        (lambda log, run, launcher, patch: note(launcher, python="/opt/python"), "the Python /opt/python"),
        (lambda log, run, launcher, patch: patch.setenv("SPARK_HOME", "/opt/spark"), "does not have the same SPARK_HOME"),
        (lambda log, run, launcher, patch: patch.setenv("AIRFLOW__LOGIO__WORK_DIR", "/var/x"), "another [logio] work_dir"),
        (lambda log, run, launcher, patch: without_note(launcher), "a note of what its last driver got"),
        (lambda log, run, launcher, patch: patch.setenv("AIRFLOW__LOGIO__RECOVER_IN_TRIGGERER", "never"), "is never"),
        (
            lambda log, run, launcher, patch: patch.setenv("AIRFLOW__LOGIO__RECOVER_IN_TRIGGERER", "maybe"),
            "recover_in_triggerer is 'maybe'; it is one of auto, always, never",
        ),
        (lambda log, run, launcher, patch: patch.delenv("AIRFLOW_CONN_WAREHOUSE_DB"), "warehouse_db"),
        (changed_recipe(), "the log does not say what a launch with code 0 needs"),
        (changed_recipe(code=1), "the log does not say what a launch with code 0 needs"),
        (changed_recipe(environment=("SHOP_TOKEN",)), "SHOP_TOKEN"),
    ],
)  # fmt: skip
def test_it_leaves_to_a_worker(
    given: Given,
    why: str,
    log: LogStore,
    run: Run,
    trigger: LogioFailedGroupTrigger,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has claimed nothing then: no deadline runs until a worker comes, and a driver that lives after all may finish."""
    given(log, run, launcher, monkeypatch)
    event = fired(trigger, launcher.kill)
    [failed] = event["findings"]
    assert (failed["group"], failed["incarnation"]) == (GROUP, 1) and why in caplog.text
    found = status(log, run)
    assert (found.state, found.incarnation, found.recoveries, len(launcher.claims)) == (GroupState.DEAD, 1, 0, 1)


def test_where_a_place_is_named_it_recovers_nothing(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    """By the group's task, by that of the supervisor, or by a recovery DAG, whose runs show recoveries."""
    launched(log, launcher, queue="large")

    def dies() -> None:
        launcher.kill()
        eventually(lambda: is_dead(log, run), what="it is found dead")

    watched(trigger_of(supervisor()), dies)
    assert len(launcher.claims) == 1
    assert not trigger_of(supervisor(queue="large")).recovers and not trigger_of(supervisor(pool="spark")).recovers
    assert not trigger_of(supervisor(recover=False)).recovers and trigger_of(supervisor()).recovers
    sensor = LogioFailedGroupSensor(task_id="failed", pipeline="sales", poke_interval=0.01)
    assert not deferred(lambda: sensor.execute(context())).trigger.recovers


def is_dead(log: LogStore, run: Run) -> bool:
    return status(log, run).state is GroupState.DEAD


# --- what fails ---------------------------------------------------------------------------------------------------------


def test_a_launch_that_fails_behind_its_claim_is_tried_here_once(
    log: LogStore, run: Run, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim is one recovery of the budget."""
    tried = list[int]()

    def full(_launcher: object, claim: Claim, _launch: object) -> Launched:
        tried.append(claim.incarnation)
        raise ConfigurationError("no space left on device")

    monkeypatch.setattr(Beside, "launch", full)
    [failed] = fired(trigger, launcher.kill)["findings"]
    assert (failed["incarnation"], tried) == (2, [2]) and "no space left" in failed["cause"]
    assert status(log, run).recoveries == 1


def test_a_log_that_is_away_for_a_moment_is_no_reason_to_wake_a_worker(
    log: LogStore, run: Run, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = SqlGroupLog.claim, list[int]()

    def away(*arguments: Any, **named: Any) -> Claim:
        asked.append(1)
        if len(asked) < 3:
            raise LogUnavailable("away")
        return real(*arguments, **named)

    monkeypatch.setattr(SqlGroupLog, "claim", away)
    watched(trigger, lambda: recovered(log, run, launcher))
    assert len(asked) == 3 and status(log, run).recoveries == 1


def test_what_hangs_here_holds_up_neither_the_event_loop_nor_a_worker(
    log: LogStore, run: Run, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow does not tell a connection: the worker that is woken recovers the group, and its claim is the only one."""
    answered, asked = threading.Event(), threading.Event()
    real = connection_urls

    def hangs(*arguments: Any) -> dict[str, str]:
        asked.set()
        assert answered.wait(60)
        return real(*arguments)

    monkeypatch.setattr(recovery, "connection_urls", hangs)
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 0.0)

    async def look() -> Any:
        looking = asyncio.ensure_future(anext(aiter(trigger.run())))
        try:
            await asyncio.to_thread(launcher.kill)
            await asyncio.to_thread(asked.wait, 60)
            event = await asyncio.wait_for(looking, 60)
            [failed] = event.payload["findings"]
            task = LogioRecoverGroupOperator(task_id="r", finding=failed)
            outcome = await asyncio.to_thread(lambda: task.execute(context())["outcome"])
            answered.set()
            return outcome
        finally:
            answered.set()
            await trigger.cleanup()

    assert asyncio.run(look()) == "launched"
    poller_ended()
    found = status(log, run)
    assert (found.incarnation, found.recoveries, len(launcher.claims)) == (2, 1, 2)


def test_a_budget_that_is_spent_here_is_told(
    log: LogStore, run: Run, totals: GroupStatus, launcher: FakeLauncher
) -> None:
    budget = RecoveryBudget().recoveries
    for number in range(budget):
        watched(trigger_of(supervisor()), lambda number=number: recovered(log, run, launcher, number + 2))  # type: ignore[misc]
        register(log, launcher)
    told: list[Any] = []
    task = supervisor(on_recovery_callback=told.append)
    waiting = deferred(lambda: task.execute(context()))
    told.clear()  # the last recovery that was launched
    event = fired(waiting.trigger, launcher.kill)
    assert event["findings"] == [] and status(log, run).state is GroupState.PARKED
    deferred(lambda: task.resume(context(), event))
    [notice] = [one["recovery"] for one in told]
    assert (notice["outcome"], notice["incarnation"], notice["launched_incarnation"]) == ("parked", budget + 1, None)
    assert f"recovered {budget} times" in notice["why"]


# --- several at once, and deaths ----------------------------------------------------------------------------------------


@ON_BOTH
def test_two_triggerers_and_a_worker_at_once_launch_one_driver(
    log: LogStore, run: Run, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three have found the death before any of them claims."""
    real, barrier = SqlGroupLog.claim, threading.Barrier(3)

    def together(*arguments: Any, **named: Any) -> Claim:
        barrier.wait(60)
        return real(*arguments, **named)

    monkeypatch.setattr(SqlGroupLog, "claim", together)
    failed = {"run_uid": run.uid, "pipeline": "sales", "dag_run_id": "x", "group": GROUP, "incarnation": 1}
    failed |= {"cause": "test", "detected_at": 0.0}
    outcomes: list[str] = []

    def worker() -> None:
        eventually(lambda: is_dead(log, run), what="dead")
        outcomes.append(LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())["outcome"])

    async def look() -> None:
        # A poller serves the triggers of a process: the second triggerer is another log connection's.
        other = LogioFailedGroupTrigger(**{**trigger.serialize()[1], "logio_conn_id": "logio_again"})
        looking = [asyncio.ensure_future(anext(aiter(one.run()))) for one in (trigger, other)]
        try:
            await asyncio.to_thread(launcher.kill)
            await asyncio.to_thread(worker)
            await asyncio.to_thread(eventually, lambda: len(launcher.claims) == 2, what="one has launched")
        finally:
            for task, one in zip(looking, (trigger, other), strict=True):
                task.cancel()
                await one.cleanup()

    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_AGAIN", os.environ["AIRFLOW_CONN_LOGIO_DEFAULT"])
    asyncio.run(look())
    poller_ended()
    found = status(log, run)
    assert (found.incarnation, found.recoveries, len(launcher.claims)) == (2, 1, 2)
    assert outcomes in (["launched"], ["not needed"])


def killed(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # another thread takes the signal


def killed_before_commit(*arguments: Any, **named: Any) -> None:
    _REAL_RAISE(*arguments, **named)
    killed()


_REAL_RAISE = group_log._raise_incarnation
DEATHS = {
    "before the claim": (SqlGroupLog, "claim", killed),
    "in its transaction": (group_log, "_raise_incarnation", killed_before_commit),
    "before the launch": (Beside, "launch", killed),
    "after the launch": (SqlGroupLog, "submitted", killed),
}


def dead_triggerer(trigger: LogioFailedGroupTrigger, death: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trigger runs in a process that is killed there."""
    pid = os.fork()
    if pid == 0:
        try:
            monkeypatch.setattr(*DEATHS[death])
            fired(trigger)
        finally:
            os._exit(1)
    _, ended = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL


@ON_BOTH
@pytest.mark.parametrize("death", DEATHS)
def test_a_triggerer_that_dies_leaves_one_driver(
    death: str,
    log: LogStore,
    run: Run,
    trigger: LogioFailedGroupTrigger,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher.kill()
    dead_triggerer(trigger, death, monkeypatch)
    found, another = status(log, run), trigger_of(supervisor())
    if death in ("before the claim", "in its transaction"):
        assert (found.state, found.incarnation, found.recoveries) == (GroupState.DEAD, 1, 0)
        watched(another, lambda: eventually(lambda: len(launcher.claims) == 2, what="the next one launches it"))
        assert status(log, run).recoveries == 1
        return
    assert (found.state, found.incarnation, found.recoveries) == (GroupState.CLAIMED, 2, 1)
    if death == "before the launch":
        beyond_its_deadline(log, run)
        watched(another, lambda: eventually(lambda: len(launcher.claims) == 2, what="the next one launches it"))
        assert status(log, run).incarnation == 3
        return
    noted = folder_of(launcher, replace(launcher.claims[-1], incarnation=2)) / "claim.json"
    claim = msgspec.json.decode(noted.read_bytes(), type=Claim)
    watched(another, lambda: log.register(claim, processes.own_identity()))  # the driver has outlived its triggerer
    assert (status(log, run).state, status(log, run).incarnation, len(launcher.claims)) == (GroupState.RUNNING, 2, 1)


def beyond_its_deadline(log: LogStore, run: Run) -> None:
    now = [0.0]
    finder = FailureFinder(log, run_uid=run.uid, clock=lambda: now[0])
    while not finder.look().failed:
        assert now[0] < 600, "nothing is found"
        now[0] += 1
    assert status(log, run).state is GroupState.DEAD
