"""Scheduler and nodes of a cluster for tests: pods of an API server run as processes of this machine.

It speaks to the server by its API only, so it serves any. It looks at all pods again and again, and does what is missing:
nothing is remembered of the past but which processes run. The README beside it says what tests may do to it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support import hosts
from tests.support.kubernetes import pod_files
from tests.support.kubernetes.client import Api
from tests.support.kubernetes.pod_files import Waiting
from tests.support.kubernetes.pods import Pod, now
from tests.support.kubernetes.problems import Object, Problem
from tests.support.waiting import eventually

EVERY = 0.1
NEVER = (400, 405, 415, 500)
"""Refusals that this kubelet should not get."""
CLONE = Path(__file__).parents[3]
SPARK = "/opt/spark"
ENTRYPOINT = "/opt/entrypoint.sh"


class Kubelet:
    """All nodes at once. `shared` are folders that all pods share with this machine; the clone and its Python always are."""

    def __init__(
        self,
        api: Api,
        network: hosts.Network,
        folder: Path,
        nodes: Sequence[str],
        shared: Sequence[Path],
        image: Mapping[str, str],
    ) -> None:
        self.api = api
        self.network = network
        self.folder = folder
        self.nodes = dict.fromkeys(nodes, "up")
        """Node → `up`, `cut off` or `off`."""
        self.missing_images: set[str] = set()
        """Images that cannot be pulled."""
        self.errors: list[str] = []
        """What this kubelet did not expect; a test may look, and its end does."""
        self._shared = _outermost((CLONE, Path(sys.prefix), Path(sys.base_prefix), *shared))
        self._image = _image(image)
        self._holds = False
        self._turn = 0
        self._pods: dict[str, Pod] = {}
        self._lock = threading.RLock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kubelet", daemon=True)

    # --- what tests ask -----------------------------------------------------------------------------------------------

    def pod(self, name: str, namespace: str = "default") -> Pod:
        """The newest that has had a process of this name, waited for; also if the API no longer has it."""

        def found() -> Pod | None:
            with self._lock:
                named = [pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)]
            return named[-1] if named and named[-1].has_begun else None

        pod = eventually(found, what=f"pod {namespace}/{name} runs")
        assert pod is not None
        return pod

    def on(self, node: str) -> list[Pod]:
        """The pods of a node that run."""
        with self._lock:
            return [
                pod for pod in self._pods.values() if pod.node == node and pod.has_started and pod.exit_code is None
            ]

    # --- what tests do ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """New pods stay pending: there is no room."""
        with self._lock:
            self._holds = True

    def release(self) -> None:
        with self._lock:
            self._holds = False

    def evict(self, pod: Pod, message: str = "The node was low on resource: memory.") -> None:
        """The node ends it for want of room: phase `Failed`, reason `Evicted`."""
        with self._lock:
            pod.cause = ("Evicted", message)
            pod.kill()

    def run_out_of_memory(self, pod: Pod) -> None:
        """The kernel kills its container: exit code 137, reason `OOMKilled`."""
        with self._lock:
            pod.container_cause = "OOMKilled"
            pod.kill()

    def preempt(self, pod: Pod) -> None:
        """The scheduler deletes it in favour of another: condition `DisruptionTarget`, then an ordinary deletion."""
        with self._lock:
            self._disrupt(pod, "PreemptionByScheduler", "preempted by a pod of a higher priority")
            self.api.delete(_path(pod), {"preconditions": {"uid": pod.uid}})

    def cut_off(self, node: str) -> None:
        """Its pods go on, without a network; the API is told no more of them, except that they are not ready."""
        with self._lock:
            self.nodes[node] = "cut off"
            for pod in self.on(node):
                pod.host.cut_off()
            self._call_unready(node)

    def reconnect(self, node: str) -> None:
        """Its power and its network are back: what the API wants of its pods now happens."""
        with self._lock:
            for pod in self.on(node):
                pod.host.reconnect()
            self.nodes[node] = "up"

    def lose(self, node: str) -> None:
        """Its power goes: all of its processes end, and the API is told nothing except that they are not ready."""
        with self._lock:
            self.nodes[node] = "off"
            for pod in self.on(node):
                pod.end()
            self._call_unready(node)

    def remove(self, node: str) -> None:
        """A node that is cut off or lost is taken out of the cluster: its pods fail, and are deleted without its consent."""
        with self._lock:
            for pod in [pod for pod in self._pods.values() if pod.node == node]:
                if self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists", phase="Failed"):
                    self.api.delete(_path(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(timeout=120)
        for pod in self._pods.values():
            pod.end()
        self.api.close()

    def _work(self) -> None:
        while not self._ends.wait(EVERY):
            try:
                with self._lock:
                    self._look()
            except OSError:  # the server is away: the next look sees
                continue
            except Problem as problem:
                if problem.code in NEVER:
                    self.errors.append(problem.message)
            except Exception as error:
                self.errors.append(repr(error))
        self.api.close()

    def _look(self) -> None:
        pods = self.api.get("/api/v1/pods")["items"]
        there = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid, given in there.items():
            node = given["spec"].get("nodeName")
            if node is None:
                self._schedule(given)
            elif self.nodes.get(node) == "up":
                try:
                    self._care_for(self._pods.get(uid) or self._new(given), given)
                except Problem as problem:  # it has been changed or deleted meanwhile
                    if problem.code in NEVER:
                        raise
        for uid, pod in self._pods.items():
            if uid not in there and self.nodes[pod.node] == "up":
                self._forget(pod)
        self._name_hosts(pods)

    # --- scheduling ---------------------------------------------------------------------------------------------------

    def _schedule(self, given: Object) -> None:
        room = [] if self._holds else [node for node, state in self.nodes.items() if state == "up"]
        if room:
            self._turn += 1
            target = {"apiVersion": "v1", "kind": "Node", "name": room[self._turn % len(room)]}
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": given["metadata"]["name"]},
                "target": target,
            }
            self.api.create(f"{_path_of(given)}/binding", binding)
        elif not given["status"].get("conditions"):
            message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient cpu."
            why = _condition("PodScheduled", "False", "Unschedulable", message)
            self.api.merge(f"{_path_of(given)}/status", {"status": {"conditions": [why]}})

    def _new(self, given: Object) -> Pod:
        metadata = given["metadata"]
        folder = self.folder / "pods" / metadata["uid"]
        folder.mkdir(parents=True)
        (folder / "hosts").touch()
        host = self.network.plug_in(metadata["uid"])
        pod = Pod(metadata["namespace"], metadata["name"], metadata["uid"], given["spec"]["nodeName"], folder, host)
        self._pods[pod.uid] = pod
        return pod

    # --- a pod of a node that is up -----------------------------------------------------------------------------------

    def _care_for(self, pod: Pod, given: Object) -> None:
        deleted = "deletionTimestamp" in given["metadata"]
        if not pod.has_started and not deleted:
            self._try_to_start(pod, given)
        if deleted and pod.has_begun and pod.exit_code is None:
            grace = given["metadata"].get("deletionGracePeriodSeconds") or 0
            if pod.term_at is None:
                pod.terminate()
            elif time.monotonic() > pod.term_at + grace:
                pod.kill()
        self._report(pod, given)
        if deleted and (not pod.has_started or pod.exit_code is not None):
            self.api.delete(_path(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})

    def _try_to_start(self, pod: Pod, given: Object) -> None:
        try:
            [container] = given["spec"]["containers"]
            if given["spec"].get("initContainers") or given["spec"]["restartPolicy"] != "Never":
                raise Waiting("ContainerCreating", "this kubelet has no init containers, and restarts none")
            if container["image"] in self.missing_images:
                raise Waiting("ImagePullBackOff", f'Back-off pulling image "{container["image"]}"')

            def lookup(plural: str, name: str) -> Object:
                found: Object = self.api.get(f"/api/v1/namespaces/{pod.namespace}/{plural}/{name}")
                return found

            own = pod_files.environment(given, container, pod.address, lookup)
            volumes = pod.folder / "volumes"
            mounts = pod_files.mounts(given, container, volumes, self.folder / "claims", lookup)
        except Waiting as waiting:
            pod.waiting = (waiting.reason, waiting.message)
            return
        except ValueError:
            pod.waiting = ("ContainerCreating", "this kubelet runs pods of one container")
            return
        variables = {**self._image, "HOSTNAME": pod.name, **own}
        command = [*(container.get("command") or [ENTRYPOINT]), *(container.get("args") or [])]
        (pod.folder / "work").mkdir(exist_ok=True)
        spark = [_mount(SPARK, Path(pyspark.__file__).parent), _mount(f"{SPARK}/work-dir", pod.folder / "work")]
        shared = [_mount(str(path), path) for path in self._shared]
        expanded = [pod_files.expanded(part, variables) for part in command]
        pod.waiting = None
        pod.start(expanded, variables, container.get("workingDir") or f"{SPARK}/work-dir", [*shared, *spark, *mounts])

    def _report(self, pod: Pod, given: Object) -> None:
        """Its status, if that is another one than the API was told."""
        [container, *_] = given["spec"]["containers"]
        status = _status(pod, container)
        if status != pod.reported:
            scheduled = [one for one in given["status"].get("conditions") or [] if one["type"] not in _OURS]
            told = {**status, "conditions": [*scheduled, *status["conditions"]]}
            self.api.merge(f"{_path(pod)}/status", {"metadata": {"uid": pod.uid}, "status": told})
            pod.reported = status

    def _forget(self, pod: Pod) -> None:
        """The API has it no more."""
        if pod.has_begun and pod.exit_code is None:
            pod.kill()
        if pod.uid in self.network.hosts and (not pod.has_started or pod.exit_code is not None):
            self.network.unplug(pod.uid)

    def _name_hosts(self, pods: list[Object]) -> None:
        """What is headless is found under its name."""
        running = [pod for pod in self._pods.values() if pod.uid in self.network.hosts]
        services = self.api.get("/api/v1/services")["items"] if running else []
        for pod in running:
            text, file = pod_files.hosts(pod.name, pod.address, services, pods), pod.folder / "hosts"
            if file.read_text() != text:
                with file.open("r+") as mounted:  # the same file, which is mounted; never empty for a moment
                    mounted.write(text)
                    mounted.truncate()

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _call_unready(self, node: str) -> None:
        for pod in self._pods.values():
            if pod.node == node and pod.reported.get("phase") == "Running":
                self._set_condition(pod, _condition("Ready", "False", "NodeNotReady", "Node is not ready"))
                pod.reported = {}

    def _disrupt(self, pod: Pod, reason: str, message: str, phase: str | None = None) -> bool:
        return self._set_condition(pod, _condition("DisruptionTarget", "True", reason, message), phase)

    def _set_condition(self, pod: Pod, condition: Object, phase: str | None = None) -> bool:
        """Whether the API still has it: another pod may have its name now."""
        try:
            given = self.api.get(_path(pod))
        except Problem as problem:
            if problem.code != 404:
                raise
            return False
        if given["metadata"]["uid"] != pod.uid:
            return False
        others = [one for one in given["status"].get("conditions") or [] if one["type"] != condition["type"]]
        status = {"conditions": [*others, condition], **({"phase": phase} if phase else {})}
        self.api.merge(f"{_path(pod)}/status", {"metadata": {"uid": pod.uid}, "status": status})
        return True


@contextmanager
def kubelet(
    url: str,
    folder: Path,
    nodes: Sequence[str] = ("node-1", "node-2"),
    shared: Sequence[Path] = (),
    image: Mapping[str, str] | None = None,
    token: str | None = None,
) -> Iterator[Kubelet]:
    """Of the API server at `url`. `image` are variables that all containers have, as those of an image.

    Pods reach servers of this machine at `network.address`.
    """
    with hosts.network() as network:
        one = Kubelet(Api(url, token), network, folder, nodes, shared, image or {})
        one.start()
        try:
            yield one
        finally:
            one.close()
        assert one.errors == []


_OURS = ("Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers")


def _status(pod: Pod, container: Object) -> Object:
    code = pod.exit_code
    started = pod.has_begun and code is None
    state: Object
    if started:
        state = {"running": {"startedAt": pod.started_at}}
    elif code is not None:
        reason = pod.container_cause or ("Completed" if code == 0 else "Error")
        times = {"startedAt": pod.started_at, "finishedAt": pod.ended_at}
        state = {"terminated": {"exitCode": code, "reason": reason, **times}}
    else:
        reason, message = pod.waiting or ("ContainerCreating", "")
        state = {"waiting": {"reason": reason, "message": message}}
    phase = "Running" if started else "Pending" if code is None else "Succeeded" if code == 0 else "Failed"
    status: Object = {
        "phase": phase if pod.cause is None or started else "Failed",
        "hostIP": "127.0.0.1",
        "podIP": pod.address,
        "podIPs": [{"ip": pod.address}],
        "startTime": pod.started_at or None,
        "conditions": [_condition(name, str(started), since=pod.ended_at or pod.started_at) for name in _OURS[:2]],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "restartCount": 0,
                "ready": started,
                "started": started,
                "state": state,
            }
        ],
    }
    if pod.cause is not None and not started:
        status["reason"], status["message"] = pod.cause
    return status


def _condition(sort: str, status: str, reason: str = "", message: str = "", since: str = "") -> Object:
    condition: Object = {"type": sort, "status": status, "lastTransitionTime": since or now()}
    return {**condition, **({"reason": reason, "message": message} if reason else {})}


def _image(given: Mapping[str, str]) -> dict[str, str]:
    """The variables of the image: this clone's Python, and Spark where images have it."""
    java = given.get("JAVA_HOME") or os.environ.get("JAVA_HOME") or _java()
    return {
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "SPARK_HOME": SPARK,
        "JAVA_HOME": java,
        "PYTHONPATH": str(CLONE),
        **given,
    }


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those that lie in another one."""
    return [one for one in folders if not any(other in one.parents for other in folders)]


def _java() -> str:
    found = shutil.which("java")
    return str(Path(found).resolve().parents[1]) if found else ""


def _mount(path: str, source: Path) -> dict[str, object]:
    return {"path": path, "source": str(source), "read_only": False}


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


def _path_of(given: Object) -> str:
    return f"/api/v1/namespaces/{given['metadata']['namespace']}/pods/{given['metadata']['name']}"
