"""Lineage with Dispatchers and Mergers collapsed: of which events of one port those of another were made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_logio.testing.plan import Pair

Name = tuple[str, int]
"""(output port, event_id)"""


class Collapsed:
    """`senders` maps input ports to output ports."""

    def __init__(self, pairs: Iterable[Pair], senders: Mapping[str, str]) -> None:
        self._made_of: dict[Name, set[Name]] = {}
        for into, event_id, port, made in pairs:
            self._made_of.setdefault((port, made), set()).add((senders[into], event_id))

    def of(self, port: str, event_id: int, start: str) -> set[int]:
        """Events of output port `start` from which paths lead to the event."""
        todo, seen, found = [(port, event_id)], set[Name](), set[int]()
        while todo:
            name = todo.pop()
            if name[0] == start:
                found.add(name[1])
            elif name not in seen:
                seen.add(name)
                todo += self._made_of.get(name, ())
        return found
