"""A way to a server that is cut: no connection is taken, or those end that ask for a certain thing, or its answer is lost.
Or it is slow."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.listening import Listener, cut

HELD_PAGE = re.compile(rb"SELECT \S*event_id, \S*size\s")
"""How the log is asked for held write actions."""


class Relay:
    """Passes bytes on to a port of this machine.

    `cut` is what requests look like whose connections end, `slow` what those look like that wait until `quick` lets one pass.
    `unanswered` is what a request looks like that is passed on, once, and whose answer is lost.
    `lost` are pairs: on a connection that has asked for the first, the second is passed on, and its answer is lost.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut: re.Pattern[bytes] | None = None
        self.cuts = 0
        self.slow: re.Pattern[bytes] | None = None
        self.slowed = 0
        self.quick = threading.Semaphore(0)
        self.unanswered: re.Pattern[bytes] | None = None
        self.lost: list[tuple[re.Pattern[bytes], re.Pattern[bytes]]] = []
        self.edit: Callable[[bytes], bytes] = bytes
        """What is passed on in place of some bytes of requests."""
        self._listener = Listener(self._serve)
        self.port = self._listener.port
        self.cut_all = self._listener.cut_all

    def close(self) -> None:
        self.slow = None
        self.quick.release(self.slowed + 1)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        server = self._listener.keep(socket.create_connection(("127.0.0.1", self._port)))
        self._listener.begin(self._pass, server, client, False)
        self._pass(client, server, True)

    def _pass(self, source: socket.socket, target: socket.socket, is_asked: bool) -> None:
        begun = None
        with suppress(OSError):
            while data := source.recv(65_536):
                data = self.edit(data) if is_asked else data
                if is_asked and self.cut is not None and self.cut.search(data):
                    self.cuts += 1
                    break
                if is_asked and self.slow is not None and self.slow.search(data):
                    self.slowed += 1
                    self.quick.acquire()
                if is_asked and self.unanswered is not None and self.unanswered.search(data):
                    self.unanswered = None
                    source.shutdown(socket.SHUT_RDWR)  # it hears nothing any more
                    target.sendall(data)
                    break
                if is_asked and begun is None:
                    begun = next((pair for pair in self.lost if pair[0].search(data)), None)
                elif is_asked and begun in self.lost and begun[1].search(data):
                    self.lost.remove(begun)
                    source.shutdown(socket.SHUT_RDWR)  # it hears nothing any more
                    target.sendall(data)
                    break
                target.sendall(data)
        for one in (source, target):
            cut(one)


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    made = Relay(port)
    try:
        yield made
    finally:
        made.close()
