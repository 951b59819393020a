"""Halting a group for good: asked first, then fenced in the log, its process ended if it is on this machine.

A driver that is stopped, hung or cut off does not obey. Whether it is reached or not, the log refuses its commits from the
halt on (`LogStore.halted` voids its epoch, and it cannot begin another).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from airflow_logio.errors import LogioError
from airflow_logio.launch import cluster_launch, driver_folders, processes
from airflow_logio.protocol.states import ENDED, OPEN_SCALING, GroupState, ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.clusters.manager_answers import shared_answers

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
REGISTERED = frozenset({GroupState.RUNNING, GroupState.DRAINING})
"""States in which a driver hears what is asked. One that has not registered has done nothing, and will not be let in."""


class Halt(StrEnum):
    """How a group came to its halt."""

    OBEYED = "halted"
    """Its driver committed what it had, and ended."""
    FORCED = "halted by force"
    """Its driver did not answer in time, or there was none: it is fenced, and ended if it was on this machine."""
    LEFT = "left as it is"
    """The incarnation was replaced, or had ended otherwise."""


def halt_for_good(
    store: LogStore,
    run_id: int,
    group: str,
    incarnation: int,
    *,
    grace_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Halt:
    """Halt this incarnation of a group; a later one is left alone.

    The driver has `grace_seconds` to commit what it has and to end. Raises `LogUnavailable` if the log cannot be asked, or
    told, in the end: then nothing is known to be fenced, and the wish may be in the log.
    """
    deadline = clock() + grace_seconds
    status = store.group(run_id, group)
    if status.incarnation != incarnation or status.state in ENDED:
        return Halt.LEFT
    _wait_for_obedience(store, run_id, status, deadline, clock)
    if force(store, run_id, status):
        return Halt.FORCED
    now = store.group(run_id, group)
    if now.incarnation != incarnation or now.state is not GroupState.HALTED:
        return Halt.LEFT
    # It has said so in the log, and is about to end; of one on a cluster nothing more is known here.
    while status.submission is None and not _cannot_obey(status) and clock() < deadline:
        time.sleep(POLL_SECONDS)
    end_process(status)
    return Halt.OBEYED


def halt_all_for_good(
    store: LogStore, run: Run, group: str, incarnations: Mapping[str, int], *, grace_seconds: float
) -> dict[str, Halt]:
    """`halt_for_good` of a group with all its replicas (name in the log → incarnation), at the same time.

    Replicas are asked before any is waited for, and share the grace. What was asked for by way of scaling is refused:
    no other replicas may be launched instead. Raises as `halt_for_good`.
    """
    deadline = time.monotonic() + grace_seconds
    try:
        refuse_requests(store, run, group, "the group was halted")
        for name, incarnation in incarnations.items() if len(incarnations) > 1 else ():
            store.request(run.run_id, name, GroupState.HALTED, incarnation=incarnation)
    except LogioError as error:
        log.warning("group %s: its replicas cannot be asked to halt: %s", group, error)
    return {
        name: halt_for_good(store, run.run_id, name, incarnation, grace_seconds=max(0.0, deadline - time.monotonic()))
        for name, incarnation in incarnations.items()
    }


def refuse_requests(store: LogStore, run: Run, group: str, why: str) -> None:
    """Requests to scale a group that are open are not carried out. Raises `LogUnavailable`."""
    if group not in run.spec.replicated:
        return
    for request in store.scalings(run.run_id, group):
        if request.state in OPEN_SCALING:
            store.settle_scaling(request.request_id, ScalingState.REFUSED, why)


def force(store: LogStore, run_id: int, status: GroupStatus) -> bool:
    """Fence the driver on record and end its process, if that is on this machine; False if it was replaced or has ended.

    In the order of design D8: on SQLite a stopped writer shuts everyone out, so its process goes first; on
    PostgreSQL the fence comes first, past a session that is stopped inside a transaction. A driver on another machine
    finds itself fenced with its next commit or heartbeat, and exits; the manager of one on a cluster is asked for its end.
    """
    driver_folders.end_standbys(status.log_path)  # the end of the driver is what they wait for
    if store.ends_old_driver_first:
        end_process(status)
    fenced = store.halted(GroupRef(run_id, status.group, status.incarnation))
    if fenced:
        end_process(status)
        # What supervises asks again (`LeftDrivers`).
        cluster_launch.end(shared_answers().managers, status.submissions)
    return fenced


def end_process(status: GroupStatus) -> None:
    """SIGKILL what runs of the driver on this machine. Processes of nodes are compared with none of this machine."""
    identity = status.identity
    if identity is None or status.submission is not None or not processes.driver_processes(identity):
        return
    log.info("group %s: ending its driver, pid %d", status.group, identity.pid or identity.parent_pid)
    if not processes.end(identity):
        log.warning("group %s: its driver survives SIGKILL for now; it commits nothing any more", status.group)


def _wait_for_obedience(
    store: LogStore, run_id: int, status: GroupStatus, deadline: float, clock: Callable[[], float]
) -> None:
    """Ask the driver to halt, and wait until it has ended; do not wait for a driver that cannot obey."""
    asked = False
    while not _cannot_obey(status) and clock() < deadline:
        try:
            asked = asked or store.request(run_id, status.group, GroupState.HALTED, incarnation=status.incarnation)
            now = store.group(run_id, status.group)
            if not asked or now.incarnation != status.incarnation or now.state in ENDED:
                return
        except LogioError as error:
            log.warning("group %s: it cannot be asked to halt: %s", status.group, error)
        time.sleep(POLL_SECONDS)


def _cannot_obey(status: GroupStatus) -> bool:
    """There is no driver that has begun, or its process is gone, or stopped (and may hold the log's lock)."""
    identity = status.identity
    if identity is None or status.state not in REGISTERED:
        return True
    if status.submission is not None:  # nodes of a cluster may share this machine's name
        return False
    return bool(processes.is_gone(identity)) or processes.is_stopped(identity)
