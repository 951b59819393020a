"""What a receiver gets of its senders' bodies without making them again: `Offers` over Arrow Flight."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from airflow_logio.driver.direct.kept_bodies import MOST_BYTES
from airflow_logio.driver.direct.peer import Peer
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.replay import BYTES_AT_ONCE, MOST_HINTS, SETS_AT_ONCE, Offers
from airflow_logio.protocol.values import Event
from airflow_logio.systems.arrow import decode

log = logging.getLogger(__name__)

MOST_KEPT = 4 * BYTES_AT_ONCE
"""Bytes of bodies that have come and that no one has asked for: hints that have led nowhere."""


class DirectBodies(Offers):
    """Of one epoch, for one thread at a time. `peer_of` finds who makes the events of an operator."""

    def __init__(self, peer_of: Callable[[str], Peer | None]) -> None:
        self._peer_of = peer_of
        self._coming: dict[str, OrderedDict[bytes, int]] = {}
        """Operator → digests that no driver was asked for, with the sizes of bodies: hints, in order."""
        self._wanted: Counter[bytes] = Counter()
        """Digest → for how many events it will be asked for. Equal events have one digest."""
        self._answers: OrderedDict[bytes, bytes | None] = OrderedDict()
        """Digest → body, or None where the sender has none."""
        self._bytes = 0
        self.count = 0
        """Of events whose bodies have come directly."""

    def expect(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.made_of is not None:
                digest = event.made_of.digest
                self._wanted[digest] += 1
                if digest not in self._answers:
                    coming = self._coming.setdefault(event.sender.operator, OrderedDict())
                    coming[digest] = event.made_of.size
                    if len(coming) > MOST_HINTS:
                        del self._wanted[coming.popitem(last=False)[0]]

    def taken(self, event: Event) -> Any | None:
        """As `Offers.taken`: a table."""
        if event.made_of is None:
            return None
        digest = event.made_of.digest
        if digest not in self._answers:
            self._ask(event.sender.operator, digest, event.made_of.size)
        body = self._answers.get(digest)
        self._wanted[digest] -= 1
        if self._wanted[digest] <= 0:
            del self._wanted[digest]
            self._forget(digest)
            self._coming.get(event.sender.operator, OrderedDict()).pop(digest, None)
        if body is None:
            return None
        try:
            table = decode(f"event {event.event_id} of {event.sender}", body)
        except LogInconsistent as error:
            log.warning("a driver has handed over what is no body: %s", error)
            return None
        self.count += 1
        return table

    def _ask(self, operator: str, digest: bytes, size: int) -> None:
        """For one that is wanted now, and those that will be."""
        coming = self._coming.setdefault(operator, OrderedDict())
        coming.pop(digest, None)
        peer = self._peer_of(operator) if size <= MOST_BYTES else None  # no sender keeps a larger one
        if peer is None:
            return
        asked = [digest]
        for other, more in islice(coming.items(), SETS_AT_ONCE - 1):
            if size + more > BYTES_AT_ONCE:
                break
            size += more
            asked.append(other)
        found = peer.ask(asked, size)
        if found is None:
            return
        for one in reversed(asked):  # the one that is wanted now comes last, and goes last
            coming.pop(one, None)
            self._forget(one)
            self._answers[one] = found.get(one)
            self._bytes += len(found.get(one, b""))
        while len(self._answers) > 1 and (self._bytes > MOST_KEPT or len(self._answers) > MOST_HINTS):
            led_nowhere = next(iter(self._answers))
            self._wanted.pop(led_nowhere, None)
            self._forget(led_nowhere)

    def _forget(self, digest: bytes) -> None:
        self._bytes -= len(self._answers.pop(digest, None) or b"")
