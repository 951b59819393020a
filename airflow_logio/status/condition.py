"""What a run is doing, or whom it waits for, in one word and with the command that comes next; and each of its groups.

It says what is known, and not more: a driver that is silent is not shown as if it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import ALIVE, CONCLUDED, ENDED, LAUNCHING, GroupState, RunState
from airflow_logio.status.run_summary import Outcome
from airflow_logio.store.records.driver_records import ManagerSaid
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import GroupStatus, SupervisorRecord
from airflow_logio.store.rules.allowed_rules import options_in

WAITING = "waiting for a person"
LEFT_SECONDS = 30.0
"""A process that supervises a run of `logio run` notes its looks far more often than that (`LocalRun`)."""
MISSING_SECONDS = 60.0
"""After this long without a look another supervisor is missing: it notes its looks every few seconds, and a recovery takes
some."""
_STARTING = (GroupState.NEW, GroupState.DEAD)
_STOPPED = (GroupState.PARKED, GroupState.HALTED)


@dataclass(frozen=True, slots=True)
class RunCondition:
    """`word` is for people; `next_step` is empty where nothing is to be done."""

    word: str
    next_step: str = ""


def awaits_airflow(run: Run) -> bool:
    """Whether tasks of Airflow have still to do something for a run."""
    return run.state is RunState.RUNNING and run.damage is None and run.spec.supervision is not Supervision.PROCESS


def condition_of_run(
    run: Run, groups: Sequence[GroupStatus], at: float, looked: SupervisorRecord | None, *, is_paused: bool = False
) -> RunCondition:
    """The condition of a run from its groups; `at` is the time now, in seconds since the epoch, `looked` who last looked.

    `is_paused`: whether Airflow has paused its DAG, which comes before everything that its tasks have to do.
    """
    if run.damage is not None and run.state not in (RunState.SUPERSEDED, RunState.REMOVING):
        return RunCondition("damaged", run.damage)
    is_paused = is_paused and awaits_airflow(run)
    found = _condition(run, groups, at, looked, is_paused=is_paused)
    if not is_paused:
        return found
    unpause = f"unpause DAG {run.spec.key.dag_id}: Airflow starts no task of it"
    return RunCondition(found.word, f"{unpause}; {found.next_step}" if found.next_step else unpause)


def _condition(
    run: Run, groups: Sequence[GroupStatus], at: float, looked: SupervisorRecord | None, *, is_paused: bool
) -> RunCondition:
    retry = f"logio retry {run.uid[:8]}"
    if run.state is RunState.QUARANTINED:
        return RunCondition(Outcome.QUARANTINED.value, f"fix the operator, then `{retry} --code new`")
    if run.state is not RunState.RUNNING:
        return RunCondition(run.state.value)
    states = {group.state for group in groups}
    if states <= ENDED and not states <= CONCLUDED:
        if GroupState.PARKED in states:
            return RunCondition(
                "parked", step_after(groups, f"fix the cause, then `{retry}` (with changed code: `--code new`)")
            )
        return RunCondition("halted", f"`{retry}` continues it")
    if run.spec.supervision is not Supervision.PROCESS:
        return _of_airflow(run, groups, at, looked, is_paused=is_paused)
    return _of_a_terminal(run, groups, at, looked, retry)


def step_after(groups: Sequence[GroupStatus], otherwise: str) -> str:
    """What a person does about groups that have parked: what a refusal says that only the next run may do, a retry of this
    one would be refused."""
    causes = (group.error or "" for group in groups if group.state is GroupState.PARKED)
    if any(map(options_in, causes)):
        return "its cause names the `logio again` for the next run; a retry of this one would be refused as well"
    return otherwise


def _of_a_terminal(
    run: Run, groups: Sequence[GroupStatus], at: float, looked: SupervisorRecord | None, retry: str
) -> RunCondition:
    if not is_left(run, looked, at):
        return RunCondition(run.state.value)
    if all(_stands_still(group, run.spec.lease, at) for group in groups):
        return RunCondition(WAITING, f"no process runs it; `{retry}` continues it")
    return RunCondition(run.state.value, f"no process supervises it; `{retry}` does")


def _of_airflow(
    run: Run, groups: Sequence[GroupStatus], at: float, looked: SupervisorRecord | None, *, is_paused: bool
) -> RunCondition:
    """Which groups wait for what, as far as the log knows; it knows nothing of tasks."""
    dead = [group for group in groups if group.own_place and group.state is GroupState.DEAD]
    if late := [group.group for group in dead if at - group.since > MISSING_SECONDS]:
        dag_run = run.spec.key.dag_run_id
        step = f"only the task of {', '.join(late)} launches it: clear it in DAG run {dag_run} if it has ended"
        return RunCondition(run.state.value, f"{step}, or `logio retry {run.uid[:8]}` launches it from here")
    if not is_unsupervised(run, looked, at):
        return RunCondition(run.state.value)
    uid, dag_run = run.uid[:8], run.spec.key.dag_run_id
    still = [group for group in groups if _stands_still(group, run.spec.lease, at)]
    stopped, new = _named(still, _STOPPED), _named(still, (GroupState.NEW,))
    lost = [group for group in still if group.state not in (*ENDED, GroupState.NEW)]
    steps = []
    if (lost or len(still) < len(groups)) and not (is_paused and run.spec.supervision is Supervision.TASK):
        steps.append(_of_supervision(run, looked))
    if stopped:
        step = step_after(still, f"fix the cause, then clear the task, or `logio retry {uid}`")
        steps.append(f"{stopped}: {step}")
    if new:
        steps.append(f"{new}: launched by no task of DAG run {dag_run} yet")
    waits = len(still) == len(groups) and (lost or stopped)
    word = WAITING if waits else run.state.value
    if not steps and not is_paused:
        steps.append(f"task `finish_run` of DAG run {dag_run} finishes it")
    return RunCondition(word, "; ".join(steps))


def _of_supervision(run: Run, looked: SupervisorRecord | None) -> str:
    uid, dag_run = run.uid[:8], run.spec.key.dag_run_id
    if run.spec.supervision is Supervision.DAG:
        return f"no process supervises it: unpause the recovery DAG (DAG run {dag_run}), or `logio tend {uid}`"
    if looked is None:
        return (
            f"task `supervise` of DAG run {dag_run} does not look after it yet: it waits for a worker, or has ended (then "
            f"clear it); `logio tend {uid}` does so meanwhile"
        )
    return f"no process supervises it: clear task `supervise` (DAG run {dag_run}), or `logio tend {uid}`"


def _named(groups: Sequence[GroupStatus], states: Sequence[GroupState]) -> str:
    return ", ".join(f"{group.group} {group.state.value}" for group in groups if group.state in states)


def is_unsupervised(run: Run, looked: SupervisorRecord | None, at: float) -> bool:
    """Whether nothing looks for the failed groups of a run of Airflow that has gone on for a while."""
    return at - run.created_at > MISSING_SECONDS and (looked is None or looked.age_seconds > MISSING_SECONDS)


def is_left(run: Run, looked: SupervisorRecord | None, at: float) -> bool:
    """Whether the process is gone that supervises a run of `logio run`. Runs of Airflow have other supervisors."""
    if run.spec.supervision is not Supervision.PROCESS or run.state is not RunState.RUNNING:
        return False
    return at - run.created_at > LEFT_SECONDS and (looked is None or looked.age_seconds > LEFT_SECONDS)


def _stands_still(group: GroupStatus, lease: Lease, at: float) -> bool:
    """Whether nothing happens to the group by itself: it has ended, was not launched, or its driver is lost."""
    if group.state in ENDED or group.state in _STARTING:
        return True
    if group.state in LAUNCHING:
        if what_its_manager_says(group) is not None:  # it waits there, and something looks
            return False
        return at - group.since > lease.launch_seconds
    return group.silent_seconds is not None and group.silent_seconds > lease.seconds


SILENT_SECONDS = 5.0
"""A driver gives a heartbeat twice a second. After so long without one, its state is what was last known."""
_BEATING = (GroupState.RUNNING, GroupState.DRAINING)


def silent_seconds(status: GroupStatus) -> float | None:
    """For how long a registered driver has given no heartbeat, if that is long; None otherwise."""
    age = status.silent_seconds
    return age if status.state in _BEATING and age is not None and age >= SILENT_SECONDS else None


def condition_of(status: GroupStatus) -> str:
    """Such as ``running``, ``running, no heartbeat for 184 s``, or ``finished, drained``: its sources ended early."""
    silent = silent_seconds(status)
    drained = status.drained_at is not None and status.state in ENDED
    words = f"{status.state.value}, drained" if drained else status.state.value
    if (said := what_its_manager_says(status)) is not None:
        return f"{words}, {said}"
    return words if silent is None else f"{words}, no heartbeat for {silent:.0f} s"


SAID_SECONDS = 60.0
"""What a cluster manager has said is shown for so long."""


def what_its_manager_says(status: GroupStatus) -> str | None:
    """Such as ``queued since 12:00:05 UTC: queue default``, of a driver on a cluster that has not registered; None if nothing
    is known by now."""
    said, age = status.manager_said, status.said_age_seconds
    if said is None or status.state not in LAUNCHING or age is None or age > SAID_SECONDS:
        return None
    return saying(said)


def queued_seconds(status: GroupStatus) -> float | None:
    """For how long its driver has waited for room on its cluster; None if its manager has not said lately that it does."""
    said = status.manager_said
    is_queued = said is not None and said.state == "queued" and what_its_manager_says(status) is not None
    return status.state_age_seconds if is_queued else None


def waits_for_room(status: GroupStatus) -> str:
    """Of a driver for which `queued_seconds` is not None."""
    return (
        f"it has waited for room on its cluster for {queued_seconds(status):,.0f} s ({what_its_manager_says(status)}). Time "
        "in a queue counts as no failure: it waits on, and spends no recovery"
    )


def place_on_cluster(status: GroupStatus) -> str:
    """As what its driver was submitted to a cluster manager, such as ``yarn: application_17_0001, attempt 2``; empty for a
    process of the machine that launched it."""
    found = status.reported or status.submission
    if found is None:
        return ""
    attempt = f", attempt {found.attempt}" if found.attempt else ""
    return f"{found.manager}: {found.id or found.name}{attempt}"


def saying(said: ManagerSaid) -> str:
    """What a cluster manager says of a driver, for people."""
    state = "its cluster manager does not answer" if said.state == "unknown" else said.state
    since = "" if said.since is None else f" since {datetime.fromtimestamp(said.since, UTC):%H:%M:%S} UTC"
    return f"{state}{since}{': ' if said.why else ''}{said.why}"


def standby_of(status: GroupStatus) -> str:
    """What stands by to take the place of its driver, with its memory: ``ready, 512 MB``; empty if nothing does."""
    found = None if status.load is None or status.state not in ALIVE else status.load.standby
    if found is None:
        return ""
    return f"{'ready' if found.is_ready else 'starting'}, {found.rss_bytes / 2**20:,.0f} MB"
