"""A server of a test's own: it takes connections in threads, and when it is closed, all of them have ended."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Socket = TypeVar("Socket", bound=socket.socket)


class Listener:
    """Serves each connection to a port of this machine in a thread of its own. An OSError of a socket ends its thread."""

    def __init__(self, serve: Callable[[socket.socket], None], port: int = 0, host: str = "127.0.0.1") -> None:
        """`serve` takes the connection, and need not close it. Raises OSError if the port is taken."""
        self._serve = serve
        self._socket = socket.create_server((host, port))
        self.port: int = self._socket.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.begin(self._accept)

    def begin(self, work: Callable[..., object], *arguments: Any) -> None:
        """In a thread that reads from and writes to what is kept."""
        thread = threading.Thread(target=self._until_cut, args=(work, *arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def keep(self, one: Socket) -> Socket:
        """It is cut, and closed, with this."""
        self._open.append(one)
        return one

    def cut_all(self) -> None:
        """All connections end."""
        for one in tuple(self._open):
            cut(one)

    def close(self) -> None:
        cut(self._socket)
        while any(thread.is_alive() for thread in tuple(self._threads)):  # one of them may just have begun another
            self.cut_all()
            for thread in tuple(self._threads):
                thread.join(0.1)
        for one in (self._socket, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.begin(self._serve, self.keep(connection))

    @staticmethod
    def _until_cut(work: Callable[..., object], *arguments: Any) -> None:
        with suppress(OSError):
            work(*arguments)


def cut(one: socket.socket) -> None:
    """Whoever reads from it, on either side, gets to its end."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def pipe(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends; then both do."""
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for one in (source, target):
        cut(one)
