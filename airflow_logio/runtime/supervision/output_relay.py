"""Says what the drivers of a group print, part by part, from what they have sent to the log (ADR-98)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from airflow_logio.store.output_port import OutputPart
from airflow_logio.store.port import LogStore

MOST_PARTS = 16
"""Of each driver at once: a driver sends one part per second, and what it kept from a longer pause in one as well."""


class OutputRelay:
    """The one relay of a group and its replicas; `say` gets each line, with the driver that printed it.

    `relayed`: group or replica → incarnation and number of the part that was said last. What earlier incarnations than
    those printed is not said.
    """

    def __init__(
        self, members: Collection[str], relayed: Mapping[str, Sequence[int]], say: Callable[[str], None]
    ) -> None:
        self._members = members
        self._relayed = {group: (incarnation, number) for group, (incarnation, number) in relayed.items()}
        self._say = say

    @property
    def relayed(self) -> dict[str, list[int]]:
        """As in the constructor, and plain data: of those drivers of which something was said."""
        return {group: [incarnation, number] for group, (incarnation, number) in self._relayed.items() if number}

    def relay(self, parts: Sequence[OutputPart]) -> None:
        """Say what was not said; `parts` are in the order of their drivers."""
        for part in parts:
            if part.group in self._members:
                self._relay(part)

    def relay_from(self, store: LogStore, run_id: int) -> None:
        """Say all that the log has. Raises `LogUnavailable`."""
        self.relay(store.output.written_since([run_id], 0.0, most=MOST_PARTS).get(run_id, ()))

    def _relay(self, part: OutputPart) -> None:
        incarnation, number = self._relayed.get(part.group, (0, 0))
        if (part.incarnation, part.number) <= (incarnation, number):
            return
        who = f"[{part.group} #{part.incarnation}]"
        expected = number + 1 if part.incarnation == incarnation else 1
        if part.number > expected:
            self._say(f"{who} ... lines left out: `logio logs` has more of them")
        for line in part.text.splitlines():
            self._say(f"{who} {line}")
        self._relayed[part.group] = (part.incarnation, part.number)


def beginning(incarnations: Mapping[str, int], relayed: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """From where a relay says what drivers print: behind what was relayed, and not from before these incarnations."""
    return {group: (incarnation, 0) for group, incarnation in incarnations.items()} | dict(relayed)
