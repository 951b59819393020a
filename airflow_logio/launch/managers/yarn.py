"""Drivers as applications of YARN in cluster mode: submitted by spark-submit, looked at and ended by the ResourceManager's
REST.

YARN may start the master of an application again after preemption or the loss of a node, although ``maxAppAttempts`` is 1,
with the same arguments. Hadoop 3.5.0 does not; should another one, the log admits one of the two.
"""

from __future__ import annotations

import logging
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from airflow_logio.errors import ConfigurationError, ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch import driver_folders, spark_submit
from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY, DriverArguments
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.driver_process import with_keytab
from airflow_logio.launch.given_files import PROPERTY_OF, check_given_files
from airflow_logio.launch.managers.cluster_manager import (
    SUBMIT_SECONDS,
    ClusterManager,
    DriverSight,
    Sighting,
    claim_name,
)
from airflow_logio.launch.managers.resource_manager import (
    CONF_FOLDERS,
    Application,
    KillRefused,
    ResourceManager,
    addresses_of,
)
from airflow_logio.launch.managers.submission_child import MOST_WORDS, is_for_later, reason, run
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission

log = logging.getLogger(__name__)
TAGS = "spark.yarn.tags"
TAG = "logio"
"""On each application of ours: by it `YarnManager.sweep` finds them."""
LOG_TAG = "logio-log-"
"""How the tag of a log begins, which has its uid."""
RUN_TAG = "logio-run-"
"""How the tag of a run begins, which has its uid."""
OURS: Mapping[str, str] = {"spark.yarn.maxAppAttempts": "1", "spark.yarn.submit.waitAppCompletion": "false"}
"""The log says when a driver is dead, and another one is submitted then: YARN is to repeat none by itself."""
ENVIRONMENT = "spark.yarn.appMasterEnv."
"""How properties begin that are variables of the driver."""
ENDED = ("FINISHED", "FAILED", "KILLED")
_APPLICATION = re.compile(r"application_\d+_\d+")
_SUBMITTED = re.compile(rf"Submitted application ({_APPLICATION.pattern})")
_SENT = "Submitting application application_"
"""What spark-submit says before its request: an answer to that may be lost."""
_EXIT_CODE = re.compile(r"exitCode: (-?\d+)")
_WRITTEN_OFF = frozenset((-100, -102, -106))
"""Exit codes that the ResourceManager gives by itself: a lost node, preemption, its own restart."""
_TAKEN = _WRITTEN_OFF | {-101}
"""Those that are not the driver's own doing; -101: the disks of its node have failed."""
_HIDDEN = (
    "the ResourceManager lists no application with the tag {}, and would not list one that this process may not see "
    "(yarn.webapp.filter-entity-list-by-user): let the pages' user see drivers, by spark.ui.view.acls=dr.who"
)
_USER = re.compile(r"[\w.@\-]+")
_KILL = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
_FILES = "org.apache.hadoop.fs.FsShell"
_killers: dict[str, subprocess.Popen[bytes]] = {}
"""Application → the process that was started here to kill it."""
_killing = threading.Lock()


class YarnManager(ClusterManager):
    """The YARN of one ResourceManager, or of several of which one is active."""

    name: ClassVar[str] = "yarn"

    def __init__(self, addresses: str, settings: SparkSettings | None = None) -> None:
        """`addresses` as `Submission.address` has them; `settings` say which spark-submit, and its environment."""
        self._rm = ResourceManager(addresses)
        self._settings = settings or SparkSettings()

    @classmethod
    def of_settings(cls, settings: SparkSettings, conf: Mapping[str, str], access: object = None) -> YarnManager:
        """For launches with these settings; `conf` is what the group's properties have become. Raises
        `ConfigurationError`."""
        return cls(addresses_of(conf, spark_submit.environment(settings)), settings)

    @classmethod
    def at(cls, submission: Submission, access: object = None) -> YarnManager:
        """For a driver that was submitted."""
        return cls(submission.address)

    def check(self, settings: SparkSettings, conf: Mapping[str, str]) -> None:
        environment = spark_submit.environment(settings)
        addresses_of(conf, environment)
        if not any(environment.get(variable) for variable in CONF_FOLDERS):
            raise ConfigurationError(
                f"neither {' nor '.join(CONF_FOLDERS)} is set, and spark-submit finds YARN by Hadoop's settings there: set "
                "one of them for the process that launches drivers"
            )
        for name, value in OURS.items():
            if conf.get(name, value).strip().lower() != value:
                raise ConfigurationError(
                    f"{name}={conf[name]} cannot be had: the log of the run says when a driver is dead, and the next one is "
                    f"submitted then. Leave it out; drivers have {name}={value}"
                )
        if conf.get(APPLICATION_PROPERTY, "").startswith("local:"):
            raise ConfigurationError(
                f"{APPLICATION_PROPERTY}={conf[APPLICATION_PROPERTY]}: YARN copies the driver's program to its "
                "container, and takes none that lies on the nodes. Leave it out: that of this machine is copied then"
            )
        for argument, named in PROPERTY_OF.items():
            check_given_files(
                argument if getattr(settings, argument) else named, getattr(settings, argument) or conf.get(named)
            )
        spark_submit.check_versions()
        spark_submit.find_spark_submit(settings.spark_binary, environment)
        spark_submit.check_java()

    def check_answers(self) -> None:
        self._rm.check()

    def prepare(self, claim: Claim, launch: Launch) -> Submission:
        return Submission(self.name, ",".join(self._rm.addresses), claim_name(claim))

    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        """spark-submit has a session of its own, and is ended before anything is said of it that it could still change."""
        with tempfile.TemporaryDirectory(prefix="logio-yarn-") as folder:
            environment = spark_submit.environment(launch.settings, Path(folder))
            code, said = run(command_of(submission, claim, launch, Path(folder)), environment, Path(folder))
        printed = _SUBMITTED.search(said)
        if code == 0 and printed:
            return msgspec.structs.replace(submission, id=printed[1])
        ended = "did not end in time" if code is None else f"ended with exit code {code}"
        try:
            found = next(iter(self._named(submission)), None)
        except ManagerUnavailable as error:
            if printed:
                return msgspec.structs.replace(submission, id=printed[1])
            raise SubmissionUnknown(f"spark-submit {ended}, and what it has done cannot be asked: {error}") from error
        if found is not None:
            if found.state in ENDED and not found.attempt:  # such as for a queue that there is not
                raise ConfigurationError(f"YARN has refused the driver: {_ended(found).why}")
            return msgspec.structs.replace(submission, id=found.id)
        may_be_later = is_for_later(said)
        if code is None or code <= 0 or code > 128 or (may_be_later and _SENT in said):
            raise SubmissionUnknown(
                f"spark-submit {ended}, and YARN lists no application with the tag {submission.name}"
            )
        why = f"spark-submit {ended}, and has submitted nothing to YARN: {reason(said, launch)}"
        raise ManagerUnavailable(why) if may_be_later else ConfigurationError(why)

    def find(self, submission: Submission) -> Sequence[Submission]:
        return [msgspec.structs.replace(submission, id=one.id) for one in self._named(submission)]

    def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
        try:
            found = self._rm.named(one.name for one in submissions)
            by_id = {one.id: one for one in found}
            by_tag = {tag: one for one in found for tag in one.tags}
            listed = {one: by_id.get(one.id) if one.id else by_tag.get(one.name) for one in submissions}
            is_whole = all(listed.values()) or not self._rm.hides_applications()
        except ManagerUnavailable as error:
            return dict.fromkeys(submissions, Sighting(DriverSight.UNKNOWN, str(error)))
        return {
            one: self._sighting(application, one) if application or is_whole else self._sighting_of_hidden(one)
            for one, application in listed.items()
        }

    def end(self, submission: Submission) -> bool:
        """An application that is not listed has no room. Where its pages do not let this process end one, Hadoop's client
        does, with the ticket of the process that submits; that takes seconds, so the next call sees it."""
        found = self._known(submission)
        if found is None or found.state in ENDED:
            return True
        try:
            self._rm.kill(found.id)
        except KillRefused as refused:
            self._kill_by_client(found.id, str(refused))
        after = self._rm.application(found.id)
        return after is None or after.state in ENDED

    def sweep(self, log_uid: str, is_known: Callable[[str], bool]) -> int:
        """Staging folders of applications that have ended, in the user's home of the file system that is Hadoop's default.

        Living ones are left: another log may have them. So are folders of applications that YARN has forgotten, which may be
        other programs', and those below a ``spark.yarn.stagingDir``. Hadoop's client removes them: it takes seconds.
        """
        ended = self._rm.applications([TAG], *ENDED)
        folders = [f"/user/{one.user}/.sparkStaging/{one.id}" for one in ended if _is_left(one, log_uid, is_known)]
        removed = 0
        for start in range(0, len(folders), 100):
            done = self._client(_FILES, "-rm", "-r", "-f", "-skipTrash", *folders[start : start + 100])
            removed += done.stdout.count("Deleted ")
            if done.returncode != 0:
                log.warning("not all staging folders were removed: %s", reason(done.stderr))
        return removed

    def output_command(self, submission: Submission) -> str:
        if submission.id:
            return f"yarn logs -applicationId {submission.id}"
        return f"yarn application -list -appStates ALL -appTags {submission.name}"

    def page(self, submission: Submission) -> str | None:
        return f"{self._rm.addresses[0]}/cluster/app/{submission.id}" if submission.id else None

    # --- what is asked ------------------------------------------------------------------------------------------------

    def _known(self, submission: Submission) -> Application | None:
        if submission.id:
            return self._rm.application(submission.id)
        return next(iter(self._named(submission)), None)

    def _named(self, submission: Submission) -> Sequence[Application]:
        """Those with its name. None: there is none, and none is hidden either. Raises `ManagerUnavailable`."""
        found = self._rm.named([submission.name])
        if not found and self._rm.hides_applications():
            raise ManagerUnavailable(_HIDDEN.format(submission.name))
        return found

    def _sighting_of_hidden(self, submission: Submission) -> Sighting:
        """Of one that the list may have left out: by its id the ResourceManager shows it to everyone."""
        if not submission.id:
            return Sighting(DriverSight.UNKNOWN, _HIDDEN.format(submission.name))
        try:
            return self._sighting(self._rm.application(submission.id), submission)
        except ManagerUnavailable as error:
            return Sighting(DriverSight.UNKNOWN, str(error))

    def _sighting(self, found: Application | None, submission: Submission) -> Sighting:
        if found is None:
            return Sighting(DriverSight.GONE, "YARN lists no such application: it has forgotten it, or has none")
        latest = found.attempt
        if submission.attempt and not latest and found.state not in (*ENDED, "RUNNING"):
            try:
                latest = self._rm.latest_attempt(found.id)
            except ManagerUnavailable as error:
                return Sighting(DriverSight.UNKNOWN, str(error))
        if 0 < submission.attempt < latest:
            why = f"YARN has taken its container, or lost the node, and has begun attempt {latest} of {found.id}"
            return Sighting(DriverSight.LOST, why, was_taken=True)
        return _ended(found) if found.state in ENDED else _living(found)

    # --- Hadoop's client, which Spark has ----------------------------------------------------------------------------

    def _kill_by_client(self, application_id: str, refused: str) -> None:
        """Start it, unless one is at work. Raises `ManagerUnavailable` if it could not be started, or the last one failed."""
        with _killing:
            last = _killers.pop(application_id, None)
            if last is not None and last.poll() is None:
                _killers[application_id] = last
                return
            if last is not None and last.returncode != 0:
                raise ManagerUnavailable(
                    f"{refused}; and Hadoop's client, as this process, has not ended {application_id} either (exit code "
                    f"{last.returncode}). A person can: yarn application -kill {application_id}"
                )
            command, environment = self._client_command(_KILL, "application", "-kill", application_id)
            try:
                _killers[application_id] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise ManagerUnavailable(f"{refused}; and Hadoop's client does not run: {error}") from error

    def _client(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Raises `ManagerUnavailable`."""
        command, environment = self._client_command(program, *arguments)
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                cwd="/",
                timeout=SUBMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ManagerUnavailable(f"Hadoop's client does not run: {error}") from error

    def _client_command(self, program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
        environment = spark_submit.environment(self._settings)
        try:
            binary = Path(spark_submit.find_spark_submit(self._settings.spark_binary, environment))
            addresses_of({}, environment)  # Hadoop's settings are there
        except ConfigurationError as error:
            raise ManagerUnavailable(f"Hadoop's client is needed, and cannot be started here: {error}") from error
        return [str(binary.with_name("spark-class")), program, *arguments], environment


# --- a submission -----------------------------------------------------------------------------------------------------


def command_of(submission: Submission, claim: Claim, launch: Launch, folder: Path) -> list[str]:
    """The command line of spark-submit; a keytab that is in the connection goes to a file in `folder`. Nothing secret is in
    it."""
    settings = with_keytab(launch.settings, folder / driver_folders.KEYTAB_NAME)
    variables = {f"{ENVIRONMENT}{name}": value for name, value in settings.env_vars.items()}
    conf = {**variables, **launch.conf, **OURS}
    conf[TAGS] = ",".join(tags_of(submission, launch.log_uid, claim.run_uid, launch.conf.get(TAGS, "")))
    binary = spark_submit.find_spark_submit(settings.spark_binary, spark_submit.environment(settings))
    options = spark_submit.cluster_options(settings, conf, submission.name)
    words = DriverArguments.of(claim, submission, launch.conf).words()
    return [binary, *options, conf.get(APPLICATION_PROPERTY, str(APPLICATION)), *words]


def tags_of(submission: Submission, log_uid: str, run_uid: str, others: str) -> Iterable[str]:
    """Those of an application; `others` are those that its properties have."""
    own = (submission.name, TAG, f"{LOG_TAG}{log_uid}", f"{RUN_TAG}{run_uid}")
    return dict.fromkeys((*own, *filter(None, others.split(","))))


# --- what an application says of its driver ---------------------------------------------------------------------------


def _living(found: Application) -> Sighting:
    """YARN says *accepted*, too, of one whose program runs and has made no session yet: then its master has a container."""
    if found.is_launched:
        return Sighting(DriverSight.RUNNING)
    since = found.started_time / 1000 or None
    if found.has_container:
        return Sighting(DriverSight.STARTING, "its container is being started", since)
    why = f"in queue {found.queue}"
    return Sighting(DriverSight.QUEUED, f"{why}: {_short(found)}" if found.diagnostics else why, since)


def _ended(found: Application) -> Sighting:
    """YARN declares an application killed before its node has ended the container."""
    why = f"{found.id} is {found.state}{f': {_short(found)}' if found.diagnostics else ''}"
    named = _EXIT_CODE.search(found.diagnostics)
    code = int(named[1]) if named and found.state == "FAILED" else None
    was_seen = found.state == "FINISHED" or (code is not None and code not in _WRITTEN_OFF)  # finished: it has said so
    never_began = not found.attempt and found.started_time > 0  # else this process may not see whether it has begun
    state = DriverSight.EXITED if was_seen or never_began else DriverSight.LOST
    return Sighting(state, why, was_taken=code in _TAKEN)


def _short(found: Application) -> str:
    return " ".join(found.diagnostics.split())[:MOST_WORDS]


def _is_left(found: Application, log_uid: str, is_known: Callable[[str], bool]) -> bool:
    """Whether a run of this log that is not known any more has left this application."""
    runs = [tag.removeprefix(RUN_TAG) for tag in found.tags if tag.startswith(RUN_TAG)]
    is_safe = _APPLICATION.fullmatch(found.id) and _USER.fullmatch(found.user) and found.user not in (".", "..")
    is_ours = f"{LOG_TAG}{log_uid}" in found.tags
    return bool(is_ours and runs and is_safe) and not any(map(is_known, runs))
