"""What the log keeps beside the protocol: what drivers print, and where they hand over bodies (ADR-98, ADR-107)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_logio.store.records.driver_records import GroupRef

KEPT_INCARNATIONS = 3
"""Incarnations of a group whose output is kept, beside the present one."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Some lines of a driver's log, without its secrets."""

    group: str
    incarnation: int
    number: int
    """Parts of an incarnation count from 1."""
    position: int
    """Bytes of the driver's file that this part and those before it stand for, since the file was last emptied."""
    mark: str
    """What tells whether the file still has what this part ends with (`driver_log.mark_of`)."""
    at: float
    """When it was written, by the clock of the log."""
    text: str


class OutputLog(ABC):
    """Nothing depends on these rows: they are not fenced, and may be lost when the server stops."""

    @abstractmethod
    def add(self, ref: GroupRef, number: int, position: int, text: str, *, mark: str = "", oldest: int = 1) -> None:
        """Keep part `number`, unless there is one already, and remove those below `oldest`. With its first part, those of
        incarnations more than `KEPT_INCARNATIONS` before are removed. Raises `LogUnavailable`."""

    @abstractmethod
    def parts(
        self, run_id: int, group: str, incarnation: int, *, after: int = 0, most: int | None = None
    ) -> Sequence[OutputPart]:
        """The parts of one driver behind number `after`, in order; of those the last `most`, if that is given."""

    @abstractmethod
    def written_since(self, run_ids: Collection[int], at: float, *, most: int) -> Mapping[int, Sequence[OutputPart]]:
        """Run → the parts written later than `at`, at most the last `most` of each driver, in the order of their drivers."""


LINGER_SECONDS = 120.0
"""How long a driver whose group has finished may stay for receivers that lag."""


@dataclass(frozen=True, slots=True)
class DirectAddress:
    """Where one incarnation of a group can be asked, by any process that can read the log and by no other."""

    incarnation: int
    location: str
    """A URI, ``grpc+tls://host:port``."""
    certificate: str
    """The driver's, in PEM: no other is trusted there."""
    client_certificate: str = field(repr=False)
    client_key: str = field(repr=False)
    """What a client shows, in PEM."""
    token: str = field(repr=False)


class AddressBook(ABC):
    """Nothing depends on these rows: they are not fenced, and may be lost when the server stops."""

    @abstractmethod
    def put(self, ref: GroupRef, address: DirectAddress) -> None:
        """The address of the group from now on, unless a later incarnation has one. Raises `LogUnavailable`."""

    @abstractmethod
    def of_group(self, run_id: int, group: str) -> DirectAddress | None:
        """The last one of a group, or of a replica. Raises `LogUnavailable`."""
