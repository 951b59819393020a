"""The bodies of replay operators: kept by the driver that made them, asked for by receivers (the direct channel)."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio.errors import LogInconsistent, LogioError
from airflow_logio.protocol.replay import BYTES_AT_ONCE, MOST_HINTS, SETS_AT_ONCE, Offers
from airflow_logio.protocol.values import Event
from airflow_logio.store.port.unfenced_port import DirectAddress
from airflow_logio.systems.arrow import BYTES_OF_A_TABLE, bytes_held, decode, encode

if TYPE_CHECKING:
    from airflow_logio.driver.direct.flight import BodyClient

log = logging.getLogger(__name__)
MOST_BYTES = 64 * 2**20
MOST_WASTE = 2
"""A slice keeps alive what it was cut from. Where that is so many times as large, the slice is encoded at once."""
SMALL_BYTES = 64 * 2**10
"""Below this a table is encoded at once, too: what it was made of in NumPy or pandas is alive with it, and may be large."""
MOST_KEPT = 4 * BYTES_AT_ONCE
"""Bytes of bodies that came and were not asked for since: hints that have led nowhere."""
REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 600.0
HANDSHAKE = ("SSL", "handshake", "CERTIFICATE")
"""What gRPC says when another program answers than the expected one."""
UNKNOWN_SECONDS = 60.0
"""After so long it is said that the log has no address of it."""
RESTS_PER_SECOND = 10
"""It rests ten times as long as it has not answered, at least: so it costs a tenth of the receiver's time at most."""


class KeptBodies:
    """Tables by the digest of their contents (`digest_of`). Those that were put first go when there are too many bytes.

    A body is encoded when it is asked for, and then kept so: others may ask as well, and one that was restarted asks again.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[pa.Table | bytes, int]] = OrderedDict()
        """Digest → a table or its body, with the bytes that it takes."""
        self._unasked: dict[bytes, int] = {}
        """Digest → how often it should still be asked for."""
        self._lock = threading.Lock()
        self._all_asked = threading.Condition(self._lock)

    def put(self, digest: bytes, table: pa.Table, receivers: int = 1) -> None:
        """Keep it, unless it alone is too large. `receivers` will ask for it."""
        held = bytes_held(table)
        wastes = held > MOST_WASTE * max(table.nbytes, BYTES_OF_A_TABLE)
        kept: pa.Table | bytes = encode(table) if wastes or held < SMALL_BYTES else table
        size = BYTES_OF_A_TABLE + len(kept) if isinstance(kept, bytes) else held
        with self._lock:
            self._drop(digest)
            if size <= self._most_bytes:
                self._unasked[digest] = receivers
                self._keep(digest, kept, size)

    def body(self, digest: bytes) -> bytes | None:
        """An Arrow stream, as it would be in the log; None if it is not here, or no longer."""
        with self._lock:
            found = self._kept.get(digest)
            self._note_asked(digest)
        if found is None or isinstance(found[0], bytes):
            return None if found is None else found[0]
        body = encode(found[0])
        with self._lock:
            if self._kept.get(digest) is found:  # else it has gone meanwhile, or another thread has been here
                self._bytes -= found[1]
                self._keep(digest, body, BYTES_OF_A_TABLE + len(body))
        return body

    def are_wanted(self) -> bool:
        """Whether some have not come to all receivers."""
        with self._lock:
            return bool(self._unasked)

    def wait_until_asked(self, seconds: float) -> None:
        """Until all have come to all receivers, or so long."""
        with self._all_asked:
            self._all_asked.wait_for(lambda: not self._unasked, seconds)

    def _note_asked(self, digest: bytes) -> None:
        if (left := self._unasked.pop(digest, 1) - 1) > 0:
            self._unasked[digest] = left
        if not self._unasked:
            self._all_asked.notify_all()

    def _keep(self, digest: bytes, kept: pa.Table | bytes, size: int) -> None:
        self._kept[digest] = kept, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, digest: bytes) -> None:
        _, size = self._kept.pop(digest, (b"", 0))
        self._unasked.pop(digest, None)
        self._bytes -= size


class DirectBodies(Offers):
    """For one epoch, and one thread at a time. `peer_of` finds the application that makes the events of an operator."""

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
        """Number of events whose bodies have come directly."""

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


class Peer:
    """`address` asks the log. Whatever goes wrong, the receiver makes bodies again, and is right."""

    def __init__(self, name: str, address: Callable[[], DirectAddress | None]) -> None:
        self._name = name
        self._address = address
        self._client: BodyClient | None = None
        self._rest = REST_SECONDS
        self._rests_until = 0.0
        self._said: set[str] = set()
        self._first_asked: float | None = None
        """Since then the log has no address."""

    def ask(self, digests: Sequence[bytes], size: int) -> Mapping[bytes, bytes] | None:
        """Digest → body, of those that it has; None while it rests, and if it does not answer."""
        began = time.monotonic()
        if began < self._rests_until:
            return None
        found: dict[bytes, bytes] = {}
        try:
            client = self._client or self._connected()
            if client is None:
                self._has_no_address(began)
                return None
            found.update(client.ask(digests, size))
        except (ImportError, pa.ArrowException, OSError, ValueError, TypeError, LogioError) as error:
            self._failed(error, began)
            return found or None
        self._rest = REST_SECONDS
        return found

    def _connected(self) -> BodyClient | None:
        # Arrow's Flight is not in every build of Arrow.
        from airflow_logio.driver.direct.flight import BodyClient

        address = self._address()
        self._client = None if address is None else BodyClient(address)
        return self._client

    def _has_no_address(self, began: float) -> None:
        """It may not have begun. When it has, it has said in its log why it listens nowhere."""
        if self._first_asked is None:
            self._first_asked = began
        if began - self._first_asked >= UNKNOWN_SECONDS:
            self._say(": the log has no address of its driver. What its driver prints says why, where it begins")
        self._leave_alone(began)

    def _failed(self, error: Exception, began: float) -> None:
        """The next question goes to the driver that is in the log by then."""
        log.debug("group %s is not reached: %s", self._name, str(error).partition("\n")[0][:500])
        where = "" if self._client is None else f" at {self._client.address.location}"
        self._say(f"{where}: {reason(error)}")
        self.close()
        self._leave_alone(began)

    def _say(self, what: str) -> None:
        """Once."""
        if what not in self._said:
            self._said.add(what)
            log.info(
                "records of group %s do not come directly%s. They are made again from the log, and nothing is lost",
                *(self._name, what),
            )

    def _leave_alone(self, began: float) -> None:
        now = time.monotonic()
        rest = max(self._rest, RESTS_PER_SECOND * (now - began))
        self._rests_until = now + min(rest, LONGEST_REST_SECONDS)
        self._rest = min(2 * rest, LONGEST_REST_SECONDS)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def reason(error: Exception) -> str:
    """A sentence for the errors that are known; they are long, and full of what gRPC has on its mind."""
    if any(word in str(error) for word in HANDSHAKE):
        return (
            "who answers there does not have the certificate that the log has of it (another program has its port, or clocks "
            "differ by days)"
        )
    sentences = {
        "FlightUnavailableError": "no one answers there (the driver has ended, or a firewall is in between)",
        "FlightTimedOutError": "it does not answer in time",
        "FlightUnauthenticatedError": "it does not take the token that the log has",
    }
    name = type(error).__name__
    return sentences.get(name) or f"{name}: {str(error).partition(chr(10))[0][:200]}"
