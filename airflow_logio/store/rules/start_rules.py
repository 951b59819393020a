"""What an attempt of a task that starts runs of partitions does: it begins a run, resumes one, or computes one again.

A clear of such a task means *again* (design, "Days"); a retry, a second worker and a delayed one do what the first attempt
after the clear has decided. Airflow tells attempts by number: a clear grants `retries` more, counted from the last attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.run_writers import Repeats
from airflow_logio.protocol.states import ALIVE, GroupState, RunState
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.start_records import Attempt, Decided, Decision
from airflow_logio.store.rules.run_rules import GroupStates, is_graph_of

CLEARED = "its DAG run was cleared"
"""Why a run was given up by a clear."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest run of the key, as it is when a new clear is decided on."""

    run: Run
    groups: GroupStates
    has_quarantine: bool
    digests: Collection[str | None]
    """The codes that its groups get, by digest; None where an earlier version has kept none."""

    def has_other_code(self, spec: RunSpec) -> bool:
        """Whether a group has other code than `spec` names. Code without a digest is not known to be another."""
        return spec.code_digest is not None and any(one not in (None, spec.code_digest) for one in self.digests)


def outdated(attempt: Attempt, kept: Iterable[Decided]) -> list[Decided]:
    """Decisions for a DAG run that was deleted and made again under its name: the new one began later, and was cleared no
    oftener. All that are older than it go."""
    if attempt.began is None:
        return []
    older = [one for one in kept if one.attempt.began is not None and one.attempt.began < attempt.began]
    return older if any(one.attempt.clear >= attempt.clear for one in older) else []


def standing(attempt: Attempt, kept: Iterable[Decided]) -> Decided | None:
    """The decision that holds for the attempt: the last one since the clear. None if there is none yet, also if the first
    attempt died before it decided."""
    since = [one for one in kept if one.attempt.number >= attempt.first]
    return max(since, key=lambda one: one.attempt.number, default=None)


def decide(spec: RunSpec, found: Found | None) -> Decision:
    """What a new clear does about the run that is there. *Again*: it is to be given up first.

    A wrong *again* costs time only: its writers replace all that it has written, when all of the new run is there. Raises
    `ProtocolViolation` if all of the run is done and its rows would be there twice; it names the writers.
    """
    if found is None or found.run.state in (RunState.SUPERSEDED, RunState.REMOVING):
        return Decision.BEGUN
    added = added_writers(found.run)
    if not found.groups.left():
        if added:
            raise ProtocolViolation(_twice(found.run, added))
        return Decision.AGAIN
    states = found.groups.states.values()
    is_stuck = (
        GroupState.PARKED in states
        or found.has_quarantine
        or not is_graph_of(found.run, spec.graph_fingerprint, spec.graph)
    )
    if added or ALIVE.intersection(states) or not is_stuck or not found.has_other_code(spec):
        return Decision.RESUMED
    return Decision.AGAIN


def added_writers(run: Run) -> list[str]:
    """The writers whose rows stay when the run is computed again. A run of an earlier version does not say."""
    if run.spec.writers is None:
        return ["what it writes (the version that began it has not noted how)"]
    return [f"{one.writer} ({one.what})" for one in run.spec.writers if one.repeats is not Repeats.REPLACED]


def _twice(run: Run, added: list[str]) -> str:
    uid = run.uid[:8]
    return (
        f"run {run.spec.key}, uid {uid}, of partition {run.partition}, has finished, and a clear does not compute it again: "
        f"what {', '.join(added)} has written would stay, beside what the new one writes. Remove that unless it is to stay; "
        f"then `logio again {uid}`, and clear this task again with downstream"
    )


def code_differs(run: Run, kept: Collection[str | None], digest: str | None) -> str | None:
    """For a run that resumes although the task has other code than one of the `kept` digests, which its groups get: both,
    and the words for each wish. None if it has the same."""
    if digest is None or not (others := sorted({one for one in kept if one not in (None, digest)})):
        return None
    uid = run.uid[:8]
    return (
        f"Run {run.spec.key}, uid {uid}, resumes, and what it has computed stays: its code is {', '.join(others)}, that of "
        f"this task {digest}. Groups that had stopped get the code of the task, where they were cleared with it; those that "
        f"are alive keep theirs. To compute all of it again with the code of the task: `logio again {uid}`, then clear this "
        "task with downstream"
    )
