"""Drivers that were lost while nobody looked: found dead by who takes the run up again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from airflow_logio.protocol.states import ALIVE, LAUNCHING
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.group_watch import GroupWatcher, Observation

POLL_SECONDS = 0.1
_MARGIN_SECONDS = 5.0


def find_lost(
    store: LogStore,
    run: Run,
    groups: Sequence[str],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Mapping[str, str]:
    """Look at the groups that have a driver until each has given a heartbeat or was declared dead; group → cause.

    At once where the driver's process can be seen to be gone, else after its lease. What is being launched is left to a
    supervisor. Raises `LogUnavailable` if the log cannot be asked at first.
    """
    open_ = {one.group: one for one in store.groups(run.run_id) if one.group in groups and one.state in ALIVE}
    watchers = {name: GroupWatcher(store, run.run_id, name, run.spec.lease) for name in open_}
    deadline = clock() + run.spec.lease.seconds + _MARGIN_SECONDS
    lost: dict[str, str] = {}
    while open_ and clock() < deadline:
        for name, before in list(open_.items()):
            seen = watchers[name].poll()
            if seen.is_dead:
                lost[name] = seen.cause or "dead"
            if _is_known(before, seen):
                del open_[name]
        if open_:
            sleep(POLL_SECONDS)
    return lost


def _is_known(before: GroupStatus, seen: Observation) -> bool:
    """Whether a look has told what there is to tell."""
    now = seen.status
    if now is None or seen.left_to_standby:
        return False
    gives_beats = (now.incarnation, now.beat) != (before.incarnation, before.beat)
    return now.state not in ALIVE or now.state in LAUNCHING or gives_beats
