"""What protects the bodies that a driver hands over: keys, certificates and a token of its own, as long as it lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_urlsafe
from typing import NamedTuple

SERVER_NAME = "logio-driver"
"""Whom the server's certificate is for, whatever the address: it is trusted because it stands in the log."""
CLOCKS_APART = timedelta(days=2)
VALID = timedelta(days=3_650)


class Pair(NamedTuple):
    """In PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    """The server's key never leaves its process. A receiver shows `client`, or fails in the handshake."""

    server: Pair = field(repr=False)
    client: Pair = field(repr=False)
    token: str = field(repr=False)


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
