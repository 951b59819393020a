"""Hands over the bodies that a driver has kept, to any process that shows the token of its incarnation."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from airflow_logio.driver.direct.credentials import Credentials
from airflow_logio.driver.direct.kept_bodies import KeptBodies
from airflow_logio.systems.contents import DIGEST_BYTES

ANSWER = pa.schema([pa.field("digest", pa.binary(DIGEST_BYTES)), pa.field("body", pa.large_binary())])
"""What comes for a ticket: a batch for each body that is there. A ticket is digests, one behind the other."""
AUTHORIZATION = "authorization"
MOST_ASKED = 64
"""Digests of one ticket; what is behind them is not answered."""


def bearer(token: str) -> str:
    return f"Bearer {token}"


class _Doorkeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: str) -> None:
        self._expected = bearer(token).encode()

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> None:
        given = next(iter(headers.get(AUTHORIZATION, ())), "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            raise flight.FlightUnauthenticatedError("this is not the token of this driver")


class BodyServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves from when it is made until `shutdown`, on a free port of one address of this host. Raises what Arrow raises.

    A client without the certificate does not get past the handshake: nothing is read of what it sends.
    """

    def __init__(self, kept: KeptBodies, credentials: Credentials, host: str) -> None:
        self._kept = kept
        super().__init__(
            flight.Location.for_grpc_tls(bracketed(host), 0),
            tls_certificates=[credentials.server],
            verify_client=True,
            root_certificates=credentials.client.certificate,
            middleware={"doorkeeper": _Doorkeeper(credentials.token)},
        )
        self.uri = f"grpc+tls://{bracketed(host)}:{self.port}"

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.GeneratorStream(ANSWER, self._answers(ticket.ticket))

    def _answers(self, asked: bytes) -> Iterator[pa.RecordBatch]:
        for begin in range(0, min(len(asked), MOST_ASKED * DIGEST_BYTES), DIGEST_BYTES):
            digest = asked[begin : begin + DIGEST_BYTES]
            if (body := self._kept.body(digest)) is not None:
                yield pa.record_batch(
                    [pa.array([digest], ANSWER[0].type), pa.array([body], ANSWER[1].type)], schema=ANSWER
                )


def bracketed(host: str) -> str:
    """As URIs have it: the numbers of an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
