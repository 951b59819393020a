"""Runs of which groups, or the supervisor, are gone: what `logio retry` checks before it launches anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from airflow_logio.errors import ConfigurationError, ProtocolViolation
from airflow_logio.protocol.states import ALIVE, GroupState
from airflow_logio.status.condition import LEFT_SECONDS, is_left
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.retry import find_lost


def check_supervised(store: LogStore, run: Run, group: str | None) -> None:
    """Refuse to leave drivers alone that nobody would look after. Raises `ConfigurationError`, `LogUnavailable`."""
    seen = last_look(store.supervisors(), run)
    command = f"logio retry {run.uid[:8]}" + (f" {group}" if group else "")
    if run.spec.supervision is Supervision.PROCESS:
        if seen is not None and seen.age_seconds <= LEFT_SECONDS:
            return
        raise ConfigurationError(
            f"run {run.spec.key} was started by `logio run`, and nobody supervises it now: a driver that dies would stay "
            f"dead, and nobody would finish the run. Leave --detach out: `{command}` launches, supervises and finishes"
        )
    if missing(run, seen) is not None:
        raise ConfigurationError(
            f"nobody supervises run {run.spec.key} now: a driver that dies would stay dead. Leave --detach out (`{command}` "
            f"supervises what it launches), or start `logio tend {run.uid[:8]}` or clear task `supervise` of the DAG run "
            "first"
        )


def check_goes_on(store: LogStore, run: Run, group: str) -> None:
    """Raises `ProtocolViolation` if another group is parked: whoever supervises all groups would end at once."""
    parked = [one.group for one in store.groups(run.run_id) if one.state is GroupState.PARKED and one.group != group]
    if parked:
        raise ProtocolViolation(
            f"group {group!r} of run {run.spec.key} does not go on alone: {', '.join(parked)} is parked, too. Fix the "
            f"causes, then `logio retry {run.uid[:8]}` launches all"
        )


def declare_lost(store: LogStore, run: Run, group: str | None, say: Callable[[str], None]) -> None:
    """Declare drivers dead that are: nobody else does if they were killed with the process that supervised them."""
    lost = find_lost(store, run, run.spec.groups if group is None else [group])
    for name, cause in lost.items():
        say(f"group {name} is dead: {cause}")


def takes_over(store: LogStore, run: Run) -> bool:
    """Whether the process is gone that supervised the run, so that another one may."""
    return is_left(run, last_look(store.supervisors(), run), time.time())


def supervised_by(store: LogStore, run: Run, statuses: Mapping[str, GroupStatus]) -> str:
    """Half a sentence: who supervises a run of `logio run`, for a person who knows that this one is gone. May be empty."""
    seen = last_look(store.supervisors(), run)
    alive = any(status.state in ALIVE for status in statuses.values())
    if run.spec.supervision is not Supervision.PROCESS or seen is None or not alive:
        return ""
    left = max(1.0, LEFT_SECONDS - seen.age_seconds)
    return (
        f". {seen.name} supervised it {seen.age_seconds:.0f} s ago: if that is gone, the same command takes the run over in "
        f"{left:.0f} s"
    )
