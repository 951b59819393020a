"""How an incarnation ends: which error parks the group, which one lets it be recovered, and the exit code of the process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import NoReturn

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.driver.last_steps import exit_process
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    FailurePoint,
    Fenced,
    LogInconsistent,
    LogioError,
    LogUnavailable,
    Park,
)
from airflow_logio.launch.driver_config import FAILED, PARKED, REPLACED
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.systems.calls import Call

log = logging.getLogger(__name__)


class Ending(Enum):
    """What an error makes of the incarnation that met it."""

    REPLACED = "another driver has its place"
    PARKED = "another driver would meet the same: a person is needed"
    DEAD = "the log is told that it is dead, and its group is recovered"
    SILENT = "the log cannot be told; supervisors see its process end, and recover its group"


EXIT_CODES: Mapping[Ending, int] = {
    Ending.REPLACED: REPLACED,
    Ending.PARKED: PARKED,
    Ending.DEAD: FAILED,
    Ending.SILENT: FAILED,
}
ENDINGS: Mapping[type[Exception], Ending] = {
    Fenced: Ending.REPLACED,
    Park: Ending.PARKED,
    ExternalUnavailable: Ending.PARKED,
    ConfigurationError: Ending.PARKED,
    LogUnavailable: Ending.SILENT,
    Exception: Ending.DEAD,
}
"""The first class that an error is an instance of decides."""


def ending_of(error: Exception) -> Ending:
    """What becomes of an incarnation that ends with this error. See `lost_commits` for a driver that is fenced by none."""
    return next(ending for kind, ending in ENDINGS.items() if isinstance(error, kind))


def cause_of(error: Exception) -> str:
    """The error as the log has it."""
    return f"{type(error).__name__}: {error}"


def lost_commits(ref: GroupRef, error: Fenced) -> LogInconsistent:
    """What has happened if the fence refuses the latest driver that the log knows."""
    return LogInconsistent(
        f"{error}, yet the log knows no later driver of group {ref.group!r} than incarnation {ref.incarnation}: it has lost "
        "commits (was an older copy restored, or did a standby take over that lacked the last ones?). Bring back the log "
        "that has them, or give the run up and start a fresh one"
    )


def park(store: LogStore, ref: GroupRef, cause: str) -> None:
    """Tell the log that the group waits for a person. Raises `LogioError`."""
    crash_here(CrashPoint.BEFORE_PARK)
    store.patience.call("parking", lambda: store.session(ref).park(cause))
    crash_here(CrashPoint.AFTER_PARK)


def declare_dead(store: LogStore, ref: GroupRef, cause: str, at: FailurePoint | None) -> None:
    """Tell the log that this incarnation has failed, and where: supervisors need not find out. Raises `LogioError`."""
    crash_here(CrashPoint.BEFORE_REPORT)
    store.patience.call("reporting", lambda: store.declare_dead(ref, cause, failed_at=at))
    crash_here(CrashPoint.AFTER_REPORT)


def exit_overrun(store: LogStore, ref: GroupRef, call: Call, said: str) -> NoReturn:
    """End the process whose call of an author's code has overrun its limit: the thread in the call cannot be reached."""
    ending = Ending.DEAD
    try:
        if call.limit is not None and call.limit.on_overrun == "park":
            park(store, ref, said)
            ending = Ending.PARKED
        else:
            declare_dead(store, ref, said, call.point)
    except LogioError as error:  # whatever the log says or does not say: this driver is of no use any more
        log.error("%s: %s", type(error).__name__, error)
    exit_process(EXIT_CODES[ending])


def exit_replaced(ref: GroupRef, why: str) -> NoReturn:
    """End the process of an incarnation that is void, or whose JVM has gone."""
    log.warning("group %s, incarnation %d exits: %s", ref.group, ref.incarnation, why)
    exit_process(EXIT_CODES[Ending.REPLACED])
