"""Runs that were removed from the log: what is said of them, and what begins in their place.

The log has forgotten what they did, but not that they were there: a removed run may have appended rows, and its drivers may
live where they cannot be reached. The same for every adapter of the log.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_logio.errors import IncompatibleRun, ProtocolViolation
from airflow_logio.protocol.run_writers import Repeats
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import RunSpec
from airflow_logio.store.records.upkeep_records import RemovedRun


def said_of(removed: RemovedRun) -> str:
    """Which run it was, and when and why it was removed: a sentence without its full stop."""
    day = "" if removed.partition is None else f", of partition {removed.partition},"
    return f"run {removed.key}, uid {removed.uid[:8]}{day or ','} {when_and_why(removed)}"


def when_and_why(removed: RemovedRun) -> str:
    """As `said_of`, for one who may not be told which run it was."""
    at = datetime.fromtimestamp(removed.removed_at, UTC).strftime("%Y-%m-%d %H:%M")
    return f"was removed from the log on {at} UTC, {removed.reason}"


def check_in_place(spec: RunSpec, removed: RemovedRun | None) -> None:
    """Before a run begins under the key of one that was removed.

    Raises `IncompatibleRun` if that was of another partition, and `ProtocolViolation` if it had finished and was of none, or
    if what it has written would be there twice, with the writers' names. A run that was given up may be followed.
    """
    if removed is None:
        return
    if None not in (removed.partition, spec.partition) and removed.partition != spec.partition:
        raise IncompatibleRun(
            f"{said_of(removed)}; now its name is asked for {spec.partition}: a run keeps its partition, and so do its next "
            f"generations. Give the run of {spec.partition} a name of its own (another --run-id, another DAG run)"
        )
    if removed.state is RunState.SUPERSEDED:
        return
    if removed.partition is None and removed.state is RunState.FINISHED:
        uid = removed.uid[:8]
        raise ProtocolViolation(
            f"{said_of(removed)}. It had finished, and nothing of it is computed again: a run in its place could replace "
            f"what later ones have written. If that is what you want: `logio again {uid}`, and start the run again"
        )
    added = [f"{one.writer} ({one.what})" for one in spec.writers or () if one.repeats is not Repeats.REPLACED]
    if added:
        uid = removed.uid[:8]
        raise ProtocolViolation(
            f"{said_of(removed)}. A run in its place is not begun: what {', '.join(added)} has written would stay, and be "
            f"there twice. Remove that unless it is to stay; then `logio again {uid}`, and start the run again"
        )
