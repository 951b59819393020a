"""Where a driver listens for those who ask for bodies."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from airflow_logio.databases import read_url

POSTGRES_PORT = 5432
THIS_HOST = "127.0.0.1"


def host_towards(log_url: str) -> str:
    """The address of this host by which it reaches the log: who reaches the log as well is likely to reach it, too.

    No other address of the host is listened on. Raises OSError if there is no way to the log.
    """
    failed: OSError | None = None
    for host, port in _servers(log_url):
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError as error:
            failed = error
            continue
        for kind, _, _, _, address in known:
            try:
                with socket.socket(kind, socket.SOCK_DGRAM) as found:
                    found.connect(address)  # sends nothing
                    return str(found.getsockname()[0])
            except OSError as error:  # of IPv6, where this host has none
                failed = error
    if failed is not None:
        raise failed
    return THIS_HOST  # a file, or a socket of this host


def _servers(log_url: str) -> Iterator[tuple[str, int]]:
    """As libpq finds them in a URL: one in its middle, or several in its query, with ports of their own or without."""
    url = read_url(log_url)
    if url.host:
        yield url.host, url.port or POSTGRES_PORT
    for name in ("hostaddr", "host"):
        given = url.query.get(name, ())
        for one in given.split(",") if isinstance(given, str) else given:
            host, _, port = one.rpartition(":") if one.count(":") == 1 else (one, "", "")
            if host and not host.startswith("/"):
                yield host, int(port) if port.isdigit() else POSTGRES_PORT
