"""What the log knows of the task that watches a group: why it was killed, and whether it alone launches the group.

A worker that is shut down, a timeout and a person's mark all look alike to the task that is killed. Airflow knows, and may
not answer in the seconds that the task has left. So the task first leaves a note in the log. The process that learns the
answer, this task or a supervisor, removes the note; the group halts only if a person has ended the task (ADR-66).

A task that defers leaves such a note, too, before: Airflow tells no process of a mark that comes when the worker has sent
its last heartbeat and no trigger runs yet. The trigger removes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from airflow_logio.status.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import KilledTask
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.halt import halt_all_for_good

REMOVED = "removed"
"""State of a task instance that Airflow does not have."""
STOPPING = frozenset({"failed", "success", "skipped", REMOVED})
"""States of a task instance that has ended, or is gone; a task that was cleared, or is tried again, has another state."""

ON_ITS_WAY = frozenset({"running", "deferred", "scheduled", "queued"})
"""States of a task instance between its worker and its trigger, or between its trigger and a worker."""
ARRIVAL_SECONDS = 30.0
"""A trigger usually looks for the first time well within that time."""
AGAIN_SECONDS = 300.0
"""How often a task is asked after whose trigger does not come (there is no triggerer)."""

StateOf = Callable[[KilledTask], str | None]
"""The state of a task instance as the scheduler has it; ``removed`` if it is gone, None if it has no state."""


class Meaning(StrEnum):
    """What a task's end means for the group that it watched."""

    HALT = "a person has ended the task"
    KEEP = "the task is tried again, or was cleared"
    UNKNOWN = "the task has failed at its last try, by itself or by a person"


def meaning(state: str | None, task: KilledTask) -> Meaning:
    """Airflow tries a task again that fails by itself, but after its last try."""
    if state not in STOPPING:
        return Meaning.KEEP
    return Meaning.UNKNOWN if state == "failed" and task.last_try else Meaning.HALT


def note_killed(store: LogStore, run: Run, group: str, task: KilledTask | None) -> None:
    """Note that the task was killed; None takes the note away. A new attempt of the task takes it away as well.

    Raises `LogUnavailable`.
    """
    name = members_of(run, group)[0]
    recipe = store.launch_recipe(run.run_id, name)
    if recipe is not None and recipe.killed != task:
        store.note_launch(run.run_id, name, replace(recipe, killed=task))


def on_its_way(task: KilledTask, seconds: float = ARRIVAL_SECONDS) -> KilledTask:
    """The note of a task that defers; `seconds` from now a supervisor asks what it has become."""
    return replace(task, ask_at=time.time() + seconds)


def is_to_be_asked(task: KilledTask) -> bool:
    """Whether a supervisor asks now what has become of it."""
    return task.ask_at is None or time.time() >= task.ask_at


def resolve_kill(
    store: LogStore, run: Run, group: str, task: KilledTask, state_of: StateOf, *, grace_seconds: float
) -> Meaning:
    """Ask what the task has become, act on it, and take the note away; that of a task on its way stays for later.

    What is halted is what was there before the answer came: if the task has been cleared since, a later incarnation is the
    next attempt's. Raises what `state_of` raises, and `LogUnavailable`: then the note stays.
    """
    members = members_of(run, group)
    present = {one.group: one.incarnation for one in store.groups(run.run_id) if one.group in members}
    state = state_of(task)
    found = meaning(state, task)
    if found is Meaning.HALT:
        halt_all_for_good(store, run, group, present, grace_seconds=grace_seconds)
    is_to_stay = task.ask_at is not None and state in ON_ITS_WAY
    note_killed(store, run, group, on_its_way(task, AGAIN_SECONDS) if is_to_stay else None)
    return found


def give_up_place(store: LogStore, run: Run, group: str) -> bool:
    """End the place that the group's task has of its own: others launch the group and all its replicas from now on (ADR-104).

    Returns whether it had a place of its own. The next attempt of its task takes it again, with its launch recipe. Raises
    `LogUnavailable`.
    """
    had = False
    for name in members_of(run, group):
        recipe = store.launch_recipe(run.run_id, name)
        if recipe is not None and recipe.own_place:
            store.note_launch(run.run_id, name, replace(recipe, own_place=False))
            had = True
    return had
