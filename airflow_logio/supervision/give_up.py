"""Giving a run up so that a fresh one of the same DAG run can begin: which run is meant.

Only a person does that, and names the run by its uid. A fresh run has another one: to ask twice, as a retried or cleared task
does, finds the run given up and spares the one that came after it.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_logio.errors import ConfigurationError, ProtocolViolation
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.endings import how_to_begin_anew
from airflow_logio.supervision.stop_run import States, StopMode, StopRun, await_stop, left_of

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


def give_up(store: LogStore, run: Run, seconds: float, seen: Callable[[States], None] = lambda _: None) -> str:
    """Halt the run, and give it up once its drivers have ended, within so many seconds; returns a sentence about the result.

    Asked again, it changes nothing. `seen` hears of every look at the groups. Raises `ProtocolViolation` if a driver has not
    ended in time: then the run is not given up, and the request to halt stands.
    """
    if run.state is not RunState.SUPERSEDED:
        stopping = StopRun(store, run, StopMode.HALT)
        states = await_stop(stopping, seconds, seen)
        if not stopping.is_over(states):
            raise ProtocolViolation(
                f"{left_of(states)}: still not ended after {seconds:g} s, so the run is not given up. It has been asked to "
                "halt: give it up again when it has"
            )
    said = "is given up" if store.supersede(run.run_id) else "was given up before"
    return f"run {run.spec.key}, uid {run.uid[:SHORTEST_UID]}, {said}. {how_to_begin_anew(run)}"
