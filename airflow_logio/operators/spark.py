"""`LogioSparkOperator`: one task per operator group, for as long as the group lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_logio import _compat
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.kept_code import take_new
from airflow_logio.launch.launcher import Launcher, LocalProcessLauncher
from airflow_logio.openlineage.running import RunningEvents
from airflow_logio.operators._task.group_task import GroupTask, asked_by_person
from airflow_logio.operators._task.kills import KillGuard, is_last_try, killed_task
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.openlineage_answers import lineage_of, running_task
from airflow_logio.operators._task.pipeline_reference import reference, resolve
from airflow_logio.operators._task.recipes import recipe_of
from airflow_logio.operators._task.refused_arguments import refuse
from airflow_logio.operators._task.relay import TaskRelay
from airflow_logio.operators._task.run_lookup import check_current, identity, opened_log, run_of
from airflow_logio.operators._task.status_page import say_status
from airflow_logio.operators.links import DriverLogLink, SparkUiLink
from airflow_logio.protocol.states import CONCLUDED, WAITING, GroupState
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.own_place import give_up_place
from airflow_logio.supervision.whole_watch import Sighting, WholeWatcher
from airflow_logio.triggers.group import LogioGroupTrigger
from airflow_logio.triggers.stored_link import StoredLink


class LogioSparkOperator(BaseOperator):
    """Launch a group's Spark driver, and watch the group through its incarnations until the log says that it has ended.

    The task is green when the log says that the group has finished; exit codes do not count. While it watches, it holds no
    worker slot. When a driver dies, the supervisor of the run (`LogioSuperviseOperator`, or a recovery DAG) recovers it, and
    the task keeps watching. A retry or a clear resumes a live group and recovers a dead one. A clear is a person's request,
    so it also restarts a parked or halted group.

    A replicated group has one task for all its replicas. It launches the replicas that the run starts with; requests to
    scale launch and retire the others. It is green when every slot is done, and red when a replica is parked or halted.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param group: name of the group (templated); by default the task's id, without that of its task group.
    :param run_uid: uid of the run (templated); by default the run that this DAG run has of the pipeline.
    :param logio_conn_id: the connection of the log.
    :param conn_id: connection of type ``spark`` or ``spark_connect``; None means a driver with master ``local[1]``.
    :param connections: the pipeline's connection names → Airflow connection ids, where they differ from the run's
        (templated).
    :param own_place: only this task launches drivers of its group, recoveries and new replicas included: they run where its
        queue, pool, executor and executor_config put it. False: whatever recovers or scales the group launches them, where
        it runs itself. By default True if the task names one of these.
    :param replica: number of a replica, from 1, of a replicated group: this task launches and watches that replica only, in
        its place, and each replica needs such a task (`LogioPipelineGroup` makes them; or ``expand(replica=[1, 2, 3])``). It
        waits while its replica is not in use, and is green when every slot of the group is done. By default it is for all
        replicas.
    :param deferrable: watch from the triggerer, where watching holds no worker slot; False: from the worker. By default as
        ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` says, and True where that is not set.
    :param poll_interval: seconds between two polls of the log; by default ``[logio] poll_interval``.
    :param status_poll_interval: the same, by the name that SparkSubmitOperator has for it.
    :param name: name of the Spark application (templated); by default it tells group, run and incarnation.

    The other parameters are those of Airflow's SparkSubmitOperator. They override the group's settings in the pipeline. Those
    that mean nothing here are refused, with the reason.

    :param conf: Spark properties (templated).
    :param deploy_mode: ``"client"``; ``"cluster"`` is refused.
    :param packages: Maven coordinates of jars for driver and executors, separated by commas (templated).
    :param exclude_packages: Maven coordinates that `packages` must not bring with it (templated).
    :param repositories: further repositories for `packages`, separated by commas.
    :param jars: jars for driver and executors, separated by commas (templated).
    :param files: files for the working folder of each executor, separated by commas (templated).
    :param archives: archives that are unpacked there, separated by commas.
    :param py_files: ``.py``, ``.zip`` and ``.egg`` files for driver and executors, separated by commas (templated).
    :param driver_class_path: further class path of the driver (templated).
    :param driver_memory: memory of the driver's JVM, e.g. ``"2g"``; by default as Spark's own configuration says.
    :param executor_memory: memory of each executor, e.g. ``"4g"``.
    :param executor_cores: cores of each executor (standalone, YARN, Kubernetes).
    :param num_executors: number of executors (YARN, Kubernetes).
    :param total_executor_cores: cores of all executors together (standalone).
    :param properties_file: file of Spark properties, instead of ``conf/spark-defaults.conf`` (templated).
    :param yarn_queue: queue of YARN.
    :param keytab: path of a Kerberos keytab on the worker (templated).
    :param principal: Kerberos principal of the keytab (templated).
    :param proxy_user: the user that Spark acts as (templated).
    :param use_krb5ccache: take the worker's ticket cache instead of a keytab.
    :param connect: the drivers of the run share one Spark application on each machine and are clients of its Spark Connect
        server: one JVM for all groups, and recovery in a second. The other arguments are those of that application. To use an
        existing server, give a connection of type ``spark_connect`` as ``conn_id`` instead.
    :param env_vars: environment variables of the driver (templated).
    :param verbose: spark-submit prints what it has understood.
    :param spark_binary: the spark-submit that starts the driver, a name on ``PATH`` or a path.
    :param openlineage_inject_parent_job_info: Spark's own OpenLineage events name this task as their parent. By default as
        the deployment's option ``[openlineage] spark_inject_parent_job_info`` says.
    :param openlineage_inject_transport_info: Spark's own OpenLineage events go where Airflow's go. By default as
        ``[openlineage] spark_inject_transport_info`` says.
    :param post_submit_commands: refused: put the commands into a task downstream.
    :param durable: True changes nothing, False is refused: a retry always resumes a group that lives.
    """

    template_fields: ClassVar[Sequence[str]] = (
        "group",
        "run_uid",
        "connections",
        "conf",
        "files",
        "py_files",
        "jars",
        "driver_class_path",
        "packages",
        "exclude_packages",
        "keytab",
        "principal",
        "proxy_user",
        "name",
        "env_vars",
        "properties_file",
    )
    ui_color = "#f7e3d0"
    operator_extra_links = (SparkUiLink(), DriverLogLink())

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        group: str | None = None,
        run_uid: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        conn_id: str | None = "spark_default",
        connections: Mapping[str, str] | None = None,
        own_place: bool | None = None,
        replica: int | None = None,
        deferrable: bool | None = None,
        poll_interval: float | None = None,
        status_poll_interval: float | None = None,
        conf: Mapping[str, Any] | None = None,
        deploy_mode: str | None = None,
        packages: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        jars: str | None = None,
        files: str | None = None,
        archives: str | None = None,
        py_files: str | None = None,
        driver_class_path: str | None = None,
        driver_memory: str | None = None,
        executor_memory: str | None = None,
        executor_cores: int | None = None,
        num_executors: int | None = None,
        total_executor_cores: int | None = None,
        properties_file: str | None = None,
        yarn_queue: str | None = None,
        keytab: str | None = None,
        principal: str | None = None,
        proxy_user: str | None = None,
        use_krb5ccache: bool = False,
        connect: bool = False,
        name: str | None = None,
        env_vars: Mapping[str, Any] | None = None,
        verbose: bool = False,
        spark_binary: str | None = None,
        openlineage_inject_parent_job_info: bool | None = None,
        openlineage_inject_transport_info: bool | None = None,
        post_submit_commands: Sequence[str] | None = None,
        durable: bool | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=10),
        **kwargs: Any,
    ) -> None:
        kwargs |= {
            "post_submit_commands": post_submit_commands,
            "durable": durable,
        }  # named, so that default_args reach them
        refuse(str(kwargs.get("task_id")), kwargs)
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.pipeline = reference(pipeline)
        self.group = self.task_id.rpartition(".")[2] if group is None else group
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id
        self.conn_id = conn_id
        self.connections = dict(connections or {})
        self.replica = replica
        if replica is not None and own_place is False:
            raise ConfigurationError(
                f"task {self.task_id!r}: a replica with a task is launched by it; leave own_place out"
            )
        self.own_place = replica is not None or (_compat.has_own_place(self) if own_place is None else own_place)
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        self.poll_interval = status_poll_interval if poll_interval is None else poll_interval
        self.conf = conf
        self.deploy_mode = deploy_mode
        self.packages = packages
        self.exclude_packages = exclude_packages
        self.repositories = repositories
        self.jars = jars
        self.files = files
        self.archives = archives
        self.py_files = py_files
        self.driver_class_path = driver_class_path
        self.driver_memory = driver_memory
        self.executor_memory = executor_memory
        self.executor_cores = executor_cores
        self.num_executors = num_executors
        self.total_executor_cores = total_executor_cores
        self.properties_file = properties_file
        self.yarn_queue = yarn_queue
        self.keytab = keytab
        self.principal = principal
        self.proxy_user = proxy_user
        self.use_krb5ccache = use_krb5ccache
        self.connect = connect
        self.name = name
        self.env_vars = env_vars
        self.verbose = verbose
        self.spark_binary = spark_binary
        self.openlineage_inject_parent_job_info = openlineage_inject_parent_job_info
        self.openlineage_inject_transport_info = openlineage_inject_transport_info
        self._guard: KillGuard | None = None
        self.spark_ui: str | None = None
        """Address of the Spark UI as this segment of the task has seen it last; None before the first look."""

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """A first attempt, a retry, or the first attempt after a clear."""
        return self._work(context, asked=asked_by_person(context["ti"], self.retries), recovers=True, relayed={})

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        """The trigger saw something to do. Reads from the log what it is, since it may have been done meanwhile."""
        cause = event.get("cause")
        if event["state"] == "error":
            with self._place_is_given_up(context):
                raise AirflowException(f"the triggerer cannot watch group {self.group!r}: {cause}")
        self.log.info("Group %s, incarnation %s: %s", event["group"], event["incarnation"], cause or event["state"])
        recovers = event["state"] == GroupState.DEAD.value
        return self._work(context, asked=False, recovers=recovers, relayed=event.get("relayed", {}))

    def on_kill(self) -> None:
        """SIGTERM, or `execution_timeout`: the group halts if a person has ended the task. If that cannot be known, it keeps
        running, and a note in the log lets the next attempt or the supervisor of the run find out."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.act()

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine."""
        return LocalProcessLauncher(_compat.work_dir())

    # --- for the OpenLineage provider, which calls these if it is installed and configured ----------------------------

    def get_openlineage_facets_on_start(self) -> Any:
        """An ``OperatorLineage``: the datasets of the group, and the run facet. Each worker segment begins with one."""
        return lineage_of(self, self.group, None) if self._reports_lineage else None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """As at the start, with what the log has counted."""
        return lineage_of(self, self.group, task_instance, counts=True) if self._reports_lineage else None

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """As at the start: another attempt counts on from here, and tells the sum."""
        return lineage_of(self, self.group, task_instance) if self._reports_lineage else None

    # --- inside ------------------------------------------------------------------------------------------------------

    def _work(
        self, context: Mapping[str, Any], *, asked: bool, recovers: bool, relayed: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        with self._place_is_given_up(context):
            return self._launch_and_watch(context, asked=asked, recovers=recovers, relayed=relayed)

    @contextmanager
    def _place_is_given_up(self, context: Mapping[str, Any]) -> Iterator[None]:
        """By an attempt that fails, if no other one follows."""
        try:
            yield
        except Exception as error:
            if self.own_place and (isinstance(error, AirflowFailException) or is_last_try(context["ti"])):
                self._give_up_place(context)
            raise

    def _give_up_place(self, context: Mapping[str, Any]) -> None:
        """No attempt follows by itself: what lives of the group has a supervisor from now on, as without a place."""
        try:
            with opened_log(self.logio_conn_id) as store:
                run = self._find_run(store, context)
                if give_up_place(store, run, self._watched(run)):
                    self.log.warning(
                        "Group %s gives up its place: until its task is cleared, a supervisor launches it", self.group
                    )
        except Exception as error:  # the task fails of something else
            self.log.warning(
                "Group %s keeps its place, and nothing launches it until its task is cleared: %s", self.group, error
            )

    def _find_run(self, store: LogStore, context: Mapping[str, Any]) -> Run:
        name = "" if self.run_uid else resolve(self.pipeline)[0].name
        return store.patience.call("finding the run", lambda: run_of(store, name, context, self.run_uid))

    def _launch_and_watch(
        self, context: Mapping[str, Any], *, asked: bool, recovers: bool, relayed: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        recipe = recipe_of(
            self,
            context,
            parent_job_info=self.openlineage_inject_parent_job_info,
            transport_info=self.openlineage_inject_transport_info,
        )
        recipe = replace(recipe, own_place=self.own_place)
        interval = self.poll_interval or _compat.poll_interval()
        with opened_log(self.logio_conn_id) as store:
            task = self._group_task(context, store, recipe, asked)
            relay = TaskRelay(store, task.context.run, task.watcher.members, relayed, self.log.info)
            lineage = running_task(self, context) if self._reports_lineage else None
            running = RunningEvents(lineage, task.context.run, self.group)
            link = partial(self._link, StoredLink(None if self.deferrable else context["ti"]))
            try:
                sighting = self._until_settled(task, relay, running, interval, recovers=recovers, link=link)
            finally:
                running.close()
            if sighting.state is GroupState.FINISHED:
                return task.summary(sighting)
            if sighting.state in WAITING:
                task.report_alerts()  # its trigger may have seen it dead last, and this task parked it
                say_status(self.log, store, task.context.run.uid, self.logio_conn_id)
                raise AirflowFailException(task.failure(sighting))
            run_uid = task.context.run.uid
            self._hand_over(store)
        last_try = is_last_try(context["ti"])
        self._watch(run_uid, task.group, last_try, sighting.incarnations, relay.relayed, lineage, interval)

    def _until_settled(
        self,
        task: GroupTask,
        relay: TaskRelay,
        running: RunningEvents,
        interval: float,
        *,
        recovers: bool,
        link: Callable[[str], None],
    ) -> Sighting:
        """Look and launch until the group has ended, or the trigger can watch it."""
        spark_ui = SparkUi(_compat.spark_history_url())
        while True:
            sighting, launched = task.advance(recovers=recovers or task.is_left())
            relay.look(sighting)
            if sighting.state is GroupState.RETIRED:  # it sleeps, and a run that was given up wakes no one
                check_current(task.context.store.patience.call("finding the run", task.run_now))
            if sighting.statuses:
                link(spark_ui.address(sighting.statuses))
            if launched or (recovers and sighting.is_dead):
                recovers = False  # what dies from now on has a supervisor
                continue
            if sighting.state is GroupState.FINISHED or (sighting.state in WAITING and not task.must_stay(sighting)):
                return sighting
            may_be_watched = sighting.state is not GroupState.NEW and not sighting.left_to_standby
            if self.deferrable and may_be_watched and not task.must_stay(sighting):
                return sighting
            if running.is_due():
                running.ask(task.context.store)
            time.sleep(interval)

    def _link(self, stored: StoredLink, address: str) -> None:
        """Airflow stores links when this segment ends; a task that stays on its worker stores a new address itself."""
        self.spark_ui = address
        stored.lead_to(address)

    def _group_task(self, context: Mapping[str, Any], store: LogStore, recipe: LaunchRecipe, asked: bool) -> GroupTask:
        pipeline, ref = resolve(self.pipeline)
        run = self._find_run(store, context)
        check_current(run)
        # From here on a kill leaves its note: this may be a later attempt, whose group lives.
        log_url = LogioHook(self.logio_conn_id).get_url()
        name = self._watched(run)
        self._guard = KillGuard(log_url, run, name, killed_task(context, self.task_id, of_replica=name != self.group))
        watcher = WholeWatcher(store, run, name)
        launching = Launching(store, self.logio_conn_id, self.make_launcher(), self.executor)
        if asked and store.patience.call("looking at the group", lambda: _restarts(store, run, watcher.members)):
            self._take_new_code(store, run, pipeline, ref, context)
        launch = replace(launching.context(run, name, recipe, self.pipeline), own=frozenset(watcher.members))
        self._stop_if_killed()
        store.patience.call("noting the launch", lambda: self._note_launches(store, run, watcher.members, recipe))
        task = GroupTask(launch, name, watcher, asked, own_place=self.own_place)
        task.log_settings()
        return task

    def _watched(self, run: Run) -> str:
        """The name in the log of what this task launches and watches. Raises AirflowFailException."""
        if self.replica is None:
            return self.group
        shape = run.spec.replicated.get(self.group)
        if shape is None or not 1 <= int(self.replica) <= len(shape.replicas):
            has = "is not replicated" if shape is None else f"has replicas 1 to {len(shape.replicas)}"
            raise AirflowFailException(f"there is no replica {self.replica} of group {self.group!r}: it {has}")
        return shape.replicas[int(self.replica) - 1]

    @property
    def _reports_lineage(self) -> bool:
        """Of the tasks of a group's replicas, the first one's tells OpenLineage of all of them."""
        return self.replica in (None, 1)

    def _stop_if_killed(self) -> None:
        """The process of a killed task lives for some seconds more. What it writes would take its own note away."""
        if self._guard is None:
            raise AirflowException(f"the task of group {self.group!r} was killed before it launched anything")

    def _take_new_code(
        self, store: LogStore, run: Run, pipeline: Pipeline, ref: PipelineRef, context: Mapping[str, Any]
    ) -> None:
        """A person has cleared the task, which launches the group: with this worker's code, if the graph is the same."""
        if pipeline.fingerprint()["graph"] != run.spec.graph_fingerprint:
            self.log.warning("Pipeline %s has another graph here: group %s keeps its code", pipeline.name, self.group)
            return
        by = f"task {self.task_id} of {identity(context)[1]}, cleared by a person"
        number = take_new(store, run, self.group, (pipeline, ref), by=by)
        if number:
            self.log.info("The next driver of group %s gets code %d", self.group, number)

    def _note_launches(self, store: LogStore, run: Run, names: Sequence[str], recipe: LaunchRecipe) -> None:
        """Includes replicas that are not in use: a task that scales the group launches them."""
        for name in names:
            store.note_launch(run.run_id, name, recipe)

    def _hand_over(self, store: LogStore) -> None:
        """A person may have ended the task meanwhile, and may until its trigger runs: Airflow need not tell either of it.

        Raises AirflowFailException if that has happened.
        """
        guard = self._guard
        if guard is None:  # it was killed
            return
        self._guard = store.patience.call("noting the deferral", lambda: guard.deferring(store))
        if store.patience.call("asking what the task has become", lambda: guard.is_ended(store)):
            raise AirflowFailException(f"group {self.group!r} is halted: a person has ended its task meanwhile")

    def _watch(
        self,
        run_uid: str,
        group: str,
        last_try: bool,
        incarnations: Mapping[str, int],
        relayed: Mapping[str, Sequence[int]],
        lineage: Mapping[str, Any] | None,
        interval: float,
    ) -> NoReturn:
        trigger = LogioGroupTrigger(
            logio_conn_id=self.logio_conn_id,
            run_uid=run_uid,
            group=group,
            own_place=self.own_place,
            last_try=last_try,
            incarnations=incarnations,
            relayed=relayed,
            lineage=lineage,
            poll_interval=interval,
        )
        self.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer does not return")


def _restarts(store: LogStore, run: Run, members: Sequence[str]) -> bool:
    """Whether a person who clears the task makes it launch a driver, at once or when the group has halted."""
    statuses = [store.group(run.run_id, name) for name in members]
    return any(
        status.state in (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)
        or (status.desired is GroupState.HALTED and status.state not in CONCLUDED)
        for status in statuses
    )
