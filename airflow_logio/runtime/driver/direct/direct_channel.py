"""The direct channel of one incarnation: it hands over what its replay operators make, and asks those of other groups."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from airflow_logio.databases import read_url
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.replicas import Slot, slot_of
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.driver.direct.direct_bodies import DirectBodies, Peer
from airflow_logio.runtime.driver.direct.kept_bodies import KeptBodies
from airflow_logio.store.address_port import AddressBook, DirectAddress
from airflow_logio.store.records import GroupRef

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
ASKED_SECONDS, LINGER_SECONDS = 20.0, 120.0
"""A driver that has finished stays for receivers that lag: while one asks now and then, and no longer than that in all."""
LOOK_SECONDS = 0.1
OWNERS_KNOWN_SECONDS = 5.0
"""For so long the owner of a slot is not asked for again. Who has lost it answers that it has no such body."""
POSTGRES_PORT = 5432


class DirectChannel:
    """A cache of what receivers can make themselves: whatever fails here costs time, and nothing else (ADR-107).

    `slots_of`: replicated group → its slots with their owners.
    """

    def __init__(
        self, pipeline: Pipeline, ref: GroupRef, book: AddressBook, slots_of: Callable[[str], Sequence[Slot]]
    ) -> None:
        self._pipeline = pipeline
        self._ref = ref
        self._book = book
        self._slots_of = slots_of
        self._senders = senders_of(pipeline, ref.group)
        self._kept = KeptBodies()
        self._peers: dict[str, Peer] = {}
        self._owners: dict[str, tuple[float, dict[int, str | None]]] = {}
        self._server: object | None = None
        self._offers: list[DirectBodies] = []
        self._has_finished = False

    # --- what this driver has made ------------------------------------------------------------------------------------

    def start(self, log_url: str) -> None:
        """Serve, and say so in the log; needless where no other group gets events of a replay operator."""
        if not self._senders:
            return
        try:
            self._serve(host_towards(log_url))
        except (ImportError, pa.ArrowException, OSError, LogUnavailable) as error:
            log.warning(
                "group %s hands over no records directly, and receivers make them again from the log: %s: %s",
                *(self._ref.group, type(error).__name__, error),
            )

    def _serve(self, host: str) -> None:
        from airflow_logio.runtime.driver.direct.body_server import BodyServer
        from airflow_logio.runtime.driver.direct.credentials import new_credentials

        credentials = new_credentials()
        self._server = server = BodyServer(self._kept, credentials, host)
        address = DirectAddress(self._ref.incarnation, server.uri, credentials.certificate.decode(), credentials.token)
        self._book.put(self._ref, address)
        log.info("group %s hands over records directly at %s", self._ref.group, server.uri)

    def keep(self, sender: Port, digest: bytes, table: pa.Table) -> None:
        """An event that is about to be logged without its body."""
        if self._server is not None and sender in self._senders:
            self._kept.put(digest, table, self._senders[sender])

    def may_linger(self) -> None:
        """The group has finished: receivers that lag may still want what they would have to make themselves."""
        self._has_finished = True

    def _linger(self) -> None:
        ends_at = time.monotonic() + LINGER_SECONDS
        while self._server is not None and self._kept.are_wanted(ASKED_SECONDS) and time.monotonic() < ends_at:
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Waits for those who are being answered, and where the group has finished for those who will ask."""
        if self._has_finished:
            self._linger()
        if count := sum(one.count for one in self._offers):
            log.info("%d events of replay operators came directly", count)
        for peer in self._peers.values():
            peer.close()
        if self._server is not None:
            stopping = threading.Thread(target=self._server.shutdown, name="logio-direct", daemon=True)  # type: ignore[attr-defined]
            stopping.start()
            stopping.join(SHUTDOWN_SECONDS)

    # --- what others have made ----------------------------------------------------------------------------------------

    def offers(self) -> DirectBodies:
        """For one epoch."""
        self._offers.append(DirectBodies(self._peer_of))
        return self._offers[-1]

    def _peer_of(self, operator: str) -> Peer | None:
        application = self._application_of(operator)
        if application is None or application == self._ref.group:
            return None
        if application not in self._peers:
            address = partial(self._book.of_group, self._ref.run_id, application)
            self._peers[application] = Peer(application, address)
        return self._peers[application]

    def _application_of(self, operator: str) -> str | None:
        home, slot = self._pipeline.home(operator), slot_of(operator)
        if slot is None:
            return home
        asked_at, owners = self._owners.get(home, (float("-inf"), {}))
        if time.monotonic() - asked_at > OWNERS_KNOWN_SECONDS:
            try:
                owners = {one.number: one.owner for one in self._slots_of(home)}
            except LogUnavailable as error:
                log.debug("the owners of the slots of %s are not known: %s", home, error)
            self._owners[home] = time.monotonic(), owners
        return owners.get(slot)


def senders_of(pipeline: Pipeline, application: str) -> Mapping[Port, int]:
    """The ports of replay operators of an application whose events go to other groups, and to how many."""
    group = pipeline.group_of(application).name
    found = {}
    for name, operator in pipeline.operators.items():
        if pipeline.home(name) == group and pipeline.replays(name):
            for port in (Port(name, output) for output in operator.outputs):
                if others := {pipeline.home(to.operator) for to in pipeline.receivers(port)} - {group}:
                    found[port] = len(others)
    return found


def host_towards(log_url: str) -> str:
    """The address of this host by which it reaches the log: who reaches the log as well is likely to reach it, too.

    No other address of the host is listened on. Raises OSError.
    """
    url = read_url(log_url)
    host = url.host or next(iter(_listed(url.query.get("host"))), "")
    if not host or host.startswith("/"):  # a file, or a socket of this host
        return "127.0.0.1"
    kind, _, _, _, address = socket.getaddrinfo(host, url.port or POSTGRES_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as found:
        found.connect(address)  # sends nothing
        return str(found.getsockname()[0])


def _listed(value: str | Sequence[str] | None) -> Sequence[str]:
    return () if value is None else value.split(",") if isinstance(value, str) else value
