"""A declared order over the input ports of an operator (Algorithm 9 Step 2: "the deterministic logic of OP").

The order is a cycle of ports, say ``a`` fifty times and then ``b`` a hundred times. Event ids of a port have no gaps, so
the place of an event in the whole order follows from its port and id alone, both in normal processing and in recovery.
A port whose stream has ended is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_logio.protocol.values import FIRST_EVENT_ID


class PortOrder:
    """The cyclic order `pattern` of input ports; each port occurs in it at least once."""

    def __init__(self, pattern: Sequence[str]) -> None:
        self._turns: dict[str, list[int]] = {}
        for index, port in enumerate(pattern):
            self._turns.setdefault(port, []).append(index)

    def place(self, port: str, event_id: int) -> tuple[int, int]:
        """(round, turn in the round) of an event. Of two events on ports that have not ended, the lower one is used first."""
        turns = self._turns[port]
        rounds, turn = divmod(event_id - FIRST_EVENT_ID, len(turns))
        return rounds, turns[turn]

    def next_port(self, marks: Mapping[str, int], ended: Collection[str]) -> str | None:
        """The port whose next event is to be used now; None if all streams have ended.

        `marks` maps ports to the last event_id that was used.
        """
        waiting = [
            (self.place(port, marks.get(port, FIRST_EVENT_ID - 1) + 1), port)
            for port in self._turns
            if port not in ended
        ]
        return min(waiting)[1] if waiting else None
