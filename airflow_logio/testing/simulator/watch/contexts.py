"""Invariants of what operators store of themselves: marks, ids, ends, closed Input Sets."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_logio.protocol.context import Context
from airflow_logio.protocol.values import Port
from airflow_logio.testing.simulator.violation import Violation


class ContextWatch:
    """The part of `LogWatch` that sees contexts."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}
        self._acknowledged: dict[tuple[str, str], int] = {}
        """Input port → last event that was acknowledged."""
        self._stale: set[str] = set()
        """Operators whose marks are to be looked at when the transaction is over."""
        self._ended: set[tuple[str, str]] = set()
        self._receives: Mapping[Port, Port] = {}
        self._taken_back: set[tuple[str, str]] | None = None
        """While a retry is under way: channels whose end it has taken back."""

    def marks_are_what_was_acknowledged(self) -> None:
        stale, self._stale = self._stale, set()
        for (operator, port), last in self._acknowledged.items():
            if operator in stale:
                context = self._contexts.get(operator)
                mark = context.mark(port) if context else 0
                if mark != last:
                    self._fail(
                        "marks_are_what_was_acknowledged",
                        f"{operator}.{port} has acknowledged event {last}, its stored mark is {mark}",
                    )

    def a_context_never_goes_back(self, operator: str, new: Context) -> None:
        old = self._contexts.get(operator)
        self._contexts[operator] = new
        self._stale.add(operator)
        if old is None:
            return
        pairs = [(old.marks, new.marks), (old.next_event, new.next_event), (old.next_write, new.next_write)]
        falls = any(after.get(name, 0) < value for before, after in pairs for name, value in before.items())
        lower = new.next_state < old.next_state or new.next_action < old.next_action
        ended = self._ended_of(operator, old, new)
        if falls or lower or old.finished > new.finished or old.opened > new.opened or not ended <= new.ended:
            self._fail("a_context_never_goes_back", f"{operator}: {old} became {new}")
        self.closed_input_sets_stay_closed(operator, old, new)

    def _ended_of(self, operator: str, old: Context, new: Context) -> set[str]:
        """The input ports that must have ended still. A retry takes an end back, and with it those that followed."""
        taken_back = self._taken_back
        if taken_back is None:
            return old.ended
        if old.finished and not new.finished and new.taken_back == old.taken_back + 1:
            old.finished = False
            taken_back.update((operator, port) for port in new.next_event)
            self._ended -= taken_back
        return {port for port in old.ended if self._receives[Port(operator, port)] not in taken_back}

    def closed_input_sets_stay_closed(self, operator: str, old: Context, new: Context) -> None:
        before, after = old.closed, new.closed
        lower = any(name not in after.low or after.low[name] < low for name, low in before.low.items())  # type: ignore[operator]  # of one type
        if lower or not before.exceptions <= after.exceptions:
            self._fail("closed_input_sets_stay_closed", f"{operator}: {before} became {after}")

    @staticmethod
    def _fail(invariant: str, what: str) -> None:
        raise Violation(invariant, what)
