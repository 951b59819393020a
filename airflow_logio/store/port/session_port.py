"""One incarnation's access to the log, as its driver uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.protocol.commit import CommitAttempt
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.recovery import LoggedEvent, Recovered
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.store.records.driver_records import FenceRow, GroupRef
from airflow_logio.store.records.run_records import Upstream
from airflow_logio.store.records.upkeep_records import Collected


@dataclass(frozen=True, slots=True)
class Fetched:
    """What waits for input ports."""

    events: Mapping[Port, Sequence[LoggedEvent]]
    is_all: bool = True
    """Nothing else waits for them."""


@dataclass(frozen=True, slots=True)
class Short:
    """Why an operator was not sent all that there is, although its inputs have ended. False if nothing is missing."""

    aside: Mapping[str, int]
    """Operator → how many of its Input Sets are set aside."""
    drained: Sequence[str] = ()
    """Groups whose sources were told to end early."""

    def __bool__(self) -> bool:
        return bool(self.aside or self.drained)

    def in_words(self) -> str:
        """What is missing, and what a person does about it."""
        missing = [f"{many:,} Input Sets of {name!r} are set aside" for name, many in self.aside.items()]
        missing += [f"group {name!r} was drained, so its sources ended early" for name in self.drained]
        way_out = "begin the partition again" if self.drained else "mend their cause, then `logio retry` puts them back"
        return f"{', and '.join(missing)}: {way_out}"


class GroupSession(ABC):
    """The log as one incarnation of a group sees it. `commit` belongs to one thread, the reads to another."""

    ref: GroupRef

    @abstractmethod
    def open(self, *, raise_epoch: bool = False) -> FenceRow:
        """Read the fence (and first raise the epoch, for a rebuild in place); later commits continue from it.

        Raises `Fenced` if the incarnation was replaced, or its group was halted, parked or retired meanwhile.
        """

    @abstractmethod
    def slots(self) -> Mapping[int, int]:
        """Slot → number of moves, for the slots that this replica owns and that are not done. Call it after `open`.

        A later move raises the epoch, so the answer holds as long as commits succeed. It is empty for a group that is
        not a replica.
        """

    @abstractmethod
    def commit(self, effects: Effects) -> tuple[Collected, ...]:
        """Apply effects in one transaction behind the fence (design D8), with LogEvent bodies serialized.

        Returns the results of its garbage-collection effects, in their order, or nothing if the acknowledgement was
        lost.

        Raises `Fenced`, `EpochVoid`, `LogInconsistent`. An unknown outcome is resolved (`resolve`), patiently.
        """

    @abstractmethod
    def resolve(self, attempt: CommitAttempt) -> bool:
        """Whether the commit whose outcome is unknown is in the log; if not, the same effects may be sent again.

        Takes the fence row's lock on a new connection, and so waits for the end of the old transaction. Raises `Fenced`,
        `EpochVoid`, `LogInconsistent`.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise `Fenced` or `EpochVoid` if a commit would be refused now: for a group that has nothing to commit."""

    @abstractmethod
    def check_patiently(self, still_wanted: Callable[[], bool]) -> None:
        """`check`. Waits for a log that is unavailable while it is `still_wanted`; then raises `LogUnavailable`."""

    @abstractmethod
    def fetch_all(self, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int) -> Fetched:
        """Undone, unassigned events of receiver ports, each beyond its cursor, in event_id order; at least one, if
        there is any.

        The result has at most `max_events` of each port, and at most `max_bytes` in total. The ports take turns in the
        order of `cursors`, one event each. The first event always fits; a port whose next event does not fit gets no
        more. So a port that got nothing is served if it comes first the next time. Ports that get nothing are left out.
        This is delivery, and the Resend step of Algorithms 6 and 7 (design D5).
        """

    def fetch(self, receiver: Port, after: int, *, max_events: int, max_bytes: int) -> Sequence[LoggedEvent]:
        """`fetch_all` of one port."""
        return self.fetch_all({receiver: after}, max_events=max_events, max_bytes=max_bytes).events.get(receiver, ())

    @abstractmethod
    def recover(self, operators: Sequence[str], held: Collection[WriterKey] = ()) -> Recovered:
        """Everything that recovery of these operators reads, in one consistent snapshot.

        Of the writers `held`, no bodies are read but those of the opening and of the closing write action. What it
        returns for them does not grow with the number of write actions.
        """

    @abstractmethod
    def held_writes(self, writer: WriterKey, after: int, last: int, *, max_bytes: int) -> Sequence[PendingWrite]:
        """Pending write actions of one writer with numbers beyond `after`, up to `last`, in order, so many as fit; at least
        one. Only the newest epoch gets them.

        Does not wait for a log that is unavailable: a transaction elsewhere may be open meanwhile. Raises `Fenced`,
        `EpochVoid`; `LogInconsistent` if the next one is not there.
        """

    @abstractmethod
    def input_sets(
        self, operator: str, insets: Sequence[str], max_bytes: int, *, still_wanted: Callable[[], bool] = lambda: True
    ) -> Mapping[str, Sequence[LoggedEvent]]:
        """What these were made of, as `Replay` wants it. Raises `LogInconsistent` if the first one is not there.

        Waits for a log that is unavailable while it is `still_wanted`.
        """

    @abstractmethod
    def acknowledged(self, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        """Counter rows of receiver ports, (events, bytes) acknowledged: the other half of back-pressure."""

    @abstractmethod
    def why_short(self, upstream: Upstream) -> Short:
        """What is missing from what came from `upstream`, as this epoch sees it: one statement, so one snapshot.

        Ask when all of `upstream` has ended, nothing of the group is under way, and the committer is idle. The answer then
        holds as long as commits of this epoch succeed: only a retry puts Input Sets back, and it voids the epoch of the
        group that asks. Raises `Fenced`, `EpochVoid`. Waits for a log that is unavailable.
        """

    @abstractmethod
    def park(self, error: str) -> None:
        """Give up for good: the group's state becomes parked, with the error. Raises `Fenced` if replaced."""

    @abstractmethod
    def park_short(self, cause: str) -> None:
        """As `park`, because of what `why_short` has found: void as a commit is once a retry has changed that.

        Raises `Fenced`, `EpochVoid`; then nothing is changed. Waits for a log that is unavailable.
        """

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Return when something new may be in the log for this group, or after `timeout` seconds."""

    @abstractmethod
    def will_hear(self) -> bool:
        """To be called when events were found: whether what is committed after that look ends the next `wait`.

        If not, look again before you wait. Where no one has announced what was found, the next `wait` asks again to be told.
        """

    @abstractmethod
    def announce(self, groups: Sequence[str]) -> None:
        """After a commit: wake these groups if they are parked in `wait`. Best effort: they poll anyway."""

    @abstractmethod
    def close(self) -> None:
        """End what waits, and close the connections that belong to this session alone."""
