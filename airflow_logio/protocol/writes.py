"""Write actions of one connection on their way to the external system: Algorithms 5 and 8 for groups of actions.

Groups are applied one at a time and in order. The numbers in a group have no gaps; the external system applies and marks
the group in one step.

`WriteQueue` is a state machine: a writer thread of a driver and the simulator take the steps that `WriteQueue.wants` names.
An action is taken after the commit that logged it, applied, and only then reported done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar

from airflow_logio.errors import LogInconsistent, ProtocolViolation
from airflow_logio.protocol.values import FIRST_EVENT_ID, Value

GROUP_RECORDS = 100_000
MAX_ACTIONS_WAITING = 8_192
MAX_BYTES_WAITING = 64 * 2**20

CLOSE = "close"
"""``action`` in the header of a closing write action."""

WriterKey = tuple[str, str]
"""(operator, connection)"""


class PendingWrite(Value, frozen=True):
    """An undone write action, as EVENT_LOG and EVENT_DATA hold it."""

    operator: str
    connection: str
    number: int
    header: Mapping[str, Any]
    records: int
    body: bytes
    ref: str | None = None
    """Reference into the payload store, if the body is there and `body` is empty."""
    hidden: ClassVar[tuple[str, ...]] = ("body",)


class Described(Protocol):
    """A write action: on its way to the log, or in it."""

    @property
    def header(self) -> Mapping[str, Any]: ...


def is_closing(write: Described) -> bool:
    """Whether it is the last of its operator, with which those that were held are applied."""
    return write.header.get("action") == CLOSE


class Numbered(Protocol):
    """A write action, in the log or on its way to the external system."""

    @property
    def operator(self) -> str: ...
    @property
    def connection(self) -> str: ...
    @property
    def number(self) -> int: ...


Action = TypeVar("Action", bound=Numbered)


def check_gapless(writes: Sequence[Numbered]) -> None:
    """Refuse a group with a gap: the marker would pass an action that was never applied."""
    for before, after in pairwise(writes):
        check_next(before.number, after)


def check_next(number: int, after: Numbered) -> None:
    """Refuse a write action that does not come right behind `number`."""
    if after.number != number + 1:
        raise LogInconsistent(
            f"write actions of {after.operator!r} on {after.connection!r} jump from {number} to {after.number}"
        )


def unapplied(writes: Sequence[Action], marker: int) -> Sequence[Action]:
    """Algorithm 8 Step 2: the actions beyond the external system's marker; those at or below it have succeeded."""
    if writes and marker + 1 < writes[0].number:
        first = writes[0]
        raise LogInconsistent(
            f"connection {first.connection!r} has applied write actions of {first.operator!r} up to {marker}, but the log "
            f"holds {first.number} as the next one: was the external system restored from an older copy?"
        )
    return [write for write in writes if write.number > marker]


class WriteStep(Enum):
    """What a writer does with the actions that it has taken."""

    COMPARE = auto()
    """Read the marker, without applying anything: is it ahead of the log?"""
    WAIT = auto()
    """Wait until the log knows that it is not (ADR-88)."""
    APPLY = auto()
    """Keep trying until the external system has applied all of them: `WriteQueue.taken`, or `WriteQueue.group`."""
    REPORT = auto()
    """Tell the loop, which logs their success (Algorithm 5 Step 3)."""


ORDER = (WriteStep.APPLY, WriteStep.REPORT)


FIRST = (WriteStep.COMPARE, WriteStep.WAIT)
"""Before the first actions of an epoch are applied to a conditional system."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Write actions `first` to `last` have succeeded."""

    operator: str
    connection: str
    first: int
    last: int
    records: int


@dataclass(frozen=True, slots=True)
class Compared:
    """The marker of a writer is not ahead of the log."""

    operator: str
    connection: str


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Write actions `first` to `last`, which the external system applies as one. The log has all of them.

    Once it can be taken, the last one closes.
    """

    first: int
    last: int
    records: int
    outside: int = 0
    """How many of them have their body outside of the log."""


def extended(group: HeldGroup | None, write: PendingWrite) -> HeldGroup:
    """The held write actions with one more. Raises `LogInconsistent` for a gap."""
    outside = int(write.ref is not None)
    if group is None:
        return HeldGroup(write.number, write.number, write.records, outside)
    check_next(group.last, write)
    return HeldGroup(group.first, write.number, group.records + write.records, group.outside + outside)


def divided(writes: Iterable[PendingWrite]) -> tuple[Sequence[PendingWrite], HeldGroup | None]:
    """Pending write actions of one writer, in order: the opening and the closing one, and those that are held between them.

    Raises `LogInconsistent` for a gap.
    """
    around: list[PendingWrite] = []
    group: HeldGroup | None = None
    for write in writes:
        if write.number == FIRST_EVENT_ID or is_closing(write):
            around.append(write)
        else:
            group = extended(group, write)
    return around, group


class Held:
    """Write actions that wait in the log for the closing one. Nothing is kept of each: only how many there are."""

    def __init__(self) -> None:
        self._group: HeldGroup | None = None
        self._closed = False

    def resume(self, group: HeldGroup) -> None:
        """The log held these when the group was rebuilt. They come before any others."""
        if self._group is not None:
            raise ProtocolViolation("write actions are held before those that the log had already")
        self._group = group

    def add(self, writes: Sequence[PendingWrite]) -> Iterator[PendingWrite]:
        """Hold them, in order. Passes on the opening action, which is not held, and the closing one, which ends the wait.

        Raises `LogInconsistent` for a gap, and for an action behind the closing one.
        """
        for write in writes:
            if write.number == FIRST_EVENT_ID:
                yield write
                continue
            if self._closed:
                raise LogInconsistent(
                    f"write action {write.number} of {write.operator!r} on {write.connection!r} is behind the closing one"
                )
            self._group = extended(self._group, write)
            if is_closing(write):
                self._closed = True
                yield write

    @property
    def count(self) -> int:
        return 0 if self._group is None else self._group.last - self._group.first + 1

    @property
    def group(self) -> HeldGroup:
        """All that is to be applied as one."""
        if self._group is None or not self._closed:
            raise ProtocolViolation("held write actions are taken before the closing one is there")
        return self._group


class WriteQueue:
    """What is pending, what was taken, and how many actions the loop has not seen succeed.

    `compares`: the external system has a marker, which is compared with the log before anything is applied. `holds`: nothing
    is applied between the opening action and the closing one, and what is between them is applied with it, as one group
    (Algorithm 5). Those are numbers here: their bodies are in the log.
    """

    def __init__(self, operator: str, connection: str, *, compares: bool = False, holds: bool = False) -> None:
        self.key: WriterKey = (operator, connection)
        self.pending: deque[PendingWrite] = deque()
        self.taken: list[PendingWrite] = []
        """What was taken. Of a `group`, only the closing action."""
        self.group: HeldGroup | None = None
        """The held write actions that were taken, closing one included; None for any others."""
        self.recovered = 0
        """Actions up to this number were pending when the group was rebuilt: an earlier driver may have applied them."""
        self.log_end: int | None = None
        """What the marker is compared with: the last number that the log had given out when nothing was applied since."""
        self._compares = compares
        self._held = Held() if holds else None
        self._bytes = 0
        self._outstanding = 0
        self._left: list[WriteStep] = []

    @property
    def wants(self) -> WriteStep | None:
        """The next step for the actions taken; None if none are."""
        return self._left[0] if self._left else None

    def add(
        self,
        writes: Sequence[PendingWrite],
        *,
        recovered: bool = False,
        log_end: int = 0,
        held: HeldGroup | None = None,
    ) -> None:
        """Hand over actions that are in the log; `recovered` ones were there when the group was rebuilt (Algorithm 8).
        The same `log_end` comes with all of them. `held`: those that a queue which holds does not get as `writes`.

        Raises `LogInconsistent` for a gap.
        """
        self.log_end = log_end
        if held is not None:
            if self._held is None:
                raise ProtocolViolation(f"writer {self.key} holds no write actions")
            self._held.resume(held)
            self._outstanding += held.last - held.first + 1
            self.recovered = held.last
        pending = writes if self._held is None else list(self._held.add(writes))
        self.pending.extend(pending)
        self._bytes += sum(len(write.body) for write in pending)
        self._outstanding += len(writes)
        if recovered and writes:
            self.recovered = max(self.recovered, writes[-1].number)

    def is_full(self) -> bool:
        """So much waits for the external system that the group should take no more events for now. What is held does not."""
        return len(self.pending) >= MAX_ACTIONS_WAITING or self._bytes >= MAX_BYTES_WAITING

    def is_idle(self) -> bool:
        """The loop has seen everything succeed that was handed over."""
        return self._outstanding == 0

    def has_opened(self) -> bool:
        """The loop has seen everything succeed that is not held: of a queue that holds, the opening action."""
        return self._outstanding == (0 if self._held is None else self._held.count)

    def take(self, most_actions: int) -> list[PendingWrite]:
        """The next group of actions, in order; empty if none is pending. A large body is taken alone, to spare memory.

        Of a queue that holds: the opening action, and then the closing one, which stands for all of `group`.
        """
        if self._left:
            raise ProtocolViolation(f"writer {self.key} takes actions before it has reported the last ones")
        self.taken, self.group = [], None
        if self._held is not None:
            most_actions = 1
        records = 0
        while self.pending and len(self.taken) < most_actions and records < GROUP_RECORDS:
            write = self.pending.popleft()
            self.taken.append(write)
            records += write.records
            self._bytes -= len(write.body)
            if write.ref is not None:
                break
        if self._held is not None and self.taken and is_closing(self.taken[0]):
            self.group = self._held.group
        first = FIRST if self._compares else ()
        self._left = [*first, *ORDER] if self.taken else []
        return self.taken

    def compared(self) -> Compared:
        """The marker is not ahead of the log: the report to the loop, which logs it, and then says `release`."""
        self._done(WriteStep.COMPARE)
        return Compared(*self.key)

    def release(self) -> None:
        """The log knows that the marker was compared."""
        self._done(WriteStep.WAIT)
        self._compares = False

    def applied(self) -> None:
        """The external system has applied all that was taken."""
        self._done(WriteStep.APPLY)

    def report(self) -> Applied:
        """The report to the loop."""
        self._done(WriteStep.REPORT)
        if (group := self.group) is not None:
            return Applied(*self.key, group.first, group.last, group.records)
        first, last = self.taken[0], self.taken[-1]
        return Applied(*self.key, first.number, last.number, sum(write.records for write in self.taken))

    def _done(self, step: WriteStep) -> None:
        if self.wants is not step:
            raise ProtocolViolation(f"writer {self.key}: {step.name} is not the next step; that is {self.wants}")
        self._left.pop(0)

    def settle(self, applied: Applied) -> None:
        """The loop has noted the result."""
        self._outstanding -= applied.last - applied.first + 1
