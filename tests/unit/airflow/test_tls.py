"""A PostgreSQL behind TLS: what a connection says of certificates is held, for the log and for the pipeline's databases.

The server of the tests has no TLS, so a program in front of it ends it, as a proxy of a cloud does.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sqlalchemy.engine import make_url

from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.connections import external_url
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.systems.warehouse import Warehouse
from tests.support.airflow_connections import connection
from tests.support.listening import Listener, pipe

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


def certificate(folder: Path, name: str) -> Path:
    """A certificate for 127.0.0.1 that is its own authority, with its key behind it in the file."""
    key, named = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(named, named, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / f"{name}.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


class TlsServer:
    """TLS on a port of its own, the server of `url` behind it."""

    def __init__(self, url: str, file: Path) -> None:
        self._behind = make_url(url)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(file)
        self._listener = Listener(self._serve)
        self.port = self._listener.port
        self.close = self._listener.close
        self.sessions = 0

    def _serve(self, client: socket.socket) -> None:
        assert client.recv(8) in (SSL_REQUEST, b""), "it speaks without TLS"
        client.sendall(b"S")
        inside = self._listener.keep(self._context.wrap_socket(client, server_side=True))
        self.sessions += 1
        at = (self._behind.host or "127.0.0.1", self._behind.port or 5432)
        behind = self._listener.keep(socket.create_connection(at))
        self._listener.begin(pipe, behind, inside)
        pipe(inside, behind)


@pytest.fixture
def tls(postgres_url: str, tmp_path: Path) -> Iterator[TlsServer]:
    server = TlsServer(postgres_url, certificate(tmp_path, "server"))
    yield server
    server.close()


@pytest.mark.postgres
def test_a_log_and_a_warehouse_are_reached_through_tls_and_their_certificate_is_checked(
    tls: TlsServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(postgres_url)
    fields: dict[str, Any] = {"host": "127.0.0.1", "port": tls.port, "schema": url.database, "login": url.username}
    trusted = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / "server.pem")}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", connection("logio", extra=trusted, **fields))
    LogioHook("mine").get_store(create=True).dispose()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection("postgres", extra=trusted, **fields))
    before = tls.sessions
    with closing(Warehouse("shop", external_url("shop"))) as warehouse, warehouse.engine.connect() as session:
        assert session.exec_driver_sql("SELECT 1").scalar() == 1
    assert 0 < before < tls.sessions
    other = {**trusted, "sslrootcert": str(certificate(tmp_path, "other"))}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", connection("logio", extra=other, **fields))
    with pytest.raises(ConfigurationError, match=r"certificate verify failed"):
        LogioHook("mine").get_store(create=True)
    monkeypatch.setenv("AIRFLOW_CONN_MINE", connection("logio", extra=trusted, **{**fields, "host": "localhost"}))
    with pytest.raises(ConfigurationError, match=r"does not match host name"):
        LogioHook("mine").get_store(create=True)


@pytest.mark.postgres
def test_a_server_without_tls_is_refused_where_tls_is_asked_for(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(postgres_url)
    fields: dict[str, Any] = {"host": "127.0.0.1", "port": url.port, "schema": url.database, "login": url.username}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", connection("logio", extra={"sslmode": "require"}, **fields))
    with pytest.raises(ConfigurationError, match="server does not support SSL"):
        LogioHook("mine").get_store(create=True)
