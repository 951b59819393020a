"""What protects the bodies that a driver hands over: a certificate and a token of its own, as long as it lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_urlsafe

SERVER_NAME = "logio-driver"
"""Whom the certificate is for, whatever the address: it is trusted because it stands in the log."""
CLOCKS_APART = timedelta(days=2)
VALID = timedelta(days=3_650)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Certificate and key in PEM. The key leaves the process never, the rest by the log only."""

    certificate: bytes
    key: bytes = field(repr=False)
    token: str = field(repr=False)


def new_credentials() -> Credentials:
    """Raises ImportError where `cryptography` is not installed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SERVER_NAME)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Credentials(certificate.public_bytes(Encoding.PEM), plain, token_urlsafe(32))
