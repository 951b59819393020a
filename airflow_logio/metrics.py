"""Metrics through Airflow's own `Stats`, to wherever Airflow is configured to send them (docs/metrics.md).

Tasks and triggers call these functions. Tags are names that authors gave, never ids of runs or events, so that the number
of series stays small. If a metric cannot be sent, that is logged once, and nothing fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from operator import attrgetter

from airflow_logio import _compat
from airflow_logio.protocol.replicas import base_operator, replicated_group
from airflow_logio.protocol.states import ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.status.recoveries import Recovery
from airflow_logio.status.snapshot import Snapshot
from airflow_logio.status.whole_group import AlertFigures
from airflow_logio.store.records.status_records import ScalingRequest

log = logging.getLogger(__name__)

RECOVERIES = "logio.group.recoveries"
DETECTION = "logio.group.detection_seconds"
RECOVERY = "logio.group.recovery_seconds"
SCALINGS = "logio.group.scalings"
INCARNATION = "logio.group.incarnation"
PARKED = "logio.group.parked"
HALTED = "logio.group.halted"
QUARANTINED = "logio.group.quarantined"
RECOVERIES_LEFT = "logio.group.recoveries_left"
REPLICAS = "logio.group.replicas"
LAG = "logio.group.lag_events"
UNDONE = "logio.group.undone_events"
PORT_EVENTS = "logio.port.events"
PORT_RECORDS = "logio.port.records"
PORT_UNDONE = "logio.port.undone_events"
PENDING_WRITES = "logio.port.pending_writes"

_failed: set[str] = set()


def report_recovery_begun(pipeline: str, recovery: Recovery) -> None:
    """A dead group was claimed: counts the recovery, and reports how long it took to notice the death."""
    tags = {"pipeline": pipeline, "group": replicated_group(recovery.group)}
    _count(RECOVERIES, 1, tags)
    _time(DETECTION, recovery.detection_seconds, tags)


def report_recovered(pipeline: str, recovery: Recovery) -> None:
    """The new driver has made its first commit: reports the time since the death was detected."""
    _time(RECOVERY, recovery.seconds, {"pipeline": pipeline, "group": replicated_group(recovery.group)})


def report_scaled(pipeline: str, request: ScalingRequest) -> None:
    """A request to scale a group was carried out or refused: counts it."""
    _count(SCALINGS, 1, {"pipeline": pipeline, "group": request.group, "outcome": request.state.value})


def report_beginning(pipeline: str, group: str, *, is_replicated: bool) -> None:
    """A group is watched from now on: its counters exist, so that the first thing that they count is seen as a rise."""
    tags = {"pipeline": pipeline, "group": group}
    _count(RECOVERIES, 0, tags)
    for outcome in (ScalingState.DONE, ScalingState.REFUSED) if is_replicated else ():
        _count(SCALINGS, 0, {**tags, "outcome": outcome.value})


def report_alert_figures(pipeline: str, group: str, figures: AlertFigures) -> None:
    """The gauges that tell whether a person should look after a group."""
    tags = {"pipeline": pipeline, "group": group}
    _gauge(PARKED, figures.parked, tags)
    _gauge(HALTED, figures.halted, tags)
    _gauge(QUARANTINED, figures.quarantined, tags)
    _gauge(RECOVERIES_LEFT, figures.recoveries_left, tags)
    if figures.replicas is not None:
        _gauge(REPLICAS, figures.replicas, tags)


def report_group(snapshot: Snapshot, group: str) -> None:
    """The gauges of a group and of its ports; nothing if the log does not know the group."""
    view = snapshot.group(group)
    if view is None:
        return
    tags = {"pipeline": snapshot.run.spec.key.pipeline, "group": group}
    _gauge(INCARNATION, view.status.incarnation, tags)
    _gauge(LAG, view.lag.events, tags)
    _gauge(UNDONE, view.undone, tags)
    ports = snapshot.ports_of(group)
    for name, of in ((PORT_EVENTS, attrgetter("events")), (PORT_RECORDS, attrgetter("records"))):
        for (port, direction), count in _summed(((row.port, row.direction), of(row)) for row in ports).items():
            _gauge(name, count, {**tags, "port": port, "direction": direction})
    undone = (((one.receiver, ""), one.undone) for one in snapshot.connections_to(group))
    for (port, _), count in _summed(undone).items():
        _gauge(PORT_UNDONE, count, {**tags, "port": port})
    pending = (((written, ""), count) for written, count in snapshot.pending_of(group).items())
    for (port, _), count in _summed(pending).items():
        _gauge(PENDING_WRITES, count, {**tags, "port": port})


def _summed(counts: Iterable[tuple[tuple[Port, str], int]]) -> dict[tuple[str, str], int]:
    """(port, direction) → count, all slots of a replicated operator together."""
    sums: dict[tuple[str, str], int] = {}
    for (port, direction), count in counts:
        key = (f"{base_operator(port.operator)}.{port.name}", direction)
        sums[key] = sums.get(key, 0) + count
    return sums


def _count(name: str, count: int, tags: Mapping[str, str]) -> None:
    _send(name, lambda: _compat.stats().incr(name, count, tags=dict(tags)))


def _gauge(name: str, value: int, tags: Mapping[str, str]) -> None:
    _send(name, lambda: _compat.stats().gauge(name, value, tags=dict(tags)))


def _time(name: str, seconds: float | None, tags: Mapping[str, str]) -> None:
    if seconds is not None:
        # As a duration, not a number: Airflow takes numbers as milliseconds.
        _send(name, lambda: _compat.stats().timing(name, timedelta(seconds=seconds), tags=dict(tags)))


def _send(name: str, send: Callable[[], None]) -> None:
    try:
        send()
    except Exception as error:  # whatever a backend raises: it must not fail a recovery
        if name not in _failed:
            _failed.add(name)
            log.warning("metric %s cannot be sent: %s: %s (logged once)", name, type(error).__name__, error)
