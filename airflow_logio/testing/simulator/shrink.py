"""Shrinks a failing schedule by delta debugging over its recorded choices.

Choices are left out as long as the rest, followed by a failure-free run to the end, violates the same invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_logio.testing.simulator.actions import Action, Verb
from airflow_logio.testing.simulator.simulation import FailedSchedule, Simulator

MAX_REPLAYS = 600
"""Most replays of a schedule: a hundred take a second or two."""


def shrink(simulator: Simulator, failure: FailedSchedule, *, replays: int = MAX_REPLAYS) -> FailedSchedule:
    """A failure of the same invariant with as few choices as `replays` attempts find; `failure` itself if it has none."""
    search = _Search(simulator, failure, replays)
    search.leave_out(lambda action: action.age > 0)
    search.leave_out(
        lambda action: (
            action.verb in (Verb.BEAT, Verb.COLLECT, Verb.VOID, Verb.SWEEP, Verb.GC) or action.outcome == "again"
        )
    )
    search.simplify()
    search.halve()
    search.simplify()
    return search.best


class _Search:
    def __init__(self, simulator: Simulator, failure: FailedSchedule, replays: int) -> None:
        self._simulator = simulator
        self._left = replays
        self.best = failure

    def _try(self, actions: Sequence[Action]) -> bool:
        """Whether these choices fail in the same way. If so, they are the best so far."""
        if self._left <= 0 or len(actions) > len(self.best.trace):
            return False
        self._left -= 1
        found = self._simulator.replay(self.best.seed, actions)
        if found is None or found.invariant != self.best.invariant:
            return False
        self.best = found
        return True

    def leave_out(self, chosen: Callable[[Action], bool]) -> None:
        """Leave out all choices of a kind at once."""
        remaining = [action for action in self.best.trace if not chosen(action)]
        if len(remaining) < len(self.best.trace):
            self._try(remaining)

    def halve(self) -> None:
        """Delta debugging: leave out ever smaller parts, from the end to the beginning, until no single choice can go."""
        size = max(1, len(self.best.trace) // 2)
        while self._left > 0:
            self._pass(size)
            if size == 1:
                before = len(self.best.trace)
                self._pass(1)
                if len(self.best.trace) == before:
                    return
            size = max(1, size // 2)

    def _pass(self, size: int) -> None:
        end = len(self.best.trace)
        while end > 0 and self._left > 0:
            start = max(0, end - size)
            trace = self.best.trace
            self._try([*trace[:start], *trace[end:]])
            end = min(start, len(self.best.trace))

    def simplify(self) -> None:
        """Make every action succeed, unless its failure matters."""
        for index in range(len(self.best.trace)):
            if index < len(self.best.trace) and self.best.trace[index].outcome in ("lost", "fails", "doubt"):
                trace = list(self.best.trace)
                trace[index] = replace_outcome(trace[index])
                self._try(trace)


def replace_outcome(action: Action) -> Action:
    """The same action, successful."""
    return action._replace(outcome="")


def without_trace(failure: FailedSchedule) -> FailedSchedule:
    """What a report keeps of a failure. The seed reproduces the trace."""
    return replace(failure, trace=())
