"""What needs Arrow Flight, which is not in every build of Arrow: a server of bodies, its client, and their credentials.

The server hands over the bodies that a driver has kept to any process that shows the certificate and the token of its
incarnation. Both live as long as the driver.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_urlsafe
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from airflow_logio.store.port.unfenced_port import DirectAddress
from airflow_logio.systems.arrow import DIGEST_BYTES

ANSWER = pa.schema([pa.field("digest", pa.binary(DIGEST_BYTES)), pa.field("body", pa.large_binary())])
"""What comes for a ticket: a batch for each body that is there. A ticket is digests, one behind the other."""
AUTHORIZATION = "authorization"
MOST_ASKED = 64
"""Digests of one ticket; what is behind them is not answered."""
PATIENCE_SECONDS = 3.0
"""For a question, connection included: what does not come is made again, which takes its time, too."""
BYTES_PER_SECOND = 10e6
"""For so many bytes it is a second more."""
SERVER_NAME = "logio-driver"
"""Whom the server's certificate is for, whatever the address: it is trusted because it stands in the log."""
CLOCKS_APART = timedelta(days=2)
VALID = timedelta(days=3_650)


class BodyServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves from when it is made until `shutdown`, on a free port of one address of this host. Raises what Arrow raises.

    `body_of` finds a body by its digest: an Arrow stream, or None. A client without the certificate does not get past the
    handshake: nothing is read of what it sends.
    """

    def __init__(self, body_of: Callable[[bytes], bytes | None], credentials: Credentials, host: str) -> None:
        self._body_of = body_of
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
            if (body := self._body_of(digest)) is not None:
                yield pa.record_batch(
                    [pa.array([digest], ANSWER[0].type), pa.array([body], ANSWER[1].type)], schema=ANSWER
                )


class _Doorkeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: str) -> None:
        self._expected = bearer(token).encode()

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> None:
        given = next(iter(headers.get(AUTHORIZATION, ())), "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            raise flight.FlightUnauthenticatedError("this is not the token of this driver")


def bearer(token: str) -> str:
    return f"Bearer {token}"


def bracketed(host: str) -> str:
    """As URIs have it: the numbers of an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


class BodyClient:
    """Trusts the one certificate that the log has of the driver, and shows the one that the log has for those who ask."""

    def __init__(self, address: DirectAddress) -> None:
        self.address = address
        self._client = flight.FlightClient(
            address.location,
            tls_root_certs=address.certificate.encode(),
            cert_chain=address.client_certificate.encode(),
            private_key=address.client_key.encode(),
            override_hostname=SERVER_NAME,
            # A proxy is for what drivers read outside, and would only hear where they are.
            generic_options=[("grpc.enable_http_proxy", 0)],
        )
        self._headers = [(AUTHORIZATION.encode(), bearer(address.token).encode())]

    def ask(self, digests: Sequence[bytes], size: int) -> Iterator[tuple[bytes, bytes]]:
        """(digest, body) of those that are there; together they have about `size` bytes.

        Whether a body has that digest is for others to see. Raises what Arrow raises, OSError, and ValueError or TypeError
        for an answer that is none, also when some have come.
        """
        options = flight.FlightCallOptions(PATIENCE_SECONDS + size / BYTES_PER_SECOND, headers=self._headers)
        for chunk in self._client.do_get(flight.Ticket(b"".join(digests)), options):
            digests_, bodies = chunk.data.columns
            yield from zip(digests_.to_pylist(), bodies.to_pylist(), strict=True)

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The server's key never leaves its process. A receiver shows `client`, or fails in the handshake."""

    server: Pair = field(repr=False)
    client: Pair = field(repr=False)
    token: str = field(repr=False)


class Pair(NamedTuple):
    """In PEM."""

    certificate: bytes
    key: bytes


def new_credentials() -> Credentials:
    """Raises ImportError where `cryptography` is not installed."""
    return Credentials(_pair(SERVER_NAME), _pair("logio-receiver"), token_urlsafe(32))


def _pair(name: str) -> Pair:
    """A key with a certificate that it has signed itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    whom = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(whom, whom, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), plain)
