"""One segment of a group's task on its worker, from `execute` or `resume` to a result, a failure or a deferral."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_logio import _compat
from airflow_logio.commands import with_log
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import LogioError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import take_new
from airflow_logio.launch.driver_config import needs_of
from airflow_logio.launch.driver_log import LATE_SECONDS, LEAST_PARTS, OutputRelay, beginning
from airflow_logio.openlineage.running import RunningEvents
from airflow_logio.operators._task.arguments import recipe_of
from airflow_logio.operators._task.group_task import GroupTask
from airflow_logio.operators._task.kills import KillGuard, killed_task
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.openlineage_answers import running_task
from airflow_logio.operators._task.pipeline_reference import resolve
from airflow_logio.operators._task.run_lookup import check_current, identity, is_last_try, opened_log, run_of
from airflow_logio.operators._task.status_page import say_status
from airflow_logio.protocol.states import CONCLUDED, WAITING, GroupState
from airflow_logio.status.cluster_news import ClusterNews, manager_page
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.run_rules import computed_already, is_graph_of
from airflow_logio.supervision.look import Look, Watcher
from airflow_logio.supervision.task_notes import give_up_place
from airflow_logio.triggers.group import LogioGroupTrigger
from airflow_logio.triggers.stored_link import StoredLinks

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkerSegment:
    """It launches the group, then looks until the group has ended or its trigger can watch it."""

    task: Any
    """The `LogioSparkOperator`, after templating."""
    context: Mapping[str, Any]
    asked: bool = False
    """A person has cleared the task."""
    recovers: bool = False
    """This segment recovers what it finds dead at first, and leaves no supervisor to do it."""
    is_attempt: bool = False
    """An attempt of the task begins with this segment."""
    relayed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Driver output that the trigger has relayed already, as in `TaskRelay`."""
    _guard: KillGuard | None = None

    def work(self) -> dict[str, Any]:
        """The task's result. Raises TaskDeferred if its trigger watches on, and AirflowFailException for a group that
        waits for a person."""
        with self.place_given_up_on_failure():
            return self._launch_and_watch()

    def kill(self) -> None:
        """Halt the group, or leave a note for what comes next (`KillGuard`). Called once, by a signal handler."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.act()

    # --- the group's place --------------------------------------------------------------------------------------------

    @contextmanager
    def place_given_up_on_failure(self) -> Iterator[None]:
        """If this attempt fails and no other one follows, a supervisor launches the group's drivers from then on."""
        try:
            yield
        except Exception as error:
            if self.task.own_place and (isinstance(error, AirflowFailException) or is_last_try(self.context["ti"])):
                self._give_up_place()
            raise

    def _give_up_place(self) -> None:
        group = self.task.group
        try:
            with opened_log(self.task.logio_conn_id) as store:
                run = self._find_run(store)
                if give_up_place(store, run, self._watched(run)):
                    self.task.log.warning(
                        "Group %s gives up its place: until its task is cleared, a supervisor launches it", group
                    )
        except Exception as error:  # the task fails of something else
            self.task.log.warning(
                "Group %s keeps its place, and nothing launches it until its task is cleared: %s", group, error
            )

    # --- launching ----------------------------------------------------------------------------------------------------

    def group_task(self, store: LogStore, recipe: LaunchRecipe) -> GroupTask:
        """The group as this segment launches and watches it. From here on, a kill leaves its note in the log."""
        task = self.task
        pipeline, ref = resolve(task.pipeline)
        run = self._find_run(store)
        check_current(run)
        name = self._watched(run)
        # This may be a later attempt, whose group lives: guard it before anything else.
        killed = killed_task(self.context, task.task_id, of_replica=name != task.group)
        self._guard = KillGuard(LogioHook(task.logio_conn_id).get_url(), run, name, killed)
        watcher = Watcher.of_group(store, run, name)
        launching = Launching(store, task.logio_conn_id, task.make_launcher(), task.executor)
        if self.asked and store.patience.call("looking at the group", lambda: _restarts(store, run, watcher.members)):
            self._take_new_code(store, run, pipeline, ref)
        launch = replace(launching.context(run, name, recipe, task.pipeline), own=frozenset(watcher.members))
        if self._guard is None:  # the process lives for some seconds more, and would take its own note away
            raise AirflowException(f"the task of group {task.group!r} was killed before it launched anything")
        recipe = replace(recipe, needs=needs_of(launch.pipeline, name, launch.code))
        store.patience.call("noting the launch", lambda: _note_launches(store, run, watcher.members, recipe))
        found = GroupTask(launch, name, watcher, self.asked, own_place=recipe.own_place, is_attempt=self.is_attempt)
        found.log_settings()
        return found

    def _find_run(self, store: LogStore) -> Run:
        name = "" if self.task.run_uid else resolve(self.task.pipeline)[0].name
        return store.patience.call("finding the run", lambda: run_of(store, name, self.context, self.task.run_uid))

    def _watched(self, run: Run) -> str:
        """The name in the log of what this task launches and watches. Raises AirflowFailException."""
        group, replica = self.task.group, self.task.replica
        if replica is None:
            return str(group)
        shape = run.spec.replicated.get(group)
        if shape is None or not 1 <= int(replica) <= len(shape.replicas):
            has = "is not replicated" if shape is None else f"has replicas 1 to {len(shape.replicas)}"
            raise AirflowFailException(f"there is no replica {replica} of group {group!r}: it {has}")
        return shape.replicas[int(replica) - 1]

    def _take_new_code(self, store: LogStore, run: Run, pipeline: Pipeline, ref: PipelineRef) -> None:
        """Let the next driver have this worker's code if the graph is the same: a person has cleared the task."""
        group = self.task.group
        if not is_graph_of(run, pipeline.fingerprint()["graph"], pipeline.describe()):
            self.task.log.warning("Pipeline %s has another graph here: group %s keeps its code", pipeline.name, group)
            return
        by = f"task {self.task.task_id} of {identity(self.context)[1]}, cleared by a person"
        number = take_new(store, run, group, (pipeline, ref), by=by)
        if number:
            self.task.log.info("The next driver of group %s gets code %d", group, number)

    # --- watching -----------------------------------------------------------------------------------------------------

    def _launch_and_watch(self) -> dict[str, Any]:
        conn_id = self.task.logio_conn_id
        recipe = recipe_of(self.task, self.context)
        interval = self.task.poll_interval or _compat.poll_interval()
        with opened_log(conn_id) as store:
            group = self.group_task(store, recipe)
            run = group.context.run
            relay = TaskRelay(store, run, group.watcher.members, self.relayed, self.task.log.log)
            lineage = running_task(self.task, self.context)
            running = RunningEvents(lineage, run, self.task.group)
            try:
                look = self._until_settled(group, relay, running, interval)
            finally:
                running.close()
            if look.state is GroupState.FINISHED:
                if self.asked and not group.has_launched:
                    said = computed_already(run, f"group {self.task.group!r} of run {run.spec.key}")
                    self.task.log.warning(with_log(said, conn_id))
                return group.summary(look)
            if look.state in WAITING:
                group.report_alerts()  # its trigger may have seen it dead last, and this task parked it
                say_status(self.task.log, store, run.uid, conn_id)
                kind = AirflowException if group.waits_for_input(look) else AirflowFailException
                raise kind(group.failure(look))
            self._hand_over(store)
        self._defer(group, look, relay, lineage, interval)

    def _until_settled(self, group: GroupTask, relay: TaskRelay, running: RunningEvents, interval: float) -> Look:
        """Look and launch until the group has ended, or the trigger can watch it."""
        store, recovers = group.context.store, self.recovers
        spark_ui = SparkUi(_compat.spark_history_url())
        cluster = ClusterNews(group.context.run.spec.lease.launch_seconds)
        links = StoredLinks(None if self.task.deferrable else self.context["ti"])
        while True:
            look, launched = group.advance(recovers=recovers or group.is_left())
            relay.look(look)
            if look.state is GroupState.RETIRED:  # it sleeps, and a run that was given up wakes no one
                check_current(store.patience.call("finding the run", group.run_now))
            for said in cluster.news(look.statuses):
                self.task.log.info(said)
            if look.statuses:
                self._link(links, spark_ui.address(look.statuses), manager_page(look.statuses))
            if launched or (recovers and look.is_dead):
                recovers = False  # what dies from now on has a supervisor
                continue
            must_stay = group.must_stay(look)
            if look.state is GroupState.FINISHED or (look.state in WAITING and not must_stay):
                return look
            may_be_watched = (group.waits or look.state is not GroupState.NEW) and not look.left_to_standby
            if self.task.deferrable and may_be_watched and not must_stay:
                return look
            if running.is_due():
                running.ask(store)
            time.sleep(interval)

    def _link(self, stored: StoredLinks, ui: str, page: str) -> None:
        """Airflow stores links when this segment ends; a task that stays on its worker stores a new address itself."""
        self.task.spark_ui, self.task.manager_page = ui, page
        stored.lead_to(ui, page)

    # --- handing over to the trigger ----------------------------------------------------------------------------------

    def _hand_over(self, store: LogStore) -> None:
        """Until the trigger runs, a person may end the task and Airflow tells neither of them: note the deferral, and ask.

        Raises AirflowFailException if a person has ended it.
        """
        guard = self._guard
        if guard is None:  # it was killed
            return
        self._guard = store.patience.call("noting the deferral", lambda: guard.deferring(store))
        if store.patience.call("asking what the task has become", lambda: guard.is_ended(store)):
            raise AirflowFailException(f"group {self.task.group!r} is halted: a person has ended its task meanwhile")

    def _defer(
        self,
        group: GroupTask,
        look: Look,
        relay: TaskRelay,
        lineage: Mapping[str, Any] | None,
        interval: float,
    ) -> NoReturn:
        trigger = LogioGroupTrigger(
            logio_conn_id=self.task.logio_conn_id,
            run_uid=group.context.run.uid,
            group=group.group,
            own_place=group.own_place,
            last_try=is_last_try(self.context["ti"]),
            ends_task=_compat.may_end_in_triggerer(self.task),
            waits_for_place=group.no_place is not None,
            incarnations=look.incarnations,
            relayed=relay.relayed,
            lineage=lineage,
            poll_interval=interval,
        )
        self.task.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer does not return")


def _restarts(store: LogStore, run: Run, members: Sequence[str]) -> bool:
    """Whether a person who clears the task makes it launch a driver, at once or when the group has halted."""
    statuses = [store.group(run.run_id, name) for name in members]
    return any(
        status.state in (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)
        or (status.desired is GroupState.HALTED and status.state not in CONCLUDED)
        for status in statuses
    )


def _note_launches(store: LogStore, run: Run, names: Sequence[str], recipe: LaunchRecipe) -> None:
    """Includes replicas that are not in use: a task that scales the group launches them."""
    for name in names:
        store.note_launch(run.run_id, name, recipe)


class TaskRelay:
    """Prints in the task's log what the group's drivers print, while the task is on its worker; its trigger does the same.

    It begins behind what the trigger has `relayed`, or with the first look (ADR-98).
    """

    def __init__(
        self,
        store: LogStore,
        run: Run,
        members: Collection[str],
        relayed: Mapping[str, Sequence[int]],
        say: Callable[[int, str], None],
    ) -> None:
        self._store = store
        self._run = run
        self._members = members
        self._begins_at = relayed
        self._say = say
        self._relay: OutputRelay | None = None
        self._seen_at = 0.0
        """When the last part was written that was seen, by the clock of the log."""

    @property
    def relayed(self) -> Mapping[str, Sequence[int]]:
        return self._begins_at if self._relay is None else self._relay.relayed

    def look(self, look: Look) -> None:
        """Call it after each look at the group."""
        if not look.statuses:
            return
        if self._relay is None:
            begins_at = beginning(look.incarnations, self._begins_at)
            self._relay = OutputRelay(self._members, begins_at, self._say)
        since, run_id = self._seen_at - LATE_SECONDS, self._run.run_id
        try:
            parts = self._store.output.written_since([run_id], since, most=LEAST_PARTS).get(run_id, ())
        except LogioError as error:  # the task has other work, and the trigger or the next look says the same lines
            log.debug("what the drivers of run %s print is not known: %s", self._run.uid, error)
            return
        self._relay.relay(parts)
        self._seen_at = max((part.at for part in parts), default=self._seen_at)
