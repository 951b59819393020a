"""What callbacks of task `supervise` get, and when; on a real log, with drivers that the test speaks for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import DAG, BaseNotifier
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.operators._task.run_lookup import task_key
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.triggers import log_poller
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from tests.support.logs import finish, spec
from tests.support.waiting import eventually
from tests.unit.airflow.support import DAG_ID, FakeLauncher, context, deferred, fired, register, run_started

REF = "pipelines.sales:sales"
PARAMS = {"transactions": ""}
WAREHOUSE = {"warehouse": "warehouse_db"}


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    for operator in (LogioSparkOperator, LogioSuperviseOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)


@pytest.fixture
def totals(run: Run, log: LogStore, launcher: FakeLauncher) -> GroupRef:
    """The driver of group `totals` runs."""
    deferred(lambda: LogioSparkOperator(task_id="totals", pipeline=REF).execute(context()))
    return register(log, launcher)


SUPERVISE = task_key(context(), "supervise")


@pytest.fixture
def attempt() -> dict[str, Any]:
    """The context of an attempt."""
    return context()


class Told(list[Any]):
    """Callbacks of all kinds; what they were told."""

    def callback(self, told: Mapping[str, Any]) -> None:
        self.append(told["notice"])

    def task(self, *kinds: str, **arguments: Any) -> LogioSuperviseOperator:
        callbacks: Any = {f"on_{kind}_callback": self.callback for kind in kinds}
        usual = {"task_id": "supervise", "pipeline": REF, "poll_interval": 0.01}
        return LogioSuperviseOperator(**{**usual, **callbacks, **arguments})

    @property
    def brief(self) -> list[tuple[str, str, Any]]:
        return [(one["kind"], one["group"], one["incarnation"]) for one in self]


ALL = ("recovery", "parked", "halted", "quarantine", "scaling", "budget")


def test_a_group_that_parks_itself_is_told_in_plain_data(
    log: LogStore, run: Run, totals: GroupRef, attempt: dict[str, Any]
) -> None:
    told = Told()
    task = told.task("parked")
    waiting = deferred(lambda: task.execute(attempt))
    event = fired(waiting.trigger, lambda: log.park(totals, "KeyError: 'department'"))
    assert told == [], "the task tells, not the trigger"
    waiting = deferred(lambda: task.resume(attempt, event))
    [notice] = told
    assert (
        json.loads(json.dumps(notice))
        == notice
        == {
            "kind": "parked",
            "run_uid": run.uid,
            "pipeline": "sales",
            "dag_run_id": run.spec.key.dag_run_id,
            "group": "totals",
            "incarnation": 1,
            "why": "KeyError: 'department'",
            "at": log.group(run.run_id, "totals").since,
            "figures": {"recoveries": 0},
            "key": f"{run.uid}/totals/parked/1",
        }
    )
    assert waiting.trigger.seen == {"parked": {"totals": 1}}
    path, arguments = waiting.trigger.serialize()
    assert LogioFailedGroupTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)


def test_what_was_told_is_not_told_again_by_later_attempts(
    log: LogStore, totals: GroupRef, attempt: dict[str, Any]
) -> None:
    """After a clear or a death, the task begins with what the log has."""
    told = Told()
    event = fired(
        deferred(lambda: told.task("parked", "halted").execute(attempt)).trigger, lambda: log.park(totals, "no")
    )
    deferred(lambda: told.task("parked", "halted").resume(attempt, event))
    again = deferred(lambda: told.task("parked", "halted").execute(attempt))
    assert again.trigger.seen == {"parked": {"totals": 1}}
    event = fired(again.trigger, lambda: log.halted(GroupRef(totals.run_id, "hourly", 0)))
    deferred(lambda: told.task("parked", "halted").resume(attempt, event))
    assert told.brief == [("parked", "totals", 1), ("halted", "hourly", 0)]


def test_a_task_that_dies_before_its_note_tells_it_again(
    log: LogStore, totals: GroupRef, attempt: dict[str, Any]
) -> None:
    told = Told()
    dying = told.task("parked", on_parked_callback=[told.callback, dies])
    event = fired(deferred(lambda: dying.execute(attempt)).trigger, lambda: log.park(totals, "no"))
    with pytest.raises(KeyboardInterrupt):
        dying.resume(attempt, event)
    assert log.told_by(totals.run_id, SUPERVISE) is None
    deferred(lambda: told.task("parked").execute(attempt))
    assert told.brief == [("parked", "totals", 1)] * 2 and told[0]["key"] == told[1]["key"]


def dies(_context: Mapping[str, Any]) -> None:
    raise KeyboardInterrupt


def test_what_others_have_told_says_nothing(log: LogStore, run: Run, totals: GroupRef, attempt: dict[str, Any]) -> None:
    """Another run, another task, another instance of a mapped task."""
    before, seen = log.start_run(spec("totals", dag_run="before")), {"parked": {"totals": 1}}
    log.note_told(before.run_id, SUPERVISE, seen)
    log.note_told(run.run_id, task_key(context(), "notify"), seen)
    mapped = {**attempt, "ti": SimpleNamespace(**{**vars(attempt["ti"]), "map_index": 1})}
    log.note_told(run.run_id, task_key(mapped, "supervise"), seen)
    assert deferred(lambda: Told().task("parked").execute(attempt)).trigger.seen == {}
    assert deferred(lambda: Told().task("parked").execute(mapped)).trigger.seen == seen


@pytest.mark.parametrize("noted", ["nothing", ["parked"], {"parked": 1}])
def test_a_note_that_is_none_of_notices_counts_as_nothing_told(
    log: LogStore, totals: GroupRef, attempt: dict[str, Any], noted: Any
) -> None:
    log.note_told(totals.run_id, SUPERVISE, noted)
    assert deferred(lambda: Told().task("parked").execute(attempt)).trigger.seen == {}


def test_if_the_log_takes_no_note_it_tells_all_the_same(
    log: LogStore, totals: GroupRef, attempt: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt remembers what it has told, over all its deferrals; the next one knows nothing of it."""
    assert isinstance(log, SqlLogStore)
    refused = "CREATE TRIGGER full BEFORE UPDATE OF told ON logio_run BEGIN SELECT RAISE(ABORT, 'no'); END"
    with log.engine.begin() as connection:
        connection.execute(sa.text(refused))
    told = Told()
    task = told.task("parked", "halted")
    event = fired(deferred(lambda: task.execute(attempt)).trigger, lambda: log.park(totals, "no"))
    again = deferred(lambda: task.resume(attempt, event))
    event = fired(again.trigger, lambda: log.halted(GroupRef(totals.run_id, "hourly", 0)))
    deferred(lambda: task.resume(attempt, event))
    assert told.brief == [("parked", "totals", 1), ("halted", "hourly", 0)]
    assert "A retry of this task will tell this again" in caplog.text
    deferred(lambda: told.task("parked").execute(context(attempt=2)))
    assert told.brief[2:] == [("parked", "totals", 1)] and told[2]["key"] == told[0]["key"]


def test_a_recovery_is_told_once_whoever_has_made_it(
    log: LogStore,
    run: Run,
    totals: GroupRef,
    launcher: FakeLauncher,
    attempt: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_poller, "FIGURES_SECONDS", 0.1)
    told, recoveries = Told(), list[Any]()
    task = told.task(
        "recovery", on_recovery_callback=[told.callback, lambda found: recoveries.append(found["recovery"])]
    )
    event = fired(deferred(lambda: task.execute(attempt)).trigger, launcher.kill)
    assert event["notices"] == [] and len(event["findings"]) == 1
    waiting = deferred(lambda: task.resume(attempt, event))
    assert waiting.trigger.seen == {"recovery": {"totals": 2}}

    def by_another() -> None:
        ref = register(log, launcher)
        assert log.declare_dead(ref, "out of memory")
        log.claim(run.run_id, "totals", expected=2, reason="out of memory")

    waiting.trigger.supervisor = None  # it does not look for failures: another supervisor is quicker
    event = fired(waiting.trigger, by_another)
    deferred(lambda: task.resume(attempt, event))
    assert told.brief == [("recovery", "totals", 2), ("recovery", "totals", 3)]
    assert recoveries[0].keys() == recoveries[1].keys()
    assert [one["launched_incarnation"] for one in recoveries] == [2, 3]
    assert (recoveries[1]["cause"], recoveries[1]["outcome"]) == ("out of memory", "launched")


def test_the_end_of_the_run_holds_nothing_back(
    log: LogStore, run: Run, launcher: FakeLauncher, attempt: dict[str, Any]
) -> None:
    told = Told()
    waiting = deferred(lambda: told.task(*ALL).execute(attempt))

    def halt_all() -> None:
        for group in run.spec.groups:
            log.halted(GroupRef(run.run_id, group, 0))

    event = fired(waiting.trigger, halt_all)
    summary = told.task(*ALL).resume(attempt, {**event, "notices": [], "findings": []})
    assert set(summary["states"].values()) == {"halted"}
    assert sorted(told.brief) == sorted(("halted", group, 0) for group in run.spec.groups)


def test_on_a_worker_it_tells_as_well(
    log: LogStore, run: Run, totals: GroupRef, launcher: FakeLauncher, attempt: dict[str, Any]
) -> None:
    told = Told()

    def then() -> None:
        log.park(totals, "no")
        eventually(lambda: told, what="it is told")
        for group in run.spec.groups:
            if group != "totals":
                finish(log, log.register(log.claim(run.run_id, group, expected=0, reason="test"), launcher.identity()))

    drivers = threading.Thread(target=then)
    drivers.start()
    told.task("parked", deferrable=False).execute(attempt)
    drivers.join()
    assert told.brief == [("parked", "totals", 1)]


def test_a_task_that_only_notifies_recovers_nothing(
    log: LogStore, run: Run, totals: GroupRef, launcher: FakeLauncher, attempt: dict[str, Any]
) -> None:
    told = Told()
    task = told.task("parked", task_id="notify", recover=False)
    waiting = deferred(lambda: task.execute(attempt))

    def dies_and_is_parked() -> None:
        launcher.kill()
        log.park(totals, "no")

    event = fired(waiting.trigger, dies_and_is_parked)
    assert event["findings"] == []
    deferred(lambda: task.resume(attempt, event))
    assert told.brief == [("parked", "totals", 1)] and len(launcher.claims) == 1
    assert list(log.supervisors()) == [], "no group must count on it"


# --- callbacks --------------------------------------------------------------------------------------------------------


class Pager(BaseNotifier):
    """A notifier as Airflow's are: it renders its templates, and sends them."""

    template_fields = ("message",)
    sent: ClassVar[list[str]] = []

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Any) -> None:
        self.sent.append(self.message)


def test_a_notifier_renders_each_notice(log: LogStore, totals: GroupRef, attempt: dict[str, Any]) -> None:
    """A notifier renders into itself. It must not say of the second group what was true of the first."""
    Pager.sent.clear()
    pager = Pager("{{ notice.group }} is {{ notice.kind }}: {{ notice.why }}")
    told = Told()
    task = told.task(on_parked_callback=pager, on_halted_callback=[pager])

    def both() -> None:
        log.park(totals, "no")
        log.halted(GroupRef(totals.run_id, "hourly", 0))

    event = fired(deferred(lambda: task.execute(attempt)).trigger, both)
    waiting = deferred(lambda: task.resume(attempt, event))
    if len(Pager.sent) < 2:  # it has seen the first alone
        deferred(lambda: task.resume(attempt, fired(waiting.trigger)))
    assert sorted(Pager.sent) == ["hourly is halted: it was asked to halt", "totals is parked: no"]


def test_a_callback_that_fails_is_logged_and_keeps_no_other_from_being_called(
    log: LogStore, totals: GroupRef, attempt: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Any) -> None:
        raise KeyError("pager")

    told = Told()
    task = told.task(on_parked_callback=[broken, told.callback])
    event = fired(deferred(lambda: task.execute(attempt)).trigger, lambda: log.park(totals, "no"))
    deferred(lambda: task.resume(attempt, event))
    assert told.brief == [("parked", "totals", 1)] and "on_parked_callback broken failed" in caplog.text


def test_without_callbacks_the_trigger_asks_for_nothing_more(log: LogStore, run: Run, attempt: dict[str, Any]) -> None:
    trigger = deferred(lambda: Told().task().execute(attempt)).trigger
    assert trigger.kinds == [] and log.told_by(run.run_id, SUPERVISE) is None


@pytest.mark.parametrize("kind", ALL)
def test_a_callback_must_be_callable(kind: str) -> None:
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(ValueError, match=f"on_{kind}_callback: .* cannot be called"),
    ):
        LogioPipelineGroup(REF, connections=WAREHOUSE, **{f"on_{kind}_callback": "page me"})  # type: ignore[arg-type]


# --- in DAGs ----------------------------------------------------------------------------------------------------------


def everything(function: Callable[..., Any] = print) -> dict[str, Any]:
    return {f"on_{kind}_callback": function for kind in ALL}


def test_callbacks_belong_to_the_supervising_task_and_survive_serialization() -> None:
    with DAG(DAG_ID, schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(REF, connections=WAREHOUSE, **everything())
    task: Any = dag.get_task("sales.supervise")
    assert [getattr(task, f"on_{kind}_callback") for kind in ALL] == [[print]] * len(ALL)
    assert "sales.notify" not in dag.task_dict
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(stored.task_dict) == set(dag.task_dict)


def test_with_a_recovery_dag_a_task_of_its_own_notifies() -> None:
    with DAG(DAG_ID, schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(REF, connections=WAREHOUSE, recovery="dag", on_parked_callback=print)
    task: Any = dag.get_task("sales.notify")
    assert (task.recover, task.on_parked_callback) == (False, [print])
    assert {"sales.start_run", "sales.totals"} <= task.upstream_task_ids and not task.downstream_task_ids
    with DAG(DAG_ID, schedule=None, params=PARAMS) as silent:
        LogioPipelineGroup(REF, connections=WAREHOUSE, recovery="dag")
    assert "sales.notify" not in silent.task_dict, "nothing to notify"


def test_that_tasks_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(name="sales", connections={}, groups={"notify": None})
    monkeypatch.setattr("airflow_logio.operators.pipeline_group.imported", lambda _: known)
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(PipelineDefinitionError, match="needs the task id 'notify'"),
    ):
        LogioPipelineGroup(REF, recovery="dag", on_parked_callback=print)
