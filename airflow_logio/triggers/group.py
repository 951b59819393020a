"""`LogioGroupTrigger`: watches a group from the triggerer, with all incarnations and replicas, until a task has work to do.

It costs no worker slot. It launches nothing: a dead group is recovered by its supervisor. While the log cannot be
reached, the state of the group is unknown, and the trigger keeps trying.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio import metrics
from airflow_logio._compat import TaskSuccessEvent, TriggerEvent, aget_task_state, spark_history_url
from airflow_logio.commands import with_log
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.launch.driver_log import OutputRelay, beginning
from airflow_logio.openlineage.running import RunningEvents
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import OPEN_SCALING, WAITING, GroupState, RunState
from airflow_logio.status.cluster_news import ClusterNews, manager_page
from airflow_logio.status.recoveries import Recovery, RecoveryNews
from airflow_logio.status.snapshot import ProgressLines, SnapshotSeries
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.status.whole_group import alert_figures, members_of, reports
from airflow_logio.status.whole_group import result as result_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import OutputPart
from airflow_logio.store.records.driver_records import DriverRecord, KilledTask
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures, RunSight, ScalingRequest
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.supervision.halt import Halt, halt_all_for_good
from airflow_logio.supervision.look import Look, Watcher
from airflow_logio.supervision.presence import SupervisionWatch
from airflow_logio.supervision.scaling import launches_by_task
from airflow_logio.supervision.task_notes import STOPPING, give_up_place, note_killed, on_its_way
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.log_poller import LogLook
from airflow_logio.triggers.stored_link import StoredLinks

LINE_SECONDS = 30.0
"""At most one line of progress within this time, in the log of the task."""


WAKING = WAITING | {GroupState.FINISHED, GroupState.NEW}
"""States of a group that wake its task. A group that is scaled to zero wakes up by itself."""
HALT_GRACE_SECONDS = 10.0
"""How long a driver may take to halt by itself."""
LINE_SECONDS = 15.0
"""How much longer each in line waits for a place than the one before: a task that is woken settles first, and needs a
worker."""
LAST_IN_LINE_SECONDS = 60.0
LAST_WORDS_SECONDS = 2.0
"""A driver sends what it prints every second, and the rest after its last commit."""
LOG_AWAY_SECONDS = 900.0
"""How long a halt waits for a log that cannot be reached; drivers wait as long."""
FOLLOW_SECONDS = 1.0
"""Between the end of a cancelled trigger and the question why: the event loop of a triggerer that ends is gone by then."""
_SILENT_LOOKS = 60
_T = TypeVar("_T")
_following: set[asyncio.Task[None]] = set()
"""Work in progress for tasks that people acted on. An event loop by itself keeps no task alive."""


class LogioGroupTrigger(LogTrigger):
    """Fires one event with `state` (of the group, or ``error``), `group`, `incarnation`, `cause` and `relayed`.

    If the group is replicated, `group` of the event names the replica that it is about. With `ends_task`, a group that has
    finished ends the task from the triggerer, with the result that the task would return. Any other event waits until the
    executor has reported the deferral: woken earlier, Airflow counts the task as failed.

    :param logio_conn_id: the connection of the log.
    :param run_uid: uid of the run.
    :param group: name of the group in the pipeline, or of one replica of it.
    :param own_place: whether only the task launches drivers of the group: then a death wakes it, and a request to scale that
        needs a new replica.
    :param last_try: whether Airflow would not try the task again by itself: then it may fail by itself for good.
    :param waits_for_place: whether the run must not begin yet, because other runs of its pipeline have all places for
        drivers: then a group that is new wakes the task when there is one.
    :param incarnations: group or replica → the incarnation that the task saw last.
    :param relayed: group or replica → what the task log has of its driver's output (`OutputRelay`).
    :param ends_task: whether the task needs no worker to succeed (`_compat.may_end_in_triggerer`).
    :param lineage: for whom RUNNING events are sent to OpenLineage, from `TaskIdentity.given`; None for no events.
    :param poll_interval: seconds between two looks at the log.
    """

    arguments = (
        "run_uid",
        "group",
        "own_place",
        "last_try",
        "ends_task",
        "waits_for_place",
        "incarnations",
        "relayed",
        "lineage",
    )

    def __init__(
        self,
        *,
        logio_conn_id: str,
        run_uid: str,
        group: str,
        own_place: bool = False,
        last_try: bool = False,
        ends_task: bool = False,
        waits_for_place: bool = False,
        incarnations: Mapping[str, int] | None = None,
        relayed: Mapping[str, Sequence[int]] | None = None,
        lineage: Mapping[str, Any] | None = None,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__(logio_conn_id, poll_interval, last_try=last_try)
        self.lineage = lineage
        self.run_uid = run_uid
        self.group = group
        self.own_place = own_place
        self.ends_task = ends_task
        self.waits_for_place = waits_for_place
        self._place_since: float | None = None
        """Since when there has been a place at each look."""
        self.incarnations = dict(incarnations or {})
        self.relayed = {name: list(last) for name, last in (relayed or {}).items()}
        self._observers: _Observers | None = None
        self._failed_looks = 0
        self._finished_at: float | None = None
        self._result: dict[str, Any] | None = None
        """What the task returns, once its group has finished."""
        self._is_followed = False
        """Whether it is being found out why Airflow has cancelled this trigger."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until a look has found something to do."""
        try:
            event = await self._seen(self._see, uid=self.run_uid, figures=True, output=True, place=self.waits_for_place)
        except (LogioError, AirflowException) as error:
            event = {"state": "error", **self._who(), "cause": f"{type(error).__name__}: {error}"}
        self._tell_no_more()
        if self._result is not None:
            yield TaskSuccessEvent(xcoms={"return_value": self._result})
            return
        await self._settled()
        yield TriggerEvent(event)

    async def cleanup(self) -> None:
        """As in the base. If Airflow has cancelled the trigger, the group halts for a task that a person has marked.

        Airflow cancels it alike for a mark, a clear, and an end of the triggerer (later versions call `on_kill` for the first
        two). So the state of the task instance decides. It is asked for a moment later: a triggerer that ends takes
        the question along. What has begun then continues in the triggerer by itself: the first answer may take long, because
        it builds an API server in its own process, and Airflow cancels what it waits for in each of its rounds.
        """
        self._tell_no_more()
        await super().cleanup()
        current = asyncio.current_task()
        if current is not None and current.cancelling() and not self._is_followed:
            self._is_followed = True
            asyncio.get_running_loop().call_later(FOLLOW_SECONDS, self._begin_to_follow)

    def _begin_to_follow(self) -> None:
        follows = asyncio.get_running_loop().create_task(self._follow_task())
        _following.add(follows)
        follows.add_done_callback(_following.discard)

    def _tell_no_more(self) -> None:
        """The task ends, or another trigger takes over: a RUNNING event must not come after its COMPLETE or FAIL."""
        if self._observers is not None:
            self._observers.running.close()

    async def _follow_task(self) -> None:
        """Do what `cleanup` says. An error is logged here, since no task waits any more."""
        said = "Group %s is not halted, and its task may have been marked: %s. `logio stop %s %s` halts it"
        unhalted = with_log(said, self.logio_conn_id)
        try:
            await self._halt_if_marked()
        except asyncio.CancelledError:
            self.log.error(unhalted, self.group, "the triggerer is stopping", self.run_uid[:8], self.group)
            raise
        except Exception as error:
            self.log.exception(unhalted, self.group, error, self.run_uid[:8], self.group)
        finally:
            await super().cleanup()

    async def _halt_if_marked(self) -> None:
        """Halt all running drivers of the group for a marked task, round by round, until no new one appears.

        The answer may take long. Meanwhile recoveries and scaling continue, and what they launch belongs to the task, too.
        So incarnations are read before the task's state: if it is still marked, no newer attempt can have launched them. A
        halted group is not recovered, and its requests are refused, so one more round finds no other.
        """
        halted: Mapping[str, int] | None = None
        while True:
            present = await self._as_soon_as_the_log_answers(self._present)
            state = await aget_task_state(self.task_instance)
            if state not in STOPPING:
                self.log.info("Group %s keeps running: its task was cleared (state %s)", self.group, state)
                return
            if present == halted:
                if self.own_place:  # of a replica that was not in use nothing is halted, and another may take its place
                    await self._as_soon_as_the_log_answers(self._give_up_place)
                return
            self.log.info("Group %s: its task is %s, so it is halted", self.group, state)
            halts = await self._as_soon_as_the_log_answers(partial(self._halt, present))
            for name, halt in halts.items():
                self.log.info("Group %s: its task is %s; it is %s", name, state, halt.value)
            halted = present

    async def _as_soon_as_the_log_answers(self, act: Callable[[LogStore], _T]) -> _T:
        """Run `act` in a thread, as soon as the log answers. Waiting for the log holds no thread: a triggerer has few."""
        deadline = time.monotonic() + LOG_AWAY_SECONDS
        while True:
            try:
                return await self._in_thread(act)
            except LogUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(self.poll_interval)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _see(self, look: LogLook) -> dict[str, Any] | None:
        """The event, if there is one."""
        if look.store is None:
            self._not_answered(look.error)
            return None
        sight = look.runs.get(self.run_uid)
        if sight is None:
            look.store.find_run(self.run_uid)  # its error says what to do
            return None  # it has begun since the look
        check_whole(sight.run)
        try:
            return self._judge(look.store, sight, look)
        except LogUnavailable as error:
            self._not_answered(error)
            return None

    def _not_answered(self, error: LogUnavailable | None) -> None:
        if self._observers is not None:
            self._observers.watcher.not_answered(str(error))
        self._say_unavailable(str(error))

    def _say_unavailable(self, why: str) -> None:
        if self._failed_looks % _SILENT_LOOKS == 0:
            self.log.warning("Group %s: the log is unavailable, so its state is unknown; retrying: %s", self.group, why)
        self._failed_looks += 1

    def _judge(self, store: LogStore, sight: RunSight, look: LogLook) -> dict[str, Any] | None:
        if self._observers is None or self._observers.store is not store:
            self._tell_no_more()
            self._observers = self._begin(store, sight.run)
        observers = self._observers
        if any(one.killed is not None for one in sight.groups if one.group in observers.watcher.members):
            note_killed(store, sight.run, self.group, None)  # from here on Airflow tells this trigger
        seen = self._watched(observers.watcher, sight, look.asked_at)
        if (warning := observers.supervision.warning(look.supervisors)) is not None:
            self.log.warning("Group %s: %s", self.group, warning)
        is_left_dead = observers.supervision.is_left(dead=seen.is_dead)
        self._show_drivers(observers, seen, look.output.get(sight.run.run_id, ()))
        one, state = seen.decides, seen.state
        needs_replica = self.own_place and bool(seen.statuses) and self._needs_replica(sight)
        given_up = sight.run.state is RunState.SUPERSEDED  # of a group that sleeps nothing else says so
        if state is GroupState.NEW and self.waits_for_place and not self._finds_place(look, sight.run):
            return None
        wakes = state in WAKING or is_left_dead or needs_replica or given_up or (self.own_place and seen.is_dead)
        ends = self.ends_task and state is GroupState.FINISHED
        if ends and not self._has_waited():
            return None
        self._report(observers, store, sight, look.figures.get(sight.run.run_id), wakes=wakes)
        if not wakes or one is None or one.status is None:
            return None
        if ends:
            self._result = result_of(sight.run, self.group, seen.statuses, store.progress(sight.run.run_id))
        elif self.own_place:
            self._note_on_its_way(store, sight.run)
        cause = one.cause or one.status.error or ("a replica is asked for" if needs_replica else None)
        return {"state": str(state), **self._who(one.status.group), "cause": cause, "relayed": self.relayed}

    def _finds_place(self, look: LogLook, run: Run) -> bool:
        """As many as fit take the places, in the order of their runs, and the others only if they do not: each would need a
        worker to find none. A run that was given up has none, and its task says so."""
        if run.state is RunState.SUPERSEDED:
            return True
        if run.run_id not in look.ahead:
            return False
        ahead = look.ahead[run.run_id]
        if ahead is None:
            self._place_since = None
            return False
        if self._place_since is None:
            self._place_since = time.monotonic()
        return time.monotonic() - self._place_since >= min(ahead * LINE_SECONDS, LAST_IN_LINE_SECONDS)

    def _report(
        self, observers: _Observers, store: LogStore, sight: RunSight, figures: RunFigures | None, *, wakes: bool
    ) -> None:
        if wakes:
            figures = store.figures([sight.run.run_id])[sight.run.run_id]
        if figures is None:
            return
        if reports(sight.run, self.group, sight.groups):
            observers.reporter.report(sight.groups, figures, sight.requests, at_once=wakes)
        if not wakes:
            observers.running.look(sight.groups, figures)

    def _has_waited(self) -> bool:
        """Whether the driver of a group that has finished has had time to send what it has printed last."""
        if self._finished_at is None:
            self._finished_at = time.monotonic()
        return time.monotonic() - self._finished_at >= LAST_WORDS_SECONDS

    def _note_on_its_way(self, store: LogStore, run: Run) -> None:
        """Until a worker has the task, which may take long, no process is told if a person ends it."""
        task = self._task()
        if task is not None:
            note_killed(store, run, self.group, on_its_way(task))

    def _watched(self, watcher: Watcher, sight: RunSight, asked_at: float) -> Look:
        seen = watcher.judge(sight, asked_at)
        self.incarnations |= seen.incarnations
        if seen.unavailable is None:
            self._failed_looks = 0
        else:
            self._say_unavailable(seen.unavailable)
        return seen

    def _show_drivers(self, observers: _Observers, seen: Look, printed: Sequence[OutputPart]) -> None:
        """Where they and their Spark UIs are, and what they have printed."""
        for said in (*observers.cluster.news(seen.statuses), *observers.spark_ui.news(seen.statuses)):
            self.log.info(said)
        if seen.statuses:
            observers.links.lead_to(observers.spark_ui.address(seen.statuses), manager_page(seen.statuses))
        observers.relay.relay(printed)
        self.relayed = observers.relay.relayed

    def _needs_replica(self, sight: RunSight) -> bool:
        """Whether a request to scale waits for this task to launch a replica."""
        whole, own = replicated_group(self.group), members_of(sight.run, self.group)
        asked = [one for one in sight.requests if one.group == whole and one.state in OPEN_SCALING]
        return any(name in own for one in asked for name in launches_by_task(sight.run, sight.groups, one))

    def _task(self) -> KilledTask | None:
        """The task that this trigger watches for, as it is asked after."""
        ti = getattr(self, "task_instance", None)
        if ti is None:
            return None
        map_index = getattr(ti, "map_index", -1)
        number = -1 if map_index is None else map_index
        of_replica = replicated_group(self.group) != self.group
        return KilledTask(ti.dag_id, ti.run_id, ti.task_id, number, last_try=self.last_try, of_replica=of_replica)

    def _present(self, store: LogStore) -> dict[str, int]:
        """Group or replica → incarnation."""
        run = store.find_run(self.run_uid)
        members = members_of(run, self.group)
        return {one.group: one.incarnation for one in store.groups(run.run_id) if one.group in members}

    def _give_up_place(self, store: LogStore) -> bool:
        return give_up_place(store, store.find_run(self.run_uid), self.group)

    def _halt(self, incarnations: Mapping[str, int], store: LogStore) -> dict[str, Halt]:
        run = store.find_run(self.run_uid)
        return halt_all_for_good(store, run, self.group, incarnations, grace_seconds=HALT_GRACE_SECONDS)

    def _who(self, name: str | None = None) -> dict[str, Any]:
        name = self.group if name is None else name
        return {"group": name, "incarnation": self.incarnations.get(name, 0)}

    def _begin(self, store: LogStore, run: Run) -> _Observers:
        relay = OutputRelay(members_of(run, self.group), beginning(self.incarnations, self.relayed), self.log.log)
        return _Observers(
            store,
            Watcher.of_group(store, run, self.group),
            SupervisionWatch(store.supervisors, run),
            GroupReporter(run, replicated_group(self.group), self.log.info),
            relay,
            SparkUi(spark_history_url()),
            ClusterNews(run.spec.lease.launch_seconds),
            StoredLinks(getattr(self, "task_instance", None)),
            RunningEvents(self.lineage, run, replicated_group(self.group)),
        )


@dataclass(frozen=True, slots=True)
class _Observers:
    """What a trigger keeps between two looks at a group."""

    store: LogStore
    watcher: Watcher
    supervision: SupervisionWatch
    reporter: GroupReporter
    relay: OutputRelay
    spark_ui: SparkUi
    cluster: ClusterNews
    links: StoredLinks
    running: RunningEvents


class GroupReporter:
    """The one reporter of a group and all its replicas. `report` is called with what was read, every ten seconds or so."""

    def __init__(
        self, run: Run, group: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._group = group
        self._members = members_of(run, group)
        self._say = say
        self._series = SnapshotSeries(run, clock)
        self._lines = ProgressLines(LINE_SECONDS, clock)
        self._news = RecoveryNews()
        self._settled: set[int] | None = None
        """Requests to scale the group whose outcome was reported; None before the first look."""

    def report(
        self,
        groups: Sequence[GroupStatus],
        figures: RunFigures,
        requests: Sequence[ScalingRequest] = (),
        *,
        at_once: bool = False,
    ) -> None:
        """`requests` as in `RunSight`. `at_once` for the last time: then the progress is said, whenever that was done
        before."""
        snapshot = self._series.next(groups, figures.ports, figures.under_way)
        pipeline = self._run.spec.key.pipeline
        if self._settled is None:
            replicated = self._group in self._run.spec.replicated
            metrics.report_beginning(pipeline, self._group, is_replicated=replicated)
        metrics.report_group(snapshot, self._group)
        alerting = alert_figures(self._run, self._group, groups, figures)
        metrics.report_alert_figures(pipeline, self._group, alerting)
        self._report_scalings([one for one in requests if one.group == self._group])
        view = snapshot.group(self._group)
        if view is not None and (at_once or self._lines.is_due()) and (line := self._lines.line(view)) is not None:
            self._say(line)
        self._report_recoveries(figures.drivers)

    def _report_scalings(self, requests: Sequence[ScalingRequest]) -> None:
        """What the first look finds is old."""
        settled = {one.request_id: one for one in requests if one.state not in OPEN_SCALING}
        for number in settled.keys() - (settled.keys() if self._settled is None else self._settled):
            metrics.report_scaled(self._run.spec.key.pipeline, settled[number])
        self._settled = (self._settled or set()) | settled.keys()

    def _report_recoveries(self, drivers: Sequence[DriverRecord]) -> None:
        begun, committed = self._news.of(drivers)
        pipeline = self._run.spec.key.pipeline
        for one in self._ours(begun):
            metrics.report_recovery_begun(pipeline, one)
            self._say(f"{one.group} is being recovered as incarnation {one.incarnation}: {one.cause}")
        for one in self._ours(committed):
            metrics.report_recovered(pipeline, one)
            steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in one.seconds_of_steps.items())
            self._say(f"{one.group} has recovered {one.seconds or 0:.1f} s after its death was detected: {steps}")

    def _ours(self, found: Sequence[Recovery]) -> list[Recovery]:
        return [one for one in found if one.group in self._members]
