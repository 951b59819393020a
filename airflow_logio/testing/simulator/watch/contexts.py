"""Invariants of the contexts that operators store: marks, ids, ends, closed Input Sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow_logio.protocol.context import Context
from airflow_logio.protocol.values import Port
from airflow_logio.testing.simulator.violation import Violation


class ContextWatch:
    """The last stored context of each operator. `begin` says what feeds its ports."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}
        self._acknowledged: dict[tuple[str, str], int] = {}
        """Input port → last acknowledged event."""
        self._stale: set[str] = set()
        """Operators whose marks are checked when the transaction is over."""
        self.ended: set[tuple[str, str]] = set()
        """Channels whose end is logged."""
        self._receives: Mapping[Port, Port] = {}
        self.taken_back: set[tuple[str, str]] | None = None
        """During a retry of quarantined Input Sets: channels whose end it has taken back."""

    def begin(self, receives: Mapping[Port, Port]) -> None:
        """`receives` maps an input port to the output port that feeds it."""
        self._receives = receives

    @property
    def is_retrying(self) -> bool:
        return self.taken_back is not None

    @contextmanager
    def retrying(self) -> Iterator[None]:
        """Within this context, ends of streams may be taken back."""
        self.taken_back = set()
        try:
            yield
        finally:
            self.taken_back = None

    def of(self, operator: str) -> Context | None:
        """What the operator stored last; None before the first time."""
        return self._contexts.get(operator)

    def has_finished(self, operator: str) -> bool:
        """Whether its stored context says that it has logged the end of its streams."""
        context = self.of(operator)
        return context is not None and context.finished

    def marks_are_what_was_acknowledged(self) -> None:
        stale, self._stale = self._stale, set()
        for (operator, port), last in self._acknowledged.items():
            if operator in stale:
                context = self._contexts.get(operator)
                mark = context.mark(port) if context else 0
                if mark != last:
                    raise Violation(
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
            raise Violation("a_context_never_goes_back", f"{operator}: {old} became {new}")
        self.closed_input_sets_stay_closed(operator, old, new)

    def _ended_of(self, operator: str, old: Context, new: Context) -> set[str]:
        """The input ports that must still have ended. A retry takes an end back, and with it all ends that followed."""
        taken_back = self.taken_back
        if taken_back is None:
            return old.ended
        if old.finished and not new.finished and new.taken_back == old.taken_back + 1:
            old.finished = False
            taken_back.update((operator, port) for port in new.next_event)
            self.ended -= taken_back
        return {port for port in old.ended if self._receives[Port(operator, port)] not in taken_back}

    def closed_input_sets_stay_closed(self, operator: str, old: Context, new: Context) -> None:
        before, after = old.closed, new.closed
        lower = any(name not in after.low or after.low[name] < low for name, low in before.low.items())  # type: ignore[operator]  # of one type
        if lower or not before.exceptions <= after.exceptions:
            raise Violation("closed_input_sets_stay_closed", f"{operator}: {before} became {after}")

    def acknowledgements_are_a_prefix(self, port: tuple[str, str], ids: set[int]) -> None:
        last = self._acknowledged.get(port, 0)
        new = {event_id for event_id in ids if event_id > last}
        if new and (min(new) != last + 1 or max(new) - last != len(new)):
            raise Violation("acknowledgements_are_a_prefix", f"{Port(*port)}: events {sorted(new)} after {last}")
        if new:
            self._acknowledged[port] = max(new)
            self._stale.add(port[0])
