"""Keeps the address of one incarnation in the log: its row is not durable there, and a log may be unavailable at first."""

from __future__ import annotations

import logging
import threading

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.store.port.unfenced_port import AddressBook, DirectAddress
from airflow_logio.store.records.driver_records import GroupRef

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""Between two looks at what the log says; its server may have lost the row with its machine, or a file was made anew."""


class Announcement:
    """Of an address, from `begin` to `end`, or until a later incarnation has one."""

    def __init__(
        self, book: AddressBook, ref: GroupRef, address: DirectAddress, *, seconds: float = LOOK_SECONDS
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
        """The thread may still wait for the log; it changes nothing afterwards that anybody relies on."""
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
