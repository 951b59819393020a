"""One application that makes bodies: where it is asked, and how long it is left alone when it does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_logio.errors import LogioError
from airflow_logio.store.port.unfenced_port import DirectAddress

if TYPE_CHECKING:
    from airflow_logio.driver.direct.body_client import BodyClient

log = logging.getLogger(__name__)

REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 600.0
HANDSHAKE = ("SSL", "handshake", "CERTIFICATE")
"""What gRPC says where someone answers, and is not who was expected."""
UNKNOWN_SECONDS = 60.0
"""After so long it is said that the log has no address of it."""
RESTS_PER_SECOND = 10
"""It rests ten times as long as it has not answered, at least: so it costs a tenth of the receiver's time at most."""


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
        from airflow_logio.driver.direct.body_client import BodyClient

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
