"""When a person's wish for other code changes something: the same for every adapter of the log."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_logio.errors import LogInconsistent, ProtocolViolation
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.driver_records import CodeChange
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.endings import superseded

LONGEST = 250
"""Characters that the log keeps of who took code."""


def members(run: Run, group: str) -> tuple[str, ...]:
    """The groups of the log that share the code of `group`: itself, or all replicas. Raises `ProtocolViolation`."""
    base = replicated_group(group)
    found = run.spec.replicated[base].replicas if base in run.spec.replicated else (group,)
    if not set(found) <= set(run.spec.groups) or (group not in found and group != base):
        raise ProtocolViolation(f"run {run.spec.key} has no group {group!r}; it has {', '.join(run.spec.groups)}")
    return tuple(sorted(found))


def number_for(run: Run, state: RunState, changes: Sequence[CodeChange], current: int, digest: str) -> int:
    """The number of the code that a group gets: `current` if that is the code of this digest, otherwise a new one.

    Raises `ProtocolViolation` if the run, now in `state`, was given up.
    """
    if state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(run))
    if digest == digest_of(run, changes, current):
        return current
    return max((change.number for change in changes), default=0) + 1


def digest_of(run: Run, changes: Sequence[CodeChange], number: int) -> str | None:
    """The digest of a code by its number. None for number 0 of a run that a version without kept code has begun."""
    if number == 0:
        return run.spec.code_digest
    found = [change.digest for change in changes if change.number == number]
    if not found:
        raise LogInconsistent(f"run {run.spec.key} has no code {number} in the log, only 0 to {len(changes)}")
    return found[0]
