"""Event ids of ports and numbers of write actions: allocated, then staged in a transaction, then logged; without a gap."""

from __future__ import annotations

from airflow_logio.errors import ApiMisuse
from airflow_logio.protocol.values import FIRST_EVENT_ID


class Ids:
    """`following` maps a port (or connection) to its next id as the LOG.io context stores it, and is kept up to date."""

    def __init__(self, what: str, following: dict[str, int]) -> None:
        self._what = what
        self._following = following
        self._allocated: dict[str, int] = {}
        self._staged: dict[str, int] = {}

    def last_logged(self, key: str) -> int:
        return self._following.get(key, FIRST_EVENT_ID) - 1

    def allocate(self, key: str) -> int:
        self._allocated[key] = self._allocated.get(key, self.last_logged(key)) + 1
        return self._allocated[key]

    def stage(self, key: str, event_id: int) -> None:
        """The next id of the port is used by the open transaction. Raises `ApiMisuse` for any other."""
        due = self._staged.get(key, self.last_logged(key)) + 1
        named = f"{self._what} {event_id} of {key!r}"
        if event_id < due:
            raise ApiMisuse(f"{named} is logged already: the next one is {due}, from get_event_id()")
        if event_id > self._allocated.get(key, due - 1):
            raise ApiMisuse(f"{named} has an id that get_event_id() has not given")
        if event_id > due:
            raise ApiMisuse(
                f"{named} would leave a gap: {due} is not logged, and receivers refuse what comes behind a gap"
            )
        self._staged[key] = event_id

    def settle(self) -> None:
        """What is staged is committed."""
        for key, event_id in self._staged.items():
            self._following[key] = event_id + 1
        self._staged.clear()

    def discard(self) -> None:
        """Give up what is staged or allocated: those ids will be allocated again."""
        self._staged.clear()
        self._allocated.clear()
