"""What the status of a driver's pod says: that it waits and for what, runs, has ended and why, or was written off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_logio.launch.managers.cluster_manager import DriverSight, Sighting
from airflow_logio.launch.managers.kubernetes_api import Json

CONTAINER = "spark-kubernetes-driver"
"""As Spark calls a driver's container, unless a pod template has named one."""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation that says which container a pod is about; `kubectl logs` shows that one, too."""
STUCK = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
    | {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
)
"""What a container waits for that does not come by itself."""
TAKEN = re.compile(r"Evicted|Preempt\w*|NodeLost|NodeShutdown|Shutdown|Terminated|NodeAffinity|OutOf\w+")
"""Reasons of a pod's failure that are the node's, or the scheduler's."""
_OWN_FAULT = re.compile(r"exceeds the limit|exceeded its local ephemeral storage limit|exceeds the total limit")
"""An eviction because the pod has filled more disk than its limit: another node would do the same."""
_ENDED = ("Succeeded", "Failed")


def has_ended(pod: Json) -> bool:
    """Whether no container of this pod runs any more, or will. One that was only written off may still run."""
    status = pod.get("status", {})
    runs = any("running" in one.get("state", {}) for one in status.get("containerStatuses") or ())
    return status.get("phase") in _ENDED and not runs


def sighting_of(pod: Json) -> Sighting:
    """What this pod is seen to do."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase in _ENDED:
        return _ended(pod, status)
    if (end := _driver(pod, status.get("containerStatuses") or ()).get("state", {}).get("terminated")) is not None:
        return Sighting(DriverSight.EXITED, _of_container(end))  # containers beside it run on
    if phase == "Unknown":
        return Sighting(DriverSight.UNKNOWN, f"its node {_node(pod)} does not answer the API server")
    if pod["metadata"].get("deletionTimestamp"):
        return Sighting(DriverSight.RUNNING, f"is being deleted on node {_node(pod)}", was_taken=_is_disrupted(status))
    if phase == "Pending":
        return _pending(pod, status)
    return Sighting(DriverSight.RUNNING, f"on node {_node(pod)}")


def _pending(pod: Json, status: Json) -> Sighting:
    since = _seconds(pod["metadata"].get("creationTimestamp"))
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting = [found for one in containers if (found := one.get("state", {}).get("waiting"))]
    for one in waiting:
        if one.get("reason") in STUCK:
            return Sighting(DriverSight.STUCK, _with(one["reason"], one.get("message")), since)
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return Sighting(DriverSight.QUEUED, _with(one.get("reason") or "Pending", one.get("message")), since)
    if not pod["spec"].get("nodeName"):
        return Sighting(DriverSight.QUEUED, "no node has been chosen for it", since)
    said = next((_with(one["reason"], one.get("message")) for one in waiting if one.get("reason")), "ContainerCreating")
    return Sighting(DriverSight.STARTING, f"on node {_node(pod)}: {said}", since)


def _ended(pod: Json, status: Json) -> Sighting:
    statuses = status.get("containerStatuses") or ()
    state = _driver(pod, statuses).get("state", {})
    end = state.get("terminated")
    is_disrupted = _is_disrupted(status)
    said = _with(status["reason"], status.get("message")) if status.get("reason") else ""
    if "running" in state or (not state and not has_ended(pod)):  # what its node had said before another wrote it off
        why = said or next((_with(one.get("reason", ""), one.get("message")) for one in _disruptions(status)), "")
        return Sighting(DriverSight.LOST, f"written off with node {_node(pod)}: {why}", was_taken=True)
    if end is not None and end.get("reason") == "OOMKilled":
        return Sighting(DriverSight.EXITED, _of_container(end))
    own = bool(_OWN_FAULT.search(status.get("message") or ""))
    was_taken = not own and (is_disrupted or bool(TAKEN.fullmatch(status.get("reason") or "")))
    of_container = _of_container(end) if end is not None else ""
    why = "; ".join(filter(None, (said, of_container))) or f"the pod is {status['phase']}"
    return Sighting(DriverSight.EXITED, why, was_taken=was_taken and status["phase"] == "Failed")


def _of_container(end: Json) -> str:
    code, reason = end.get("exitCode"), end.get("reason") or ""
    signal = f" (signal {end['signal']})" if end.get("signal") else ""
    hint = ""
    if reason == "OOMKilled":
        hint = ": its container had less memory than it needs; raise spark.driver.memory or spark.driver.memoryOverhead"
    shown = f"{reason}, " if reason not in {"", "Error", "Completed"} else ""
    message = f": {str(end['message']).strip()[-500:]}" if end.get("message") else ""
    return f"{shown}exit code {code}{signal}{hint}{message}"


def _driver(pod: Json, statuses: Sequence[Json]) -> Json:
    """The status of the driver's own container; empty: there is none yet, or nothing says which of several it is. Then the
    phase alone is believed: webhooks put containers of theirs before Spark's, and behind it."""
    names = [one["name"] for one in pod["spec"]["containers"]]
    told = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    own = next((name for name in (told, CONTAINER) if name in names), names[0] if len(names) == 1 else None)
    return next((one for one in statuses if one["name"] == own), {})


def _disruptions(status: Json) -> list[Json]:
    found = status.get("conditions") or ()
    return [one for one in found if one.get("type") == "DisruptionTarget" and one.get("status") == "True"]


def _is_disrupted(status: Json) -> bool:
    return bool(_disruptions(status))


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "(none)")


def _with(reason: str, message: Any) -> str:
    return f"{reason}: {' '.join(str(message).split())[:500]}" if message else reason


def _seconds(timestamp: Any) -> float | None:
    """Of an RFC 3339 time, since the epoch."""
    return None if not timestamp else datetime.fromisoformat(str(timestamp).replace("Z", "+00:00")).timestamp()
