"""What a person can have done to a run from the page: stop, drain, scale, give up. By the functions of the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from airflow_logio.errors import UnknownRun
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.requests import asked_for
from airflow_logio.supervision.stop_run import States, StopMode, StopRun, await_stop, give_up, not_ended, shown

STOP_SECONDS = 5.0
"""So long a stop is watched. The request stands, so a person who looks at the run sees its end."""
GIVE_UP_SECONDS = 10.0


class Retrying(NamedTuple):
    """How groups are launched again: by Airflow's workers, or on this machine."""

    call: Callable[[LogStore, Run, str | None], str]
    """One group of a run, or all that can be (None). Returns what is said of it; raises `LogioError`."""
    told: str
    """What will happen, for the person who is asked whether it may."""
    puts_back: bool = True
    """Whether Input Sets in quarantine are put back, too."""


class ActionResult(NamedTuple):
    """What came of an action."""

    said: str
    warning: str | None = None


class RunActions:
    """Actions on the runs of one log. Each raises `UnknownRun` for a group that the run does not have, a
    `LogioError` with the commands' sentence where it is refused, and `LogUnavailable`.
    """

    def __init__(self, retrying: Retrying) -> None:
        self.retrying = retrying

    def stop(self, store: LogStore, run: Run, group: str | None) -> ActionResult:
        """Halt it, and watch that for a few seconds: groups without a driver are marked halted."""
        _check_group(run, group)
        stopping = StopRun(store, run, StopMode.HALT, group)
        states = await_stop(stopping, STOP_SECONDS)
        return ActionResult(shown(states) if stopping.is_over(states) else not_ended(states, STOP_SECONDS))

    def drain(self, store: LogStore, run: Run, group: str | None) -> ActionResult:
        """Ask for a drain, which takes as long as it takes; the supervisor of the run sees to it."""
        _check_group(run, group)
        states: States = await_stop(StopRun(store, run, StopMode.DRAIN, group), 0.0)
        said = f"asked to drain; now: {shown(states)}" if states else not_ended(states, 0.0)
        return ActionResult(said, self._unsupervised(store, run))

    def scale(self, store: LogStore, run: Run, group: str, replicas: int, *, by: str, reason: str) -> ActionResult:
        """Ask for a number of replicas, which the supervisor of the run carries out."""
        _check_group(run, group)
        request = store.request_scaling(run.run_id, group, replicas, by=by, reason=reason)
        return ActionResult(asked_for(request), self._unsupervised(store, run))

    def retry(self, store: LogStore, run: Run, group: str | None) -> ActionResult:
        _check_group(run, group)
        return ActionResult(self.retrying.call(store, run, group))

    def give_up(self, store: LogStore, run: Run) -> ActionResult:
        return ActionResult(give_up(store, run, GIVE_UP_SECONDS))

    def _unsupervised(self, store: LogStore, run: Run) -> str | None:
        return missing(run, last_look(store.supervisors(), run))


def _check_group(run: Run, group: str | None) -> None:
    known: Sequence[str] = [*run.spec.groups, *run.spec.replicated]
    if group is not None and group not in known:
        raise UnknownRun("the run has no such group")
