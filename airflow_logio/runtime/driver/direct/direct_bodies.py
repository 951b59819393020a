"""What a receiver gets of its senders' bodies without making them again: `Offers` over Arrow Flight."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio.errors import LogInconsistent, LogUnavailable
from airflow_logio.protocol.replay import BYTES_AT_ONCE, SETS_AT_ONCE, Offers
from airflow_logio.protocol.values import Event
from airflow_logio.runtime.systems.arrow import decode
from airflow_logio.store.address_port import DirectAddress

if TYPE_CHECKING:
    from airflow_logio.runtime.driver.direct.body_client import BodyClient

log = logging.getLogger(__name__)

REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 60.0
"""How long a driver that could not be asked is left alone, at first and in the end."""
MOST_KEPT = 4 * BYTES_AT_ONCE
"""Bytes of bodies that have come and that nobody has asked for: hints that have led nowhere."""
MOST_HINTS = 10_000


class Peer:
    """One application that makes bodies: its address, and how it has answered. `address` asks the log."""

    def __init__(self, name: str, address: Callable[[], DirectAddress | None]) -> None:
        self.name = name
        self._address = address
        self._client: BodyClient | None = None
        self._rest = REST_SECONDS
        self._rests_until = 0.0
        self._said: DirectAddress | None = None

    def ask(self, digests: Sequence[bytes]) -> Mapping[bytes, bytes] | None:
        """Digest → body, of those that it has; None while it rests, and if it does not answer."""
        if time.monotonic() < self._rests_until:
            return None
        try:
            client = self._client or self._connected()
            found = None if client is None else client.ask(digests)
        except (ImportError, pa.ArrowException, OSError, LogUnavailable) as error:
            self._failed(error)
            return None
        if found is None:
            self._leave_alone()
        else:
            self._rest = REST_SECONDS
        return found

    def _connected(self) -> BodyClient | None:
        from airflow_logio.runtime.driver.direct.body_client import BodyClient  # Arrow's Flight is not everywhere

        address = self._address()
        self._client = None if address is None else BodyClient(address)
        return self._client

    def _failed(self, error: Exception) -> None:
        """The next question goes to whoever is in the log by then."""
        if self._client is not None and self._client.address != self._said:
            self._said = self._client.address
            log.warning(
                "the records of %s do not come directly from %s, and are made again from the log: %s",
                *(self.name, self._said.location, str(error).partition("\n")[0][:300]),
            )
        self.close()
        self._leave_alone()

    def _leave_alone(self) -> None:
        self._rests_until = time.monotonic() + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST_SECONDS)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class DirectBodies(Offers):
    """Of one epoch, for one thread at a time. `peer_of` finds who makes the events of an operator."""

    def __init__(self, peer_of: Callable[[str], Peer | None]) -> None:
        self._peer_of = peer_of
        self._coming: dict[str, OrderedDict[bytes, int]] = {}
        """Operator → digests that will be asked for, with the sizes of bodies: hints, in order."""
        self._came: OrderedDict[bytes, bytes] = OrderedDict()
        self._came_bytes = 0
        self._missing: OrderedDict[bytes, None] = OrderedDict()
        """Digests that nobody has: they will be asked for, and need no question."""
        self.count = 0
        """Of events whose bodies have come directly."""

    def expect(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.made_of is not None and event.made_of.digest not in self._came:
                coming = self._coming.setdefault(event.sender.operator, OrderedDict())
                coming[event.made_of.digest] = event.made_of.size
                if len(coming) > MOST_HINTS:
                    coming.popitem(last=False)

    def taken(self, event: Event) -> Any | None:
        """As `Offers.taken`: a table."""
        if event.made_of is None:
            return None
        digest = event.made_of.digest
        if digest not in self._came and digest not in self._missing:
            self._ask(event.sender.operator, digest)
        self._missing.pop(digest, None)
        body = self._came.pop(digest, None)
        if body is None:
            return None
        self._came_bytes -= len(body)
        try:
            table = decode(f"event {event.event_id} of {event.sender}", body)
        except LogInconsistent as error:
            log.warning("a driver has handed over what is no body: %s", error)
            return None
        self.count += 1
        return table

    def _ask(self, operator: str, digest: bytes) -> None:
        """For one that is wanted now, and those that will be."""
        coming = self._coming.setdefault(operator, OrderedDict())
        size = coming.pop(digest, 0)
        peer = self._peer_of(operator)
        if peer is None:
            return
        asked = [digest]
        for other, more in islice(coming.items(), SETS_AT_ONCE - 1):
            size += more
            if size > BYTES_AT_ONCE:
                break
            asked.append(other)
        found = peer.ask(asked)
        if found is None:
            return
        for one in asked:
            coming.pop(one, None)
            self._keep(one, found.get(one))

    def _keep(self, digest: bytes, body: bytes | None) -> None:
        if body is None:
            self._missing[digest] = None
            if len(self._missing) > MOST_HINTS:
                self._missing.popitem(last=False)
            return
        self._came[digest] = body
        self._came_bytes += len(body)
        while self._came_bytes > MOST_KEPT and len(self._came) > 1:
            _, gone = self._came.popitem(last=False)
            self._came_bytes -= len(gone)
