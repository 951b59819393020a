"""What the page shows of one run at one moment, as JSON: the figures of `logio status`, bounded.

Times are seconds since the epoch by the log database's clock, ``at`` by this machine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger, replicated_group
from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report import as_json
from airflow_logio.run_report.replica_report import Replicas, request_document
from airflow_logio.run_report.report import Report
from airflow_logio.runtime.figures.authored_figures import AuthoredConnections, pending_seen
from airflow_logio.runtime.figures.group_condition import condition_of
from airflow_logio.runtime.figures.run_summary import quarantined_json
from airflow_logio.runtime.figures.snapshot import ConnectionView, GroupView
from airflow_logio.store.records import GroupStatus, Load, RunSpec
from airflow_logio.ui.lag_ages import LagAges
from airflow_logio.ui.run_history import happenings

MOST_QUARANTINED = 50
MOST_REQUESTS = 5
LONGEST_TEXT = 4000
"""Characters of an error."""


def look_document(report: Report, authored: AuthoredConnections, ages: LagAges) -> dict[str, Any]:
    """One look at a run. `authored` and `ages` are kept between the looks at it."""
    spec = report.run.spec
    connections = authored.seen(report.snapshot.connections)
    errors = {error.group: as_json.error_document(error) for error in report.last_errors}
    used = [view for view in report.snapshot.groups if view.status.state is not GroupState.RETIRED]
    return {
        "at": report.at,
        **as_json.run_document(report.run),
        "condition": report.condition.word,
        "next_step": report.condition.next_step,
        "warnings": list(report.warnings),
        "ended": report.has_ended,
        "supervision": as_json.supervision_document(report),
        "groups": [_group(view, spec, errors.get(view.name)) for view in used],
        "wholes": [_whole(one, report.snapshot.group(one.group)) for one in report.replicated],
        "operators": _operators(spec),
        "connections": [_connection(one, ages.seen(one, report.at)) for one in connections],
        "pending_writes": {str(port): count for port, count in pending_seen(report.snapshot).items()},
        "history": happenings(report),
        "quarantine": _quarantine(report),
    }


def shortened(text: str | None) -> str | None:
    """An error as the page shows it: its end is the author's line, its beginning says where it was."""
    if text is None or len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - LONGEST_TEXT:,} characters left out ...\n{text[-half:]}"


def _group(view: GroupView, spec: RunSpec, error: Mapping[str, Any] | None) -> dict[str, Any]:
    whole = replicated_group(view.name)
    return {
        "name": view.name,
        "whole": whole if whole in spec.replicated else None,
        "is_source": view.is_source,
        **_of_status(view.status),
        **as_json.figures_document(view),
        "recovered_seconds_ago": view.recovered_seconds_ago,
        "last_error": None if error is None else {**error, "text": shortened(error["text"])},
    }


def _whole(one: Replicas, view: GroupView | None) -> dict[str, Any]:
    """A replicated group with all its slots and replicas."""
    figures = {} if view is None else {**_of_status(view.status), **as_json.figures_document(view)}
    return {
        "name": one.group,
        **figures,
        "is_source": view is not None and view.is_source,
        "replicas_in_use": len(one.in_use),
        "least": one.shape.least,
        "most": len(one.shape.replicas),
        "slots": one.shape.slots,
        "slots_done": one.done,
        "requests": [request_document(request) for request in one.requests[:MOST_REQUESTS]],
    }


def _of_status(status: GroupStatus) -> dict[str, Any]:
    identity = status.identity
    return {
        "state": status.state.value,
        "condition": condition_of(status),
        "desired": status.desired.value,
        "since": status.since,
        "incarnation": status.incarnation,
        "recoveries": status.recoveries,
        "commits": status.commits,
        "rss_bytes": status.rss_bytes,
        "process": None if identity is None else f"{identity.pid or identity.parent_pid} on {identity.host}",
        "heartbeat_seconds_ago": status.beat_age_seconds,
        **_load(status.load),
    }


def _load(load: Load | None) -> dict[str, Any]:
    if load is None:
        return {"busy": None, "blocked": None, "events_per_second": None, "queued": 0, "call": "", "spark": None}
    events = max(load.events_in, load.events_out)
    application = load.application
    return {
        "busy": round(load.busy, 3),
        "blocked": round(load.blocked, 3),
        "events_per_second": round(events / load.seconds, 1) if load.seconds > 0 else None,
        "queued": load.queued,
        "call": f"{load.call} for {load.call_seconds:.0f} s" if load.call else "",
        "spark": None if application is None else {"application": application.id, "ui": application.ui_url},
    }


def _operators(spec: RunSpec) -> list[dict[str, Any]]:
    """The graph as its author drew it: the slots of an operator are one, and no Dispatchers and Mergers."""
    found: dict[str, dict[str, Any]] = {}
    for name, shape in spec.operators.items():
        if is_dispatcher(name) or is_merger(name):
            continue
        base = base_operator(name)
        found.setdefault(
            base,
            {"name": base, "group": shape.group, "inputs": list(shape.inputs), "outputs": list(shape.outputs)},
        )
    return list(found.values())


def _connection(one: ConnectionView, age: float | None) -> dict[str, Any]:
    return {**as_json.connection_document(one), "lag_age_seconds": None if age is None else round(age, 1)}


def _quarantine(report: Report) -> dict[str, Any]:
    shown: Sequence[dict[str, Any]] = [quarantined_json(one) for one in report.quarantined]
    return {
        "by_group": {group: one.input_sets for group, one in report.set_aside.items()},
        "shown": [{**one, "error": shortened(one["error"])} for one in shown],
    }
