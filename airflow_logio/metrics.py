"""Metrics through Airflow's own `Stats`, to wherever Airflow is configured to send them (docs/metrics.md).

Tasks and triggers call these functions. Tags are names that authors gave, never ids of runs or events, so that the number
of series stays small. If a metric cannot be sent, that is logged once, and nothing fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from operator import attrgetter

from airflow.providers.common.compat.sdk import Stats

from airflow_logio.protocol.replicas import base_operator, replicated_group
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.recoveries import Recovery
from airflow_logio.runtime.figures.snapshot import Snapshot

log = logging.getLogger(__name__)

RECOVERIES = "logio.group.recoveries"
DETECTION = "logio.group.detection_seconds"
RECOVERY = "logio.group.recovery_seconds"
INCARNATION = "logio.group.incarnation"
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
    _send(RECOVERIES, lambda: Stats.incr(RECOVERIES, tags=tags))
    _time(DETECTION, recovery.detection_seconds, tags)


def report_recovered(pipeline: str, recovery: Recovery) -> None:
    """The new driver has made its first commit: reports the time since the death was detected."""
    _time(RECOVERY, recovery.seconds, {"pipeline": pipeline, "group": replicated_group(recovery.group)})


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


def _gauge(name: str, value: int, tags: Mapping[str, str]) -> None:
    _send(name, lambda: Stats.gauge(name, value, tags=dict(tags)))


def _time(name: str, seconds: float | None, tags: Mapping[str, str]) -> None:
    if seconds is not None:
        # As a duration, not a number: Airflow takes numbers as milliseconds.
        _send(name, lambda: Stats.timing(name, timedelta(seconds=seconds), tags=dict(tags)))


def _send(name: str, send: Callable[[], None]) -> None:
    try:
        send()
    except Exception as error:  # whatever a backend raises: it must not fail a recovery
        if name not in _failed:
            _failed.add(name)
            log.warning("metric %s cannot be sent: %s: %s (logged once)", name, type(error).__name__, error)
