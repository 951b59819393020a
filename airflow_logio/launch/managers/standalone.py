"""Drivers on a standalone cluster of Spark, by the master's REST server alone: no Java and no spark-submit here.

The master takes no Python in cluster mode, and a driver is a JVM to it. So each driver is submitted as Spark's own
``SparkSubmit`` class, which runs the Python application in client mode on the worker. Everything is in its arguments.

The REST server is off by default (``spark.master.rest.enabled``), and lets everyone in who reaches it, unless a filter asks
for a token (``spark.master.rest.filters``, Spark 4) or a proxy does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar

import msgspec

from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY, DriverArguments
from airflow_logio.launch.driver_config import OF_PYTHON, Launch
from airflow_logio.launch.managers.cluster_manager import (
    REQUEST_SECONDS,
    SUBMIT_SECONDS,
    ClusterManager,
    DriverSight,
    Sighting,
    claim_name,
)
from airflow_logio.launch.managers.submission_server import Answer, StandaloneAddress, SubmissionServer
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import (
    APPLICATION_NAME,
    CLIENT_MODE,
    DRIVER_MEMORY,
    JVM_OPTIONS,
    KERBEROS_CREDENTIALS,
    SparkSettings,
)
from airflow_logio.launch.spark_submit import cluster_options
from airflow_logio.store.records.driver_records import Claim, Submission

STANDALONE = "standalone"
TOKEN_VARIABLE = "LOGIO_SPARK_REST_TOKEN"
"""The environment of what launches and watches has the token that a filter of the REST server, or its proxy, asks for."""
MEMORY_WITHOUT_SPARK = "256m"
"""The heap of the JVM that a group without Spark does not need, and the master insists on."""
SUPERVISE = "spark.driver.supervise"
_CORES = "spark.driver.cores"
_CLASS_PATH = "spark.driver.extraClassPath"
_OF_THE_JVM = (
    JVM_OPTIONS,
    "spark.driver.defaultJavaOptions",
    _CLASS_PATH,
    "spark.driver.extraLibraryPath",
)
"""What the worker starts the JVM with: in the arguments of SparkSubmit, which runs in that JVM, it is too late."""
_OF_RESOURCES = "spark.driver.resource."
_NOT_KNOWN = "the master knows no such driver: it has forgotten it, or was restarted without spark.deploy.recoveryMode"
_NOT_NAMED = (
    "its submission had no answer, and a standalone master lists no names. If there is a driver, it registers itself"
)
_STATES: Mapping[str, tuple[DriverSight, str]] = {
    "SUBMITTED": (
        DriverSight.QUEUED,
        "it waits for a worker with free cores and memory (spark.driver.cores, spark.driver.memory)",
    ),
    "RELAUNCHING": (DriverSight.QUEUED, "it waits for another worker"),
    "RUNNING": (DriverSight.RUNNING, "its JVM runs"),
    "FINISHED": (DriverSight.EXITED, "its JVM has ended with exit code 0"),
    "FAILED": (DriverSight.EXITED, "its JVM has ended with another exit code than 0"),
    "KILLED": (DriverSight.EXITED, "its end was asked for, or its worker was shut down"),
    "ERROR": (DriverSight.LOST, "the master has written it off, with its worker or when the master was restarted"),
}
"""What the master says of a driver. UNKNOWN is not among them: the master was restarted, and has not heard of its worker."""
_TAKEN = "ERROR"
"""The end that is certainly not the driver's own doing. The master says KILLED of an end that was asked for and of a worker
that was shut down alike: it counts as a failure, so that none is free for ever."""


class StandaloneManager(ClusterManager):
    """A master, or several with one of them alive, at their REST servers."""

    name: ClassVar[str] = STANDALONE

    def __init__(self, address: StandaloneAddress, token: str | None = None) -> None:
        """`token` is by default that of the environment."""
        self._address = address
        self._server = SubmissionServer(address.servers, token or os.environ.get(TOKEN_VARIABLE))

    @classmethod
    def of_settings(cls, settings: SparkSettings, conf: Mapping[str, str], access: object = None) -> StandaloneManager:
        """For launches with these settings; `conf` is what the group's properties have become. No `access` is needed.

        Raises `ConfigurationError`.
        """
        return cls(StandaloneAddress.of_settings(settings.master, conf))

    @classmethod
    def at(cls, submission: Submission, access: object = None) -> StandaloneManager:
        """For a driver that was submitted."""
        return cls(StandaloneAddress.parse(submission.address))

    def check(self, settings: SparkSettings, conf: Mapping[str, str]) -> None:
        StandaloneAddress.of_settings(settings.master, conf)
        if conf.get(SUPERVISE, "false").strip().lower() != "false":
            raise ConfigurationError(
                f"{SUPERVISE}={conf[SUPERVISE]} would let the master start a driver again that was replaced: leave it out. "
                "The log of the run says when a driver is dead, and the next one is submitted then"
            )
        if settings.keytab_content is not None:
            raise ConfigurationError(
                "the connection has a keytab in it, which a standalone master cannot take to the worker: give keytab, with "
                "a path that the workers have"
            )
        if settings.use_krb5ccache or conf.get(KERBEROS_CREDENTIALS) == "ccache":
            raise ConfigurationError(
                "use_krb5ccache means the tickets of this machine, and the driver is on a worker of the cluster: give "
                "keytab and principal, with a path that the workers have"
            )

    def check_answers(self) -> None:
        self._server.check()

    def prepare(self, claim: Claim, launch: Launch) -> Submission:
        return Submission(self.name, str(self._address), claim_name(claim))

    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        driver = self._server.create(creation(submission, claim, launch), SUBMIT_SECONDS)
        return msgspec.structs.replace(submission, id=driver)

    def find(self, submission: Submission) -> Sequence[Submission]:
        """None: the master makes the id, and neither its REST server nor its page lists names or arguments of drivers. A
        driver whose submission had no answer says its id itself, when it registers."""
        return ()

    def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
        """One request for each, because the master's page for all of them is at another address, and does not say why a
        driver could not be started. After `REQUEST_SECONDS` in all, the others are unknown until the next look."""
        found: dict[Submission, Sighting] = {}
        until = monotonic() + REQUEST_SECONDS
        why = "the master took long to answer for others; it is asked again"
        for submission in submissions:
            if monotonic() < until:
                try:
                    found[submission] = _sighting(self._server.status(_asked(submission), until), submission)
                    continue
                except (ManagerUnavailable, ConfigurationError) as error:
                    why, until = str(error), 0.0
            found[submission] = Sighting(DriverSight.UNKNOWN, why)
        return found

    def end(self, submission: Submission) -> bool:
        """A worker needs seconds to end a driver's JVM, which the next call sees. Ended is also what the master has written
        off or does not know: it holds no room, and a worker that still runs it is told to kill it when it registers again.

        Without an id there is nothing to ask for: the log refuses such a driver, which ends by itself.
        """
        if not submission.id:
            self._server.status(_asked(submission))
            return True
        self._server.kill(submission.id)
        seen = _sighting(self._server.status(submission.id), submission)
        return seen.state in (DriverSight.EXITED, DriverSight.LOST, DriverSight.GONE)

    def sweep(self, log_uid: str, is_known: Callable[[str], bool]) -> int:
        """Nothing: what drivers leave in the folders of workers is cleaned there (``spark.worker.cleanup.enabled``)."""
        return 0

    def output_command(self, submission: Submission) -> str:
        folder = '"${SPARK_WORKER_DIR:-$SPARK_HOME/work}"'
        status = f"{self._address.servers[0]}/v1/submissions/status/{submission.id}"
        return f"tail -n 200 {folder}/{submission.id}/stderr   # on its worker: curl {status} names it"

    def page(self, submission: Submission) -> str | None:
        return f"{self._address.page}/"


def creation(submission: Submission, claim: Claim, launch: Launch) -> dict[str, Any]:
    """The body of the request that submits a driver. Nothing in it is a secret."""
    settings, conf = launch.settings, launch.conf
    name = settings.name or conf.get(APPLICATION_NAME) or submission.name
    jvm = {key: value for key, value in conf.items() if key in _OF_THE_JVM or key.startswith(_OF_RESOURCES)}
    if settings.driver_class_path:
        jvm[_CLASS_PATH] = settings.driver_class_path
    memory = conf.get(DRIVER_MEMORY)
    if not launch.needs_spark:
        jvm, memory = {}, MEMORY_WITHOUT_SPARK
        conf = {key: value for key, value in conf.items() if key in OF_PYTHON}
        settings = SparkSettings(
            settings.master,
            py_files=settings.py_files,
            properties_file=settings.properties_file,
            verbose=settings.verbose,
        )
    properties = {
        **jvm,
        "spark.master": settings.master,
        "spark.submit.deployMode": "cluster",
        APPLICATION_NAME: name,
        SUPERVISE: "false",
        _CORES: str(launch.settings.driver_cores or launch.conf.get(_CORES) or 1),
        **({DRIVER_MEMORY: memory} if memory else {}),
    }
    options = cluster_options(settings, conf, name, deploy_mode=CLIENT_MODE)
    application = launch.conf.get(APPLICATION_PROPERTY) or str(APPLICATION)
    words = DriverArguments.of(claim, submission, launch.conf).words()
    return {
        "action": "CreateSubmissionRequest",
        "appArgs": [*options, application, *words],
        "appResource": "",
        "clientSparkVersion": "4.0.0",
        "environmentVariables": {"PYTHONUNBUFFERED": "1", **launch.settings.env_vars},
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        "sparkProperties": properties,
    }


def _asked(submission: Submission) -> str:
    """What the master is asked for. Of no driver it knows the name, but that it says so shows that it is alive."""
    return submission.id or submission.name


def _sighting(answer: Answer, submission: Submission) -> Sighting:
    if not answer.success:
        return Sighting(DriverSight.GONE, _NOT_KNOWN if submission.id else _NOT_NAMED)
    state = answer.driver_state or ""
    reason = answer.message.split("\n\t", 1)[0].replace("\n", " ").strip()
    if state == "ERROR" and reason:
        return Sighting(DriverSight.EXITED, f"it could not be started on its worker: {reason}")
    sight, why = _STATES.get(state, (DriverSight.UNKNOWN, "the master does not know yet whether it runs"))
    worker = f" (worker {answer.worker_host_port})" if answer.worker_host_port else ""
    how = f"{state}: " if sight in (DriverSight.EXITED, DriverSight.LOST) else ""
    return Sighting(sight, f"{how}{why}{worker}", was_taken=state == _TAKEN)
