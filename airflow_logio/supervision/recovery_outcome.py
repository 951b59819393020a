"""What has become of one recovery: its driver has committed, or will not."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_logio.protocol.states import ENDED
from airflow_logio.status.recoveries import recoveries
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import GroupStatus


@dataclass(frozen=True, slots=True)
class EndOfRecovery:
    """`seconds` from the detected death to the first commit; None if there was none, and `why` says why."""

    why: str
    seconds: float | None


def end_of_recovery(store: LogStore, run_id: int, status: GroupStatus, incarnation: int) -> EndOfRecovery | None:
    """How the recovery ended that launched `incarnation`; None while it has not. `status` is that of its group, just read.

    Raises `LogUnavailable`.
    """
    for one in recoveries(store.drivers(run_id)):
        if (one.group, one.incarnation) == (status.group, incarnation) and one.first_commit_at is not None:
            return EndOfRecovery(one.cause, one.seconds)
    if status.incarnation > incarnation:
        return EndOfRecovery(f"incarnation {incarnation} was replaced before it had committed anything", None)
    if status.state in ENDED:
        return EndOfRecovery(f"the group is {status.state.value}: {status.error or 'no error'}", None)
    return None
