"""Windows of whole events: a number of them, of several ports synchronized (the paper's second use case), or all of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.names import check_count, check_name, did_you_mean, quoted
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.windows.window import Arrival, Window, is_as_in
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.record_rules import WHOLE, Part


class CountingWindow(Window):
    """A window of whole events: each is in one Input Set, whatever its records are."""

    suits_many_ports = True
    suits_datasets = True

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        return dict.fromkeys(self.joined(Arrival(event.port, event.event_id), state), event.table)

    def record_part(self) -> Part | None:
        return WHOLE if is_as_in(CountingWindow, self, "assign", "part") else None

    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        return event.table

    def order(self, inset_id: str) -> int:
        return int(inset_id)


@dataclass(frozen=True, slots=True)
class EveryEvents(CountingWindow):
    """A window of a number of events: Input Sets ``"1"``, ``"2"``, ... of `count` events each (the paper's OP2).

    :param count: how many events, at least 1. An event without records counts.

    The last, shorter Input Set is generated at the end of the stream. Events of several input ports count alike, as
    they arrive (the paper's second use case, not synchronized). Global state: ``{"events": number of events seen}``;
    Input Set b is complete when ``events >= b * count``. Raises PipelineDefinitionError.
    """

    count: int

    def __post_init__(self) -> None:
        check_count("EveryEvents: count", self.count)

    def initial_state(self) -> dict[str, Any]:
        return {"events": 0}

    def joined(self, arrival: Arrival, state: dict[str, Any]) -> Sequence[str]:
        batch = state["events"] // self.count + 1
        state["events"] += 1
        return (str(batch),)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        complete = state["events"] // self.count
        return sorted((inset for inset in open_insets if int(inset) <= complete), key=int)

    def describe(self) -> dict[str, Any]:
        return {"window": "EveryEvents", "count": self.count}


_ALL = "all"
"""The one Input Set of `AllOfRun`."""


@dataclass(frozen=True, slots=True)
class AllOfRun(CountingWindow):
    """A window of everything that the run reads: one Input Set, ``"all"``, as a script sees its input.

    It closes when all input ports have ended: its sources have, or the run is drained. It has the events of every input
    port, each port's in their order, so that the order in which ports bring them changes no result. An event without
    records counts. Without an event there is no Input Set, and the function is not called; with several input ports,
    one event of one of them is enough.

    Until then all records are in memory, in mode ``dataframe`` in files. Global state: empty. It is refused in a
    replicated group: none of its slots gets everything. And behind an operator that sets Input Sets aside: the one Input
    Set would lack them, and it is made once, so that a retry could not add them.
    """

    def initial_state(self) -> dict[str, Any]:
        return {}

    def joined(self, arrival: Arrival, state: dict[str, Any]) -> Sequence[str]:
        return (_ALL,)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return ()

    def order(self, inset_id: str) -> int:
        return 0

    def describe(self) -> dict[str, Any]:
        return {"window": "AllOfRun"}


INCOMPLETE = ("generate", "drop", "error")
"""What the end of the stream does with Input Sets that are incomplete."""


@dataclass(frozen=True, slots=True, init=False)
class Synchronized(CountingWindow):
    """A window of a number of events of each port: with ``Synchronized(a=50, b=100)`` Input Set n has events 50(n-1)+1
    to 50n of port a, and 100(n-1)+1 to 100n of port b.

    :param counts: port → number of events, where a port's name cannot be written as an argument:
        ``Synchronized({"ordered": 5, "received": 5})``.
    :param incomplete: what becomes of the Input Sets that are incomplete when all ports have ended: ``"generate"`` them
        (the default), ``"drop"`` them (they are done, with an empty Output Set), or ``"error"``.
    :param ordered: use events in the cycle that the counts give (50 of a, 100 of b, 50 of a, ...), so that what is not
        due waits in the log. By default False: events of the faster port wait in memory until the slower one has caught
        up.
    :param more: the same as `counts`, by name: ``a=50, b=100``. Together at least two ports.

    Input Sets are named ``"1"``, ``"2"``, ...; one is complete when all ports have brought their share. It depends on
    nothing but the events of each port, so the order in which they arrive changes no result. An event without records
    counts. The function names its ports: ``@generate(inputs=("a", "b"))``. Global state: ``{"events": {port: number of
    events seen}}``. Raises PipelineDefinitionError.
    """

    counts: tuple[tuple[str, int], ...]
    incomplete: str
    ordered: bool

    def __init__(
        self,
        counts: Mapping[str, int] | None = None,
        /,
        *,
        incomplete: str = "generate",
        ordered: bool = False,
        **more: int,
    ) -> None:
        every = {**(counts or {}), **more}
        pairs = tuple((check_name("port", port), check_count(f"Synchronized: {port}", n)) for port, n in every.items())
        if len(pairs) < 2:
            raise PipelineDefinitionError(
                "Synchronized(...) needs the counts of at least two input ports, as in Synchronized(a=50, b=100); for "
                "one port use EveryEvents(count)"
            )
        if incomplete not in INCOMPLETE:
            raise PipelineDefinitionError(
                f"Synchronized: incomplete={incomplete!r} is none of {quoted(INCOMPLETE)}."
                f"{did_you_mean(incomplete, INCOMPLETE)}"
            )
        object.__setattr__(self, "counts", pairs)
        object.__setattr__(self, "incomplete", incomplete)
        object.__setattr__(self, "ordered", bool(ordered))

    def ports(self) -> tuple[str, ...]:
        return tuple(port for port, _ in self.counts)

    def port_order(self) -> tuple[str, ...]:
        """With `ordered`, each port as often in a row as events of it make an Input Set."""
        return tuple(port for port, count in self.counts for _ in range(count)) if self.ordered else ()

    def initial_state(self) -> dict[str, Any]:
        return {"events": dict.fromkeys(self.ports(), 0)}

    def joined(self, arrival: Arrival, state: dict[str, Any]) -> Sequence[str]:
        number = state["events"][arrival.port] // dict(self.counts)[arrival.port] + 1
        state["events"][arrival.port] += 1
        return (str(number),)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        complete = self._complete(state)
        return sorted((inset for inset in open_insets if int(inset) <= complete), key=int)

    def admits(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        """Raises OperatorFailed for an incomplete Input Set if the author asked for that."""
        if self.incomplete == "generate" or int(inset_id) <= self._complete(state):
            return True
        if self.incomplete == "drop":
            return False
        raise OperatorFailed(
            f"the inputs have ended, but Input Set {inset_id!r} is incomplete: it has {self._share(inset_id, state)}. "
            "Send the missing events, or say Synchronized(..., incomplete='generate') or 'drop'"
        )

    def describe(self) -> dict[str, Any]:
        """Counts as pairs: the order of the ports is part of the pipeline."""
        return {
            "window": "Synchronized",
            "counts": [[port, count] for port, count in self.counts],
            "incomplete": self.incomplete,
            "ordered": self.ordered,
        }

    def _complete(self, state: Mapping[str, Any]) -> int:
        """Number of the last complete Input Set."""
        return min(int(state["events"][port]) // count for port, count in self.counts)

    def _share(self, inset_id: str, state: Mapping[str, Any]) -> str:
        before = int(inset_id) - 1
        shares = [
            f"{min(max(state['events'][port] - before * count, 0), count)} of {count} events of port {port!r}"
            for port, count in self.counts
        ]
        return " and ".join(shares)
