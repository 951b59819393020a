"""One run at one moment, as the page shows it: the figures of `logio status` as JSON, bounded.

Times are seconds since the epoch by the log database's clock, ``at`` by this machine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_logio.commands import with_log
from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger, replicated_group
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Port
from airflow_logio.run_report import as_json
from airflow_logio.run_report.causes import STOPPED, cause_of, most_pressing
from airflow_logio.run_report.report import WORKING, Replicas, Report
from airflow_logio.status.authored_figures import AuthoredConnections
from airflow_logio.status.condition import condition_of, place_on_cluster, standby_of
from airflow_logio.status.run_summary import quarantined_json
from airflow_logio.status.snapshot import ConnectionView, GroupView, Snapshot
from airflow_logio.store.records.driver_records import UNAVAILABLE_SINCE, WAIT, Load
from airflow_logio.store.records.run_records import RunSpec
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.rules.allowed_rules import options_in
from airflow_logio.ui.access import error_text, names_input_set, without_ids
from airflow_logio.ui.run_history import happenings, noted

MOST_QUARANTINED = 50
MOST_REQUESTS = 5


def common_parts(
    report: Report, operators: Sequence[Mapping[str, Any]], authored: AuthoredConnections, ages: LagAges
) -> dict[str, Any]:
    """The parts of a look that all readers get. `operators_document`, `authored` and `ages` are kept between the looks at
    a run."""
    connections = authored.with_parts(report.snapshot.connections)
    fullness = Fullness(report.snapshot)
    return {
        "at": report.at,
        **as_json.run_document(report.run),
        "condition": report.condition.word,
        "next_step": report.condition.next_step,
        "warnings": list(report.warnings),
        "ended": report.has_ended,
        "options": _options(report),
        "progress": report.snapshot.done,
        "supervision": as_json.supervision_document(report),
        "operators": operators,
        "connections": [
            _connection(one, ages.oldest(parts, report.at), fullness.of(parts)) for one, parts in connections
        ],
    }


def _options(report: Report) -> Sequence[str]:
    """What a refusal that has stopped a group says only a person can let the next run of its partition do."""
    stopped = most_pressing([view.status for view in report.snapshot.groups])
    return list(dict.fromkeys(one.value for status in stopped for one in options_in(status.error or "")))


def parts_with_errors(report: Report, *, shown: bool, ids_shown: bool) -> dict[str, Any]:
    """The parts of a look that have error texts; without `shown`, each says in its place who may read it.

    `ids_shown`: with the ids of Input Sets, which an author may make of values.
    """
    errors = {error.group: as_json.error_document(error) for error in report.last_errors}
    for error in errors.values():
        error["text"] = error_text(error["text"], shown=shown)
        del error["log"]  # a path that no reader of the page can open
    wholes = {view.name: view for view in report.snapshot.wholes}
    used = [view for view in report.snapshot.groups if view.status.state is not GroupState.RETIRED]
    return {
        "groups": [
            _group(view, report.run.spec, errors.get(view.name), shown=shown, ids_shown=ids_shown) for view in used
        ],
        "wholes": [_whole(one, wholes.get(one.group), shown=shown, ids_shown=ids_shown) for one in report.replicated],
        "history": happenings(report, shown=shown),
        "quarantine": _quarantine(report, shown=shown, ids_shown=ids_shown),
    }


def has_ids(report: Report) -> bool:
    """Whether what `parts_with_errors` shows names Input Sets, in the quarantine or in what a driver is doing; or says why
    something waits for an external system."""
    views = (*report.snapshot.groups, *report.snapshot.wholes)
    loads = (view.status.load for view in views)
    return bool(report.quarantined) or any(
        load is not None and (names_input_set(load.call) or load.call.startswith(WAIT)) for load in loads
    )


def _group(
    view: GroupView, spec: RunSpec, error: Mapping[str, Any] | None, *, shown: bool, ids_shown: bool
) -> dict[str, Any]:
    whole = replicated_group(view.name)
    return {
        "name": view.name,
        "whole": whole if whole in spec.replicated else None,
        **_of_status(view.status, shown=shown, ids_shown=ids_shown),
        **as_json.figures_document(view),
        "last_error": error,
    }


def _whole(one: Replicas, view: GroupView | None, *, shown: bool, ids_shown: bool) -> dict[str, Any]:
    """A replicated group with all its slots and replicas."""
    figures = {}
    if view is not None:
        figures = {**_of_status(view.status, shown=shown, ids_shown=ids_shown), **as_json.figures_document(view)}
        if view.status.state in STOPPED:  # the errors are those of its replicas
            alike = (status for status in one.statuses.values() if status.state is view.status.state)
            figures["cause"] = next((_cause(status, shown=shown) for status in alike), None)
    return {
        "name": one.group,
        **figures,
        "replicas_in_use": len(one.in_use),
        "most": len(one.shape.replicas),
        "slots": one.shape.slots,
        "slots_done": one.done,
        "requests": [
            {**as_json.request_document(request), "note": noted(request, shown=shown)}
            for request in one.requests[:MOST_REQUESTS]
        ],
    }


def _cause(status: GroupStatus, *, shown: bool) -> dict[str, str] | None:
    found = cause_of(status, shown=shown)
    return None if found is None else found._asdict()


def _of_status(status: GroupStatus, *, shown: bool, ids_shown: bool) -> dict[str, Any]:
    identity = status.identity
    return {
        "state": status.state.value,
        "cause": _cause(status, shown=shown),
        "condition": condition_of(status),
        "desired": status.desired.value,
        "since": status.since,
        "incarnation": status.incarnation,
        "recoveries": status.recoveries,
        "commits": status.commits,
        "rss_bytes": status.rss_bytes,
        "process": None if identity is None else f"{identity.pid or identity.parent_pid} on {identity.host}",
        "heartbeat_seconds_ago": status.beat_age_seconds,
        "standby": standby_of(status),
        "cluster": place_on_cluster(status),
        **_load(status.load if status.state in WORKING else None, ids_shown=ids_shown),
        "spark": _spark(status.load),
    }


def _load(load: Load | None, *, ids_shown: bool) -> dict[str, Any]:
    """The load of a driver that works: what an ended driver has said last is no figure of now."""
    if load is None:
        return {"busy": None, "blocked": None, "events_per_second": None, "call": ""}
    events = max(load.events_in, load.events_out)
    call = load.call if ids_shown else without_ids(load.call.partition(UNAVAILABLE_SINCE)[0])
    return {
        "busy": round(load.busy, 3),
        "blocked": round(load.blocked, 3),
        "events_per_second": round(events / load.seconds, 1) if load.seconds > 0 else None,
        "call": f"{call} for {load.call_seconds:.0f} s" if call else "",
    }


def _spark(load: Load | None) -> dict[str, str | None] | None:
    """Also of a driver that has ended: its history may be kept."""
    application = None if load is None else load.application
    return None if application is None else {"application": application.id, "ui": application.ui_url}


def operators_document(spec: RunSpec) -> list[dict[str, Any]]:
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


def _connection(one: ConnectionView, age: LagAge | None, fullness: float | None) -> dict[str, Any]:
    return {
        **as_json.connection_document(one),
        "fullness": None if fullness is None else round(fullness, 3),
        "lag_age_seconds": None if age is None else round(age.seconds, 1),
        "lag_age_is_least": age is not None and age.is_least,
    }


def _quarantine(report: Report, *, shown: bool, ids_shown: bool) -> dict[str, Any]:
    oldest: Sequence[dict[str, Any]] = [quarantined_json(one) for one in report.quarantined]
    if not ids_shown:
        oldest = [{**one, "input_set": None} for one in oldest]
    retry = f"Fix the operator, then `logio retry {report.run.uid[:8]} --code new` puts them back."
    return {
        "by_group": {group: one.input_sets for group, one in report.set_aside.items()},
        "next_step": with_log(retry, report.log),
        "shown": [{**one, "error": error_text(one["error"], shown=shown)} for one in oldest],
    }


# --- how full a connection is, and how old its lag --------------------------------------------------------------------


class Fullness:
    """Lags of one snapshot as shares of the run's bound (`BacklogBound`), at which their senders wait.

    The bound is one of events and one of bytes. The log does not count the bytes that wait; events that wait are taken to be
    as large as their port's are on average.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._bound = snapshot.run.spec.backlog
        self._event_bytes = {
            row.port: row.bytes / row.events for row in snapshot.ports if row.direction == "out" and row.events
        }

    def of(self, connections: Iterable[ConnectionView]) -> float | None:
        """The share of the fullest of these connections of the log: slots fill up on their own.

        None inside a group, where no bound holds a sender up.
        """
        shares = [self._share(one.lag.events, one.sender) for one in connections if not one.inside_group]
        return max(shares, default=None)

    def _share(self, events: int, sender: Port) -> float:
        size = events * self._event_bytes.get(sender, 0.0)
        return max(events / self._bound.events, size / self._bound.bytes)


MOST_LOOKS = 64
"""Looks that are remembered of a connection that lags: of old ones fewer, but always the first."""


class LagAge(NamedTuple):
    seconds: float
    is_least: bool
    """It is as long as the connection has been looked at: its oldest event may have waited before."""


@dataclass(slots=True)
class _Seen:
    first_at: float
    sent: list[tuple[float, int]] = field(default_factory=list)
    """When it was looked at, and how many events had been sent by then, while some of them wait."""


class LagAges:
    """Found from looks at one run: what had been sent by an earlier one, and is not acknowledged by now, is at least so old.

    The log counts events, and does not say when each was sent. So an age is too short by the time between two looks that are
    remembered, a small part of it, and what lagged at the first look counts from there. A sum over slots would show no age:
    each of them acknowledges for itself. So connections are those of the log.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Port, Port], _Seen] = {}

    def oldest(self, connections: Iterable[ConnectionView], at: float) -> LagAge | None:
        """The age of the oldest lag, at a look at time `at`, in seconds since the epoch; None where nothing lags."""
        ages = [age for one in connections if (age := self._age(one, at)) is not None]
        return LagAge(max([age.seconds for age in ages]), any([age.is_least for age in ages])) if ages else None

    def _age(self, one: ConnectionView, at: float) -> LagAge | None:
        seen = self._seen.get((one.sender, one.receiver))
        if seen is None:
            seen = self._seen[one.sender, one.receiver] = _Seen(at)
        acknowledged = one.acknowledged.events
        if seen.sent and seen.sent[0][1] <= acknowledged:
            seen.sent = [look for look in seen.sent if look[1] > acknowledged]
        if one.sent.events <= acknowledged:
            return None
        if not seen.sent or one.sent.events > seen.sent[-1][1]:
            seen.sent.append((at, one.sent.events))
        if len(seen.sent) > MOST_LOOKS:
            del seen.sent[_least_missed(seen.sent, at)]
        since = seen.sent[0][0]
        return LagAge(max(0.0, at - since), since == seen.first_at)


def _least_missed(sent: list[tuple[float, int]], at: float) -> int:
    """The place of the look, neither the first nor the last, without which ages are off by the smallest part."""
    return min(range(1, len(sent) - 1), key=lambda place: _gap(sent, place) / (at - sent[place - 1][0] or 1.0))


def _gap(sent: list[tuple[float, int]], place: int) -> float:
    return sent[place + 1][0] - sent[place - 1][0]
