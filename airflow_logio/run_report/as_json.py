"""A report for programs: what `logio status --json` prints. Times are seconds since the epoch by the database's clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow_logio.run_report.report import LastError, Replicas, Report, condition_seen
from airflow_logio.status.authored_figures import connections_seen, pending_seen, ports_seen
from airflow_logio.status.condition import RunCondition, what_its_manager_says
from airflow_logio.status.recoveries import Recovery
from airflow_logio.status.run_summary import driver_json, quarantined_json
from airflow_logio.status.snapshot import Amount, ConnectionView, GroupView
from airflow_logio.store.records.day_records import DayRead
from airflow_logio.store.records.driver_records import Load
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, PortProgress, ScalingRequest, SupervisorRecord


def document(report: Report) -> dict[str, Any]:
    """One run. ``at`` is the time of this look by this machine's clock."""
    errors = {error.group: error_document(error) for error in report.last_errors}
    groups = {view.name: _group(view) | {"last_error": errors.get(view.name)} for view in report.snapshot.groups}
    return {
        "at": report.at,
        **run_document(report.run),
        **_condition(report.condition),
        "groups": groups,
        "replicated": {
            one.group: _replicas(one) | figures_document(report.snapshot.group(one.group)) for one in report.replicated
        },
        "connections": [connection_document(one) for one in connections_seen(report.snapshot)],
        "ports": [_port(row) for row in ports_seen(report.run, report.snapshot.ports)],
        "pending_writes": {str(port): count for port, count in pending_seen(report.snapshot).items()},
        "drivers": [driver_json(driver) for driver in report.drivers],
        "code_changes": [asdict(change) for change in report.code_changes],
        "recoveries": [_recovery(one) for one in report.recoveries],
        "quarantined": [quarantined_json(one) for one in report.quarantined],
        "supervision": supervision_document(report),
        "days_read": [one._asdict() for one in report.days_read],
    }


def supervision_document(report: Report) -> dict[str, Any]:
    looked = report.supervisor
    return {
        "by": report.run.spec.supervision.value,
        "last_look_by": None if looked is None else looked.name,
        "last_look_seconds_ago": None if looked is None else looked.age_seconds,
        "missing": report.unsupervised,
        "dag_paused": report.is_paused,
    }


def listed_run(
    run: Run,
    groups: Sequence[GroupStatus],
    looked: SupervisorRecord | None,
    log: str | None,
    *,
    is_paused: bool,
    stale: Sequence[DayRead] = (),
) -> dict[str, Any]:
    """One run in the list of all. `stale` are days that it was computed from and that were replaced since."""
    listed = {group.group: _status(group) for group in groups}
    found = condition_seen(run, groups, time.time(), looked, log, is_paused=is_paused)
    return run_document(run) | _condition(found) | {"groups": listed, "stale": [str(one) for one in stale]}


def run_document(run: Run) -> dict[str, Any]:
    key = run.spec.key
    return {
        "uid": run.uid,
        "pipeline": key.pipeline,
        "dag_id": key.dag_id,
        "run_id": key.dag_run_id,
        "generation": key.generation,
        "partition": run.partition,
        "superseded_by": run.superseded_by,
        "because": run.because,
        "state": run.state.value,
        "created_at": run.created_at,
        "ended_at": run.ended_at,
    }


def _condition(found: RunCondition) -> dict[str, str]:
    return {"condition": found.word, "next_step": found.next_step}


def _call(load: Load) -> dict[str, Any]:
    return {"what": load.call, "seconds": load.call_seconds}


def _status(group: GroupStatus) -> dict[str, Any]:
    return {
        "state": group.state.value,
        "desired": group.desired.value,
        "since": group.since,
        "incarnation": group.incarnation,
        "code": group.code,
        "recoveries": group.recoveries,
        "pid": group.identity.pid if group.identity else None,
        "host": group.identity.host if group.identity else None,
        "heartbeat_at": group.beat_at,
        "heartbeat_seconds_ago": group.beat_age_seconds,
        "commits": group.commits,
        "rss_bytes": group.rss_bytes,
        "call": None if group.load is None or not group.load.call else _call(group.load),
        "spark": _spark(group.load),
        "standby": _standby(group.load),
        "error": group.error,
        "log": group.log_path,
        "cluster": _cluster(group),
    }


def _cluster(group: GroupStatus) -> dict[str, Any] | None:
    """As what the driver was submitted to a cluster manager, and what that says while it waits."""
    submission = group.reported or group.submission
    if submission is None:
        return None
    return {
        "manager": submission.manager,
        "address": submission.address,
        "namespace": submission.namespace or None,
        "name": submission.name,
        "id": submission.id or None,
        "attempt": submission.attempt or None,
        "says": what_its_manager_says(group),
    }


def _spark(load: Load | None) -> dict[str, Any] | None:
    application = None if load is None else load.application
    return None if application is None else {"application": application.id, "ui": application.ui_url}


def _standby(load: Load | None) -> dict[str, Any] | None:
    standby = None if load is None else load.standby
    return None if standby is None else {"pid": standby.pid, "ready": standby.is_ready, "rss_bytes": standby.rss_bytes}


def _group(view: GroupView) -> dict[str, Any]:
    return _status(view.status) | figures_document(view)


def figures_document(view: GroupView | None) -> dict[str, Any]:
    """Figures of a group, or of a replicated group as a whole."""
    if view is None:
        return {}
    return {
        "received": _amount(view.received),
        "sent": _amount(view.sent),
        "writes": view.writes,
        "pending_writes": view.pending_writes,
        "undone_events": view.undone,
        "lag": _amount(view.lag),
        "records_per_second": round(view.rate, 1),
        "done": view.done,
    }


def connection_document(one: ConnectionView) -> dict[str, Any]:
    return {
        "from": str(one.sender),
        "to": str(one.receiver),
        "from_group": one.from_group,
        "to_group": one.to_group,
        "sent": _amount(one.sent),
        "acknowledged": _amount(one.acknowledged),
        "lag": _amount(one.lag),
        "undone_events": one.undone,
        "records_per_second": round(one.rate, 1),
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {"events": amount.events, "records": amount.records}


def _port(row: PortProgress) -> dict[str, Any]:
    return {
        "port": str(row.port),
        "direction": row.direction,
        "events": row.events,
        "records": row.records,
        "bytes": row.bytes,
        "first_at": row.first_at,
        "last_at": row.last_at,
    }


def error_document(error: LastError) -> dict[str, Any]:
    return {
        "incarnation": error.incarnation,
        "text": error.text,
        "log": error.log_path,
        "is_present": error.is_present,
    }


def _recovery(one: Recovery) -> dict[str, Any]:
    """Each step's time, and the seconds since the step before it."""
    return {
        "group": one.group,
        "incarnation": one.incarnation,
        "cause": one.cause,
        "last_heartbeat_at": one.last_beat_at,
        **{f"{step.replace(' ', '_')}_at": at for step, at in one.steps},
        "seconds_of_steps": {step.replace(" ", "_"): round(took, 3) for step, took in one.seconds_of_steps.items()},
        "detection_seconds": _rounded(one.detection_seconds),
        "recovery_seconds": _rounded(one.seconds),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _replicas(one: Replicas) -> dict[str, Any]:
    """For programs. In the load, fractions are shares of the window's time, and counts are totals within it."""
    return {
        "replicas_in_use": len(one.in_use),
        "least": one.shape.least,
        "most": len(one.shape.replicas),
        "slots": [asdict(slot) for slot in one.slots],
        "replicas": {
            name: {
                "state": status.state.value,
                "slots": one.owned_by(name),
                "load": None if status.load is None else asdict(status.load),
            }
            for name, status in one.statuses.items()
        },
        "requests": [request_document(request) for request in one.requests],
    }


def request_document(one: ScalingRequest) -> dict[str, Any]:
    return {
        "request": one.request_id,
        "replicas": one.replicas,
        "state": one.state.value,
        "by": one.by,
        "reason": one.reason,
        "note": one.note,
        "requested_at": one.requested_at,
        "accepted_at": one.accepted_at,
        "ended_at": one.ended_at,
    }
