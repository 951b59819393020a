"""`LogioSparkOperator`: one task per operator group, for as long as the group lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.spark_settings import SparkArguments
from airflow_logio.operators._task.arguments import check_deploy_mode, check_group, refuse, with_spark_attributes
from airflow_logio.operators._task.pipeline_reference import check_connections, known_at_parse, reference
from airflow_logio.operators.links import DriverLogLink, ManagerLink, SparkUiLink
from airflow_logio.protocol.states import GroupState
from airflow_logio.task_arguments import mapping_of, with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.launch.launcher import Launcher
    from airflow_logio.operators._task.segment import WorkerSegment


@with_told_arguments
@with_spark_attributes
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
        it runs itself. By default True if the task names one of these, and its drivers are processes of the worker;
        ``default_args`` do not count, because they hold for the supervisor's task as well. In deploy mode ``cluster`` these
        only say where the first driver is submitted.
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
    :param deploy_mode: ``"client"``: drivers are processes of the machine that launches them; ``"cluster"``: the cluster's
        manager (standalone, YARN, Kubernetes) starts them on its nodes. By default as the connection says, or else
        ``"client"``.
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
    :param kubernetes_conn_id: connection of type ``kubernetes``: the credentials for the API server that starts drivers in
        deploy mode ``cluster``. By default each process takes those that its environment has, as ``kubectl`` does.
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
    operator_extra_links = (SparkUiLink(), ManagerLink(), DriverLogLink())

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
        kubernetes_conn_id: str | None = None,
        openlineage_inject_parent_job_info: bool | None = None,
        openlineage_inject_transport_info: bool | None = None,
        post_submit_commands: Sequence[str] | None = None,
        durable: bool | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=10),
        **kwargs: Any,
    ) -> None:
        spark = SparkArguments.among(locals())
        # Refused arguments are named above as well, so that default_args reach them.
        kwargs |= {"post_submit_commands": post_submit_commands, "durable": durable}
        refuse(str(kwargs.get("task_id")), kwargs)
        check_deploy_mode(str(kwargs.get("task_id")), deploy_mode)
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.spark = spark
        self.pipeline = reference(pipeline)
        self.group = self.task_id.rpartition(".")[2] if group is None else group
        known = known_at_parse(pipeline)
        check_group(self.task_id, known, self.group, replica)
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id
        self.conn_id = conn_id
        self.connections = mapping_of("connections", connections)
        check_connections(known, self.connections, all_of_them=False)
        self.replica = replica
        if replica is not None and own_place is False:
            raise ConfigurationError(
                f"task {self.task_id!r}: a replica with a task is launched by it; leave own_place out"
            )
        self.place_is_asked = own_place is not None or replica is not None
        """Whether `own_place` holds wherever the drivers are."""
        if own_place is None:
            own_place = replica is not None or _compat.has_own_place(kwargs, is_mapped=_compat.is_from_mapped(self))
        self.own_place = own_place
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        self.poll_interval = status_poll_interval if poll_interval is None else poll_interval
        self.openlineage_inject_parent_job_info = openlineage_inject_parent_job_info
        self.openlineage_inject_transport_info = openlineage_inject_transport_info
        self.spark_ui: str | None = None
        self.manager_page: str | None = None
        """Address of the Spark UI as this segment of the task has seen it last; None before the first look."""
        self._segment: WorkerSegment | None = None

    @classmethod
    def partial(cls, *, task_id: str, **given: Any) -> Any:
        """As of any operator, for `expand`. What is wrong whatever is mapped is refused as in the constructor."""
        refuse(task_id, given)
        check_deploy_mode(task_id, given.get("deploy_mode"))
        if "pipeline" in given and "group" in given:
            check_group(task_id, known_at_parse(given["pipeline"]), given["group"], given.get("replica"))
        return super().partial(task_id=task_id, **given)

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """A first attempt, a retry, or the first attempt after a clear."""
        from airflow_logio.operators._task.group_task import asked_by_person

        asked = asked_by_person(context["ti"], self.retries)
        return self._begin(context, asked=asked, recovers=True, is_attempt=True).work()

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any] | str) -> dict[str, Any]:
        """The trigger saw something to do. The segment reads from the log what it is: it may have been done meanwhile.

        A trigger that ends the task itself resumes nothing, except in ``dag.test()``, which tells this method ``"success"``.
        """
        if isinstance(event, str):
            return self._begin(context).work()
        cause = event.get("cause")
        if event["state"] == "error":
            with self._begin(context).place_given_up_on_failure():
                raise AirflowException(f"the triggerer cannot watch group {self.group!r}: {cause}")
        self.log.info("Group %s, incarnation %s: %s", event["group"], event["incarnation"], cause or event["state"])
        recovers = event["state"] == GroupState.DEAD.value
        return self._begin(context, recovers=recovers, relayed=event.get("relayed", {})).work()

    def _begin(self, context: Mapping[str, Any], **given: Any) -> WorkerSegment:
        # What works on a group is imported when there is work: a DAG is parsed much more often.
        from airflow_logio.operators._task.segment import WorkerSegment

        self._segment = WorkerSegment(self, context, **given)
        return self._segment

    def on_kill(self) -> None:
        """SIGTERM, or `execution_timeout`: the group halts if a person has ended the task.

        If that cannot be known, it keeps running, and a note in the log lets the next attempt or the supervisor of the run
        find out.
        """
        if self._segment is not None:
            self._segment.kill()

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine, unless a cluster manager does."""
        from airflow_logio.launch.launcher import LocalProcessLauncher

        return LocalProcessLauncher(_compat.work_dir())

    # --- for the OpenLineage provider, which calls these if it is installed and configured ----------------------------

    def get_openlineage_facets_on_start(self) -> Any:
        """An ``OperatorLineage``: the datasets of the group, and the run facet. Each worker segment begins with one."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """As at the start, with what the log has counted."""
        return self._lineage(task_instance, counts=True)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """As at the start: another attempt counts on from here, and tells the sum."""
        return self._lineage(task_instance)

    def _lineage(self, task_instance: Any | None, *, counts: bool = False) -> Any:
        from airflow_logio.operators._task.openlineage_answers import group_lineage

        return group_lineage(self, task_instance, counts=counts)
