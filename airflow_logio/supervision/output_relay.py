"""Says what the drivers of a group print, part by part, from what they have sent to the log (ADR-98)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil

from airflow_logio.store.port.unfenced_port import OutputPart

LEAST_PARTS = 16
LATE_SECONDS = 5.0
"""A part may become visible so long after it was written. What was said already is found again, and not said again."""


def most_parts(interval: float) -> int:
    """Of each driver in one look: it sends one part per second, and looks may be late."""
    return LEAST_PARTS + 2 * ceil(interval)


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
        self._ended: dict[str, tuple[int, int]] = {}
        """Group → the last part of the incarnation before, of which the rest may come late."""
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

    def _relay(self, part: OutputPart) -> None:
        place, last = (part.incarnation, part.number), self._relayed.get(part.group, (0, 0))
        ended = self._ended.get(part.group, (0, 0))
        if place <= last and not (part.incarnation == ended[0] and place > ended):
            return
        who = f"[{part.group} #{part.incarnation}]"
        known = next((number for incarnation, number in (last, ended) if incarnation == part.incarnation), 0)
        if part.number > known + 1:
            self._say(f"{who} ... lines left out: `logio logs` has more of them")
        for line in part.text.splitlines():
            self._say(f"{who} {line}")
        if place > last:
            if part.incarnation > last[0] > 0:
                self._ended[part.group] = last
            self._relayed[part.group] = place
        else:
            self._ended[part.group] = place


def beginning(incarnations: Mapping[str, int], relayed: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """From where a relay says what drivers print: behind what was relayed, and not from before these incarnations."""
    return {group: (incarnation, 0) for group, incarnation in incarnations.items()} | dict(relayed)
