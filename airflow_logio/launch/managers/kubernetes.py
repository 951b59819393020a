"""Kubernetes starts drivers: Spark's own submission for a group with Spark, a pod of Python alone for one without.

The pod's name is the claim's, so that the API server refuses a second driver of one claim. Everything of a submission is
found again by its labels. What the pod owns (executors, services, config maps) goes with it.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from airflow_logio.errors import ConfigurationError, ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch import spark_submit
from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY, DriverArguments
from airflow_logio.launch.driver_config import DriverKind, Launch
from airflow_logio.launch.managers.cluster_manager import (
    SUBMIT_SECONDS,
    ClusterManager,
    DriverSight,
    Sighting,
    claim_name,
)
from airflow_logio.launch.managers.kubernetes_api import (
    DEFAULT_NAMESPACE,
    LEFT_BEHIND,
    Json,
    KubernetesAccess,
    KubernetesApi,
    check_installed,
    server_of,
)
from airflow_logio.launch.managers.kubernetes_pods import (
    TEMPLATE,
    driver_container,
    image_of,
    no_image,
    python_pod,
    template_file,
    template_variables,
)
from airflow_logio.launch.managers.kubernetes_refusals import NoAnswer, Refusal, explained
from airflow_logio.launch.managers.kubernetes_sights import DEFAULT_CONTAINER, has_ended, sighting_of
from airflow_logio.launch.managers.submission_child import LOST_WAY, reason, run
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission

log = logging.getLogger(__name__)

APPLICATION = "local:///opt/logio/logio_driver.py"
"""Where the image of docker/k8s has the driver's program."""
LOG, RUN, GROUP, INCARNATION = (f"airflow-logio/{name}" for name in ("log", "run", "group", "incarnation"))
SUBMISSION, PART = "airflow-logio/submission", "airflow-logio/part"
"""Labels of a driver and its executors. The part is ``driver`` or ``executor``."""
DRIVER, EXECUTOR = "driver", "executor"
NAMESPACE = "spark.kubernetes.namespace"
POD_NAME = "spark.kubernetes.driver.pod.name"
EXECUTORS = "spark.kubernetes.executor.podNamePrefix"
WAIT = "spark.kubernetes.submission.waitAppCompletion"
CONTEXT = "spark.kubernetes.context"
UPLOADS = "spark.kubernetes.file.upload.path"
APPLICATION_LABEL = "spark-app-selector"
"""Spark's own label of all that belongs to an application."""
_DRIVER_LABEL, _EXECUTOR_LABEL = "spark.kubernetes.driver.label.", "spark.kubernetes.executor.label."
_SERVICE_LABEL = "spark.kubernetes.driver.service.label."
_SHOWN_TOKEN = re.compile(r"spark\.kubernetes\.authenticate\..*oauthToken")
_CREDENTIALS = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "SSL_CERT_FILE")
_OF_THIS_PYTHON = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""spark-submit would have the pod start the Python of this machine, by its path."""
_OF_PODS = re.compile(r"local:|[A-Za-z][A-Za-z0-9+.-]+://(?!$)")
_LOST_WAY = re.compile(
    rf"{LOST_WAY}|IOException|HttpClosed|SSL|[Tt]ime ?out|Received status: Status\([^)]*code=5\d\d|code=429"
)
_CAUSE = re.compile(
    r"Message: ?(?P<said>[^\n]*?)(?:\. Received status: Status\([^)\n]*?code=(?P<code>\d+)|\. Received status|\.?$)",
    re.MULTILINE,
)
_NAME = 47
"""Letters of a pod's name: Spark names executors after it, and refuses a longer beginning of their names."""
_AT_ONCE = 50
"""Submissions that one list asks for: its selector is a part of the URL."""
_END_SECONDS = 5
"""For a driver's containers to end by themselves: they have nothing to lose."""
_KEPT_SECONDS = 3600.0
"""Pods that have ended are kept so long, for `kubectl logs`, when no log knows their run."""
_PODS = "pods"


class KubernetesManager(ClusterManager):
    """Pods of the API server at `address`, an URL, in any of its namespaces."""

    name: ClassVar[str] = "kubernetes"

    def __init__(self, address: str, access: KubernetesAccess | None = None, *, namespace: str = "") -> None:
        check_installed()
        self._address = address
        self._access = access or KubernetesAccess()
        self._namespace = namespace or self._access.namespace or DEFAULT_NAMESPACE
        self._api = KubernetesApi(address, self._access)
        self._clusters: dict[str, str] = {}
        """Namespace → its uid, as it was when this manager was asked whether it answers."""

    @classmethod
    def of_settings(
        cls, settings: SparkSettings, conf: Mapping[str, str], access: KubernetesAccess | None = None
    ) -> KubernetesManager:
        """That of a launch; `conf` is what the group's properties have become. Raises `ConfigurationError`."""
        access = access or KubernetesAccess()
        if (context := conf.get(CONTEXT)) and access.context is None:
            access = replace(access, context=context)
        return cls(server_of(settings.master), access, namespace=conf.get(NAMESPACE, ""))

    @classmethod
    def at(cls, submission: Submission, access: KubernetesAccess | None = None) -> KubernetesManager:
        """That of a driver which was submitted."""
        return cls(submission.address, access, namespace=submission.namespace)

    # --- before a claim --------------------------------------------------------------------------------------------

    def check(self, settings: SparkSettings, conf: Mapping[str, str]) -> None:
        """As the port has it."""
        server_of(settings.master)
        if image_of(conf) is None and not conf.get(TEMPLATE):
            raise ConfigurationError(no_image())
        if settings.keytab_content is not None:
            raise ConfigurationError("on Kubernetes a keytab is taken from a file only: give keytab, with its path")
        for name in sorted(conf):
            if _SHOWN_TOKEN.fullmatch(name):
                raise ConfigurationError(
                    f"{name} would be shown on a command line: give {name}File, or leave it to the kubeconfig"
                )
            if _is_ours(name):
                raise ConfigurationError(f"{name} is set for each driver that is submitted: leave it out")
        if (template := template_file(conf)) is not None and not template.is_file():
            raise ConfigurationError(f"{TEMPLATE}={template}: there is no such file on this machine, which launches")
        if not conf.get(UPLOADS):
            _check_files(settings, conf)

    def given_in_files(self, conf: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """As the port has it: of the pod template."""
        return template_variables(conf)

    def check_answers(self) -> None:
        """As the port has it: pods can be listed in the namespace, which is there, and can be read. Without that, any cluster
        at this address could say later that a driver is gone."""
        space = self._namespace
        try:
            self._api.list(_PODS, space, f"{SUBMISSION}={self.name}")
            uid = self._api.namespace_uid(space)
        except ManagerUnavailable as error:
            if isinstance(error.__cause__, Refusal) and error.__cause__.code == 403:
                raise ConfigurationError(str(error)) from error
            raise
        if uid is None:
            raise ConfigurationError(
                f"the API server {self._address} has no namespace {space!r}: create it, or name another one by {NAMESPACE}"
            )
        self._clusters[space] = uid

    # --- a submission -------------------------------------------------------------------------------------------------

    def prepare(self, claim: Claim, launch: Launch) -> Submission:
        """As the port has it. The cluster is the one that has answered before the claim."""
        space = launch.conf.get(NAMESPACE) or self._namespace
        cluster = self._clusters.get(space, "")
        return Submission(self.name, self._address, claim_name(claim, most=_NAME), space, cluster)

    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        """As the port has it."""
        if _is_python_alone(launch):
            return self._create(submission, self._python_pod(submission, claim, launch))
        return self._submit_spark(submission, claim, launch)

    def _create(self, submission: Submission, pod: Json) -> Submission:
        try:
            made = self._api.create_pod(submission.namespace, pod)
        except Refusal as error:
            if error.code == 409:
                return self._there(submission, error)
            raise error.error(f"the API server {self._address} {explained(error)}") from error
        except NoAnswer as error:
            raise SubmissionUnknown(f"{self._at(submission)}: the API server {explained(error)}") from error
        return self._with_id(submission, made)

    def _there(self, submission: Submission, error: Refusal) -> Submission:
        """The driver of this claim that was submitted before, if it can be seen: nothing else has its name."""
        try:
            found = self.find(submission)
        except ManagerUnavailable:
            found = ()
        if not found:
            raise SubmissionUnknown(f"{self._at(submission)} exists already: {error}") from error
        return found[0]

    def _python_pod(self, submission: Submission, claim: Claim, launch: Launch) -> Json:
        conf = launch.conf
        application = conf.get(APPLICATION_PROPERTY, APPLICATION).removeprefix("local://").removeprefix("file://")
        python = conf.get("spark.pyspark.driver.python") or conf.get("spark.pyspark.python") or "python3"
        words = DriverArguments.of(claim, submission, conf).words()
        if files := launch.settings.py_files:
            raise ConfigurationError(
                f"py_files={files}: a group without Spark is a pod of Python alone, which has what its image has; install "
                "them there, or give local:///path of the image"
            )
        variables = {"PYTHONUNBUFFERED": "1", **launch.settings.env_vars}
        labels = {**_labels(submission, claim, launch), PART: DRIVER}
        return python_pod(submission.name, labels, conf, [python, application, *words], variables)

    def _submit_spark(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        with self._credentials() as variables:
            command, environment = self._command(submission, claim, launch), _environment(launch.settings)
            with tempfile.TemporaryDirectory(prefix="logio-submit-") as folder:
                code, printed = run(command, {**environment, **variables}, Path(folder))
        try:
            found = self.find(submission)
        except ManagerUnavailable as error:
            raise SubmissionUnknown(f"{self._at(submission)}: {error}") from error
        if found and (code == 0 or self._is_whole(submission)):
            return found[0]
        is_away = not found or self._end_incomplete(submission)
        refusal = _refusal(printed)
        cause = reason(printed, launch)
        if refusal is not None:
            cause = reason(f"the API server {self._address} {explained(refusal)}", launch)
        if is_away and code is not None and 0 < code < 128 and not _LOST_WAY.search(printed):
            why = f"spark-submit has submitted nothing: {cause}"
            raise (ConfigurationError if refusal is None else refusal.error)(why)
        why = f"was ended after {SUBMIT_SECONDS:.0f} s" if code is None else f"has ended ({code}): {cause}"
        raise SubmissionUnknown(f"{self._at(submission)}: spark-submit {why}")

    def _is_whole(self, submission: Submission) -> bool:
        """Whether the pod has what it mounts. What spark-submit has left out when it ended does not come any more."""
        try:
            return not any(self._missing(submission, pod) for pod in self._pods(submission) if _part(pod) == DRIVER)
        except ManagerUnavailable:
            return True  # a look tells it later

    def _missing(self, submission: Submission, pod: Json) -> str | None:
        """The config map that a pod mounts, and that is not there. Raises `ManagerUnavailable`."""
        maps = _config_maps(pod)
        return next((one for one in maps if self._api.get("configmaps", submission.namespace, one) is None), None)

    def _end_incomplete(self, submission: Submission) -> bool:
        try:
            return self.end(submission)
        except ManagerUnavailable:
            return False  # whatever supervises the group asks again

    def _command(self, submission: Submission, claim: Claim, launch: Launch) -> list[str]:
        settings, conf = launch.settings, dict(launch.conf)
        labels = _labels(submission, claim, launch)
        conf |= {f"spark.kubernetes.driverEnv.{name}": value for name, value in settings.env_vars.items()}
        conf |= {f"{_DRIVER_LABEL}{name}": value for name, value in {**labels, PART: DRIVER}.items()}
        conf |= {f"{_EXECUTOR_LABEL}{name}": value for name, value in {**labels, PART: EXECUTOR}.items()}
        conf |= {f"{_SERVICE_LABEL}{name}": value for name, value in labels.items()}
        conf |= {NAMESPACE: submission.namespace, POD_NAME: submission.name, WAIT: "false"}
        conf.setdefault(EXECUTORS, submission.name)
        if container := driver_container(conf):
            conf[f"spark.kubernetes.driver.annotation.{DEFAULT_CONTAINER}"] = container
        if self._access.context and self._access.content is None:
            conf[CONTEXT] = self._access.context
        words = DriverArguments.of(claim, submission, conf).words()
        application = conf.get(APPLICATION_PROPERTY, APPLICATION)
        binary = spark_submit.find_spark_submit(settings.spark_binary, _environment(settings))
        return [binary, *spark_submit.cluster_options(settings, conf, submission.name), application, *words]

    @contextmanager
    def _credentials(self) -> Iterator[Mapping[str, str]]:
        """Variables by which spark-submit finds the credentials that this manager has."""
        found = {name: os.environ[name] for name in _CREDENTIALS if name in os.environ}
        if self._access.kubeconfig is not None:
            found["KUBECONFIG"] = str(self._access.kubeconfig)
        if self._access.content is None:
            yield found
            return
        content = dict(self._access.content)
        if self._access.context:
            content["current-context"] = self._access.context
        with tempfile.NamedTemporaryFile("wb", prefix="logio-kube-", suffix=".json") as file:  # of mode 0600
            file.write(msgspec.json.encode(content))
            file.flush()
            yield {**found, "KUBECONFIG": file.name}

    # --- looks and ends ----------------------------------------------------------------------------------------------

    def find(self, submission: Submission) -> Sequence[Submission]:
        """As the port has it."""
        return [self._with_id(submission, pod) for pod in self._pods(submission) if _part(pod) == DRIVER]

    def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
        """As the port has it: one list for each namespace."""
        seen: dict[Submission, Sighting] = {}
        spaces: dict[str, list[Submission]] = {}
        for one in submissions:
            if (one.manager, one.address) == (self.name, self._address):
                spaces.setdefault(one.namespace, []).append(one)
            else:
                seen[one] = Sighting(DriverSight.UNKNOWN, f"{one.manager} {one.address} is another manager")
        for namespace, some in spaces.items():
            for start in range(0, len(some), _AT_ONCE):
                seen |= self._look(namespace, some[start : start + _AT_ONCE])
        return seen

    def _look(self, namespace: str, some: Sequence[Submission]) -> dict[Submission, Sighting]:
        selector = f"{PART}={DRIVER},{SUBMISSION} in ({','.join(sorted({one.name for one in some}))})"
        try:
            pods = {pod["metadata"]["name"]: pod for pod in self._api.list(_PODS, namespace, selector)}
        except ManagerUnavailable as error:
            return dict.fromkeys(some, Sighting(DriverSight.UNKNOWN, str(error)))
        listed = {one: pod for one in some if (pod := pods.get(one.name)) and one.id in {"", pod["metadata"]["uid"]}}
        seen = {one: self._sighting(pod, one) for one, pod in listed.items()}
        return seen | self._not_listed(namespace, [one for one in some if one not in listed])

    def _not_listed(self, namespace: str, some: Sequence[Submission]) -> dict[Submission, Sighting]:
        """What it means that pods are missing: nothing, where another cluster may say so."""
        if not some:
            return {}
        try:
            uid = self._api.namespace_uid(namespace)
        except ManagerUnavailable as error:
            return dict.fromkeys(some, Sighting(DriverSight.UNKNOWN, str(error)))
        seen = {}
        for one in some:
            doubt = self._doubt(one, uid)
            gone = Sighting(DriverSight.GONE, f"there is no {self._at(one)}")
            seen[one] = gone if doubt is None else Sighting(DriverSight.UNKNOWN, doubt)
        return seen

    def _doubt(self, submission: Submission, uid: str | None) -> str | None:
        """Why it means nothing that a pod is missing here, where its namespace has this `uid` (None: there is no such
        namespace): only the cluster that has, or had, the driver can say that it is gone. None: this is that cluster."""
        if uid is not None and uid == submission.cluster:
            return None
        if not submission.cluster:
            return f"which cluster has {submission.name} was not noted"
        if uid is None:
            what = f"has no namespace {submission.namespace!r}: that was deleted, or it is"
        else:
            what = f"has another namespace {submission.namespace!r}: that was made anew, or it is"
        return f"{self._address} {what} another cluster now than the one that has {submission.name}"

    def _sighting(self, pod: Json, submission: Submission) -> Sighting:
        seen = sighting_of(pod)
        if seen.state is not DriverSight.STARTING or _age(pod) < SUBMIT_SECONDS:
            return seen
        try:
            name = self._missing(submission, pod)
        except ManagerUnavailable:  # the list has said what it has said
            return seen
        if name is not None:
            why = f"its config map {name} is missing: spark-submit has died before it made that"
            return Sighting(DriverSight.STUCK, why, seen.since)
        return seen

    def end(self, submission: Submission) -> bool:
        """As the port has it: its pods are deleted by their uids. A pod on a lost node stays listed, so that its end is not
        confirmed. One that has ended is kept, for `kubectl logs`."""
        pods = self._pods(submission)
        living = [pod for pod in pods if not has_ended(pod)]
        for pod in living:
            if "deletionTimestamp" not in pod["metadata"]:
                self._api.delete(_PODS, pod, _END_SECONDS)
        if living:
            living = [pod for pod in self._pods(submission) if not has_ended(pod)]
        if living or pods:
            return not living
        doubt = self._doubt(submission, self._api.namespace_uid(submission.namespace))
        if doubt is not None:
            log.info("the end of %s is not confirmed: %s", self._at(submission), doubt)
        return doubt is None

    def sweep(self, log_uid: str, is_known: Callable[[str], bool]) -> int:
        """As the port has it, in the namespace of this manager. Pods that have not ended are left: a driver whose run is
        unknown ends by itself."""
        ours = f"{LOG}={log_uid},{RUN}"
        pods = self._api.list(_PODS, self._namespace, ours)
        runs = {pod["metadata"]["labels"][RUN] for pod in pods}
        unknown = {run for run in runs if not is_known(run)}
        theirs = [pod for pod in pods if pod["metadata"]["labels"][RUN] in unknown]
        old = [pod for pod in theirs if has_ended(pod) and _age(pod, ended=True) >= _KEPT_SECONDS]
        kept = {pod["metadata"]["labels"][SUBMISSION] for pod in theirs if pod not in old}
        old = [pod for pod in old if pod["metadata"]["labels"][SUBMISSION] not in kept]
        for pod in old:
            self._api.delete(_PODS, pod)
        return len(old) + self._sweep_rest(ours, old, kept, is_known)

    def _sweep_rest(self, ours: str, pods: Sequence[Json], kept: set[str], is_known: Callable[[str], bool]) -> int:
        """What has lost its owner, or never had one: a garbage collector takes the rest. `ours` selects what has the labels
        of this log; config maps have Spark's label only."""
        applications = {pod["metadata"]["labels"].get(APPLICATION_LABEL, "") for pod in pods} - {""}
        count = 0
        for kind in LEFT_BEHIND:
            found = {one["metadata"]["uid"]: one for one in self._api.list(kind, self._namespace, ours)}
            if applications:
                selector = f"{APPLICATION_LABEL} in ({','.join(sorted(applications))})"
                found |= {one["metadata"]["uid"]: one for one in self._api.list(kind, self._namespace, selector)}
            for one in found.values():
                labels = one["metadata"]["labels"]
                is_theirs = labels.get(APPLICATION_LABEL) in applications or not is_known(labels.get(RUN, ""))
                if is_theirs and labels.get(SUBMISSION) not in kept and _age(one) >= _KEPT_SECONDS:
                    self._api.delete(kind, one)
                    count += 1
        return count

    # --- for people ---------------------------------------------------------------------------------------------------

    def output_command(self, submission: Submission) -> str:
        """As the port has it."""
        context = ("--context", self._access.context) if self._access.context else ()
        return shlex.join(["kubectl", *context, "-n", submission.namespace, "logs", submission.name])

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _pods(self, submission: Submission) -> list[Json]:
        return self._api.list(_PODS, submission.namespace, f"{SUBMISSION}={submission.name}")

    def _with_id(self, submission: Submission, pod: Json) -> Submission:
        """With the pod's uid, and with that of its namespace, which tells this cluster from others of the same address."""
        cluster = submission.cluster
        if not cluster:
            try:
                cluster = self._api.namespace_uid(submission.namespace) or ""
            except ManagerUnavailable:
                cluster = ""
        return msgspec.structs.replace(submission, id=str(pod["metadata"]["uid"]), cluster=cluster)

    def _at(self, submission: Submission) -> str:
        return f"pod {submission.name} in namespace {submission.namespace} of {self._address}"


def _is_python_alone(launch: Launch) -> bool:
    """Whether a group without Spark needs nothing of spark-submit's: which Python it is, a pod can say itself."""
    files = launch.settings.py_files or launch.conf.get("spark.submit.pyFiles")
    return launch.kind is DriverKind.PYTHON or (not launch.needs_spark and not files)


def _refusal(printed: str) -> Refusal | None:
    """What the API server has said last, if it is in the output of spark-submit."""
    found = [one for one in _CAUSE.finditer(printed) if one["said"]]
    return Refusal(int(found[-1]["code"] or 403), found[-1]["said"]) if found else None


def _is_ours(name: str) -> bool:
    prefixes = (_DRIVER_LABEL, _EXECUTOR_LABEL, _SERVICE_LABEL)
    return name in {POD_NAME, WAIT} or any(name.startswith(f"{prefix}airflow-logio/") for prefix in prefixes)


def _check_files(settings: SparkSettings, conf: Mapping[str, str]) -> None:
    """Refuse files of this machine, which pods do not have. Raises `ConfigurationError`."""
    given = {
        "jars": settings.jars or conf.get("spark.jars"),
        "files": settings.files or conf.get("spark.files"),
        "archives": settings.archives or conf.get("spark.archives"),
        "py_files": settings.py_files or conf.get("spark.submit.pyFiles"),
    }
    for name, value in given.items():
        for one in filter(None, (part.strip() for part in (value or "").split(","))):
            if not _OF_PODS.match(one) or one.startswith("file:"):
                raise ConfigurationError(
                    f"{name} has {one}, a file of this machine, which pods do not have: put it into the image and write "
                    f"local://{one.removeprefix('file://')}, or give {UPLOADS}, a folder in a store that pods reach"
                )


def _labels(submission: Submission, claim: Claim, launch: Launch) -> dict[str, str]:
    group = re.sub(r"[^A-Za-z0-9_.-]+", "-", claim.group)[:63].strip("-_.") or "group"
    return {
        LOG: launch.log_uid,
        RUN: claim.run_uid,
        GROUP: group,
        INCARNATION: str(claim.incarnation),
        SUBMISSION: submission.name,
    }


def _part(pod: Json) -> Any:
    return pod["metadata"].get("labels", {}).get(PART)


def _config_maps(pod: Json) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [one["configMap"]["name"] for one in volumes if "configMap" in one and not one["configMap"].get("optional")]


def _age(one: Json, *, ended: bool = False) -> float:
    """Seconds since an object was made, or since a pod's last container has ended, by this machine's clock."""
    when = one["metadata"]["creationTimestamp"]
    if ended:
        states = [found.get("state", {}) for found in one.get("status", {}).get("containerStatuses") or ()]
        ends = [state["terminated"]["finishedAt"] for state in states if state.get("terminated", {}).get("finishedAt")]
        when = max(ends, default=when)
    return time.time() - datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp()


# --- spark-submit -----------------------------------------------------------------------------------------------------


def _environment(settings: SparkSettings) -> dict[str, str]:
    found = spark_submit.environment(SparkSettings(settings.master, spark_binary=settings.spark_binary))
    return {name: value for name, value in found.items() if name not in _OF_THIS_PYTHON}
