"""The end of the place that the task of a group has of its own: what dies from then on, a supervisor launches (ADR-104)."""

from __future__ import annotations

from dataclasses import replace

from airflow_logio.status.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run


def give_up_place(store: LogStore, run: Run, group: str) -> bool:
    """Let others launch the group, and all its replicas. Returns whether it had a place of its own.

    The next attempt of its task takes it again, with its launch recipe. Raises `LogUnavailable`.
    """
    had = False
    for name in members_of(run, group):
        recipe = store.launch_recipe(run.run_id, name)
        if recipe is not None and recipe.own_place:
            store.note_launch(run.run_id, name, replace(recipe, own_place=False))
            had = True
    return had
