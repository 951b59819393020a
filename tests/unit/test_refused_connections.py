"""A connection that is refused in any language is refused for the same reason: the SQLSTATE decides.

The server is a real one. In front of it, its sentences are put into other words: its wheel has no catalogs of messages.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from airflow_logio.database_errors import Fault, fault_of
from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.refused_connections import is_for_person, refusals
from airflow_logio.store import open_store
from airflow_logio.store.sql.engines import log_engine
from tests.support.listening import Listener, cut, pipe
from tests.support.postgres import PostgresServer

WORDS = (
    "Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen",
    "la base de données n'accepte plus",
    "接続が拒否されました",
)
pytestmark = pytest.mark.postgres


class OtherWords:
    """Passes on what client and server say, but the sentence of an error, and how severe it is, are in `words`."""

    def __init__(self, port: int, words: str) -> None:
        self._server = ("127.0.0.1", port)
        self._words = words
        self._listener = Listener(self._serve)
        self.port = self._listener.port
        self.close = self._listener.close
        self.heard = 0

    def _serve(self, client: socket.socket) -> None:
        self.heard += 1
        server = self._listener.keep(socket.create_connection(self._server))
        self._listener.begin(self._back, server, client)
        pipe(client, server)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with server.makefile("rb") as said:
            while len(head := said.read(5)) == 5:
                kind, length = struct.unpack("!ci", head)
                body = said.read(length - 4)
                if kind == b"E":
                    body = re.sub(rb"(?<=\0)M[^\0]*|^S[^\0]*", lambda found: found[0][:1] + self._words.encode(), body)
                client.sendall(struct.pack("!ci", kind, len(body) + 4) + body)
        cut(client)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(in_memory=True)
    server.create()
    server.start()
    for statement in (
        "CREATE ROLE x LOGIN PASSWORD 'right'",
        "CREATE ROLE outside LOGIN",
        "CREATE ROLE crowded LOGIN CONNECTION LIMIT 0",
        "CREATE ROLE trusted LOGIN",
        "CREATE ROLE idle NOLOGIN",
        "CREATE DATABASE closed ALLOW_CONNECTIONS false",
        "CREATE DATABASE private",
        "REVOKE CONNECT ON DATABASE private FROM PUBLIC",
    ):
        server._execute(statement)
    server.let_in("host all outside all reject", "host all x all scram-sha-256", "host all all all trust")
    yield server
    server.destroy()


REFUSED = {
    "a wrong password": ("x:wrong@{}/postgres", ("28P01",), Fault.MISCONFIGURED),
    "a role that is not": ("none@{}/postgres", ("28000",), Fault.MISCONFIGURED),
    "a role without login": ("idle@{}/postgres", ("28000",), Fault.MISCONFIGURED),
    "a rule that rejects": ("outside@{}/postgres", ("28000",), Fault.MISCONFIGURED),
    "a database that is not": ("trusted@{}/none", ("3D000",), Fault.MISCONFIGURED),
    "a database without the right": ("trusted@{}/private", ("42501",), Fault.MISCONFIGURED),
    "a database that is closed": ("trusted@{}/closed", ("55000",), Fault.UNAVAILABLE),
    "a role that is full": ("crowded@{}/postgres", ("53300",), Fault.UNAVAILABLE),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("words", [None, *WORDS], ids=["english", "german", "french", "japanese"])
def test_a_refusal_means_the_same_in_every_language(server: PostgresServer, name: str, words: str | None) -> None:
    place, codes, fault = REFUSED[name]
    between = None if words is None else OtherWords(server.port, words)
    try:
        port = server.port if between is None else between.port
        url = f"postgresql://{place.format(f'127.0.0.1:{port}')}?sslmode=disable&gssencmode=disable"
        with pytest.raises(sa.exc.OperationalError) as raised:
            log_engine(url).connect()
        assert fault_of(raised.value) is fault
        if between is not None:
            assert words is not None and words in str(raised.value)
            assert between.heard == 2, "once more, for the code"
        _, arguments = log_engine(url).dialect.create_connect_args(sa.make_url(url))
        assert refusals(arguments) == codes
        with pytest.raises(ConfigurationError if fault is Fault.MISCONFIGURED else LogUnavailable):
            open_store(url)
    finally:
        if between is not None:
            between.close()


def test_the_server_is_asked_no_second_time_if_it_is_understood_or_away(server: PostgresServer) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    assert refusals({"host": "127.0.0.1", "port": port, "dbname": "postgres"}) == ()
    assert refusals({"host": "127.0.0.1", "port": server.port, "dbname": "postgres", "sslmode": "no"}) == ()
    at_home = {"host": "127.0.0.1", "port": server.port, "dbname": "postgres", "user": "trusted"}
    assert refusals(at_home) == (), "it lets us in by now"
    many = at_home | {"host": "127.0.0.1,127.0.0.1", "port": f"{server.port},{port}", "user": "none"}
    assert refusals(many) == ("28000",)


def test_a_server_that_says_nothing_is_not_waited_for_for_long() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        assert refusals({"host": "127.0.0.1", "port": silent.getsockname()[1], "dbname": "d", "user": "u"}) == ()


def test_one_host_that_is_only_full_is_waited_for() -> None:
    assert is_for_person(("28P01", "3D000")) and not is_for_person(("28P01", "53300")) and not is_for_person(())
