"""A way to a server that is cut: no connection is taken, or those end that ask for a certain thing."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Passes bytes on to a port of this machine. `cut` is what requests look like whose connections end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut: re.Pattern[bytes] | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # who waits for a connection notices
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target, source is client), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_asked: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_asked and self.cut is not None and self.cut.search(data):
                    self.cuts += 1
                    break
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    made = Relay(port)
    try:
        yield made
    finally:
        made.close()
