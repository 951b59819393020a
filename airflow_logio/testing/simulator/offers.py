"""What senders hand over directly of bodies that are not in the log: a channel that may lose, confuse and repeat anything.

It knows no incarnations: a zombie's offer, and one whose event never gets into the log, are as good as any other here. Only
the digest in the log tells a receiver what to take.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from airflow_logio.protocol.replay import MADE_BYTES, Offers
from airflow_logio.protocol.values import Event, Port
from airflow_logio.testing.simulator.actions import Incarnation
from airflow_logio.testing.simulator.codec import Codec

LOST, OUT_OF = 2, 5
"""So many of so many questions get no answer, and one gets the body of the event before."""
KEPT = 16
"""Most offers of a port that are in a sender's memory: memory is bounded."""


def replayed_size(_payload: Any) -> int:
    """Such that two or three events are kept of what was made again, and what was kept soon goes."""
    return MADE_BYTES // 3


class SimulatedOffers(Offers):
    """`bodies` is given the digest of every body that is offered: not for receivers, but for the oracle."""

    def __init__(self, codec: Codec, bodies: dict[bytes, bytes]) -> None:
        self._codec = codec
        self._bodies = bodies
        self._offered: dict[Port, list[tuple[Incarnation, int, bytes]]] = {}
        self._questions = count(1)

    def add(self, driver: Incarnation, event: Event, body: bytes) -> None:
        """A driver offers the body of an event that it is going to log."""
        assert event.made_of is not None
        self._bodies[event.made_of.digest] = body
        of_port = self._offered.setdefault(event.sender, [])
        of_port.append((driver, event.event_id, body))
        del of_port[:-KEPT]

    def taken(self, event: Event) -> Any | None:
        """What comes for an event: what a driver that lives has offered last, the body of another event, or nothing."""
        chance = next(self._questions) % OUT_OF
        if chance < LOST:
            return None
        wanted = event.event_id - (chance == LOST)
        alive = [
            body for driver, number, body in self._offered.get(event.sender, ()) if driver.is_alive and number == wanted
        ]
        return self._codec.decode(alive[-1]) if alive else None

    def close(self) -> None:
        """Forget drivers."""
        self._offered.clear()
