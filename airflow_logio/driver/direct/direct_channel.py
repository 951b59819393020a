"""The direct channel of one incarnation: it hands over what its replay operators make, and asks those of other groups."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_logio.databases import read_url
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver.direct.direct_bodies import DirectBodies, KeptBodies, Peer, reason
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.replicas import replicated_group, slot_of
from airflow_logio.protocol.states import ENDED
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import LINGER_SECONDS, AddressBook, DirectAddress
from airflow_logio.store.records.driver_records import GroupRef

if TYPE_CHECKING:
    from airflow_logio.driver.direct.flight import BodyServer

log = logging.getLogger(__name__)
SHUTDOWN_SECONDS = 2.0
LOOK_SECONDS = 0.5
"""Between two looks at whether receivers have ended."""
OWNERS_KNOWN_SECONDS = 5.0
"""For so long the owner of a slot is not asked for again. A replica that has lost it answers that it has no such body."""
CHECK_SECONDS = 30.0
"""Between two looks at what the log says; its server may have lost the row with its machine, or a file was made anew."""
POSTGRES_PORT = 5432
THIS_HOST = "127.0.0.1"


class DirectChannel:
    """A cache of what receivers can make themselves: whatever fails here costs time, and nothing else (ADR-107).

    Its methods raise nothing.
    """

    def __init__(self, pipeline: Pipeline, ref: GroupRef, store: LogStore) -> None:
        self._pipeline = pipeline
        self._ref = ref
        self._store = store
        self._senders = senders_of(pipeline, ref.group)
        self._kept = KeptBodies()
        self._peers: dict[str, Peer] = {}
        self._owners: dict[str, tuple[float, dict[int, str | None]]] = {}
        self._server: BodyServer | None = None
        self._announcement: Announcement | None = None
        self._offers: DirectBodies | None = None
        """Those of the present epoch."""
        self._came_before = 0
        """Events whose bodies came directly in earlier epochs."""
        self._has_finished = False

    # --- what this driver has made ------------------------------------------------------------------------------------

    def start(self, log_url: str) -> None:
        """Serve, and say so in the log; needless where no other group gets events of a replay operator."""
        if not self._senders:
            return
        try:
            self._serve(host_towards(log_url))
        except (ImportError, pa.ArrowException, OSError, LogioError) as error:
            log.warning(
                "group %s hands over no records directly. Receivers make them again from the log, and nothing is lost: %s",
                *(self._ref.group, reason(error)),
            )

    def _serve(self, host: str) -> None:
        from airflow_logio.driver.direct.flight import BodyServer, new_credentials

        credentials = new_credentials()
        server = BodyServer(self._kept.body, credentials, host)
        address = DirectAddress(
            self._ref.incarnation,
            server.uri,
            credentials.server.certificate.decode(),
            credentials.client.certificate.decode(),
            credentials.client.key.decode(),
            credentials.token,
        )
        announcement = Announcement(self._store.addresses, self._ref, address)
        try:
            announcement.begin()
        except LogioError:
            server.shutdown()
            raise
        self._server, self._announcement = server, announcement

    def keep(self, sender: Port, digest: bytes, table: pa.Table) -> None:
        """An event that is about to be logged without its body."""
        if self._server is not None and sender in self._senders:
            self._kept.put(digest, table, self._senders[sender])

    def may_linger(self) -> None:
        """The group has finished: receivers that lag may still want what they would have to make themselves."""
        self._has_finished = True

    def say(self) -> None:
        """How much has come, where another driver was to be asked."""
        if self._peers:
            log.info("%d events of replay operators came directly", self._came())

    def stop(self) -> None:
        """Waits for those who are being answered, and where the group has finished for those who will ask."""
        if self._server is not None:
            if self._has_finished:
                self._linger()
            if self._announcement is not None:
                self._announcement.end()
            stopping = threading.Thread(target=self._server.shutdown, name="logio-direct", daemon=True)
            stopping.start()
            stopping.join(SHUTDOWN_SECONDS)
        for peer in self._peers.values():
            peer.close()

    def _linger(self) -> None:
        ends_at = time.monotonic() + LINGER_SECONDS
        while self._kept.are_wanted() and self._a_receiver_works() and time.monotonic() < ends_at:
            self._kept.wait_until_asked(LOOK_SECONDS)

    def _a_receiver_works(self) -> bool:
        """Whether a group that gets events of this one has not ended."""
        to = {
            self._pipeline.home(port.operator) for sender in self._senders for port in self._pipeline.receivers(sender)
        }
        try:
            groups = self._store.groups(self._ref.run_id)
        except LogioError:
            return True  # for as long as it is waited for
        return any(replicated_group(one.group) in to and one.state not in ENDED for one in groups)

    # --- what others have made ----------------------------------------------------------------------------------------

    def offers(self) -> DirectBodies:
        """For one epoch, which is the last one from now on."""
        self._came_before = self._came()
        self._offers = DirectBodies(self._peer_of)
        return self._offers

    def _came(self) -> int:
        return self._came_before + (0 if self._offers is None else self._offers.count)

    def _peer_of(self, operator: str) -> Peer | None:
        application = self._application_of(operator)
        if application is None or application == self._ref.group:
            return None
        if application not in self._peers:
            address = partial(self._store.addresses.of_group, self._ref.run_id, application)
            self._peers[application] = Peer(application, address)
        return self._peers[application]

    def _application_of(self, operator: str) -> str | None:
        home, slot = self._pipeline.home(operator), slot_of(operator)
        if slot is None:
            return home
        asked_at, owners = self._owners.get(home, (float("-inf"), {}))
        if time.monotonic() - asked_at > OWNERS_KNOWN_SECONDS:
            try:
                owners = {one.number: one.owner for one in self._store.slots(self._ref.run_id, home)}
            except LogioError as error:
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


class Announcement:
    """Keeps the address of one incarnation in the log from `begin` to `end`, or until a later incarnation has one.

    Its row is not durable there, and a log may be unavailable at first.
    """

    def __init__(
        self, book: AddressBook, ref: GroupRef, address: DirectAddress, *, seconds: float = CHECK_SECONDS
    ) -> None:
        self._book = book
        self._ref = ref
        self._address = address
        self._seconds = seconds
        self._ended = threading.Event()
        self._was_said = False
        self._failed = ""

    def begin(self) -> None:
        """The first time in this thread, so that receivers know it from the beginning. Raises what no other try mends."""
        if self._is_there_to_stay():
            threading.Thread(target=self._keep, name="logio-address", daemon=True).start()

    def end(self) -> None:
        """The thread may still wait for the log; afterwards it changes nothing that matters."""
        self._ended.set()

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                if not self._is_there_to_stay():
                    return
            except LogioError as error:
                log.warning("the address of group %s is no longer looked after: %s", self._ref.group, error)
                return

    def _is_there_to_stay(self) -> bool:
        """Look, and put the address where it is not; False if a later incarnation has taken its place."""
        group, address = self._ref.group, self._address
        try:
            found = self._book.of_group(self._ref.run_id, group)
            if found is not None and found.incarnation > address.incarnation:
                log.info("group %s has a later driver than incarnation %d", group, address.incarnation)
                return False
            if found != address:
                self._book.put(self._ref, address)
        except LogUnavailable as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning(
                    "the address of group %s is not in the log yet: %s. It is tried again; until then receivers make its "
                    "records again from the log, and nothing is lost",
                    *(group, error),
                )
            return True
        if found != address:
            how = "directly again at" if self._was_said else "directly at"
            log.info("group %s hands over records %s %s", group, how, address.location)
            self._was_said = True
        return True


def host_towards(log_url: str) -> str:
    """The address of this host by which it reaches the log: a process that reaches the log, too, is likely to reach it.

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
