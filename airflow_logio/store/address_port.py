"""Where drivers hand over bodies directly: a small port of the log store (ADR-107)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from airflow_logio.store.records import GroupRef

LINGER_SECONDS = 120.0
"""For so long a driver whose group has finished may stay for receivers that lag."""


@dataclass(frozen=True, slots=True)
class DirectAddress:
    """Of one incarnation of a group. Any process that can read the log can ask there, and no other."""

    incarnation: int
    location: str
    """A URI, ``grpc+tls://host:port``."""
    certificate: str
    """Of the driver, in PEM: no other is trusted there."""
    client_certificate: str = field(repr=False)
    client_key: str = field(repr=False)
    """What those show who ask, in PEM."""
    token: str = field(repr=False)


class AddressBook(ABC):
    """Nothing depends on these rows: they are not fenced, and may be lost when the server stops."""

    @abstractmethod
    def put(self, ref: GroupRef, address: DirectAddress) -> None:
        """The address of the group from now on, unless a later incarnation has one. Raises `LogUnavailable`."""

    @abstractmethod
    def of_group(self, run_id: int, group: str) -> DirectAddress | None:
        """The last one of a group, or of a replica. Raises `LogUnavailable`."""
