"""Giving a run up so that a fresh one of the same DAG run can begin: which run is meant.

Only a person does that, and names the run by its uid. A fresh run has another one: to ask twice, as a retried or cleared task
does, finds the run given up and spares the one that came after it.
"""

from __future__ import annotations

from airflow_logio.errors import ConfigurationError
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run

SHORTEST_UID = 8
"""As `logio status` shows uids: so many digits are not those of another run by chance."""


def run_to_give_up(store: LogStore, uid: str) -> Run:
    """The run of this uid, or of this beginning of one. Raises `UnknownRun`, `ConfigurationError` for another name."""
    if len(uid) < SHORTEST_UID:
        raise ConfigurationError(f"{uid!r} names no run to be given up: give its uid, {SHORTEST_UID} digits or more")
    run = store.find_run(uid)
    if not run.uid.startswith(uid):
        raise ConfigurationError(
            f"{uid!r} names every generation of a run, and the next one, too: name the run that is to be given up by its "
            f"uid. The newest is {run.uid[:SHORTEST_UID]} ({run.state.value}): `logio fresh {run.uid[:SHORTEST_UID]}`. "
            "`logio status` lists them"
        )
    return run
