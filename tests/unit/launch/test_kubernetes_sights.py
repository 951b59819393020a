"""What a pod's status means for its driver: statuses as kubelet, scheduler and controllers of Kubernetes write them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.launch.managers.cluster_manager import DriverSight
from airflow_logio.launch.managers.kubernetes_sights import CONTAINER, has_ended, sighting_of

MADE = "2026-11-30T10:00:00Z"
MADE_SECONDS = 1796032800.0
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


Status = dict[str, Any]


def pod(phase: str, node: str | None = "node-1", *, deleted: bool = False, **status: Any) -> Status:
    meta = {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": MADE}
    if deleted:
        meta["deletionTimestamp"] = MADE
    spec: dict[str, Any] = {"containers": [{"name": CONTAINER}]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": meta, "spec": spec, "status": {"phase": phase, **status}}


def container(state: str, name: str = CONTAINER, **what: Any) -> dict[str, Any]:
    return {"name": name, "state": {state: what}}


def test_a_pod_without_a_node_waits_in_the_queue_since_it_was_made() -> None:
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu.",
    }
    seen = sighting_of(pod("Pending", None, conditions=[why]))
    assert seen.state is DriverSight.QUEUED
    assert seen.why == "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    assert seen.since == MADE_SECONDS
    assert sighting_of(pod("Pending", None)).state is DriverSight.QUEUED


def test_a_pod_with_a_node_starts() -> None:
    status = [container("waiting", reason="ContainerCreating")]
    seen = sighting_of(pod("Pending", containerStatuses=status))
    assert (seen.state, seen.why) == (DriverSight.STARTING, "on node node-1: ContainerCreating")
    assert sighting_of(pod("Pending")).state is DriverSight.STARTING
    init = [container("waiting", "init", reason="PodInitializing")]
    assert "PodInitializing" in sighting_of(pod("Pending", initContainerStatuses=init)).why


@pytest.mark.parametrize(
    "reason",
    [
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
    ],
)
@pytest.mark.parametrize("where", ["containerStatuses", "initContainerStatuses"])
def test_what_does_not_come_by_itself_is_stuck_and_says_what_is_missing(reason: str, where: str) -> None:
    status = [container("waiting", reason=reason, message='secret "logio" not found')]
    given: Status = {where: status}
    seen = sighting_of(pod("Pending", **given))
    assert (seen.state, seen.why) == (DriverSight.STUCK, f'{reason}: secret "logio" not found')


def test_a_running_pod_runs_and_one_that_is_being_deleted_is_not_said_to_have_ended() -> None:
    running = [container("running", startedAt=MADE)]
    assert sighting_of(pod("Running", containerStatuses=running)).state is DriverSight.RUNNING
    seen = sighting_of(pod("Running", containerStatuses=running, deleted=True))
    assert (seen.state, seen.was_taken) == (DriverSight.RUNNING, False)
    seen = sighting_of(pod("Running", containerStatuses=running, conditions=[DISRUPTED], deleted=True))
    assert (seen.state, seen.was_taken) == (DriverSight.RUNNING, True)


def test_a_pending_pod_that_is_being_deleted_does_not_wait_for_room() -> None:
    assert sighting_of(pod("Pending", None, deleted=True)).state is DriverSight.RUNNING


def test_an_unknown_phase_says_nothing() -> None:
    assert sighting_of(pod("Unknown")).state is DriverSight.UNKNOWN


def test_a_driver_has_exited_though_a_container_beside_it_runs_on() -> None:
    one = pod("Running", containerStatuses=[container("running", "istio-proxy"), container("terminated", exitCode=1)])
    one["spec"]["containers"].insert(0, {"name": "istio-proxy"})
    seen = sighting_of(one)
    assert (seen.state, seen.why) == (DriverSight.EXITED, "exit code 1")
    assert not has_ended(one)


def test_a_container_of_a_template_is_the_drivers_if_the_pod_says_so() -> None:
    """Else the phase is believed, whichever of the containers has ended, wherever a webhook has put it."""
    for own, beside in (("terminated", "running"), ("running", "terminated")):
        one = pod("Running", containerStatuses=[container(beside, "beside"), container(own, "own")])
        for names in (("own", "beside"), ("beside", "own")):
            one["spec"]["containers"] = [{"name": name} for name in names]
            one["metadata"]["annotations"] = {}
            assert sighting_of(one).state is DriverSight.RUNNING
            one["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "own"}
            state = DriverSight.EXITED if own == "terminated" else DriverSight.RUNNING
            assert sighting_of(one).state is state
            one["metadata"]["annotations"] = {}
            failed = {**one, "status": {**one["status"], "phase": "Failed"}}
            assert sighting_of(failed).state is DriverSight.LOST, "one of them may still run"
    ended = pod("Failed", containerStatuses=[container("terminated", "own"), container("terminated", "beside")])
    ended["spec"]["containers"] = [{"name": "own"}, {"name": "beside"}]
    assert (sighting_of(ended).state, sighting_of(ended).why) == (DriverSight.EXITED, "the pod is Failed")
    alone = pod("Running", containerStatuses=[container("terminated", "own", exitCode=3)])
    alone["spec"]["containers"] = [{"name": "own"}]
    assert sighting_of(alone).why == "exit code 3"


def test_an_exit_has_its_code_and_reason() -> None:
    done = [container("terminated", exitCode=0, reason="Completed")]
    seen = sighting_of(pod("Succeeded", containerStatuses=done))
    assert (seen.state, seen.why, seen.was_taken) == (DriverSight.EXITED, "exit code 0", False)
    failed = [container("terminated", exitCode=137, signal=9, reason="Error", message="the end")]
    assert sighting_of(pod("Failed", containerStatuses=failed)).why == "exit code 137 (signal 9): the end"


def test_a_container_without_enough_memory_was_not_taken_even_while_its_node_is_drained() -> None:
    killed = [container("terminated", exitCode=137, reason="OOMKilled")]
    seen = sighting_of(pod("Failed", containerStatuses=killed, conditions=[DISRUPTED]))
    assert (seen.state, seen.was_taken) == (DriverSight.EXITED, False)
    assert "OOMKilled" in seen.why
    assert "spark.driver.memory" in seen.why


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi."),
        ("Evicted", "The node had condition: [DiskPressure]. "),
        ("Preempting", "Preempted in order to admit critical pod"),
        ("NodeLost", "Node node-1 which was running pod p is unresponsive"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000"),
    ],
)
def test_what_the_node_or_the_scheduler_takes_is_told_apart(reason: str, message: str) -> None:
    ended = [container("terminated", exitCode=137, reason="Error")]
    either: list[Status] = [{}, {"containerStatuses": ended}]
    for status in either:
        seen = sighting_of(pod("Failed", reason=reason, message=message, **status))
        assert (seen.state, seen.was_taken) == (DriverSight.EXITED, True)
        assert seen.why.startswith(f"{reason}: ")


@pytest.mark.parametrize(
    "message",
    [
        'Usage of EmptyDir volume "spark-local-dir-1" exceeds the limit "1Gi". ',
        'Container spark-kubernetes-driver exceeded its local ephemeral storage limit "1Gi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
    ],
)
def test_an_eviction_for_a_limit_of_the_pods_own_would_come_again_and_was_not_taken(message: str) -> None:
    seen = sighting_of(pod("Failed", reason="Evicted", message=message))
    assert (seen.state, seen.was_taken) == (DriverSight.EXITED, False)


def test_a_disrupted_pod_was_taken_whatever_its_exit_code_is() -> None:
    ended = [container("terminated", exitCode=143, reason="Error")]
    seen = sighting_of(pod("Failed", containerStatuses=ended, conditions=[DISRUPTED]))
    assert (seen.state, seen.was_taken) == (DriverSight.EXITED, True)
    ended = [container("terminated", exitCode=0, reason="Completed")]
    assert not sighting_of(pod("Succeeded", containerStatuses=ended, conditions=[DISRUPTED])).was_taken


def test_a_pod_that_a_controller_calls_failed_while_its_node_said_running_is_lost() -> None:
    lost = {**DISRUPTED, "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists"}
    running = [container("running", startedAt=MADE)]
    seen = sighting_of(pod("Failed", containerStatuses=running, conditions=[lost]))
    assert (seen.state, seen.was_taken) == (DriverSight.LOST, True)
    assert seen.why == "written off with node node-1: DeletionByPodGC: PodGC: node no longer exists"
    assert not has_ended(pod("Failed", containerStatuses=running, conditions=[lost])), "it may still run"
    assert has_ended(pod("Failed", containerStatuses=[container("terminated", exitCode=1)]))
